//! Control planes as pods of the host cluster.
//!
//! A component is a Deployment and a Secret with its files. The Secret has its name from its content and never changes,
//! so that new certificates or flags are new pods, rolled out by the host, and pods that still run keep what they started
//! with. Files lie in [`FOLDER`]; a token of the host is among them where one is needed, kept fresh by the kubelet.

mod build;
mod settings;
mod state;
#[cfg(test)]
mod tests;

pub use settings::ClusterSettings;

use super::{ComponentState, ControlPlaneRuntime, Owner, RuntimeError};
pub use build::APP_NAME;

use crate::{
    apply::optional,
    control_plane::{Component, Endpoint, Endpoints, Form, Ports, PublicEndpoint, ServiceRange},
};
use async_trait::async_trait;
use berth_api::{labels, names::TenantId, system};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Pod, Secret, Service},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PropagationPolicy},
};
use serde_json::json;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Folder of a component's files in its container.
pub const FOLDER: &str = "/etc/berth";
/// Port at which the API server is reached.
const API_PORT: u16 = 443;
/// Port at which DNS is reached.
const DNS_PORT: u16 = 53;
/// Ports that components listen on. Every pod has an address of its own, so they are always the same.
const PORTS: Ports = Ports {
    api_server: 6443,
    syncer_admin: 8080,
    admission: 8443,
    egress: 8444,
    dns: 5353,
};
/// Time that pods have to end when a tenant is stopped, in seconds: nobody is served any more.
const STOP_GRACE_SECONDS: u32 = 2;
/// Time after which pods that do not end are reported.
const STOP_WITHIN: Duration = Duration::from_secs(40);
/// Pause between looks at pods that are ending.
const STOP_POLL: Duration = Duration::from_millis(250);
/// Age at which the platform's pull secrets are read again.
const PULL_SECRETS_AGE: Duration = Duration::from_secs(60);

/// Runs control planes as pods.
pub struct ClusterRuntime {
    host: Client,
    settings: ClusterSettings,
    pull_secrets: tokio::sync::Mutex<Option<(Instant, Vec<Secret>)>>,
    memory: Mutex<Memory>,
}

/// What need not be done again.
#[derive(Default)]
struct Memory {
    /// By component, Secret of the files and number of replicas that nothing is left of others than.
    tidied: HashMap<String, (String, u32)>,
    /// Components that are known to be gone.
    withdrawn: HashSet<String>,
}

/// Labels that only the pods of one component of a tenant carry.
pub fn pod_selector(tenant: &TenantId, component: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        (labels::TENANT.into(), tenant.slug().into()),
        (build::APP_NAME.into(), component.into()),
    ])
}

fn selector(labels: &BTreeMap<String, String>) -> ListParams {
    let parts: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    ListParams::default().labels(&parts.join(","))
}

fn host(what: &'static str) -> impl FnOnce(kube::Error) -> RuntimeError {
    move |source| RuntimeError::Host {
        what,
        source: Box::new(source),
    }
}

/// Takes "there is none" for success.
fn gone<T>(result: kube::Result<T>, what: &'static str) -> Result<(), RuntimeError> {
    optional(result).map(drop).map_err(host(what))
}

fn key(tenant: &TenantId, component: &str) -> String {
    format!("{}/{component}", tenant.slug())
}

impl ClusterRuntime {
    /// A runtime on the cluster that `host` leads to.
    pub fn new(settings: ClusterSettings, host: Client) -> Self {
        Self {
            host,
            settings,
            pull_secrets: tokio::sync::Mutex::default(),
            memory: Mutex::default(),
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn api<K>(&self, tenant: &TenantId) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.host.clone(), &tenant.control_plane_namespace())
    }

    /// Makes a Service and reads the address that the host gave it. Components reach each other by address: what works
    /// does not stop when the host's DNS does.
    async fn address(&self, owner: Owner<'_>, service: &Service) -> Result<String, RuntimeError> {
        let services: Api<Service> = self.api(owner.tenant);
        owner.host.apply(service).await?;
        let mut made = optional(services.get(&service.name_any()).await).map_err(host("read a Service"))?;
        if made.is_none() {
            // Deleted by hand since it was applied.
            owner.host.forget();
            owner.host.apply(service).await?;
            made = Some(
                services
                    .get(&service.name_any())
                    .await
                    .map_err(host("read a Service"))?,
            );
        }
        let address = made.and_then(|made| made.spec?.cluster_ip);
        address.ok_or_else(|| RuntimeError::Settings(format!("Service {} has no address", service.name_any())))
    }

    /// The pull secrets of the platform, copied beside the pods.
    async fn copy_pull_secrets(&self, owner: Owner<'_>) -> Result<(), RuntimeError> {
        let mut known = self.pull_secrets.lock().await;
        if known.as_ref().is_none_or(|(at, _)| at.elapsed() > PULL_SECRETS_AGE) {
            let ours: Api<Secret> = Api::namespaced(self.host.clone(), system::NAMESPACE);
            let mut read = Vec::new();
            for name in &self.settings.image_pull_secrets {
                read.push(ours.get(name).await.map_err(host("read a pull secret"))?);
            }
            *known = Some((Instant::now(), read));
        }
        for secret in known.iter().flat_map(|(_, secrets)| secrets) {
            let copy = Secret {
                metadata: kube::api::ObjectMeta {
                    name: secret.metadata.name.clone(),
                    namespace: Some(owner.tenant.control_plane_namespace()),
                    labels: Some(owner.labels.clone()),
                    ..kube::api::ObjectMeta::default()
                },
                data: secret.data.clone(),
                type_: secret.type_.clone(),
                ..Secret::default()
            };
            owner.host.apply(&copy).await?;
        }
        Ok(())
    }

    /// The Deployment as it is now, with its files there.
    async fn apply(&self, owner: Owner<'_>, files: &Secret, wanted: &Deployment) -> Result<Deployment, RuntimeError> {
        let deployments: Api<Deployment> = self.api(owner.tenant);
        let name = wanted.name_any();
        owner.host.apply(files).await?;
        owner.host.apply(wanted).await?;
        if let Some(made) = optional(deployments.get(&name).await).map_err(host("read a Deployment"))? {
            return Ok(made);
        }
        // Deleted since it was applied.
        owner.host.forget();
        owner.host.apply(files).await?;
        owner.host.apply(wanted).await?;
        deployments.get(&name).await.map_err(host("read a Deployment"))
    }

    /// Once the last pod of an earlier kind is gone: removes what only it needed.
    async fn tidy(&self, owner: Owner<'_>, component: &Component, files: &str) -> Result<(), RuntimeError> {
        let tenant = owner.tenant;
        let key = key(tenant, component.name);
        let now = (files.to_owned(), component.replicas);
        if self.memory().tidied.get(&key) == Some(&now) {
            return Ok(());
        }
        self.delete_files(tenant, component.name, Some(files)).await?;
        // What was deleted is applied again should it be needed again.
        owner.host.forget();
        if component.replicas == 1 {
            self.delete_budget(tenant, component.name).await?;
        }
        self.memory().tidied.insert(key, now);
        Ok(())
    }

    async fn delete_budget(&self, tenant: &TenantId, component: &str) -> Result<(), RuntimeError> {
        let budgets: Api<PodDisruptionBudget> = self.api(tenant);
        let deleted = budgets.delete(component, &DeleteParams::default()).await;
        gone(deleted, "delete a PodDisruptionBudget")
    }

    async fn delete_files(&self, tenant: &TenantId, component: &str, but: Option<&str>) -> Result<(), RuntimeError> {
        let secrets: Api<Secret> = self.api(tenant);
        let left = secrets
            .list_metadata(&selector(&pod_selector(tenant, component)))
            .await
            .map_err(host("list the files of a component"))?;
        for secret in left.iter().map(ResourceExt::name_any) {
            if Some(secret.as_str()) != but {
                gone(
                    secrets.delete(&secret, &DeleteParams::default()).await,
                    "delete the files of a component",
                )?;
            }
        }
        Ok(())
    }

    async fn pods(&self, tenant: &TenantId, selector: &ListParams) -> Result<Vec<Pod>, RuntimeError> {
        let pods: Api<Pod> = self.api(tenant);
        Ok(pods.list(selector).await.map_err(host("list pods"))?.items)
    }

    async fn scale_down(&self, tenant: &TenantId, all: &ListParams) -> Result<(), RuntimeError> {
        let deployments: Api<Deployment> = self.api(tenant);
        let listed = deployments.list(all).await.map_err(host("list Deployments"))?;
        for deployment in listed {
            if deployment.spec.replicas == Some(0) {
                continue;
            }
            let none = Patch::Merge(json!({"spec": {"replicas": 0}}));
            let params = PatchParams::apply(labels::CONTROL_MANAGER);
            let scaled = deployments.patch(&deployment.name_any(), &params, &none).await;
            gone(scaled, "scale a Deployment down")?;
        }
        Ok(())
    }
}

#[async_trait]
impl ControlPlaneRuntime for ClusterRuntime {
    fn versions(&self) -> Vec<String> {
        self.settings.offered()
    }

    fn form(&self, replicas: u32) -> Form {
        Form::Pods { replicas }
    }

    fn has_dns(&self) -> bool {
        true
    }

    fn allocate(&self, _tenant: &TenantId) -> Result<Ports, RuntimeError> {
        Ok(PORTS)
    }

    async fn endpoints(
        &self,
        owner: Owner<'_>,
        ports: &Ports,
        range: &ServiceRange,
    ) -> Result<Endpoints, RuntimeError> {
        let syncer = self.address(owner, &build::service(owner, ports)).await?;
        let dns = format!("kube-dns.{}.svc", owner.tenant.control_plane_namespace());
        let api_server = Endpoint::behind(ports.api_server, range.first.to_string(), API_PORT);
        let at_syncer = |port| Endpoint::behind(port, syncer.as_str(), port);
        Ok(Endpoints {
            public: PublicEndpoint {
                url: api_server.https_url(),
                hosts: Vec::new(),
            },
            api_server,
            syncer_admin: at_syncer(ports.syncer_admin),
            admission: at_syncer(ports.admission),
            egress: at_syncer(ports.egress),
            dns: Endpoint::behind(ports.dns, dns, DNS_PORT),
        })
    }

    async fn ensure(&self, owner: Owner<'_>, component: &Component) -> Result<ComponentState, RuntimeError> {
        let tenant = owner.tenant;
        self.memory().withdrawn.remove(&key(tenant, component.name));
        self.copy_pull_secrets(owner).await?;
        let files = build::files(owner, component);
        let wanted = build::deployment(owner, component, &self.settings, &files.name_any());
        let deployment = self.apply(owner, &files, &wanted).await?;
        if component.replicas > 1 {
            owner.host.apply(&build::disruption_budget(owner, component)).await?;
        }
        if state::is_rolled_out(&deployment) {
            self.tidy(owner, component, &files.name_any()).await?;
            return Ok(ComponentState::Running);
        }
        let pods = self
            .pods(tenant, &selector(&pod_selector(tenant, component.name)))
            .await?;
        Ok(state::state(&deployment, &pods))
    }

    fn publish_kubeconfig(&self, _namespace: &str, _name: &str, _kubeconfig: &str) -> Result<(), RuntimeError> {
        Ok(())
    }

    async fn withdraw(&self, tenant: &TenantId, component: &'static str) -> Result<(), RuntimeError> {
        let key = key(tenant, component);
        if self.memory().withdrawn.contains(&key) {
            return Ok(());
        }
        let params = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Background),
            ..DeleteParams::default()
        };
        let deployments: Api<Deployment> = self.api(tenant);
        gone(deployments.delete(component, &params).await, "delete a Deployment")?;
        self.delete_budget(tenant, component).await?;
        self.delete_files(tenant, component, None).await?;
        let mut memory = self.memory();
        memory.tidied.remove(&key);
        memory.withdrawn.insert(key);
        Ok(())
    }

    async fn stop(&self, tenant: &TenantId) -> Result<(), RuntimeError> {
        let all = ListParams::default().labels(&format!("{}={}", labels::TENANT, tenant.slug()));
        self.scale_down(tenant, &all).await?;
        let pods: Api<Pod> = self.api(tenant);
        let params = DeleteParams::default().grace_period(STOP_GRACE_SECONDS);
        let mut told = HashSet::new();
        let deadline = Instant::now() + STOP_WITHIN;
        loop {
            let left = self.pods(tenant, &all).await?;
            if left.is_empty() {
                return Ok(());
            }
            for pod in &left {
                // Those that are ending already have less time now.
                if told.insert(pod.uid()) {
                    gone(pods.delete(&pod.name_any(), &params).await, "delete a pod")?;
                }
            }
            if Instant::now() > deadline {
                return Err(RuntimeError::StillRunning(still_running(&left)));
            }
            tokio::time::sleep(STOP_POLL).await;
        }
    }

    async fn remove(&self, tenant: &TenantId, _namespace: &str, _name: &str) -> Result<(), RuntimeError> {
        // Everything is in the control-plane namespace, which goes with the tenant.
        let prefix = format!("{}/", tenant.slug());
        let mut memory = self.memory();
        memory.tidied.retain(|key, _| !key.starts_with(&prefix));
        memory.withdrawn.retain(|key| !key.starts_with(&prefix));
        Ok(())
    }
}

fn still_running(pods: &[Pod]) -> String {
    let names: Vec<String> = pods
        .iter()
        .map(|pod| {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            format!("{} on node {}", pod.name_any(), node.unwrap_or("none"))
        })
        .collect();
    format!(
        "these pods of the control plane were told to end and have not; if a node is gone for good, delete its Node \
         object: {}",
        names.join(", ")
    )
}
