//! Pods that the host's scheduler has not tried yet.

use berth_runtime::metrics::duration_histogram;
use prometheus_client::{
    metrics::{gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// Metrics of the pods that the host's scheduler has not tried yet. Clones share values.
#[derive(Clone, Debug)]
pub struct SchedulingWindowMetrics {
    /// Pods on the host that may wait for the scheduler at a time.
    pub limit: Gauge,
    /// Pods that do.
    pub used: Gauge,
    /// Pods that are not created on the host yet because of the limit.
    pub waiting: Gauge,
    /// Seconds that pods waited because of the limit.
    pub wait: Histogram,
    /// Seconds from a pod's creation on the host until the scheduler had tried it.
    pub first_try: Histogram,
}

impl Default for SchedulingWindowMetrics {
    fn default() -> Self {
        Self {
            limit: Gauge::default(),
            used: Gauge::default(),
            waiting: Gauge::default(),
            wait: duration_histogram(),
            first_try: duration_histogram(),
        }
    }
}

impl SchedulingWindowMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "scheduling_window_limit",
            "Pods on the host that may wait at a time for the host's scheduler to try them for the first time",
            self.limit.clone(),
        );
        registry.register(
            "scheduling_window_pods",
            "Pods on the host that wait for the host's scheduler to try them for the first time",
            self.used.clone(),
        );
        registry.register(
            "scheduling_window_waiting_pods",
            "Pods that are not created on the host yet because of the limit of the scheduling window",
            self.waiting.clone(),
        );
        registry.register(
            "scheduling_window_wait_seconds",
            "Time that pods waited because of the limit of the scheduling window",
            self.wait.clone(),
        );
        registry.register(
            "first_scheduling_try_seconds",
            "Time from the creation of a pod on the host until the host's scheduler had tried it",
            self.first_try.clone(),
        );
    }
}
