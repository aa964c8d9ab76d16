//! What waits to be reconciled, what watches know of the host, and what the controllers of nodes work with.

use crate::{
    controllers::{
        nodes::{clock::Clock, jobs::NodeJobs, placeholders::RequestTracker},
        tenant::Tenants,
    },
    metrics::Metrics,
    network::NetworkConfig,
    runtime::ControlPlaneRuntime,
};
use berth_api::{HostNodePool, TenantClass, TenantCluster, TenantNode};
use berth_node_lifecycle::{
    NodeIndex, demand::WorkloadIndex, devices::Devices, idle::IdleTracker, pod_requests::Requests,
    rejections::RejectedNodes, shared_nodes::SharedPod,
};
use berth_runtime::queue::{Queue, QueueKey};
use k8s_openapi::api::{
    core::v1::{Namespace, Node, Pod},
    networking::v1::NetworkPolicy,
    scheduling::v1::PriorityClass,
};
use kube::{Client, core::PartialObjectMeta, runtime::events::Recorder, runtime::reflector::Store};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// An object that waits to be reconciled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// Reconcile one `TenantCluster`.
    Tenant {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// Report on one `HostNodePool`.
    Pool(String),
    /// See to one `TenantClass`.
    Class(String),
    /// Plan and carry out node assignments for the whole fleet.
    Fleet,
    /// See to the nodes that several tenants use.
    SharedNodes,
}

impl QueueKey for Key {
    /// Namespaces of tenants take turns; the platform's own objects have theirs.
    fn group(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        match self {
            Self::Tenant { namespace, .. } => namespace.hash(&mut hasher),
            Self::Pool(_) | Self::Class(_) | Self::Fleet | Self::SharedNodes => {}
        }
        hasher.finish()
    }
}

/// Read-only views of the host cluster, kept current by watches.
#[derive(Clone)]
pub struct Stores {
    /// Tenants.
    pub tenants: Store<TenantCluster>,
    /// Pools.
    pub pools: Store<HostNodePool>,
    /// Classes.
    pub classes: Store<TenantClass>,
    /// The host's PriorityClasses.
    pub priority_classes: Store<PriorityClass>,
    /// Host nodes.
    pub nodes: Store<Node>,
    /// What the platform's own pods take of each node.
    pub usage: Arc<NodeIndex<Requests>>,
    /// Tenants' pods on the host.
    pub workloads: Arc<WorkloadIndex>,
    /// Devices by node, those that several nodes reach at the empty name: the specs of their `ResourceSlices`.
    pub slices: Arc<NodeIndex<serde_json::Value>>,
    /// What claims of devices come to.
    pub devices: Arc<Devices>,
    /// Host pods that may run on shared nodes; those without a node at the empty name.
    pub shared_pods: Arc<NodeIndex<SharedPod>>,
    /// Pods that show to autoscalers what tenants wait for.
    pub placeholders: Store<Pod>,
    /// Namespaces of tenants.
    pub namespaces: Store<PartialObjectMeta<Namespace>>,
    /// NetworkPolicies that control made.
    pub network_policies: Store<NetworkPolicy>,
    /// Nodes published to tenants.
    pub tenant_nodes: Store<TenantNode>,
}

/// What the controllers of nodes and pools work with. One a process.
pub struct Context {
    /// The host's API server.
    pub client: Client,
    /// Views of the host.
    pub stores: Stores,
    /// Settings of the host's network, from flags.
    pub network_config: NetworkConfig,
    /// How nodes are cleaned and checked.
    pub node_jobs: NodeJobs,
    /// The time by which nodes are handed on.
    pub clock: Clock,
    /// Since when nodes are idle.
    pub idle: IdleTracker,
    /// Free nodes that cannot be promised for a while.
    pub rejected_nodes: RejectedNodes,
    /// What autoscalers are asked for.
    pub requested: RequestTracker,
    /// Where control planes run.
    pub runtime: Arc<dyn ControlPlaneRuntime>,
    /// What is known in memory of each tenant; everything in it can be found out again.
    pub tenants: Arc<Tenants>,
    /// Objects that wait to be reconciled.
    pub queue: Queue<Key>,
    /// Counters.
    pub metrics: Metrics,
    /// Writes Events.
    pub recorder: Recorder,
}
