//! Pods that have no node.

use prometheus_client::{metrics::gauge::Gauge, registry::Registry};

/// Metrics of the pods that have no node. Clones share values.
#[derive(Clone, Debug, Default)]
pub struct WaitingRoomMetrics {
    /// Pods on the host without a node, and those that are to be created there next.
    pub placed: Gauge,
    /// Places that are kept for other pods of gangs, in place of pods that wait.
    pub kept: Gauge,
    /// Pods that are not created on the host because of those, or until others of their gang exist.
    pub held: Gauge,
}

impl WaitingRoomMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "waiting_pods",
            "Pods on the host that have no node, and those that are to be created there next",
            self.placed.clone(),
        );
        registry.register(
            "kept_places",
            "Places of limits.waitingPods of the class that are kept for pods of gangs which do not exist yet",
            self.kept.clone(),
        );
        registry.register(
            "held_pods",
            "Pods that are not created on the host because of limits.waitingPods of the class, or until others of their gang exist",
            self.held.clone(),
        );
    }
}
