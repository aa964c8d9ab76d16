//! What the controller of shared nodes works with.

use super::MarkedNodes;
use crate::{clock::Clock, events::EventRecorder, metrics::Metrics, stores::Stores};
use kube::Client;

/// What the controller of shared nodes works with. One per process.
pub struct SharedNodesContext {
    /// The host's API server.
    pub client: Client,
    /// Views of the host.
    pub stores: Stores,
    /// The time.
    pub clock: Clock,
    /// Counters.
    pub metrics: Metrics,
    /// Publishes Events.
    pub recorder: EventRecorder,
    /// Shared nodes that have an in-use marker.
    pub marked: MarkedNodes,
}
