//! Metrics that long-running programs have in common. Durations are in seconds, and have the same buckets.

use prometheus_client::{
    metrics::{gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use std::time::Duration;

/// Upper bounds of the buckets of durations, from 0.5 ms to 60 s.
const DURATION_BUCKETS: [f64; 17] = [
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0,
];

/// A histogram of durations.
pub fn duration_histogram() -> Histogram {
    Histogram::new(DURATION_BUCKETS)
}

/// Metrics of a [`Queue`](crate::queue::Queue). Clones share values.
#[derive(Clone, Debug)]
pub struct QueueMetrics {
    /// Time that keys waited after they were due.
    pub wait_seconds: Histogram,
    /// Keys that wait.
    pub depth: Gauge,
}

impl Default for QueueMetrics {
    fn default() -> Self {
        Self {
            wait_seconds: duration_histogram(),
            depth: Gauge::default(),
        }
    }
}

impl QueueMetrics {
    /// Registers the metrics as `queue_seconds` and `queue_depth`.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "queue_seconds",
            "Time that keys waited in the queue after they were due",
            self.wait_seconds.clone(),
        );
        registry.register("queue_depth", "Keys waiting in the queue", self.depth.clone());
    }

    /// Records that a key was taken after it had waited for `waited`, and that `depth` keys are left.
    pub fn record_taken(&self, waited: Duration, depth: usize) {
        self.wait_seconds.observe(waited.as_secs_f64());
        self.depth.set(i64::try_from(depth).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode;

    #[test]
    fn a_taken_key_is_counted_with_the_depth_of_the_queue() {
        let metrics = QueueMetrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        metrics.record_taken(Duration::from_millis(3), 7);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in ["queue_seconds_count 1", "queue_depth 7"] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }
}
