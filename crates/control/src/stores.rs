//! What watches know of the host.

use crate::{
    changes::{Cached, Changes},
    clock::Clock,
    gpu_pods::GpuPods,
    metered_use::MeteredUse,
    network::node_ports::NodePorts,
    pod_activity::PodActivity,
    published_nodes::PublishedNode,
    storage_uses::StorageUses,
    user_pods::UserPods,
};
use berth_api::{HostNodePool, Organization, Project, SchedulePolicy, TenantClass, TenantCluster, TenantSchedule};
use berth_node_lifecycle::{
    NodeIndex, PoolSelectors,
    demand::WorkloadIndex,
    devices::{Devices, Slices},
    platform_pods::PlatformPod,
    shared_nodes::SharedPod,
};
use berth_quota::Projects;
use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace, Node, Pod},
    networking::v1::NetworkPolicy,
    scheduling::v1::PriorityClass,
};
use kube::{
    Resource, ResourceExt,
    core::PartialObjectMeta,
    runtime::reflector::{self, Store},
};
use std::{collections::BTreeMap, sync::Arc};

/// Pools by name, with the number of nodes that belong to each, assigned or not.
pub type PoolsWithNodes = BTreeMap<String, (HostNodePool, usize)>;

/// Read-only views of the host cluster, kept current by watches.
#[derive(Clone)]
pub struct Stores {
    /// Tenants.
    pub tenants: Store<TenantCluster>,
    /// Pools.
    pub pools: Store<HostNodePool>,
    /// Classes.
    pub classes: Store<TenantClass>,
    /// Schedules.
    pub schedule_policies: Store<SchedulePolicy>,
    /// Organizations.
    pub organizations: Store<Organization>,
    /// Projects.
    pub projects: Store<Project>,
    /// ConfigMaps that classes may name in `manifests`.
    pub manifests: Store<ConfigMap>,
    /// The host's PriorityClasses.
    pub priority_classes: Store<PriorityClass>,
    /// Host nodes.
    pub nodes: Store<Node>,
    /// Pods that no syncer made.
    pub usage: Arc<NodeIndex<PlatformPod>>,
    /// Tenants' pods on the host.
    pub workloads: Arc<WorkloadIndex>,
    /// Those of them that request devices.
    pub gpu_pods: Arc<GpuPods>,
    /// Those that have not ended, by the users who created them.
    pub user_pods: Arc<UserPods>,
    /// When pods of tenants came and went.
    pub pod_activity: Arc<PodActivity>,
    /// Node ports of tenants' Services.
    pub node_ports: Arc<NodePorts>,
    /// Classes of tenants' PersistentVolumeClaims.
    pub storage_claims: Arc<StorageUses>,
    /// Drivers of inline volumes of tenants' pods.
    pub inline_volumes: Arc<StorageUses>,
    /// What their pods on shared nodes and their claims used since when, and until when.
    pub metered: MeteredUse,
    /// Devices by node, those that several nodes reach at the empty name.
    pub slices: Arc<Slices>,
    /// Which devices claims request.
    pub devices: Arc<Devices>,
    /// Host pods that may run on shared nodes; those without a node at the empty name.
    pub shared_pods: Arc<NodeIndex<SharedPod>>,
    /// Placeholders.
    pub placeholders: Store<Pod>,
    /// Namespaces that no tenant was given: TenantClusters are in them. Without annotations.
    pub team_namespaces: Store<PartialObjectMeta<Namespace>>,
    /// Namespaces of tenants.
    pub namespaces: Store<PartialObjectMeta<Namespace>>,
    /// NetworkPolicies that control made.
    pub network_policies: Store<NetworkPolicy>,
    /// Nodes published to tenants.
    pub tenant_nodes: Store<PublishedNode>,
    /// Schedules published to tenants.
    pub tenant_schedules: Store<TenantSchedule>,
    /// How often some of them changed.
    pub changes: Arc<Changes>,
    /// See [`Stores::pools_with_nodes`].
    pub pools_with_nodes: Arc<Cached<PoolsWithNodes, (u64, u64)>>,
}

impl Stores {
    /// Views of a host that has no objects. `clock` is that by which uses are metered.
    pub fn empty(clock: Clock) -> Self {
        let slices = Arc::new(Slices::default());
        Self {
            tenants: empty(),
            pools: empty(),
            classes: empty(),
            schedule_policies: empty(),
            organizations: empty(),
            projects: empty(),
            manifests: empty(),
            priority_classes: empty(),
            nodes: empty(),
            usage: Arc::default(),
            workloads: Arc::default(),
            gpu_pods: Arc::default(),
            user_pods: Arc::default(),
            pod_activity: Arc::default(),
            node_ports: Arc::default(),
            storage_claims: Arc::default(),
            inline_volumes: Arc::default(),
            metered: MeteredUse::new(clock, true),
            devices: Arc::new(Devices::new(Arc::clone(&slices))),
            slices,
            shared_pods: Arc::default(),
            placeholders: empty(),
            team_namespaces: empty(),
            namespaces: empty(),
            network_policies: empty(),
            tenant_nodes: empty(),
            tenant_schedules: empty(),
            changes: Arc::default(),
            pools_with_nodes: Arc::default(),
        }
    }

    /// The pools, with the number of nodes that belong to each. Computed once for each change of them.
    pub fn pools_with_nodes(&self) -> Arc<PoolsWithNodes> {
        self.pools_with_nodes.get(self.changes.of_pools(), || {
            let pools = self.pools.state();
            let selectors = pools
                .iter()
                .map(|pool| (pool.name_any(), pool.spec.node_selector.clone()));
            let nodes = self.nodes.state();
            let totals = PoolSelectors::new(selectors).count_nodes(nodes.iter().map(|node| node.labels()));
            let with_nodes = pools.into_iter().map(|pool| {
                let total = totals.get(&pool.name_any()).copied().unwrap_or_default();
                (pool.name_any(), (pool.as_ref().clone(), total))
            });
            with_nodes.collect()
        })
    }
}

impl Stores {
    /// Whether the Project of a tenant limits its users.
    pub fn limits_users(&self, cluster: &TenantCluster) -> bool {
        let projects = self.projects.state();
        if !projects.iter().any(|project| project.limits_users()) {
            return false;
        }
        let owners = Projects::new(projects.iter().map(AsRef::as_ref));
        let owner = owners.of(&cluster.namespace().unwrap_or_default());
        let own = projects
            .iter()
            .find(|project| project.metadata.name.as_deref() == owner);
        owner.is_some() && own.is_some_and(|project| project.limits_users())
    }
}

fn empty<K>() -> Store<K>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    reflector::store().0
}
