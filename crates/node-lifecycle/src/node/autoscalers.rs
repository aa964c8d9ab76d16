//! Taints and annotations with which autoscalers and Berth inform each other about nodes.
//!
//! A node with an assignment carries the annotations that keep Cluster Autoscaler and Karpenter from removing it: to them it can
//! look empty while it is reserved, recycled or not used yet. The patch that writes the assignment adds them.

use berth_api::labels::AUTOSCALER_ANNOTATIONS;
use k8s_openapi::api::core::v1::{Node, Taint};
use kube_core::ResourceExt;
use serde_json::{Map, Value};

/// Annotations that keep autoscalers from removing a node.
pub const PROTECTION_ANNOTATIONS: [&str; 2] = [
    "cluster-autoscaler.kubernetes.io/scale-down-disabled",
    "karpenter.sh/do-not-disrupt",
];
/// Value of [`PROTECTION_ANNOTATIONS`].
const YES: &str = "true";
/// Taints of nodes that an autoscaler has decided to remove.
const REMOVAL_TAINTS: [&str; 3] = [
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
];
/// Taints of nodes that are not yet, or no longer, ready for use.
const STARTUP_TAINTS: [&str; 4] = [
    "node.cloudprovider.kubernetes.io/uninitialized",
    "node.cloudprovider.kubernetes.io/shutdown",
    "node.kubernetes.io/network-unavailable",
    "karpenter.sh/unregistered",
];
/// Prefixes of startup taints of other programs, as Cluster Autoscaler knows them.
const STARTUP_TAINT_PREFIXES: [&str; 3] = [
    "startup-taint.cluster-autoscaler.kubernetes.io/",
    "status-taint.cluster-autoscaler.kubernetes.io/",
    "ignore-taint.cluster-autoscaler.kubernetes.io/",
];
/// Suffix of startup taints: `node.kubernetes.io/not-ready`, `node.cilium.io/agent-not-ready` and the like.
const NOT_READY_SUFFIX: &str = "not-ready";

fn taints(node: &Node) -> impl Iterator<Item = &Taint> {
    node.spec.iter().flat_map(|spec| spec.taints.iter().flatten())
}

/// The taint of a node that an autoscaler is about to remove.
pub fn find_removal_taint(node: &Node) -> Option<&str> {
    let mut keys = taints(node).map(|taint| taint.key.as_str());
    keys.find(|key| REMOVAL_TAINTS.contains(key))
}

/// The taint of a node that is not ready for use.
pub fn find_startup_taint(node: &Node) -> Option<&str> {
    let mut keys = taints(node)
        .filter(|taint| taint.effect != "PreferNoSchedule")
        .map(|taint| taint.key.as_str());
    keys.find(|key| {
        STARTUP_TAINTS.contains(key)
            || STARTUP_TAINT_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
            || key.ends_with(NOT_READY_SUFFIX)
    })
}

/// Which of [`PROTECTION_ANNOTATIONS`] Berth has set.
fn list_annotations_set_by_berth(node: &Node) -> Vec<&'static str> {
    let list = node.annotations().get(AUTOSCALER_ANNOTATIONS);
    let ours: Vec<&str> = list.map(|list| list.split(',').collect()).unwrap_or_default();
    PROTECTION_ANNOTATIONS
        .into_iter()
        .filter(|key| ours.contains(key))
        .collect()
}

/// Whether the node has all of [`PROTECTION_ANNOTATIONS`].
pub fn is_protected_from_removal(node: &Node) -> bool {
    PROTECTION_ANNOTATIONS
        .iter()
        .all(|key| node.annotations().get(*key).is_some_and(|value| value == YES))
}

/// Adds [`PROTECTION_ANNOTATIONS`] to a patch. Those that people set are not touched, and not recorded as Berth's.
pub fn add_protection(node: &Node, annotations: &mut Map<String, Value>) {
    let mut ours = list_annotations_set_by_berth(node);
    for key in PROTECTION_ANNOTATIONS {
        if node.annotations().get(key).is_none_or(|value| value != YES) {
            annotations.insert(key.into(), YES.into());
            if !ours.contains(&key) {
                ours.push(key);
            }
        }
    }
    if !ours.is_empty() {
        annotations.insert(AUTOSCALER_ANNOTATIONS.into(), ours.join(",").into());
    }
}

/// Removes in a patch those of [`PROTECTION_ANNOTATIONS`] that Berth has set.
pub fn remove_protection(node: &Node, annotations: &mut Map<String, Value>) {
    for key in list_annotations_set_by_berth(node) {
        annotations.insert(key.into(), Value::Null);
    }
    annotations.insert(AUTOSCALER_ANNOTATIONS.into(), Value::Null);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(annotations: &Value, taints: &[(&str, &str)]) -> Node {
        let taints: Vec<Value> = taints
            .iter()
            .map(|(key, effect)| json!({"key": key, "effect": effect}))
            .collect();
        serde_json::from_value(json!({
            "metadata": {"name": "n", "annotations": annotations}, "spec": {"taints": taints},
        }))
        .unwrap()
    }

    fn changed(change: impl Fn(&Node, &mut Map<String, Value>), before: &Value) -> Value {
        let mut annotations = Map::new();
        change(&node(before, &[]), &mut annotations);
        let mut after = before.as_object().unwrap().clone();
        after.extend(annotations);
        after.retain(|_, value| !value.is_null());
        after.into()
    }

    #[test]
    fn protection_of_berth_is_removed_again() {
        let owned = changed(add_protection, &json!({"a": "b"}));
        assert!(is_protected_from_removal(&node(&owned, &[])) && !is_protected_from_removal(&node(&json!({}), &[])));
        assert_eq!(changed(add_protection, &owned), owned, "the same for every state");
        assert_eq!(changed(remove_protection, &owned), json!({"a": "b"}));
    }

    #[test]
    fn protection_of_people_stays() {
        let set = json!({PROTECTION_ANNOTATIONS[0]: "true"});
        let owned = changed(add_protection, &set);
        assert_eq!(owned[AUTOSCALER_ANNOTATIONS], PROTECTION_ANNOTATIONS[1]);
        assert_eq!(changed(remove_protection, &owned), set);
        // People removed it from an assigned node: from then on it is Berth's.
        let removed = json!({PROTECTION_ANNOTATIONS[1]: "true", AUTOSCALER_ANNOTATIONS: PROTECTION_ANNOTATIONS[1]});
        let corrected = changed(add_protection, &removed);
        assert!(is_protected_from_removal(&node(&corrected, &[])));
        assert_eq!(changed(remove_protection, &corrected), json!({}));
        // Without Berth's list it is unknown who set them: they stay.
        let unmarked = json!({PROTECTION_ANNOTATIONS[0]: "true", PROTECTION_ANNOTATIONS[1]: "true"});
        assert_eq!(
            changed(remove_protection, &changed(add_protection, &unmarked)),
            unmarked
        );
    }

    #[test]
    fn taints_show_nodes_that_start_or_are_removed() {
        for key in [
            "node.cloudprovider.kubernetes.io/uninitialized",
            "karpenter.sh/unregistered",
            "startup-taint.cluster-autoscaler.kubernetes.io/gpu-driver",
            "node.kubernetes.io/not-ready",
            "node.cilium.io/agent-not-ready",
        ] {
            assert_eq!(
                find_startup_taint(&node(&json!({}), &[("a", "NoSchedule"), (key, "NoSchedule")])),
                Some(key)
            );
        }
        for key in REMOVAL_TAINTS {
            assert_eq!(find_removal_taint(&node(&json!({}), &[(key, "NoSchedule")])), Some(key));
        }
        let candidate = node(
            &json!({}),
            &[
                ("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule"),
                ("nvidia.com/gpu", "NoSchedule"),
            ],
        );
        assert_eq!(
            (find_removal_taint(&candidate), find_startup_taint(&candidate)),
            (None, None),
            "it may still be used"
        );
    }
}
