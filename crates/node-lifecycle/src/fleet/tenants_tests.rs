use crate::fleet::{
    TenantInput, WithdrawnNodes,
    testing::{Objects, cluster, pool, snapshot},
};
use berth_api::NodeGroup;
use berth_planner::{ActionKind, Fleet, NodeState, plan};
use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use std::{collections::BTreeSet, sync::Arc};

/// A node that is assigned to the tenant.
fn node(name: &str, group: &str, pool: &str) -> Arc<Node> {
    let node = json!({
        "metadata": {
            "name": name,
            "labels": {
                "product": pool, "berth.dev/node-group": group, "berth.dev/pool": pool,
                "berth.dev/state": "Assigned", "berth.dev/tenant": "vision",
            },
            "annotations": {"berth.dev/owner-uid": "uid", "berth.dev/state": "Assigned"},
        },
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    });
    Arc::new(serde_json::from_value(node).unwrap())
}

/// Name, minimum and maximum of the groups of a tenant that has one node of each of three groups and asks for five.
fn groups(accepted: bool, withdrawn: WithdrawnNodes) -> Vec<(String, u32, u32)> {
    let wanted = [("a", "h100"), ("b", "h100"), ("c", "l40s")];
    let private = wanted.map(|(name, pool)| NodeGroup::private(name, pool, 5));
    let cluster = cluster("vision", "uid", private.into());
    let nodes = wanted.map(|(group, pool)| node(&format!("n-{group}"), group, pool));
    let fleet = fleet(
        nodes.into(),
        vec![TenantInput {
            accepted,
            withdrawn,
            ..TenantInput::accepted(cluster)
        }],
    );
    let groups = fleet.tenants[0].node_groups.iter();
    groups
        .map(|group| (group.name.clone(), group.min_nodes, group.max_nodes))
        .collect()
}

fn fleet(nodes: Vec<Arc<Node>>, tenants: Vec<TenantInput>) -> Fleet {
    snapshot(Objects {
        now: 10_000,
        pools: ["h100", "l40s"].map(|name| Arc::new(pool(name, name))).into(),
        nodes,
        tenants,
        ..Objects::default()
    })
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn expected(counts: [u32; 3]) -> Vec<(String, u32, u32)> {
    let named = ["a", "b", "c"].into_iter().zip(counts);
    named.map(|(name, count)| (name.to_owned(), count, count)).collect()
}

#[test]
fn a_tenant_whose_spec_is_not_accepted_keeps_its_nodes_and_gets_no_more() {
    assert_eq!(groups(true, WithdrawnNodes::default()), expected([5, 5, 5]));
    assert_eq!(groups(false, WithdrawnNodes::default()), expected([1, 1, 1]));
}

#[test]
fn withdrawn_nodes_are_over_the_maximum_of_their_group() {
    let of_pool = WithdrawnNodes {
        pools: set(&["h100"]),
        ..WithdrawnNodes::default()
    };
    assert_eq!(groups(false, of_pool), expected([0, 0, 1]));
    let of_group = WithdrawnNodes {
        groups: set(&["b"]),
        ..WithdrawnNodes::default()
    };
    assert_eq!(groups(false, of_group), expected([1, 0, 1]));
    let all = WithdrawnNodes {
        all: true,
        ..WithdrawnNodes::default()
    };
    assert_eq!(groups(false, all), expected([0, 0, 0]));
}

#[test]
fn a_node_that_lost_its_labels_still_counts_for_its_tenant_and_is_released() {
    let mut without_labels = Node::clone(&node("n", "a", "h100"));
    without_labels.metadata.labels = None;
    // Its tenant is deleted.
    let fleet = fleet(vec![Arc::new(without_labels)], Vec::new());
    let owner = fleet.nodes.first().map(|node| &node.state);
    assert!(
        matches!(owner, Some(NodeState::Owned(owner)) if owner.tenant == "uid"),
        "{owner:?}"
    );
    let released = plan(&fleet).actions;
    assert!(
        released
            .iter()
            .any(|action| action.node == "n" && matches!(action.kind, ActionKind::Release { .. })),
        "{released:?}"
    );
}
