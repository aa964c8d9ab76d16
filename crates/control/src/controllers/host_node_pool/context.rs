//! What the controller of pools works with.

use crate::{
    clock::Clock,
    controllers::nodes::requested::{HealthTracker, RequestTracker, UnavailableTracker},
    events::EventRecorder,
    stores::Stores,
};
use kube::Client;
use std::sync::Arc;

/// What the controller of pools works with. One per process.
pub struct HostNodePoolContext {
    /// The host's API server.
    pub client: Client,
    /// Views of the host.
    pub stores: Stores,
    /// The clock of the host, by which conditions change.
    pub clock: Clock,
    /// Nodes that are requested of autoscalers.
    pub requested: Arc<RequestTracker>,
    /// Nodes without a tenant that cannot be assigned.
    pub unavailable: Arc<UnavailableTracker>,
    /// How many nodes are not Ready.
    pub health: Arc<HealthTracker>,
    /// Writes Events.
    pub recorder: EventRecorder,
}
