//! Since when a node is not Ready.

use super::{is_ready, taints};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;

/// Taints by which Kubernetes evicts the pods of a node that is not Ready, or whose readiness is not known.
const NOT_READY: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// Since when a node is not Ready, or its readiness is unknown; `None`: it is Ready. A time that nobody has written is taken to be now, and so is one of the
/// future. The later of two counts: a kubelet writes the condition, with a clock that may be wrong, and kube-controller-manager writes the taint.
pub fn not_ready_since(node: &Node, now: Timestamp) -> Option<Timestamp> {
    if is_ready(node) {
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
    let times = tainted.filter_map(|taint| taint.time_added.as_ref()).chain(changed);
    Some(times.map(|time| time.0).max().unwrap_or(now).min(now))
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

    #[test]
    fn the_condition_says_since_when_a_node_is_not_ready() {
        assert_eq!(since("True", Some(400), None), None);
        assert_eq!(since("False", Some(400), None), Some(400));
        assert_eq!(since("Unknown", Some(400), None), Some(400));
    }

    #[test]
    fn a_wrong_clock_makes_no_node_unready_for_longer() {
        let taint = "node.kubernetes.io/unreachable";
        assert_eq!(since("Unknown", Some(1), Some((taint, 900))), Some(900));
        assert_eq!(since("Unknown", Some(400), Some((taint, 300))), Some(400));
        assert_eq!(since("Unknown", Some(400), Some(("nvidia.com/gpu", 900))), Some(400));
        assert_eq!(since("False", Some(2000), None), Some(1000), "of the future");
        assert_eq!(since("False", None, None), Some(1000), "nobody has written it");
        let unknown = serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap();
        assert_eq!(not_ready_since(&unknown, at(1000)), Some(at(1000)));
    }
}
