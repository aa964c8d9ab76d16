//! The status of a tenant's node groups, and the condition NodesReady: pure.

use berth_api::{
    NodeGroup, NodeGroupStatus, NodeMode, ScheduleState,
    conditions::{ConditionUpdate, NODES_READY},
    is_node_ready,
};
use berth_node_lifecycle::{Assignment, AssignmentState};
use berth_planner::NodeGroupPlan;
use berth_schedules::groups::scheduled_group;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use std::{collections::BTreeMap, sync::Arc};

/// The groups of a spec as schedules let them be, given the nodes of the tenant.
pub(super) fn scheduled(spec: &[NodeGroup], nodes: &[Arc<Node>], schedule: ScheduleState) -> Vec<NodeGroup> {
    let held = |group: &NodeGroup| {
        let records = nodes.iter().filter_map(|node| Assignment::read(node));
        records
            .filter(|record| record.group == group.name && record.state.is_kept())
            .count()
    };
    spec.iter()
        .map(|group| scheduled_group(group, schedule, u32::try_from(held(group)).unwrap_or(u32::MAX)))
        .collect()
}

/// The status of each group: those of the spec, and removed ones that still have nodes. `plans` are from the last plan; none
/// before the first.
pub(super) fn statuses(
    spec: &[NodeGroup],
    nodes: &[Arc<Node>],
    plans: Option<&BTreeMap<String, NodeGroupPlan>>,
) -> Vec<NodeGroupStatus> {
    let mut groups: Vec<NodeGroupStatus> = spec
        .iter()
        .map(|group| NodeGroupStatus {
            name: group.name.clone(),
            pool_name: group.pool_name.clone(),
            mode: group.mode,
            desired: group.minimum(),
            ..NodeGroupStatus::default()
        })
        .collect();
    for record in nodes.iter().filter_map(|node| Assignment::read(node)) {
        let index = groups.iter().position(|group| group.name == record.group);
        let index = index.unwrap_or_else(|| {
            groups.push(NodeGroupStatus {
                name: record.group.clone(),
                pool_name: record.pool.clone(),
                ..NodeGroupStatus::default()
            });
            groups.len() - 1
        });
        let group = &mut groups[index];
        match record.state {
            AssignmentState::Reserved | AssignmentState::Joining => group.joining += 1,
            AssignmentState::Assigned => group.assigned += 1,
            _ => group.releasing += 1,
        }
    }
    for group in &mut groups {
        let Some(plan) = plans.and_then(|plans| plans.get(&group.name)) else {
            continue;
        };
        group.desired = plan.desired.max(group.desired);
        group.pending = plan.waiting;
        group.borrowed = plan.borrowed;
        group.message = plan.message();
    }
    groups
}

/// NodesReady: the minimum of every group is assigned and Ready. What pods wait for beyond that is in the message.
pub(super) fn condition(spec: &[NodeGroup], groups: &[NodeGroupStatus], nodes: &[Arc<Node>]) -> ConditionUpdate {
    let minimum_of = |name: &str| {
        let group = spec.iter().find(|group| group.name == name);
        group.map_or(0, NodeGroup::minimum)
    };
    let minimum: u64 = spec.iter().map(|group| u64::from(group.minimum())).sum();
    let count: u64 = groups
        .iter()
        .map(|group| u64::from(group.assigned.min(minimum_of(&group.name))))
        .sum();
    let short: Vec<&NodeGroupStatus> = groups
        .iter()
        .filter(|group| group.assigned < minimum_of(&group.name))
        .collect();
    let waiting: Vec<&str> = short
        .iter()
        .filter(|group| group.pending > 0 && !group.message.is_empty())
        .map(|group| group.message.as_str())
        .collect();
    if !waiting.is_empty() {
        return ConditionUpdate::mark_false(
            NODES_READY,
            "InsufficientCapacity",
            format!(
                "{count} of {minimum} nodes are assigned: {}; wait until another tenant gives nodes back, lower spec.nodeGroups[].replicas, or \
                 add nodes to the pool",
                waiting.join("; ")
            ),
        );
    }
    if !short.is_empty() {
        return ConditionUpdate::mark_false(
            NODES_READY,
            "Assigning",
            format!("{count} of {minimum} nodes are assigned"),
        );
    }
    // Nodes of dynamic groups come and go.
    let draining: u32 = groups
        .iter()
        .filter(|group| group.mode != NodeMode::Dynamic)
        .map(|group| group.releasing)
        .sum();
    if draining > 0 {
        return ConditionUpdate::mark_false(
            NODES_READY,
            "Draining",
            format!("{draining} nodes are being drained: they are no longer requested, or are not Ready"),
        );
    }
    let assigned =
        |node: &&Arc<Node>| Assignment::read(node).is_some_and(|record| record.state == AssignmentState::Assigned);
    let broken: Vec<String> = nodes
        .iter()
        .filter(assigned)
        .filter(|node| !is_node_ready(node))
        .map(|node| node.name_any())
        .collect();
    if !broken.is_empty() {
        let message = format!(
            "these nodes are not Ready: {}; the tenant keeps them, unless the platform team takes them out or their pool has spec.repair",
            broken.join(", ")
        );
        return ConditionUpdate::mark_false(NODES_READY, "NodeNotReady", message);
    }
    let mut message = format!("{minimum} of {minimum} nodes are assigned");
    let described = |group: &&NodeGroupStatus| group.mode == NodeMode::Dynamic || group.borrowed > 0;
    for group in groups.iter().filter(described) {
        message = format!("{message}; {}", describe_group(group));
    }
    ConditionUpdate::mark_true(NODES_READY, "Assigned", message)
}

/// Describes the nodes of a group that may have others later, for the message.
fn describe_group(group: &NodeGroupStatus) -> String {
    let mut message = format!("group {} has {}", group.name, group.assigned);
    if group.borrowed > 0 {
        message = format!("{message}, {} of them borrowed", group.borrowed);
    }
    if group.joining > 0 {
        message = format!("{message}, {} joining", group.joining);
    }
    if !group.message.is_empty() {
        message = format!("{message}: {}", group.message);
    }
    message
}

/// What happened to groups since the last status, as reason and message of an Event each. Of private groups only that nodes are borrowed
/// or released: others may reclaim these as well.
pub(super) fn events(before: &[NodeGroupStatus], after: &[NodeGroupStatus]) -> Vec<(&'static str, String)> {
    let mut events = Vec::new();
    for group in after {
        let earlier = before.iter().find(|earlier| earlier.name == group.name);
        let earlier = earlier.cloned().unwrap_or_default();
        let name = &group.name;
        if group.borrowed > earlier.borrowed {
            let message = format!(
                "group {name} has {} borrowed nodes: other tenants may reclaim them",
                group.borrowed
            );
            events.push(("NodesBorrowed", message));
        }
        if group.releasing > earlier.releasing {
            let message = format!(
                "group {name}: {} nodes are being released to pool {}",
                group.releasing, group.pool_name
            );
            events.push(("NodesReleasing", message));
        }
        if group.mode != NodeMode::Dynamic {
            continue;
        }
        if group.pending > 0 && earlier.pending == 0 {
            events.push(("WaitingForNodes", format!("group {name}: {}", group.message)));
        } else if group.pending == 0 && !group.message.is_empty() && earlier.message.is_empty() {
            // Nodes that come would not help these pods.
            events.push(("NoNodesPlanned", format!("group {name}: {}", group.message)));
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_planner::{Capacity, RequestName, Wait, WaitReason, Waiting};
    use serde_json::json;

    fn node(name: &str, group: &str, state: &str) -> Arc<Node> {
        let node = json!({
            "metadata": {
                "name": name,
                "labels": {"berth.dev/node-group": group, "berth.dev/pool": "h100", "berth.dev/state": state, "berth.dev/tenant": "t"},
                "annotations": {"berth.dev/owner-uid": "u", "berth.dev/state": state},
            },
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        });
        Arc::new(serde_json::from_value(node).unwrap())
    }

    fn plans(waiting: u32) -> BTreeMap<String, NodeGroupPlan> {
        let plan = NodeGroupPlan {
            desired: 3,
            held: 1,
            waiting,
            borrowed: 1,
            pool: "h100".into(),
            waits: vec![Wait {
                waiting: Waiting::Request(RequestName {
                    name: "ml/train".into(),
                    gang: false,
                }),
                missing_nodes: waiting,
                reason: WaitReason::NoFreeNodes(Capacity::default()),
            }],
            ..NodeGroupPlan::default()
        };
        [("a".to_owned(), plan)].into()
    }

    #[test]
    fn groups_count_nodes_by_state_and_carry_what_the_planner_says() {
        let spec = [NodeGroup::dynamic("a", "h100", 0, 8)];
        let nodes = [
            node("n1", "a", "Assigned"),
            node("n2", "a", "Joining"),
            node("n3", "a", "Cordoned"),
            node("n4", "old", "Draining"),
        ];
        insta::assert_yaml_snapshot!(statuses(&spec, &nodes, Some(&plans(2))));
    }

    #[test]
    fn a_minimum_that_cannot_be_reached_says_what_to_do() {
        let spec = [NodeGroup::private("a", "h100", 2)];
        let nodes = [node("n1", "a", "Assigned")];
        let all = statuses(&spec, &nodes, Some(&plans(1)));
        let found = condition(&spec, &all, &nodes);
        assert_eq!((found.status, found.reason), (Some(false), "InsufficientCapacity"));
        assert!(
            found.message.contains("1 of 2") && found.message.contains("lower spec.nodeGroups"),
            "{found:?}"
        );
        let all = statuses(&spec, &nodes, None);
        assert_eq!(condition(&spec, &all, &nodes).reason, "Assigning");
    }

    #[test]
    fn a_node_that_is_not_ready_is_named_with_what_happens_to_it() {
        let spec = [NodeGroup::private("a", "h100", 1)];
        let mut broken = node("n1", "a", "Assigned");
        let status = Arc::make_mut(&mut broken).status.as_mut().unwrap();
        status.conditions.as_mut().unwrap()[0].status = "False".into();
        let nodes = [broken];
        let found = condition(&spec, &statuses(&spec, &nodes, None), &nodes);
        assert_eq!((found.status, found.reason), (Some(false), "NodeNotReady"));
        assert!(
            found.message.contains("not Ready: n1;") && found.message.contains("spec.repair"),
            "{found:?}"
        );
    }

    #[test]
    fn demand_beyond_the_minimum_is_in_the_message_and_no_failure() {
        let spec = [NodeGroup::dynamic("a", "h100", 1, 8)];
        let nodes = [node("n1", "a", "Assigned"), node("n2", "a", "Cordoned")];
        let all = statuses(&spec, &nodes, Some(&plans(2)));
        let found = condition(&spec, &all, &nodes);
        assert_eq!((found.status, found.reason), (Some(true), "Assigned"));
        assert_eq!(
            found.message,
            "1 of 1 nodes are assigned; group a has 1, 1 of them borrowed: ml/train needs 2 nodes more: pool h100 has 0 nodes free"
        );
    }

    #[test]
    fn a_private_group_with_borrowed_nodes_says_so() {
        let spec = [NodeGroup::private("a", "h100", 1)];
        let nodes = [node("n1", "a", "Assigned")];
        let mut plans = plans(0);
        let plan = plans.get_mut("a").unwrap();
        (plan.waits, plan.desired) = (Vec::new(), 1);
        let all = statuses(&spec, &nodes, Some(&plans));
        let found = condition(&spec, &all, &nodes);
        assert_eq!(
            found.message,
            "1 of 1 nodes are assigned; group a has 1, 1 of them borrowed"
        );
        let borrowed = events(&[], &all);
        assert!(borrowed.len() == 1 && borrowed[0].0 == "NodesBorrowed", "{borrowed:?}");
        let reclaimed = statuses(&spec, &[node("n1", "a", "Cordoned")], Some(&plans));
        let released = events(&all, &reclaimed);
        assert!(released.len() == 1 && released[0].0 == "NodesReleasing", "{released:?}");
        let own = statuses(&spec, &nodes, None);
        assert_eq!(condition(&spec, &own, &nodes).message, "1 of 1 nodes are assigned");
    }

    #[test]
    fn a_stopped_tenant_asks_for_no_nodes() {
        let spec = [NodeGroup::private("a", "h100", 2)];
        let stopped = scheduled(&spec, &[], ScheduleState::Stopped);
        let all = statuses(&stopped, &[], None);
        assert_eq!(all[0].desired, 0);
        assert_eq!(condition(&stopped, &all, &[]).reason, "Assigned");
    }

    #[test]
    fn a_tenant_in_which_nothing_starts_keeps_the_nodes_that_it_has() {
        let spec = [NodeGroup::private("a", "h100", 3)];
        let nodes = [node("n1", "a", "Assigned"), node("n2", "a", "Draining")];
        let forbidden = scheduled(&spec, &nodes, ScheduleState::StartsForbidden);
        assert_eq!(forbidden[0].minimum(), 1);
        assert_eq!(scheduled(&spec, &nodes, ScheduleState::Running), spec);
    }

    #[test]
    fn a_private_group_that_gives_nodes_back_is_draining() {
        let spec = [NodeGroup::private("a", "h100", 1)];
        let nodes = [node("n1", "a", "Assigned"), node("n2", "a", "Draining")];
        let all = statuses(&spec, &nodes, None);
        assert_eq!(condition(&spec, &all, &nodes).reason, "Draining");
    }

    #[test]
    fn each_change_of_a_group_is_one_event() {
        let group = |borrowed, releasing, pending| NodeGroupStatus {
            name: "a".into(),
            mode: NodeMode::Dynamic,
            borrowed,
            releasing,
            pending,
            ..NodeGroupStatus::default()
        };
        let reasons = |before: &[NodeGroupStatus], after| -> Vec<&str> {
            events(before, &[after]).into_iter().map(|(reason, _)| reason).collect()
        };
        assert_eq!(
            reasons(&[], group(1, 1, 1)),
            ["NodesBorrowed", "NodesReleasing", "WaitingForNodes"]
        );
        assert!(reasons(&[group(1, 1, 1)], group(1, 1, 2)).is_empty());
        assert!(reasons(&[group(1, 1, 1)], group(0, 0, 0)).is_empty());
        let large = |pending| NodeGroupStatus {
            message: "a pod is too large".into(),
            ..group(0, 0, pending)
        };
        assert_eq!(reasons(&[group(0, 0, 0)], large(0)), ["NoNodesPlanned"]);
        assert_eq!(reasons(&[group(0, 0, 0)], large(1)), ["WaitingForNodes"]);
        assert!(reasons(&[large(0)], large(0)).is_empty());
    }
}
