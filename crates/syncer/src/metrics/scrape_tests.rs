//! Prometheus takes all that a syncer can have: of an answer above a limit of the chart's PodMonitor it takes nothing.

use super::{
    AdmissionLabels, CallLabels, EgressLabels, KindLabels, Metrics, QueueLabels, ReasonLabels, SideLabels, StopLabels,
    WriteLabels,
};
use berth_api::sync_policy::{SyncPolicy, SyncedKind};
use berth_sync_rules::{
    model::{Direction, KindId},
    registry,
};
use prometheus_client::{encoding::text::encode, registry::Registry};
use std::time::Duration;

/// Kinds that a class names at most.
const KINDS_OF_CLASS: usize = 32;
/// What a reconcile ends with. Not every kind has each of them.
const RESULTS: [&str; 46] = [
    "adopted",
    "applied",
    "certified",
    "copied",
    "created",
    "deferred",
    "deleted",
    "denied",
    "draining",
    "dropped",
    "ending",
    "error",
    "evaluated",
    "evicted",
    "exists",
    "finished",
    "foreign",
    "ignored",
    "lost",
    "minted",
    "needed on the host",
    "not evicted",
    "nothing",
    "outdated",
    "outside schedule",
    "owned",
    "refused",
    "removed",
    "replaced",
    "replacing",
    "reported",
    "reserved",
    "stop delayed",
    "swept",
    "trust updated",
    "unavailable",
    "updated",
    "vanished",
    "waiting",
    "waiting for a place",
    "waiting for a place of its user",
    "waiting for its gang",
    "waiting for its turn",
    "waiting for room on the host",
    "waits for its object",
    "withdrawn",
];
/// Calls besides those for the objects of a kind themselves.
const FURTHER_CALLS: [(&str, &str, &str); 12] = [
    ("host", "dry-run", "services"),
    ("host", "patch", "ephemeralcontainers"),
    ("host", "patch", "resize"),
    ("host", "patch", "status"),
    ("tenant", "apply", "mutatingwebhookconfigurations"),
    ("tenant", "create", "binding"),
    ("tenant", "create", "eviction"),
    ("tenant", "create", "leases"),
    ("tenant", "create", "token"),
    ("tenant", "patch", "leases"),
    ("tenant", "patch", "mutatingwebhookconfigurations"),
    ("tenant", "patch", "status"),
];
const A_MOMENT: Duration = Duration::from_millis(3);

/// The kinds of a class that names as many as it may, by names as long as they may be.
fn all_kinds() -> Vec<KindId> {
    let named = (0..KINDS_OF_CLASS).map(|number| SyncedKind {
        group: "g".repeat(253),
        version: "v1".into(),
        kind: format!("K{number:0>62}"),
        resource: format!("r{number:0>62}"),
        ..SyncedKind::default()
    });
    let policy = SyncPolicy {
        kinds: named.collect(),
        ..SyncPolicy::default()
    };
    registry::kind_ids(&policy)
}

/// What is called for objects of a kind: side and verb.
fn calls_for(id: KindId) -> &'static [(&'static str, &'static str)] {
    match registry::kind(id).direction {
        Direction::ToHost(_) => &[
            ("host", "apply"),
            ("host", "create"),
            ("host", "delete"),
            ("host", "get"),
            ("host", "list"),
            ("host", "patch"),
            ("tenant", "delete"),
            ("tenant", "get"),
            ("tenant", "patch"),
        ],
        _ => &[
            ("host", "list"),
            ("tenant", "apply"),
            ("tenant", "create"),
            ("tenant", "delete"),
            ("tenant", "list"),
            ("tenant", "patch"),
            ("tenant", "replace"),
        ],
    }
}

/// A syncer in which everything has happened with every kind.
fn after_everything() -> Metrics {
    let metrics = Metrics::default();
    let call = |side, verb, resource| metrics.api_call(&CallLabels { side, verb, resource }, A_MOMENT);
    for (side, verb, resource) in FURTHER_CALLS {
        call(side, verb, resource);
    }
    for id in all_kinds() {
        let kind = id.label();
        for result in RESULTS {
            for priority in ["high", "low", "normal"] {
                metrics.reconciled(kind, &QueueLabels { priority, result }, A_MOMENT);
            }
        }
        for counter in [&metrics.orphans, &metrics.reservations_swept] {
            counter.get_or_create(&KindLabels { kind }).inc();
        }
        for gauge in [&metrics.failing_keys, &metrics.unreadable_objects] {
            gauge.get_or_create(&KindLabels { kind }).inc();
        }
        let resource = registry::kind(id).resource().unwrap().plural;
        for (side, verb) in calls_for(id) {
            call(side, verb, resource);
        }
    }
    for operation in ["create", "update"] {
        for result in ["allowed", "changed", "denied", "failed"] {
            metrics.admission(&AdmissionLabels { operation, result }, A_MOMENT);
        }
    }
    for result in ["allowed", "denied"] {
        metrics.large_write(&WriteLabels { result }, 1, A_MOMENT);
    }
    for target in ["endpoint", "external", "kubelet", "local", "pod", "service", "unknown"] {
        for result in ["connected", "denied", "failed"] {
            metrics.egress.get_or_create(&EgressLabels { target, result }).inc();
        }
    }
    for result in ["deleted", "delayed", "ended_on_host", "evicted"] {
        metrics.schedule_stops.get_or_create(&StopLabels { result }).inc();
    }
    for side in ["host", "tenant"] {
        metrics.watches.get_or_create(&SideLabels { side }).inc();
    }
    for size in ["large", "small"] {
        metrics.host_writes.count(size, 1);
    }
    let reason = "FieldDenied";
    metrics.denials.get_or_create(&ReasonLabels { reason }).inc();
    metrics
}

/// A limit of the PodMonitor.
fn limit(field: &str) -> usize {
    const TEMPLATE: &str = include_str!("../../../../charts/berth/templates/monitoring.yaml");
    let (_, monitor) = TEMPLATE.split_once("kind: PodMonitor").unwrap();
    let (_, value) = monitor.split_once(&format!("{field}: ")).unwrap();
    let value = value.lines().next().unwrap();
    value.trim_end_matches("MB").parse().unwrap()
}

#[test]
fn prometheus_takes_all_that_a_syncer_can_have() {
    let mut registry = Registry::default();
    after_everything().register(&mut registry);
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    let samples = text.lines().filter(|line| !line.starts_with('#')).count();
    assert!(samples <= limit("sampleLimit"), "{samples} samples");
    // The numbers of a syncer that has worked for long have more digits.
    let bytes = text.len() + 20 * samples;
    assert!(bytes <= limit("bodySizeLimit") << 20, "{bytes} bytes");
    let longest = all_kinds().into_iter().map(|id| id.label().len()).max().unwrap();
    assert!(longest <= limit("labelValueLengthLimit"), "{longest} bytes");
}
