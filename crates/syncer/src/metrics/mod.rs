//! Metrics of the syncer. Labels take few values: never a name.

mod host_writes;
mod scheduling_window;
#[cfg(test)]
mod scrape_tests;
mod waiting_room;

pub use host_writes::{HostWriteMetrics, SizeLabels};
pub use scheduling_window::SchedulingWindowMetrics;
pub use waiting_room::WaitingRoomMetrics;

use berth_runtime::metrics::duration_histogram;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use std::time::Duration;

/// Labels of [`Metrics::reconciles`].
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ReconcileLabels {
    pub kind: &'static str,
    /// What was done.
    pub result: &'static str,
}

/// Labels of [`Metrics::queue_seconds`].
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct QueueLabels {
    /// The queue: `high`, `normal` or `low`.
    pub priority: &'static str,
    /// What was done, as in [`ReconcileLabels::result`].
    pub result: &'static str,
}

/// Labels of [`Metrics::api_calls`].
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct CallLabels {
    /// `tenant` or `host`.
    pub side: &'static str,
    /// What was done.
    pub verb: &'static str,
    /// Resource in the plural, with its subresource.
    pub resource: &'static str,
}

/// One side.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct SideLabels {
    /// `tenant` or `host`.
    pub side: &'static str,
}

/// Labels of [`Metrics::admissions`].
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct AdmissionLabels {
    /// `create` or `update`.
    pub operation: &'static str,
    /// `allowed`, `changed`, `denied` or `failed`.
    pub result: &'static str,
}

/// Labels of [`Metrics::large_writes`].
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct WriteLabels {
    /// `allowed` or `denied`.
    pub result: &'static str,
}

/// Labels of [`Metrics::egress`].
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct EgressLabels {
    /// `kubelet`, `pod`, `service`, `endpoint`, `external`, `local` or `unknown`.
    pub target: &'static str,
    /// `connected`, `denied` or `failed`.
    pub result: &'static str,
}

/// One kind.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct KindLabels {
    pub kind: &'static str,
}

/// One reason.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct ReasonLabels {
    /// Reason as in Events.
    pub reason: &'static str,
}

/// What became of a pod that a schedule stops.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub struct StopLabels {
    /// `evicted`, `deleted`, `delayed` or `ended_on_host`.
    pub result: &'static str,
}

/// All metrics. Clones share values.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Keys that were reconciled.
    pub reconciles: Family<ReconcileLabels, Counter>,
    /// Seconds that keys waited in their queue after they were due.
    pub queue_seconds: Family<QueueLabels, Histogram, fn() -> Histogram>,
    /// Keys that wait in all queues.
    pub queue_depth: Gauge,
    /// The pods that the host's scheduler has not tried yet.
    pub scheduling_window: SchedulingWindowMetrics,
    /// The pods that have no node.
    pub waiting_room: WaitingRoomMetrics,
    /// Watches that are kept open.
    pub watches: Family<SideLabels, Gauge>,
    /// Kinds whose objects in the tenant could not be listed, and without which the syncer goes on.
    pub unlisted_kinds: Gauge,
    /// Objects that the host has had since before the start and that were not compared yet; -1 while they are not known.
    pub uncompared_objects: Gauge,
    /// Seconds for which the host's API server has not answered.
    pub host_silent_seconds: Gauge,
    /// Objects on the host whose keys keep failing.
    pub failing_keys: Family<KindLabels, Gauge>,
    /// Objects that are nested too deep to be read.
    pub unreadable_objects: Family<KindLabels, Gauge>,
    /// Seconds of API calls.
    pub api_calls: Family<CallLabels, Histogram, fn() -> Histogram>,
    /// Host objects without a tenant origin that the periodic scan found. Should stay 0.
    pub orphans: Family<KindLabels, Counter>,
    /// Host objects that somebody else has made beside those of the syncer. Should stay 0.
    pub strays: Counter,
    /// Pods that schedules stopped.
    pub schedule_stops: Family<StopLabels, Counter>,
    /// What was denied to the tenant.
    pub denials: Family<ReasonLabels, Counter>,
    /// Seconds from a change in the tenant to the acknowledged write on the host.
    pub sync_to_host: Histogram,
    /// Seconds from a change on the host to the acknowledged write in the tenant.
    pub sync_to_tenant: Histogram,
    /// Seconds of answers to the tenant's API server.
    pub admissions: Family<AdmissionLabels, Histogram, fn() -> Histogram>,
    /// Seconds that large writes of the tenant waited for their turn.
    pub large_writes: Family<WriteLabels, Histogram, fn() -> Histogram>,
    /// Bytes of large writes.
    pub large_write_bytes: Family<WriteLabels, Counter>,
    /// Writes to the host.
    pub host_writes: HostWriteMetrics,
    /// Bytes of the tenant's objects on the host.
    pub host_bytes: Gauge,
    /// Bytes that they may have.
    pub host_bytes_limit: Gauge,
    /// Services whose endpoints change too often, and that have none on the host for a while.
    pub closed_services: Gauge,
    /// Connections that the tenant's API server asked for.
    pub egress: Family<EgressLabels, Counter>,
    /// Reservations on the host without a tenant object.
    pub reservations_swept: Family<KindLabels, Counter>,
    /// Events that the rate limit dropped.
    pub events_dropped: Counter,
}

/// A gauge of which nothing is known yet.
fn unknown() -> Gauge {
    let gauge = Gauge::default();
    gauge.set(-1);
    gauge
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            reconciles: Family::default(),
            queue_seconds: Family::new_with_constructor(duration_histogram as fn() -> Histogram),
            queue_depth: Gauge::default(),
            scheduling_window: SchedulingWindowMetrics::default(),
            waiting_room: WaitingRoomMetrics::default(),
            watches: Family::default(),
            unlisted_kinds: Gauge::default(),
            uncompared_objects: unknown(),
            host_silent_seconds: Gauge::default(),
            failing_keys: Family::default(),
            unreadable_objects: Family::default(),
            api_calls: Family::new_with_constructor(duration_histogram as fn() -> Histogram),
            orphans: Family::default(),
            strays: Counter::default(),
            schedule_stops: Family::default(),
            denials: Family::default(),
            sync_to_host: duration_histogram(),
            sync_to_tenant: duration_histogram(),
            admissions: Family::new_with_constructor(duration_histogram as fn() -> Histogram),
            large_writes: Family::new_with_constructor(duration_histogram as fn() -> Histogram),
            large_write_bytes: Family::default(),
            host_writes: HostWriteMetrics::default(),
            host_bytes: Gauge::default(),
            host_bytes_limit: Gauge::default(),
            closed_services: Gauge::default(),
            egress: Family::default(),
            reservations_swept: Family::default(),
            events_dropped: Counter::default(),
        }
    }
}

impl Metrics {
    /// Registers everything under `berth_syncer_`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("berth_syncer");
        registry.register(
            "reconciles",
            "Keys that were reconciled, by kind and result",
            self.reconciles.clone(),
        );
        registry.register(
            "queue_seconds",
            "Time that keys waited in a queue after they were due, by queue and by what was done then",
            self.queue_seconds.clone(),
        );
        registry.register("queue_depth", "Keys waiting in the queues", self.queue_depth.clone());
        self.scheduling_window.register(registry);
        self.waiting_room.register(registry);
        registry.register("watches", "Watches kept open", self.watches.clone());
        self.register_unenforced(registry);
        registry.register("api_call_seconds", "Duration of API calls", self.api_calls.clone());
        registry.register(
            "orphans",
            "Host objects without a tenant object found by the periodic scan",
            self.orphans.clone(),
        );
        registry.register(
            "strays",
            "Host objects that name an object of the tenant and that the syncer has not made: deleted, or ignored if they hold data",
            self.strays.clone(),
        );
        registry.register(
            "schedule_stops",
            "Pods that schedules stopped, by what became of them; delayed counts evictions that budgets refused",
            self.schedule_stops.clone(),
        );
        registry.register("denials", "Objects with denied fields", self.denials.clone());
        registry.register(
            "sync_to_host_seconds",
            "Time from observing a tenant change to its write on the host",
            self.sync_to_host.clone(),
        );
        registry.register(
            "sync_to_tenant_seconds",
            "Time from observing a host change to its write in the tenant",
            self.sync_to_tenant.clone(),
        );
        registry.register(
            "admission_seconds",
            "Duration of answers to the tenant's API server, by operation and result",
            self.admissions.clone(),
        );
        registry.register(
            "large_write_wait_seconds",
            "Time for which large writes of the tenant waited for their turn, by result: allowed or denied",
            self.large_writes.clone(),
        );
        registry.register(
            "large_write_bytes",
            "Bytes of large writes of the tenant, by result: allowed or denied",
            self.large_write_bytes.clone(),
        );
        self.host_writes.register(registry);
        registry.register(
            "host_bytes",
            "Bytes that the tenant's objects have on the host, as JSON",
            self.host_bytes.clone(),
        );
        registry.register(
            "host_bytes_limit",
            "Bytes that the tenant's objects may have on the host",
            self.host_bytes_limit.clone(),
        );
        registry.register(
            "closed_services",
            "Services whose endpoints change too often, and that have none on the host for a while",
            self.closed_services.clone(),
        );
        registry.register(
            "egress_connections",
            "Connections that the tenant's API server asked for, by target and result",
            self.egress.clone(),
        );
        registry.register(
            "reservations_swept",
            "Reservations on the host without a tenant object",
            self.reservations_swept.clone(),
        );
        registry.register(
            "events_dropped",
            "Events dropped by the rate limit",
            self.events_dropped.clone(),
        );
    }

    /// Registers what the syncer does not know, or cannot bring to the host.
    fn register_unenforced(&self, registry: &mut Registry) {
        registry.register(
            "unlisted_kinds",
            "Kinds whose objects in the tenant could not be listed, so that they are not synced until they can, and kinds with objects on the host that the tenant does not serve any more",
            self.unlisted_kinds.clone(),
        );
        registry.register(
            "uncompared_objects",
            "Services, Ingresses, routes and objects of further kinds that the host has had since before the start of the syncer and that were not compared with the rules of the class yet; -1 until it has listed both sides",
            self.uncompared_objects.clone(),
        );
        registry.register(
            "host_silent_seconds",
            "Seconds for which the host's API server has not answered the syncer, which asks every 30 seconds",
            self.host_silent_seconds.clone(),
        );
        registry.register(
            "failing_keys",
            "Objects on the host whose reconciles have failed ten times in a row or more, by kind; not because of a limit of the tenant",
            self.failing_keys.clone(),
        );
        registry.register(
            "unreadable_objects",
            "Objects that are nested too deep to be read, so that the host has their earlier state, by kind",
            self.unreadable_objects.clone(),
        );
    }

    /// Counts a key that was reconciled after it had waited in its queue.
    pub fn reconciled(&self, kind: &'static str, labels: &QueueLabels, waited: Duration) {
        let result = labels.result;
        self.reconciles.get_or_create(&ReconcileLabels { kind, result }).inc();
        self.queue_seconds.get_or_create(labels).observe(waited.as_secs_f64());
    }

    /// Counts one answer to the tenant's API server.
    pub fn admission(&self, labels: &AdmissionLabels, took: Duration) {
        self.admissions.get_or_create(labels).observe(took.as_secs_f64());
    }

    /// Counts one large write of the tenant.
    pub fn large_write(&self, labels: &WriteLabels, bytes: u64, waited: Duration) {
        self.large_writes.get_or_create(labels).observe(waited.as_secs_f64());
        self.large_write_bytes.get_or_create(labels).inc_by(bytes);
    }

    /// Counts one API call.
    pub fn api_call(&self, labels: &CallLabels, took: Duration) {
        self.api_calls.get_or_create(labels).observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode;

    #[test]
    fn waits_are_counted_by_queue_and_by_what_was_done() {
        let metrics = Metrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        for (result, milliseconds) in [("created", 250), ("created", 500), ("deleted", 4000)] {
            let labels = QueueLabels {
                priority: "normal",
                result,
            };
            metrics.reconciled("Pod", &labels, Duration::from_millis(milliseconds));
        }
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "berth_syncer_queue_seconds_sum{priority=\"normal\",result=\"created\"} 0.75",
            "berth_syncer_queue_seconds_count{priority=\"normal\",result=\"deleted\"} 1",
            "berth_syncer_reconciles_total{kind=\"Pod\",result=\"created\"} 2",
            "berth_syncer_queue_depth 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }
}
