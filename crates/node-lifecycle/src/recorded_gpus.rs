//! The most GPUs that a node had since its tenant has it, written on the node. A kubelet reports the GPUs of its node, and who is root on
//! a node of a tenant can be its kubelet: with fewer GPUs than it has, the tenant would get nodes beyond its quota.

use berth_api::labels;
use berth_planner::{MAX_NODE_GPUS, NodeState, Phase};
use k8s_openapi::api::core::v1::Node;
use kube_core::ResourceExt;

/// The GPUs that quotas count at least for a node that has `now` GPUs of its pool's resource. 0 if no pod of a tenant can be there.
pub fn track(node: &Node, state: &NodeState, resource: &str, now: u64) -> u64 {
    let serves_tenant = match state {
        NodeState::Owned(owner) => matches!(owner.phase, Phase::Assigned | Phase::Cordoned { .. }),
        NodeState::Draining { .. } => true,
        NodeState::Free | NodeState::Unavailable { .. } | NodeState::Recycling { .. } => false,
    };
    if !serves_tenant {
        return 0;
    }
    recorded(node, resource).max(now).min(MAX_NODE_GPUS)
}

/// What the node has recorded for this resource. Before its pool had it, the node may have had another one.
fn recorded(node: &Node, resource: &str) -> u64 {
    let (of, count) = read(node);
    if of == resource { count } else { 0 }
}

/// The GPUs that the node has recorded, of whatever resource; 0 if none are.
pub fn recorded_of_any(node: &Node) -> u64 {
    read(node).1.min(MAX_NODE_GPUS)
}

/// The resource and the number that the node has recorded.
fn read(node: &Node) -> (&str, u64) {
    let record = node.annotations().get(labels::RECORDED_GPUS);
    let (of, count) = record.and_then(|record| record.split_once('=')).unwrap_or_default();
    (of, count.parse().unwrap_or_default())
}

/// The annotation that records `gpus` on the node; none if it has it already, or if there is nothing to record.
pub fn annotation(node: &Node, resource: &str, gpus: u64) -> Option<(&'static str, Option<String>)> {
    (gpus > recorded(node, resource)).then(|| (labels::RECORDED_GPUS, Some(format!("{resource}={gpus}"))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_planner::Owner;
    use serde_json::json;

    const GPU: &str = "nvidia.com/gpu";

    fn node(record: Option<&str>) -> Node {
        let annotations = record.map(|record| json!({labels::RECORDED_GPUS: record}));
        serde_json::from_value(json!({"metadata": {"name": "n", "annotations": annotations}})).unwrap()
    }

    fn owned(phase: Phase) -> NodeState {
        NodeState::Owned(Owner {
            phase,
            ..Owner::default()
        })
    }

    #[test]
    fn a_node_that_reports_fewer_gpus_counts_for_those_that_it_had() {
        let (recorded, assigned) = (node(Some("nvidia.com/gpu=8")), owned(Phase::Assigned));
        assert_eq!(track(&recorded, &assigned, GPU, 0), 8);
        assert_eq!(track(&recorded, &assigned, GPU, 16), 16);
        let draining = NodeState::Draining {
            tenant: "t".into(),
            since: 0,
        };
        for state in [owned(Phase::Cordoned { drain_at: 0 }), draining] {
            assert_eq!(track(&recorded, &state, GPU, 1), 8);
        }
    }

    #[test]
    fn nothing_is_recorded_before_pods_of_a_tenant_can_be_there() {
        // While a node joins, its MIG layout changes, and with it what counts as GPUs.
        let required_nodes = 1;
        for state in [
            NodeState::Free,
            owned(Phase::Joining),
            owned(Phase::Reserved { required_nodes }),
        ] {
            assert_eq!(track(&node(None), &state, GPU, 8), 0);
        }
    }

    #[test]
    fn records_of_other_resources_and_unreadable_ones_do_not_count() {
        for record in [
            "nvidia.com/mig-1g.10gb=56",
            "nvidia.com/gpu",
            "=",
            "",
            "nvidia.com/gpu=many",
            "nvidia.com/gpu=-1",
        ] {
            assert_eq!(
                track(&node(Some(record)), &owned(Phase::Assigned), GPU, 8),
                8,
                "{record}"
            );
        }
        let huge = format!("{GPU}={}", u64::MAX);
        assert_eq!(
            track(&node(Some(&huge)), &owned(Phase::Assigned), GPU, 8),
            MAX_NODE_GPUS
        );
    }

    #[test]
    fn what_is_shown_of_a_node_is_what_it_has_recorded() {
        let shown = |record| recorded_of_any(&node(record));
        assert_eq!((shown(None), shown(Some("nvidia.com/gpu=many"))), (0, 0));
        assert_eq!(shown(Some("nvidia.com/gpu=8")), 8);
        assert_eq!(shown(Some("amd.com/gpu=4")), 4);
        assert_eq!(shown(Some(&format!("{GPU}={}", u64::MAX))), MAX_NODE_GPUS);
    }

    #[test]
    fn only_more_gpus_are_written() {
        let text = |record, gpus| annotation(&node(record), GPU, gpus).and_then(|(_, text)| text);
        assert_eq!(text(None, 8).as_deref(), Some("nvidia.com/gpu=8"));
        assert_eq!(text(Some("nvidia.com/gpu=8"), 16).as_deref(), Some("nvidia.com/gpu=16"));
        assert_eq!(
            text(Some("nvidia.com/mig-1g.10gb=56"), 8).as_deref(),
            Some("nvidia.com/gpu=8")
        );
        for (record, gpus) in [(Some("nvidia.com/gpu=8"), 8), (None, 0)] {
            assert_eq!(text(record, gpus), None);
        }
    }
}
