//! Writes to the host.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// Labels of [`HostWriteMetrics::bytes`].
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct SizeLabels {
    /// `large` or `small`.
    pub size: &'static str,
}

/// Metrics of writes to the host. Clones share values.
#[derive(Clone, Debug, Default)]
pub struct HostWriteMetrics {
    /// Bytes of objects that were created or changed there.
    pub bytes: Family<SizeLabels, Counter>,
    /// Objects that wait for their turn.
    pub objects_waiting: Family<SizeLabels, Gauge>,
    /// Requests that controllers of the host make because of what was written there, and of what waits.
    pub controller_requests: Counter,
    /// Objects that wait because these would be too many.
    pub controller_requests_waiting: Gauge,
    /// Bytes of Events that were written there about objects of the tenant.
    pub event_bytes: Counter,
    /// Pods that wait because these are too many.
    pub pods_waiting_for_events: Gauge,
}

impl HostWriteMetrics {
    /// Counts an object of this size.
    pub fn count(&self, size: &'static str, bytes: u64) {
        self.bytes.get_or_create(&SizeLabels { size }).inc_by(bytes);
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "host_write_bytes",
            "Bytes of objects that were created or changed on the host, by their size: large or small",
            self.bytes.clone(),
        );
        registry.register(
            "host_writes_waiting",
            "Objects that wait for their turn to be written to the host, by their size: large or small",
            self.objects_waiting.clone(),
        );
        registry.register(
            "controller_requests",
            "Requests that controllers of the host make because of claims, snapshots and claims of pods that were written there, and of claims that wait for their volume",
            self.controller_requests.clone(),
        );
        registry.register(
            "controller_requests_waiting",
            "Objects that wait because controllers of the host would make too many requests for the tenant",
            self.controller_requests_waiting.clone(),
        );
        registry.register(
            "host_event_bytes",
            "Bytes of Events that components of the host wrote there about objects of the tenant",
            self.event_bytes.clone(),
        );
        registry.register(
            "pods_waiting_for_events",
            "Pods that wait because components of the host write too many bytes of Events about objects of the tenant",
            self.pods_waiting_for_events.clone(),
        );
    }
}
