//! What remains of a tenant that is being deleted, as the condition Deleting says it.

use berth_node_lifecycle::repair::REPORTED_WITHIN;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{ResourceExt, core::PartialObjectMeta};

/// Reason: pods did not end in time.
pub(super) const PODS_OVERDUE: &str = "PodsOverdue";
/// Reason: a namespace says what keeps it.
pub(super) const NAMESPACE_BLOCKED: &str = "NamespaceBlocked";
/// Seconds after which it is reported what keeps a namespace: controllers of the host remove their finalizers in less.
const NAMESPACE_WITHIN: i64 = 60;
/// Conditions of a namespace that say what keeps it.
const BLOCKING: [&str; 5] = [
    "NamespaceContentRemaining",
    "NamespaceDeletionContentFailure",
    "NamespaceDeletionDiscoveryFailure",
    "NamespaceDeletionGroupVersionParsingFailure",
    "NamespaceFinalizersRemaining",
];

/// What remains.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Remaining {
    /// Reason of the condition and of the Event.
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Remaining {
    fn new(reason: &'static str, message: String) -> Self {
        Self { reason, message }
    }
}

/// Pods that are terminating, and those of them that did not end in time. `removes`: whether these are removed.
pub(super) fn pods(
    namespace: &str,
    terminating: &[PartialObjectMeta<Pod>],
    overdue: &[&PartialObjectMeta<Pod>],
    removes: bool,
) -> Remaining {
    if !overdue.is_empty() {
        return Remaining::new(PODS_OVERDUE, describe_overdue(namespace, overdue, removes));
    }
    let removed_at = terminating
        .iter()
        .filter_map(|pod| pod.metadata.deletion_timestamp.as_ref())
        .map(|ends_at| ends_at.0)
        .max()
        .and_then(|last| last.checked_add(SignedDuration::from_secs(REPORTED_WITHIN)).ok());
    let until = removed_at.map_or_else(String::new, |at| {
        format!("; those that have not ended by {at} are removed")
    });
    Remaining::new(
        "PodsTerminating",
        format!("the pods in namespace {namespace} are terminating{until}"),
    )
}

fn describe_overdue(namespace: &str, overdue: &[&PartialObjectMeta<Pod>], removes: bool) -> String {
    const NAMED: usize = 5;
    let describe = |pod: &&PartialObjectMeta<Pod>| match pod.finalizers() {
        [] => pod.name_any(),
        finalizers => format!("{} (held by the finalizers {})", pod.name_any(), finalizers.join(", ")),
    };
    let named: Vec<String> = overdue.iter().take(NAMED).map(describe).collect();
    let more = match overdue.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let what_happens = if removes {
        "are removed without their kubelets"
    } else {
        "are not removed, because their nodes are not scrubbed: end them on their nodes, or delete the nodes"
    };
    format!(
        "pods in namespace {namespace} did not end in their grace period and {what_happens}: {}{more}",
        named.join(", ")
    )
}

/// Whether the host says of a namespace that objects with this finalizer have kept it for longer than its controllers take.
pub(super) fn is_held_by(namespace: &Namespace, finalizer: &str, now: Timestamp) -> bool {
    is_late(namespace, now) && blocking_messages(namespace).any(|message| message.contains(finalizer))
}

fn is_late(namespace: &Namespace, now: Timestamp) -> bool {
    let since = namespace.metadata.deletion_timestamp.as_ref();
    since.is_some_and(|since| now.as_second() >= since.0.as_second().saturating_add(NAMESPACE_WITHIN))
}

/// What the host says keeps a namespace.
fn blocking_messages(namespace: &Namespace) -> impl Iterator<Item = &str> {
    let conditions = { namespace.status.iter() }.flat_map(|status| status.conditions.iter().flatten());
    conditions
        .filter(|condition| condition.status == "True" && BLOCKING.contains(&condition.type_.as_str()))
        .filter_map(|condition| condition.message.as_deref())
}

/// A namespace that is being deleted.
pub(super) fn namespace(namespace: &Namespace, now: Timestamp) -> Remaining {
    let name = namespace.name_any();
    let kept_by: Vec<&str> = blocking_messages(namespace).collect();
    if is_late(namespace, now) && !kept_by.is_empty() {
        let message = format!(
            "namespace {name} is terminating; the host says what keeps it: {}",
            kept_by.join(" ")
        );
        return Remaining::new(NAMESPACE_BLOCKED, message);
    }
    Remaining::new("NamespaceTerminating", format!("namespace {name} is terminating"))
}

/// Nodes that have not left the tenant.
pub(super) fn nodes(names: &[String]) -> Remaining {
    Remaining::new(
        "NodesReleasing",
        format!("nodes are being released: {}", names.join(", ")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(name: &str, ends_at: &str, finalizers: &[&str]) -> PartialObjectMeta<Pod> {
        serde_json::from_value(json!({"metadata": {
            "name": name, "deletionTimestamp": ends_at, "finalizers": finalizers,
        }}))
        .unwrap()
    }

    #[test]
    fn pods_that_have_time_left_are_announced_with_its_end() {
        let all = [
            pod("a", "2026-01-01T00:10:00Z", &[]),
            pod("b", "2026-01-01T00:00:30Z", &[]),
        ];
        let remaining = pods("berth-vision", &all, &[], true);
        assert_eq!(remaining.reason, "PodsTerminating");
        assert!(
            remaining.message.contains("2026-01-01T00:11:00Z"),
            "{}",
            remaining.message
        );
        let none = pods("berth-vision", &[], &[], true);
        assert_eq!(none.message, "the pods in namespace berth-vision are terminating");
    }

    #[test]
    fn overdue_pods_are_named_with_what_holds_them() {
        let all: Vec<_> = (0..7)
            .map(|number| {
                pod(
                    &format!("p{number}"),
                    "2026-01-01T00:00:00Z",
                    if number == 0 { &["a/b"] } else { &[] },
                )
            })
            .collect();
        let overdue: Vec<_> = all.iter().collect();
        let remaining = pods("berth-vision", &all, &overdue, true);
        assert_eq!(remaining.reason, PODS_OVERDUE);
        assert!(
            remaining
                .message
                .ends_with("p0 (held by the finalizers a/b), p1, p2, p3, p4 and 2 more"),
            "{}",
            remaining.message
        );
    }

    #[test]
    fn what_keeps_a_namespace_is_reported_after_a_while() {
        let with = |conditions: &Value| -> Namespace {
            serde_json::from_value(json!({
                "metadata": {"name": "n", "deletionTimestamp": "2026-01-01T00:00:00Z"},
                "status": {"conditions": conditions},
            }))
            .unwrap()
        };
        let kept = with(&json!([
            {"type": "NamespaceContentRemaining", "status": "True", "message": "services. has 1 resource instances"},
            {"type": "NamespaceDeletionContentFailure", "status": "False", "message": "All content successfully deleted"},
        ]));
        let at = |time: &str| -> Timestamp { time.parse().unwrap() };
        let reason = |of: &Namespace, time: &str| namespace(of, at(time)).reason;
        assert_eq!(reason(&kept, "2026-01-01T00:00:59Z"), "NamespaceTerminating");
        assert_eq!(reason(&kept, "2026-01-01T00:01:00Z"), NAMESPACE_BLOCKED);
        assert_eq!(
            reason(&with(&json!([])), "2026-01-01T01:00:00Z"),
            "NamespaceTerminating"
        );
        let message = namespace(&kept, at("2026-01-01T00:01:00Z")).message;
        assert!(message.ends_with("services. has 1 resource instances"), "{message}");
    }
}
