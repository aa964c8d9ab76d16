//! What the controller of schedules works with.

use super::Schedules;
use crate::{events::EventRecorder, key::Key, stores::Stores};
use berth_runtime::queue::Queue;
use kube::Client;
use std::sync::Arc;

/// What the controller of schedules works with. One per process.
pub struct SchedulePolicyContext {
    /// The host's API server.
    pub client: Client,
    /// Views of the host.
    pub stores: Stores,
    /// The policies, as they were read last.
    pub schedules: Arc<Schedules>,
    /// Objects that wait to be reconciled.
    pub queue: Queue<Key>,
    /// Writes Events.
    pub recorder: EventRecorder,
}
