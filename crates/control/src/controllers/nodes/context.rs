//! What the controller of nodes works with.

use super::{
    jobs::NodeJobs,
    requested::{HealthTracker, RequestTracker, UnavailableTracker},
};
use crate::{
    apply::Applier,
    clock::Clock,
    controllers::{
        schedule_policy::Schedules,
        tenant::{Tenants, WithoutClass},
    },
    events::EventRecorder,
    key::Key,
    metrics::Metrics,
    network::NetworkConfig,
    quota_ledger::QuotaLedger,
    runtime::ControlPlaneRuntime,
    stores::Stores,
};
use berth_node_lifecycle::{idle::IdleTracker, rejections::RejectedNodes};
use berth_runtime::queue::Queue;
use kube::Client;
use std::sync::Arc;

/// What the controller of nodes works with. One per process.
pub struct NodesContext {
    /// The host's API server.
    pub client: Client,
    /// Applies objects to it.
    pub host: Applier,
    /// Views of the host.
    pub stores: Stores,
    /// Settings of the host's network, from flags.
    pub network_config: NetworkConfig,
    /// What a TenantCluster without a class gets.
    pub without_class: WithoutClass,
    /// How nodes are cleaned and checked.
    pub node_jobs: NodeJobs,
    /// The clock for assignments and recycling.
    pub clock: Clock,
    /// What schedules let tenants do.
    pub schedules: Arc<Schedules>,
    /// Since when nodes are idle.
    pub idle: IdleTracker,
    /// Free nodes that cannot be reserved for a while, because the API server rejected their assignment.
    pub rejected_nodes: RejectedNodes,
    /// Nodes that are requested of autoscalers.
    pub requested: Arc<RequestTracker>,
    /// Nodes without a tenant that cannot be assigned.
    pub unavailable: Arc<UnavailableTracker>,
    /// How many nodes are not Ready.
    pub health: Arc<HealthTracker>,
    /// Where control planes run.
    pub runtime: Arc<dyn ControlPlaneRuntime>,
    /// What control remembers of each tenant; all of it can be read again.
    pub tenants: Arc<Tenants>,
    /// What the quotas give each tenant.
    pub quotas: Arc<QuotaLedger>,
    /// Objects that wait to be reconciled.
    pub queue: Queue<Key>,
    /// Counters.
    pub metrics: Metrics,
    /// Writes Events.
    pub recorder: EventRecorder,
}
