//! Pods that have no node.

use prometheus_client::{metrics::gauge::Gauge, registry::Registry};

/// Metrics of the pods that have no node. Clones share values.
#[derive(Clone, Debug, Default)]
pub struct WaitingRoomMetrics {
    /// Pods on the host without a node, and those that are to be created there next.
    pub placed: Gauge,
    /// Pods that are not created on the host because of those.
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
            "held_pods",
            "Pods that are not created on the host because of limits.waitingPods of the class",
            self.held.clone(),
        );
    }
}
