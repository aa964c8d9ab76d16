//! What autoscalers say on nodes, and what is said to them there: pure.
//!
//! A node that is anybody's, or on its way, carries the annotations by which Cluster Autoscaler and Karpenter leave it alone:
//! to them it can look empty while it is promised, cleaned or not yet used. It gets them in the patch that sets its state.

use berth_api::labels::AUTOSCALER_ANNOTATIONS;
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt;
use serde_json::{Map, Value};

/// Annotations that keep autoscalers from removing a node.
pub const KEEP: [&str; 2] = [
    "cluster-autoscaler.kubernetes.io/scale-down-disabled",
    "karpenter.sh/do-not-disrupt",
];
/// Value of [`KEEP`].
const YES: &str = "true";
/// Taints of nodes that an autoscaler has decided to remove.
const LEAVING: [&str; 3] = [
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
];
/// Taints of nodes that are not ready for use yet, or not any more.
const STARTING: [&str; 4] = [
    "node.cloudprovider.kubernetes.io/uninitialized",
    "node.cloudprovider.kubernetes.io/shutdown",
    "node.kubernetes.io/network-unavailable",
    "karpenter.sh/unregistered",
];
/// How such taints of everybody else begin, as Cluster Autoscaler knows them.
const STARTING_PREFIXES: [&str; 3] = [
    "startup-taint.cluster-autoscaler.kubernetes.io/",
    "status-taint.cluster-autoscaler.kubernetes.io/",
    "ignore-taint.cluster-autoscaler.kubernetes.io/",
];
/// How they end: `node.kubernetes.io/not-ready`, `node.cilium.io/agent-not-ready` and the like.
const NOT_READY: &str = "not-ready";

fn taints(node: &Node) -> impl Iterator<Item = &Taint> {
    node.spec.iter().flat_map(|spec| spec.taints.iter().flatten())
}

/// The taint by which an autoscaler says that it removes the node.
pub fn leaving(node: &Node) -> Option<&str> {
    let mut keys = taints(node).map(|taint| taint.key.as_str());
    keys.find(|key| LEAVING.contains(key))
}

/// The taint that says that the node is not ready for use.
pub fn starting(node: &Node) -> Option<&str> {
    let mut keys = taints(node)
        .filter(|taint| taint.effect != "PreferNoSchedule")
        .map(|taint| taint.key.as_str());
    keys.find(|key| {
        STARTING.contains(key)
            || STARTING_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
            || key.ends_with(NOT_READY)
    })
}

/// Which of [`KEEP`] Berth has set.
fn set_by_berth(node: &Node) -> Vec<&'static str> {
    let mark = node.annotations().get(AUTOSCALER_ANNOTATIONS);
    let marked: Vec<&str> = mark.map(|mark| mark.split(',').collect()).unwrap_or_default();
    KEEP.into_iter().filter(|key| marked.contains(key)).collect()
}

/// Whether autoscalers leave the node alone.
pub fn is_protected(node: &Node) -> bool {
    KEEP.iter()
        .all(|key| node.annotations().get(*key).is_some_and(|value| value == YES))
}

/// Adds to a patch's annotations what keeps autoscalers from removing the node. What people set is not touched, and not
/// marked as Berth's.
pub fn protect(node: &Node, annotations: &mut Map<String, Value>) {
    let mut ours = set_by_berth(node);
    for key in KEEP {
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

/// Adds to a patch's annotations that autoscalers may remove the node again, as far as Berth kept them from it.
pub fn unprotect(node: &Node, annotations: &mut Map<String, Value>) {
    for key in set_by_berth(node) {
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
    fn what_berth_sets_it_takes_off_again() {
        let owned = changed(protect, &json!({"a": "b"}));
        assert!(is_protected(&node(&owned, &[])) && !is_protected(&node(&json!({}), &[])));
        assert_eq!(changed(protect, &owned), owned, "the same for every state");
        assert_eq!(changed(unprotect, &owned), json!({"a": "b"}));
    }

    #[test]
    fn what_people_set_stays() {
        let set = json!({KEEP[0]: "true"});
        let owned = changed(protect, &set);
        assert_eq!(owned[AUTOSCALER_ANNOTATIONS], KEEP[1]);
        assert_eq!(changed(unprotect, &owned), set);
        // Taken off by people while the node is somebody's: it is Berth's from then on.
        let taken_off = json!({KEEP[1]: "true", AUTOSCALER_ANNOTATIONS: KEEP[1]});
        let mended = changed(protect, &taken_off);
        assert!(is_protected(&node(&mended, &[])));
        assert_eq!(changed(unprotect, &mended), json!({}));
        // Without the mark nobody can tell whose they are: they stay.
        let unmarked = json!({KEEP[0]: "true", KEEP[1]: "true"});
        assert_eq!(changed(unprotect, &changed(protect, &unmarked)), unmarked);
    }

    #[test]
    fn nodes_that_come_or_go_say_so_by_taints() {
        for key in [
            "node.cloudprovider.kubernetes.io/uninitialized",
            "karpenter.sh/unregistered",
            "startup-taint.cluster-autoscaler.kubernetes.io/gpu-driver",
            "node.kubernetes.io/not-ready",
            "node.cilium.io/agent-not-ready",
        ] {
            assert_eq!(
                starting(&node(&json!({}), &[("a", "NoSchedule"), (key, "NoSchedule")])),
                Some(key)
            );
        }
        for key in LEAVING {
            assert_eq!(leaving(&node(&json!({}), &[(key, "NoSchedule")])), Some(key));
        }
        let candidate = node(
            &json!({}),
            &[
                ("DeletionCandidateOfClusterAutoscaler", "PreferNoSchedule"),
                ("nvidia.com/gpu", "NoSchedule"),
            ],
        );
        assert_eq!(
            (leaving(&candidate), starting(&candidate)),
            (None, None),
            "it may still be used"
        );
    }
}
