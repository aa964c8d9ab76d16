//! The objects of control planes on the host: what is read, applied and deleted.

use super::{APP_NAME, ClusterRuntime, Owner, RuntimeError, all_of, key, pod_selector, state};
use crate::{
    apply::{delete_same, is_status, optional},
    control_plane::{API_SERVER, Component},
};
use berth_api::{labels, names::TenantId, system};
use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    core::v1::{Pod, Secret, Service},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;
use std::{collections::BTreeMap, time::Duration};
use tokio::time::Instant;

/// Age at which the platform's image pull Secrets are read again.
const PULL_SECRETS_AGE: Duration = Duration::from_secs(60);
/// Secrets with files of a component above which those that nothing uses are deleted before a rollout has ended.
const MAX_FILES: usize = 8;
/// ReplicaSets of a component above which those without pods are deleted before a rollout has ended.
const MAX_REPLICA_SETS: usize = 8;
/// Value of [`APP_NAME`] on copies of image pull Secrets.
const PULL_SECRET: &str = "image-pull-secret";
/// Types of image pull Secrets.
const PULL_SECRET_TYPES: [&str; 2] = ["kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg"];

pub(super) fn select(labels: &BTreeMap<String, String>) -> ListParams {
    let parts: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    ListParams::default().labels(&parts.join(","))
}

pub(super) fn host_error(what: &'static str) -> impl FnOnce(kube::Error) -> RuntimeError {
    move |source| RuntimeError::Host {
        what,
        source: Box::new(source),
    }
}

/// Treats an object that does not exist as deleted.
pub(super) fn ignore_absence<T>(result: kube::Result<T>, what: &'static str) -> Result<(), RuntimeError> {
    optional(result).map(drop).map_err(host_error(what))
}

impl ClusterRuntime {
    pub(super) fn api<K>(&self, tenant: &TenantId) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.host.clone(), &tenant.control_plane_namespace())
    }

    /// Applies a Service and returns its address. Components use addresses of each other, so that they keep working when the
    /// host's DNS does not.
    pub(super) async fn apply_service(&self, owner: Owner<'_>, service: &Service) -> Result<String, RuntimeError> {
        let services: Api<Service> = self.api(owner.tenant);
        owner.host.apply(service).await?;
        let mut made = optional(services.get(&service.name_any()).await).map_err(host_error("read a Service"))?;
        if made.is_none() {
            // It was deleted since it was applied.
            owner.host.forget();
            owner.host.apply(service).await?;
            made = Some(
                services
                    .get(&service.name_any())
                    .await
                    .map_err(host_error("read a Service"))?,
            );
        }
        let address = made.and_then(|made| made.spec?.cluster_ip);
        address.ok_or_else(|| RuntimeError::Settings(format!("Service {} has no address", service.name_any())))
    }

    /// Copies the platform's image pull Secrets to the control-plane namespace.
    pub(super) async fn copy_pull_secrets(&self, owner: Owner<'_>) -> Result<(), RuntimeError> {
        let mut known = self.pull_secrets.lock().await;
        if known.as_ref().is_none_or(|(at, _)| at.elapsed() > PULL_SECRETS_AGE) {
            let ours: Api<Secret> = Api::namespaced(self.host.clone(), system::NAMESPACE);
            let mut read = Vec::new();
            for name in &self.settings.image_pull_secrets {
                read.push(ours.get(name).await.map_err(host_error("read a pull secret"))?);
            }
            *known = Some((Instant::now(), read));
        }
        let copies: Api<Secret> = self.api(owner.tenant);
        // The platform may have made its Secret again, with another type.
        let is_other = |live: &Secret, wanted: &Secret| live.type_ != wanted.type_ || live.immutable == Some(true);
        for secret in known.iter().flat_map(|(_, secrets)| secrets) {
            let mut labels = owner.labels.clone();
            labels.insert(APP_NAME.into(), PULL_SECRET.into());
            let copy = Secret {
                metadata: kube::api::ObjectMeta {
                    name: secret.metadata.name.clone(),
                    namespace: Some(owner.tenant.control_plane_namespace()),
                    labels: Some(labels),
                    ..kube::api::ObjectMeta::default()
                },
                data: secret.data.clone(),
                type_: secret.type_.clone(),
                ..Secret::default()
            };
            owner.host.apply_or_replace(&copies, &copy, is_other).await?;
        }
        Ok(())
    }

    /// Deletes the copies of image pull Secrets that the platform does not name any more: their credentials are not to be found in every tenant's namespace.
    async fn delete_old_pull_secrets(&self, tenant: &TenantId) -> Result<(), RuntimeError> {
        let named: Vec<&str> = self.settings.image_pull_secrets.iter().map(String::as_str).collect();
        self.delete_secrets(tenant, PULL_SECRET, &named).await?;
        // Copies that control has made before they had this label. Whatever else has labels of the tenant is of another type.
        let secrets: Api<Secret> = self.api(tenant);
        let typed = secrets.list(&all_of(tenant).fields("type!=Opaque")).await;
        for secret in typed.map_err(host_error("list image pull Secrets"))? {
            let name = secret.name_any();
            let is_copy = secret
                .type_
                .is_some_and(|kind| PULL_SECRET_TYPES.contains(&kind.as_str()));
            if is_copy && !named.contains(&name.as_str()) {
                let deleted = secrets.delete(&name, &DeleteParams::default()).await;
                ignore_absence(deleted, "delete the copy of an image pull Secret")?;
            }
        }
        Ok(())
    }

    /// Applies a Deployment and the Secret with its files, and returns the Deployment with its status.
    pub(super) async fn apply_deployment(
        &self,
        owner: Owner<'_>,
        files: &Secret,
        desired: &Deployment,
    ) -> Result<Deployment, RuntimeError> {
        let deployments: Api<Deployment> = self.api(owner.tenant);
        let name = desired.name_any();
        owner.host.apply(files).await?;
        owner.host.apply(desired).await?;
        if let Some(made) = optional(deployments.get(&name).await).map_err(host_error("read a Deployment"))? {
            return Ok(made);
        }
        // It was deleted since it was applied.
        owner.host.forget();
        owner.host.apply(files).await?;
        owner.host.apply(desired).await?;
        deployments.get(&name).await.map_err(host_error("read a Deployment"))
    }

    /// Deletes what only earlier pods of the component needed. The rollout must be complete.
    pub(super) async fn delete_outdated_objects(
        &self,
        owner: Owner<'_>,
        component: &Component,
        files: &str,
    ) -> Result<(), RuntimeError> {
        let tenant = owner.tenant;
        let key = key(tenant, component.name);
        let now = (files.to_owned(), component.replicas);
        if self.memory().cleaned.get(&key) == Some(&now) {
            return Ok(());
        }
        self.delete_files(tenant, component.name, Some(files)).await?;
        if component.name == API_SERVER {
            // Once for all components, of which this one is the first.
            self.delete_old_pull_secrets(tenant).await?;
        }
        // So that a deleted object is applied again if it is needed again.
        owner.host.forget();
        if component.replicas == 1 {
            self.delete_budget(tenant, component.name).await?;
        }
        self.memory().cleaned.insert(key, now);
        Ok(())
    }

    pub(super) async fn delete_budget(&self, tenant: &TenantId, component: &str) -> Result<(), RuntimeError> {
        let budgets: Api<PodDisruptionBudget> = self.api(tenant);
        let deleted = budgets.delete(component, &DeleteParams::default()).await;
        ignore_absence(deleted, "delete a PodDisruptionBudget")
    }

    /// Deletes Secrets with files that no pod uses, if there are many: a rollout may never end, and each change makes another one. `files` is the Secret
    /// of the pods that are wanted, and `pods` are those that there are. The files with which the component was rolled out last stay as well, as
    /// far as they are known: their pod may just be replaced.
    pub(super) async fn delete_unused_files(
        &self,
        owner: Owner<'_>,
        component: &Component,
        files: &str,
        pods: &[Pod],
    ) -> Result<(), RuntimeError> {
        let tenant = owner.tenant;
        let secrets: Api<Secret> = self.api(tenant);
        let found = secrets
            .list_metadata(&select(&pod_selector(tenant, component.name)))
            .await
            .map_err(host_error("list Secrets of a control plane"))?;
        if found.items.len() <= MAX_FILES {
            return Ok(());
        }
        let rolled_out = self.memory().cleaned.get(&key(tenant, component.name)).cloned();
        let mut kept: Vec<&str> = pods.iter().flat_map(state::files_of).collect();
        kept.push(files);
        kept.extend(rolled_out.as_ref().map(|(files, _)| files.as_str()));
        if found.iter().all(|secret| kept.contains(&secret.name_any().as_str())) {
            return Ok(());
        }
        // So that a deleted object is applied again if it is needed again.
        owner.host.forget();
        self.delete_secrets(tenant, component.name, &kept).await
    }

    /// Deletes ReplicaSets that have no pods, if there are many. The host deletes them after a rollout, which may never end.
    pub(super) async fn delete_unused_replica_sets(
        &self,
        tenant: &TenantId,
        component: &Component,
        pods: &[Pod],
    ) -> Result<(), RuntimeError> {
        let sets: Api<ReplicaSet> = self.api(tenant);
        let found = sets
            .list(&select(&pod_selector(tenant, component.name)))
            .await
            .map_err(host_error("list ReplicaSets of a control plane"))?;
        if found.items.len() <= MAX_REPLICA_SETS {
            return Ok(());
        }
        for unused in state::unused_replica_sets(&found.items, pods) {
            // One that the host uses again since is another version.
            let deleted = delete_same(&sets, &unused.metadata, unused.resource_version()).await;
            match deleted {
                Err(error) if is_status(&error, 409) => {}
                deleted => drop(deleted.map_err(host_error("delete a ReplicaSet of a control plane"))?),
            }
        }
        Ok(())
    }

    /// Deletes the Secrets with files of a component except `keep`.
    pub(super) async fn delete_files(
        &self,
        tenant: &TenantId,
        component: &str,
        keep: Option<&str>,
    ) -> Result<(), RuntimeError> {
        self.delete_secrets(tenant, component, keep.as_slice()).await
    }

    /// Deletes the Secrets of a tenant that have this value of [`APP_NAME`], except those with the names `kept`.
    async fn delete_secrets(&self, tenant: &TenantId, app_name: &str, kept: &[&str]) -> Result<(), RuntimeError> {
        let secrets: Api<Secret> = self.api(tenant);
        let found = secrets
            .list_metadata(&select(&pod_selector(tenant, app_name)))
            .await
            .map_err(host_error("list Secrets of a control plane"))?;
        for name in found.iter().map(ResourceExt::name_any) {
            if !kept.contains(&name.as_str()) {
                let deleted = secrets.delete(&name, &DeleteParams::default()).await;
                ignore_absence(deleted, "delete a Secret of a control plane")?;
            }
        }
        Ok(())
    }

    pub(super) async fn list_pods(&self, tenant: &TenantId, selector: &ListParams) -> Result<Vec<Pod>, RuntimeError> {
        let pods: Api<Pod> = self.api(tenant);
        Ok(pods.list(selector).await.map_err(host_error("list pods"))?.items)
    }

    pub(super) async fn scale_down(&self, tenant: &TenantId, all: &ListParams) -> Result<(), RuntimeError> {
        let deployments: Api<Deployment> = self.api(tenant);
        let listed = deployments.list(all).await.map_err(host_error("list Deployments"))?;
        for deployment in listed {
            if deployment.spec.replicas == Some(0) {
                continue;
            }
            let none = Patch::Merge(json!({"spec": {"replicas": 0}}));
            let params = PatchParams::apply(labels::CONTROL_MANAGER);
            let scaled = deployments.patch(&deployment.name_any(), &params, &none).await;
            ignore_absence(scaled, "scale a Deployment down")?;
        }
        Ok(())
    }

    /// Names of the Deployments that the host has not stopped yet, as far as it says: it may still create pods of them.
    pub(super) async fn list_unstopped(
        &self,
        tenant: &TenantId,
        all: &ListParams,
    ) -> Result<Vec<String>, RuntimeError> {
        let deployments: Api<Deployment> = self.api(tenant);
        let listed = deployments.list(all).await.map_err(host_error("list Deployments"))?;
        let left = listed.iter().filter(|deployment| !state::is_stopped(deployment));
        Ok(left.map(ResourceExt::name_any).collect())
    }
}
