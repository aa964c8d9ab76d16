use crate::fleet::{
    TenantInput,
    testing::{Objects, cluster, pool, snapshot},
};
use berth_api::{NodeGroup, ScheduleState};
use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use std::sync::Arc;

/// A node of the group `train`.
fn node(name: &str, state: &str) -> Arc<Node> {
    let node = json!({
        "metadata": {
            "name": name,
            "labels": {
                "berth.dev/node-group": "train", "berth.dev/pool": "h100", "berth.dev/state": state, "berth.dev/tenant": "vision",
                "product": "H100",
            },
            "annotations": {"berth.dev/owner-uid": "uid", "berth.dev/state": state},
        },
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    });
    Arc::new(serde_json::from_value(node).unwrap())
}

/// Minimum and maximum of each group, for a tenant that has two nodes and a third one that is drained.
fn ranges(group: NodeGroup, schedule: ScheduleState, accepted: bool, deleted: bool) -> Vec<(String, u32, u32)> {
    let mut cluster = cluster("vision", "uid", vec![group]);
    if deleted {
        cluster.metadata.deletion_timestamp = Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
    }
    let fleet = snapshot(Objects {
        now: 10_000,
        pools: vec![Arc::new(pool("h100", "H100"))],
        nodes: vec![node("n1", "Assigned"), node("n2", "Joining"), node("n3", "Draining")],
        tenants: vec![TenantInput {
            accepted,
            schedule,
            ..TenantInput::accepted(cluster)
        }],
        ..Objects::default()
    });
    let groups = fleet.tenants[0].node_groups.clone();
    groups
        .into_iter()
        .map(|group| (group.name, group.min_nodes, group.max_nodes))
        .collect()
}

fn range(group: &NodeGroup, schedule: ScheduleState) -> (u32, u32) {
    let all = ranges(group.clone(), schedule, true, false);
    (all[0].1, all[0].2)
}

#[test]
fn a_stopped_tenant_may_have_no_nodes() {
    let (private, dynamic) = (
        NodeGroup::private("train", "h100", 4),
        NodeGroup::dynamic("train", "h100", 1, 8),
    );
    for group in [&private, &dynamic] {
        assert_eq!(range(group, ScheduleState::Stopped), (0, 0));
    }
    assert_eq!(range(&private, ScheduleState::Running), (4, 4));
    assert_eq!(range(&dynamic, ScheduleState::Running), (1, 8));
}

#[test]
fn a_tenant_in_which_nothing_starts_may_have_the_nodes_that_it_has() {
    let forbidden = ScheduleState::StartsForbidden;
    assert_eq!(range(&NodeGroup::private("train", "h100", 4), forbidden), (2, 2));
    assert_eq!(range(&NodeGroup::dynamic("train", "h100", 1, 8), forbidden), (1, 2));
}

#[test]
fn an_invalid_spec_is_no_way_around_a_stop() {
    let group = || NodeGroup::private("train", "h100", 4);
    let named = |nodes| vec![("train".to_owned(), nodes, nodes)];
    assert_eq!(ranges(group(), ScheduleState::Stopped, false, false), named(0));
    assert_eq!(ranges(group(), ScheduleState::Running, false, false), named(2));
    // The pods of a tenant that is deleted end before its nodes go.
    assert_eq!(ranges(group(), ScheduleState::Stopped, true, true), named(2));
}

#[test]
fn an_invalid_spec_does_not_keep_what_was_borrowed() {
    let named = |minimum: u32| vec![("train".to_owned(), minimum, 2_u32)];
    let dynamic = NodeGroup::dynamic("train", "h100", 1, 8);
    let renamed = NodeGroup::private("other", "h100", 4);
    let rejected = |group: &NodeGroup| ranges(group.clone(), ScheduleState::Running, false, false);
    assert_eq!(rejected(&dynamic), named(1));
    assert_eq!(rejected(&renamed), named(0));
    // Another pool is an error as well.
    assert_eq!(rejected(&NodeGroup::private("train", "h10", 4)), named(2));
    assert_eq!(
        ranges(dynamic, ScheduleState::Running, false, true),
        named(2),
        "deleted"
    );
}
