//! Control planes as pods of the host cluster.
//!
//! A component is a Deployment and a Secret with its files. The Secret is named after its content and never changes,
//! so that new certificates or flags are new pods, rolled out by the host, and pods that still run keep what they started
//! with. Files are in [`FOLDER`]; a token of the host is among them where one is needed, renewed by the kubelet.

mod build;
mod go_memory_limit;
mod metrics_peers;
mod objects;
mod pace;
mod settings;
mod state;
#[cfg(test)]
mod tests;

pub use settings::ClusterSettings;

use super::{ComponentState, ControlPlaneRuntime, Owner, RuntimeError};
use crate::apply::optional;
use berth_runtime::locks::lock;
pub use build::{ADMIN_PORT, APP_NAME};

use crate::control_plane::{Component, Endpoint, Endpoints, Form, Ports, PublicEndpoint, ServiceRange};
use async_trait::async_trait;
use berth_api::{labels, names::TenantId};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Pod, Secret},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, PropagationPolicy},
};
use pace::Pace;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Mutex, MutexGuard},
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
/// Grace period of pods when a tenant is deleted, in seconds: they have no clients any more.
const STOP_GRACE_SECONDS: u32 = 2;
/// Time within which pods must terminate.
const STOP_WITHIN: Duration = Duration::from_secs(40);
/// Interval between checks of terminating pods.
const STOP_POLL: Duration = Duration::from_millis(250);

/// Runs control planes as pods.
pub struct ClusterRuntime {
    host: Client,
    settings: ClusterSettings,
    pull_secrets: tokio::sync::Mutex<Option<(Instant, Vec<Secret>)>>,
    memory: Mutex<Memory>,
}

/// Operations that need not be repeated.
#[derive(Default)]
struct Memory {
    /// By component, the Secret of its files and its replicas at which outdated objects were deleted.
    cleaned: HashMap<String, (String, u32)>,
    /// Components that were deleted.
    deleted_components: HashSet<String>,
    /// By component, how often it was changed.
    paces: HashMap<String, Pace>,
}

/// Labels of the pods of one component of a tenant.
pub fn pod_selector(tenant: &TenantId, component: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        (labels::TENANT.into(), tenant.slug().into()),
        (build::APP_NAME.into(), component.into()),
    ])
}

/// What belongs to the control plane of a tenant.
fn all_of(tenant: &TenantId) -> ListParams {
    ListParams::default().labels(&format!("{}={}", labels::TENANT, tenant.slug()))
}

fn key(tenant: &TenantId, component: &str) -> String {
    format!("{}/{component}", tenant.slug())
}

impl ClusterRuntime {
    /// A runtime on the cluster of the client `host`.
    pub fn new(settings: ClusterSettings, host: Client) -> Self {
        Self {
            host,
            settings,
            pull_secrets: tokio::sync::Mutex::default(),
            memory: Mutex::default(),
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        lock(&self.memory)
    }

    /// The Deployment as it is, if it was changed too often before it was rolled out and has to wait for the next change. One whose pods are to end
    /// before there are new ones is changed in any case.
    async fn find_unfinished(
        &self,
        owner: Owner<'_>,
        component: &Component,
        desired: &Deployment,
    ) -> Result<Option<Deployment>, RuntimeError> {
        if !component.overlaps {
            return Ok(None);
        }
        let key = key(owner.tenant, component.name);
        let version = build::version(desired);
        let is_last = |pace: &Pace| pace.is_last(version);
        if self.memory().paces.get(&key).is_some_and(is_last) {
            return Ok(None);
        }
        let deployments: Api<Deployment> = self.api(owner.tenant);
        let found =
            optional(deployments.get(component.name).await).map_err(objects::host_error("read a Deployment"))?;
        // One without pods has none that are replaced.
        let unfinished = found.filter(|found| found.spec.replicas != Some(0) && !state::is_rolled_out(found));
        let mut memory = self.memory();
        let pace = memory.paces.entry(key).or_default();
        let is_admitted = pace.admit(version, unfinished.is_none(), Instant::now());
        Ok(unfinished.filter(|_| !is_admitted))
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

    fn allocate_ports(&self, _tenant: &TenantId) -> Result<Ports, RuntimeError> {
        Ok(PORTS)
    }

    async fn find_endpoints(
        &self,
        owner: Owner<'_>,
        ports: &Ports,
        range: &ServiceRange,
    ) -> Result<Endpoints, RuntimeError> {
        let syncer = self.apply_service(owner, &build::service(owner, ports)).await?;
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
            gateway: None,
        })
    }

    async fn apply_component(&self, owner: Owner<'_>, component: &Component) -> Result<ComponentState, RuntimeError> {
        let tenant = owner.tenant;
        self.memory().deleted_components.remove(&key(tenant, component.name));
        self.copy_pull_secrets(owner).await?;
        let files = build::files(owner, component);
        let desired = build::deployment(owner, component, &self.settings, &files.name_any());
        let of_component = objects::select(&pod_selector(tenant, component.name));
        if let Some(unfinished) = self.find_unfinished(owner, component, &desired).await? {
            tracing::info!(
                tenant = tenant.slug(),
                component = component.name,
                "it was changed often and not rolled out; the next change waits"
            );
            let pods = self.list_pods(tenant, &of_component).await?;
            return Ok(state::state(&unfinished, &pods));
        }
        let deployment = self.apply_deployment(owner, &files, &desired).await?;
        if component.replicas > 1 {
            owner.host.apply(&build::disruption_budget(owner, component)).await?;
        }
        if state::is_rolled_out(&deployment) {
            self.delete_outdated_objects(owner, component, &files.name_any())
                .await?;
            return Ok(ComponentState::Running);
        }
        let pods = self.list_pods(tenant, &of_component).await?;
        self.delete_unused_files(owner, component, &files.name_any(), &pods)
            .await?;
        self.delete_unused_replica_sets(tenant, component, &pods).await?;
        Ok(state::state(&deployment, &pods))
    }

    async fn is_rolled_out(&self, owner: Owner<'_>, component: &Component) -> Result<bool, RuntimeError> {
        let files = build::files(owner, component).name_any();
        let desired = build::deployment(owner, component, &self.settings, &files);
        let deployments: Api<Deployment> = self.api(owner.tenant);
        let found =
            optional(deployments.get(component.name).await).map_err(objects::host_error("read a Deployment"))?;
        // Another image or other flags need no other files: what runs may have these, and be of the change before. And without pods nothing runs.
        let is_wanted = |found: &Deployment| {
            build::version(found) == build::version(&desired) && found.spec.replicas == desired.spec.replicas
        };
        if !found.is_some_and(|found| is_wanted(&found) && state::is_rolled_out(&found)) {
            return Ok(false);
        }
        // A Deployment does not count pods that are ending, which still serve for a while.
        let selector = objects::select(&pod_selector(owner.tenant, component.name));
        let pods = self.list_pods(owner.tenant, &selector).await?;
        Ok(state::are_of_one_template(&pods, &files))
    }

    async fn is_available(&self, tenant: &TenantId, component: &str) -> Result<bool, RuntimeError> {
        let deployments: Api<Deployment> = self.api(tenant);
        let found = optional(deployments.get(component).await).map_err(objects::host_error("read a Deployment"))?;
        Ok(found.as_ref().is_some_and(state::is_available))
    }

    async fn keeps_previous(&self, tenant: &TenantId, component: &str) -> Result<bool, RuntimeError> {
        let deployments: Api<Deployment> = self.api(tenant);
        let found = optional(deployments.get(component).await).map_err(objects::host_error("read a Deployment"))?;
        Ok(found.is_some_and(|found| !state::is_stopped(&found)))
    }

    fn publish_kubeconfig(&self, _namespace: &str, _name: &str, _kubeconfig: &str) -> Result<(), RuntimeError> {
        Ok(())
    }

    async fn delete_component(&self, tenant: &TenantId, component: &'static str) -> Result<(), RuntimeError> {
        let key = key(tenant, component);
        if self.memory().deleted_components.contains(&key) {
            return Ok(());
        }
        let params = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Background),
            ..DeleteParams::default()
        };
        let deployments: Api<Deployment> = self.api(tenant);
        objects::ignore_absence(deployments.delete(component, &params).await, "delete a Deployment")?;
        self.delete_budget(tenant, component).await?;
        self.delete_files(tenant, component, None).await?;
        let mut memory = self.memory();
        memory.cleaned.remove(&key);
        memory.deleted_components.insert(key);
        Ok(())
    }

    async fn stop_components(&self, tenant: &TenantId) -> Result<(), RuntimeError> {
        let all = all_of(tenant);
        self.scale_down(tenant, &all).await?;
        let pods: Api<Pod> = self.api(tenant);
        let params = DeleteParams::default().grace_period(STOP_GRACE_SECONDS);
        let mut deleted = HashSet::new();
        let deadline = Instant::now() + STOP_WITHIN;
        loop {
            let left = self.list_pods(tenant, &all).await?;
            if left.is_empty() {
                return Ok(());
            }
            for pod in &left {
                // Also shortens the grace period of pods that are terminating already.
                if deleted.insert(pod.uid()) {
                    objects::ignore_absence(pods.delete(&pod.name_any(), &params).await, "delete a pod")?;
                }
            }
            if Instant::now() > deadline {
                return Err(RuntimeError::StillRunning(describe_running_pods(&left)));
            }
            tokio::time::sleep(STOP_POLL).await;
        }
    }

    async fn check_stopped(&self, tenant: &TenantId) -> Result<(), RuntimeError> {
        let all = all_of(tenant);
        let deployments = self.list_unstopped(tenant, &all).await?;
        if !deployments.is_empty() {
            return Err(RuntimeError::StillRunning(format!(
                "the host has not scaled down these Deployments of the control plane, and may still create pods of them; if that lasts, look at its controller manager: {}",
                deployments.join(", ")
            )));
        }
        // Afterwards: what was created before that is seen.
        let pods = self.list_pods(tenant, &all).await?;
        if pods.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = pods.iter().map(ResourceExt::name_any).collect();
        Err(RuntimeError::StillRunning(format!(
            "the host has created pods of the control plane before it scaled that down, and Berth stops them: {}",
            names.join(", ")
        )))
    }

    async fn delete_tenant(&self, tenant: &TenantId, _namespace: &str, _name: &str) -> Result<(), RuntimeError> {
        // Everything is in the control-plane namespace, which is deleted with the tenant.
        let prefix = format!("{}/", tenant.slug());
        let mut memory = self.memory();
        memory.cleaned.retain(|key, _| !key.starts_with(&prefix));
        memory.deleted_components.retain(|key| !key.starts_with(&prefix));
        memory.paces.retain(|key, _| !key.starts_with(&prefix));
        Ok(())
    }
}

fn describe_running_pods(pods: &[Pod]) -> String {
    let names: Vec<String> = pods
        .iter()
        .map(|pod| {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
            format!("{} on node {}", pod.name_any(), node.unwrap_or("none"))
        })
        .collect();
    format!(
        "these pods of the control plane do not terminate; if a node is gone for good, delete its Node object: {}",
        names.join(", ")
    )
}
