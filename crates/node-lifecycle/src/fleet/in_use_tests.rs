//! Free nodes on which pods of the platform run that the taint of an assignment would evict.

use super::testing::{GPU, Objects, free_node, gpu_pool, in_state, snapshot, tenant, waiting_pod};
use crate::{AssignmentState, platform_pods::NodeUse};
use berth_planner::{ActionKind, NodeState, plan};
use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use std::sync::Arc;

fn node(name: &str) -> Node {
    free_node(name, &json!({GPU: "8", "pods": "110"}))
}

fn in_use(pods: &[&str]) -> NodeUse {
    NodeUse {
        in_the_way: pods.iter().map(ToString::to_string).collect(),
        ..NodeUse::default()
    }
}

#[test]
fn a_tenant_gets_another_node_until_the_pods_are_gone() {
    for (pods, expected) in [(vec!["shop/web-1"], "n2"), (vec![], "n1")] {
        let fleet = snapshot(Objects {
            pools: vec![Arc::new(gpu_pool())],
            nodes: vec![Arc::new(node("n1")), Arc::new(node("n2"))],
            tenants: vec![tenant("vision")],
            workloads: vec![waiting_pod("vision", "train", 0, |_| ())],
            platform: [("n1".to_owned(), in_use(&pods))].into(),
            ..Objects::default()
        });
        if !pods.is_empty() {
            let reason = "it is in use: shop/web-1 runs there".to_owned();
            assert_eq!(fleet.nodes[0].state, NodeState::Unavailable { reason });
        }
        let actions = plan(&fleet).actions;
        let reserved = actions
            .iter()
            .filter(|action| matches!(action.kind, ActionKind::Reserve { .. }));
        let reserved: Vec<&str> = reserved.map(|action| action.node.as_str()).collect();
        assert_eq!(reserved, [expected], "{pods:?}");
    }
}

#[test]
fn a_node_that_has_a_tenant_or_had_one_is_not_concerned() {
    for state in AssignmentState::ALL {
        let object = in_state(&node("n1"), state, "vision", 0);
        let state_with = |pods: &[&str]| {
            let mut fleet = snapshot(Objects {
                now: 10,
                pools: vec![Arc::new(gpu_pool())],
                nodes: vec![Arc::new(object.clone())],
                tenants: vec![tenant("vision")],
                platform: [("n1".to_owned(), in_use(pods))].into(),
                ..Objects::default()
            });
            fleet.nodes.remove(0).state
        };
        assert_eq!(state_with(&["shop/web-1"]), state_with(&[]), "{state:?}");
    }
}
