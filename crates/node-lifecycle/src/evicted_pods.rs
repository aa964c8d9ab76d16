//! Pods that the taint of a node between two tenants evicts. They have to end before a tenant gets the node, whatever owns them: nothing ends
//! what they leave running.

use crate::{
    platform_pods::{MIRROR, find_toleration, is_of_daemon_set, is_placeholder, stays, tolerates_every_tenant},
    pod_phase::has_ended,
};
use berth_api::labels::{self, RECYCLING};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Toleration};
use kube_core::ResourceExt;

/// Seconds after a node got its taint in which its kubelet may not know of it yet.
const UNKNOWN_TO_KUBELET: i64 = 60;

/// Whether the taint evicts a pod for good: it does not tolerate the taint for ever, and has not ended. Static pods and placeholders do not count:
/// kubelets give static ones the toleration, and placeholders end at once.
pub fn is_evicted(pod: &Pod) -> bool {
    !stays_between_tenants(pod) && !has_ended(pod) && !pod.annotations().contains_key(MIRROR) && !is_placeholder(pod)
}

/// Whether an evicted pod may run on its node, which has had the taint since `tainted` or longer. A kubelet starts no pod that does not tolerate
/// such a taint. So what was made later, and is not taken by the kubelet, never runs: who may create pods would otherwise keep the node with
/// new ones. One that tolerates it for a time is started. Who may make such a pod may make one that stays as well.
pub fn may_run(pod: &Pod, tainted: Option<Timestamp>) -> bool {
    let made = pod.metadata.creation_timestamp.as_ref();
    let is_later = tainted
        .zip(made)
        .is_some_and(|(tainted, made)| made.0.as_second() > tainted.as_second().saturating_add(UNKNOWN_TO_KUBELET));
    is_taken(pod) || !is_later
}

/// Whether a pod may run on a node that has had the taint for long.
pub(crate) fn may_run_between_tenants(pod: &Pod) -> bool {
    !has_ended(pod) && (is_taken(pod) || stays_between_tenants(pod))
}

/// Whether a pod stays on a node between two tenants. A DaemonSet makes pods for every node whose taints they tolerate, for however short a time, and
/// makes them again as often as they are evicted: nobody could wait for their end.
fn stays_between_tenants(pod: &Pod) -> bool {
    stays(pod, tolerates_recycling) || (is_of_daemon_set(pod) && find_toleration(pod, tolerates_recycling).is_some())
}

/// Whether the kubelet has taken a pod. It also says so of one that it does not start, and that such a pod has ended.
fn is_taken(pod: &Pod) -> bool {
    pod.status.as_ref().is_some_and(|status| status.start_time.is_some())
}

/// Whether a pod with this toleration stays on a node between two tenants, for ever or for a time.
fn tolerates_recycling(toleration: &Toleration) -> bool {
    let names_value = matches!(toleration.operator.as_deref().unwrap_or_default(), "" | "Equal")
        && toleration.key.as_deref() == Some(labels::TENANT)
        && toleration.value.as_deref() == Some(RECYCLING)
        && matches!(toleration.effect.as_deref().unwrap_or_default(), "" | "NoExecute");
    names_value || tolerates_every_tenant(toleration)
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::system;
    use serde_json::{Value, json};

    fn pod(metadata: &Value, tolerations: &Value, status: &Value) -> Pod {
        let mut pod = json!({
            "metadata": {"name": "web-1", "namespace": "shop"},
            "spec": {"nodeName": "n1", "containers": [], "tolerations": tolerations},
            "status": status,
        });
        for (key, value) in metadata.as_object().unwrap() {
            pod["metadata"][key] = value.clone();
        }
        serde_json::from_value(pod).unwrap()
    }

    fn owned(kind: &str) -> Value {
        json!({"ownerReferences": [{"apiVersion": "a/v1", "kind": kind, "name": "o", "uid": "u", "controller": true}]})
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn pods_that_do_not_tolerate_the_taint_are_evicted_whatever_owns_them() {
        for metadata in [
            json!({}),
            owned("DaemonSet"),
            owned("Node"),
            json!({"labels": {labels::PLACEHOLDER: "h100"}}),
            json!({"labels": {labels::TENANT: "vision-abc"}}),
            json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 1_000_000_000}),
        ] {
            assert!(is_evicted(&pod(&metadata, &json!([]), &json!({}))), "{metadata}");
        }
        for toleration in [
            json!({"key": "nvidia.com/gpu", "operator": "Exists"}),
            json!({"key": labels::TENANT, "operator": "Exists", "effect": "NoSchedule"}),
            json!({"key": labels::TENANT, "operator": "Exists", "tolerationSeconds": 1_000_000_000}),
            json!({"key": labels::TENANT, "value": "vision-abc"}),
            json!({"key": labels::TENANT, "value": RECYCLING, "effect": "NoSchedule"}),
            json!({"key": labels::TENANT, "value": RECYCLING, "effect": "NoExecute", "tolerationSeconds": 60}),
        ] {
            assert!(
                is_evicted(&pod(&json!({}), &json!([toleration]), &json!({}))),
                "{toleration}"
            );
        }
    }

    #[test]
    fn pods_that_tolerate_the_taint_and_those_that_do_not_run_are_not() {
        for toleration in [
            json!({"operator": "Exists"}),
            json!({"key": labels::TENANT, "operator": "Exists"}),
            json!({"key": labels::TENANT, "operator": "Exists", "effect": "NoExecute"}),
            json!({"key": labels::TENANT, "value": RECYCLING}),
            json!({"key": labels::TENANT, "operator": "Equal", "value": RECYCLING, "effect": "NoExecute"}),
        ] {
            assert!(
                !is_evicted(&pod(&json!({}), &json!([toleration]), &json!({}))),
                "{toleration}"
            );
        }
        // As that of a CSI driver that is not to run on nodes with taints.
        let for_a_time = json!({"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300});
        let of = |kind: &str| pod(&owned(kind), &json!([for_a_time]), &json!({}));
        assert!(!is_evicted(&of("DaemonSet")) && is_evicted(&of("ReplicaSet")));
        for (metadata, status) in [
            (json!({}), json!({"phase": "Succeeded"})),
            (json!({"finalizers": ["a.example.com/f"]}), json!({"phase": "Failed"})),
            (json!({"annotations": {MIRROR: "id"}}), json!({})),
            (
                json!({"namespace": system::NAMESPACE, "labels": {labels::PLACEHOLDER: "h100"}}),
                json!({}),
            ),
        ] {
            assert!(!is_evicted(&pod(&metadata, &json!([]), &status)), "{metadata} {status}");
        }
    }

    #[test]
    fn only_the_kubelet_makes_a_pod_run_that_came_after_the_taint() {
        let made = |second: i64, status: &Value| {
            let pod = pod(
                &json!({"creationTimestamp": at(second).to_string()}),
                &json!([]),
                status,
            );
            may_run(&pod, Some(at(1000)))
        };
        let taken = json!({"phase": "Running", "startTime": "2026-01-01T00:00:00Z"});
        for status in [json!({}), json!({"phase": "Pending"})] {
            assert!(made(10, &status) && made(1060, &status), "{status}");
            assert!(!made(1061, &status), "{status}");
        }
        assert!(made(10, &taken) && made(1061, &taken));
        let without_times = pod(&json!({}), &json!([]), &json!({}));
        assert!(may_run(&without_times, Some(at(1000))) && may_run(&without_times, None));
    }

    #[test]
    fn between_two_tenants_only_what_tolerates_the_taint_starts() {
        let (tolerates, taken) = (json!([{"operator": "Exists"}]), "2026-01-01T00:00:00Z");
        for (tolerations, status, expected) in [
            (&tolerates, json!({"phase": "Pending"}), true),
            (&json!([]), json!({"phase": "Running", "startTime": taken}), true),
            (&json!([]), json!({"phase": "Pending"}), false),
            (&tolerates, json!({"phase": "Failed", "startTime": taken}), false),
        ] {
            let pod = pod(&json!({}), tolerations, &status);
            assert_eq!(may_run_between_tenants(&pod), expected, "{tolerations} {status}");
        }
    }
}
