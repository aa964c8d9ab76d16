//! Whether nodes and pods are Ready, as their status says.

use k8s_openapi::api::core::v1::{Node, Pod};

/// Whether a node has the condition Ready.
pub fn is_node_ready(node: &Node) -> bool {
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Whether a pod has the condition Ready.
pub fn is_pod_ready(pod: &Pod) -> bool {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn nodes_and_pods_are_ready_by_one_condition() {
        let is_ready = |conditions: &Value| {
            let object = json!({"metadata": {}, "status": {"conditions": conditions}});
            let node = is_node_ready(&serde_json::from_value(object.clone()).unwrap());
            let pod = is_pod_ready(&serde_json::from_value(object).unwrap());
            (node, pod)
        };
        let other = json!({"type": "DiskPressure", "status": "True"});
        for (status, expected) in [("True", true), ("False", false), ("Unknown", false)] {
            let conditions = json!([other, {"type": "Ready", "status": status}]);
            assert_eq!(is_ready(&conditions), (expected, expected), "{status}");
        }
        assert_eq!(is_ready(&json!([other])), (false, false));
        assert_eq!(is_ready(&Value::Null), (false, false));
        assert!(!is_node_ready(&Node::default()) && !is_pod_ready(&Pod::default()));
    }
}
