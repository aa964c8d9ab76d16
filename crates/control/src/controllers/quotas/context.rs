//! What the controller of quotas works with.

use super::pace::Pace;
use crate::{
    clock::Clock, controllers::tenant::WithoutClass, events::EventRecorder, key::Key, metrics::Metrics,
    network::NetworkConfig, quota_ledger::QuotaLedger, runtime::ControlPlaneRuntime, stores::Stores,
    user_quota_ledger::UserQuotaLedger,
};
use berth_runtime::queue::Queue;
use kube::Client;
use std::sync::Arc;

/// What the controller of quotas works with. One per process.
pub struct QuotasContext {
    /// The host's API server.
    pub client: Client,
    /// The host's objects, as watches know them.
    pub stores: Stores,
    /// Settings of the host's network, from flags.
    pub network_config: NetworkConfig,
    /// What a TenantCluster without a class gets.
    pub without_class: WithoutClass,
    /// Where control planes run.
    pub runtime: Arc<dyn ControlPlaneRuntime>,
    /// What was decided last.
    pub quotas: Arc<QuotaLedger>,
    /// The time.
    pub clock: Clock,
    /// When it was decided, and from what.
    pub pace: Pace,
    /// What was decided last about users.
    pub users: Arc<UserQuotaLedger>,
    /// Objects that wait to be reconciled.
    pub queue: Queue<Key>,
    /// Counters.
    pub metrics: Metrics,
    /// Writes Events.
    pub recorder: EventRecorder,
}
