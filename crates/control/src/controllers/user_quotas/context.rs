//! What the controller of users' quotas works with.

use crate::{
    clock::Clock, events::EventRecorder, key::Key, metrics::Metrics, stores::Stores, user_quota_ledger::UserQuotaLedger,
};
use berth_runtime::queue::Queue;
use kube::Client;
use std::sync::Arc;

/// What the controller of users' quotas works with. One per process.
pub struct UserQuotasContext {
    /// The host's API server.
    pub client: Client,
    /// The host's objects, as watches know them.
    pub stores: Stores,
    /// The clock of the host, for conditions.
    pub clock: Clock,
    /// What was decided last.
    pub ledger: Arc<UserQuotaLedger>,
    /// Objects that wait to be reconciled.
    pub queue: Queue<Key>,
    /// Counters.
    pub metrics: Metrics,
    /// Writes Events.
    pub recorder: EventRecorder,
}
