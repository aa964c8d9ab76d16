//! Since when a node is not Ready.

use super::taints;
use berth_api::is_node_ready;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;

/// Taints of kube-controller-manager on a node that is not Ready, or whose readiness is not known. Kubelets cannot change them.
const NOT_READY: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// Since when a node is not Ready, or its readiness is unknown; `None`: it is Ready. The later of two times counts: a kubelet writes the condition, with a clock
/// that may be wrong, or what it likes, and kube-controller-manager writes the taint. It is now as long as there is no taint, and if it is of the future.
pub fn not_ready_since(node: &Node, now: Timestamp) -> Option<Timestamp> {
    if is_node_ready(node) {
        return None;
    }
    let status = node.status.as_ref();
    let mut conditions = status.iter().flat_map(|status| status.conditions.iter().flatten());
    let changed = conditions
        .find(|condition| condition.type_ == "Ready")
        .and_then(|condition| condition.last_transition_time.as_ref());
    let tainted = taints(node)
        .iter()
        .filter(|taint| NOT_READY.contains(&taint.key.as_str()));
    let tainted = tainted
        .filter_map(|taint| taint.time_added.as_ref())
        .max_by_key(|time| time.0);
    let since = tainted.map(|tainted| changed.map_or(tainted.0, |changed| changed.0.max(tainted.0)));
    Some(since.unwrap_or(now).min(now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn since(status: &str, changed: Option<i64>, taint: Option<(&str, i64)>) -> Option<i64> {
        let time = |second: i64| Value::from(at(second).to_string());
        let taint = taint.map(|(key, added)| json!([{"key": key, "effect": "NoExecute", "timeAdded": time(added)}]));
        let condition = json!({"type": "Ready", "status": status, "lastTransitionTime": changed.map(time)});
        let node = json!({"metadata": {"name": "n"}, "spec": {"taints": taint}, "status": {"conditions": [condition]}});
        let node: Node = serde_json::from_value(node).unwrap();
        not_ready_since(&node, at(1000)).map(Timestamp::as_second)
    }

    const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

    #[test]
    fn condition_and_taint_say_since_when_a_node_is_not_ready() {
        let not_ready = "node.kubernetes.io/not-ready";
        assert_eq!(since("True", Some(400), Some((not_ready, 400))), None);
        assert_eq!(since("False", Some(400), Some((not_ready, 401))), Some(401));
        assert_eq!(since("Unknown", Some(400), Some((UNREACHABLE, 300))), Some(400));
        assert_eq!(since("Unknown", None, Some((UNREACHABLE, 300))), Some(300));
    }

    #[test]
    fn what_a_kubelet_writes_makes_no_node_unready_for_longer() {
        assert_eq!(since("False", Some(1), None), Some(1000), "it has no taint yet");
        assert_eq!(since("False", Some(1), Some(("nvidia.com/gpu", 900))), Some(1000));
        assert_eq!(since("Unknown", Some(1), Some((UNREACHABLE, 900))), Some(900));
        assert_eq!(
            since("False", Some(2000), Some((UNREACHABLE, 900))),
            Some(1000),
            "of the future"
        );
        let unknown = serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap();
        assert_eq!(not_ready_since(&unknown, at(1000)), Some(at(1000)));
    }
}
