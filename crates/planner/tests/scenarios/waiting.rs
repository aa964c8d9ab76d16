//! Pods that count on what is left of nodes in use, and never start.

use super::{
    advance, plan,
    support::{NOW, describe, read_fleet},
};
use berth_planner::{
    ActionKind, ActionReason, Amounts, Fleet, LEAST_PATIENCE, NodeState, Phase, Plan, UnusedNodes, WaitingTime,
    remember_unused_nodes,
};
use std::collections::BTreeSet;

/// Nodes that a plan reclaims from tenant a.
fn reclaimed(made: &Plan) -> Vec<&str> {
    let actions = made.actions.iter();
    let reclaimed = actions.filter(|action| matches!(action.reason, ActionReason::Reclaimed { .. }));
    reclaimed.map(|action| action.node.as_str()).collect()
}

fn waiting(made: &Plan) -> WaitingTime {
    let of_tenant = made.unused_nodes.get("a").and_then(|pools| pools.get("h100"));
    of_tenant.map_or_else(WaitingTime::default, |unused| unused.waiting)
}

fn paused_until(made: &Plan) -> Option<i64> {
    made.unused_nodes.get("a")?.get("h100")?.paused_until()
}

/// Tenant a has more than its fair share, and pods that fit on what is left of each of its nodes.
const FAIR: &str = "
    pool h100 gpus=8 idle=300 hold=600 grace=300 reclaim=fair-share
    tenant a
    group a/g h100 0..8
    demand a/g never 4x4
    node n1..n4 a/g used=4 age=9000
    tenant b
    group b/g h100 0..8
    demand b/g late 2x8
";

#[test]
fn pods_that_never_start_keep_nodes_in_use_from_a_fair_share_for_eleven_minutes_alone() {
    let mut fleet = read_fleet(FAIR);
    let first = advance(&mut fleet);
    assert_eq!(first.actions, [], "its pods may start at any moment");
    assert_eq!(first.replan_at, Some(NOW + 660));
    fleet.now += 659;
    assert_eq!(advance(&mut fleet).actions, []);
    fleet.now += 1;
    let made = advance(&mut fleet);
    assert_eq!(reclaimed(&made).len(), 2, "{}", describe(&made));
    assert_eq!(paused_until(&made), None, "b comes first in any case");
    for _ in 0..4 {
        let made = advance(&mut fleet);
        assert_eq!(made.actions, [], "{}", describe(&made));
        fleet.now += 100;
    }
}

#[test]
fn pods_that_are_created_again_get_no_more_time() {
    let mut fleet = read_fleet(FAIR);
    let late = fleet.tenants[1].node_groups[0].demand.split_off(0);
    for round in 0..11 {
        assert_eq!(advance(&mut fleet).actions, []);
        fleet.now += 55;
        // All of them are deleted for a moment while nobody else waits.
        let mut never = fleet.tenants[0].node_groups[0].demand.split_off(0);
        assert_eq!(advance(&mut fleet).actions, []);
        fleet.now += 5;
        never[0].name = format!("never-{round}");
        never[0].waiting_since = fleet.now;
        fleet.tenants[0].node_groups[0].demand = never;
    }
    fleet.tenants[1].node_groups[0].demand = late;
    advance(&mut fleet);
    fleet.now += 120;
    let made = advance(&mut fleet);
    assert_eq!(reclaimed(&made).len(), 2, "{}", describe(&made));
}

#[test]
fn pods_on_other_nodes_and_of_other_groups_get_no_more_time() {
    let mut fleet = read_fleet(&FAIR.replace("group a/g h100 0..8", "group a/g h100 0..8\ngroup a/h h100 0..8"));
    fleet.tenants[0].node_groups[0].demand[0].pod_sets[0].count = 1;
    let late = fleet.tenants[1].node_groups[0].demand.split_off(0);
    advance(&mut fleet);
    fleet.now += 600;
    // The next pod waits for another node, which is of another group.
    let never = fleet.tenants[0].node_groups[0].demand.split_off(0);
    fleet.tenants[0].node_groups[1].demand = never;
    let NodeState::Owned(owner) = &mut fleet.nodes[3].state else {
        panic!("it has no owner");
    };
    owner.node_group = "h".into();
    advance(&mut fleet);
    fleet.now += 60;
    fleet.tenants[1].node_groups[0].demand = late;
    fleet.nodes.truncate(1);
    fleet.nodes.extend(read_fleet(FAIR).nodes.split_off(3));
    let NodeState::Owned(owner) = &mut fleet.nodes[1].state else {
        panic!("it has no owner");
    };
    owner.node_group = "h".into();
    fleet.tenants[1].node_groups[0].demand[0].pod_sets[0].count = 1;
    let mut of_n1 = fleet.tenants[0].node_groups[1].demand.clone();
    of_n1[0].name = "another".into();
    fleet.tenants[0].node_groups[0].demand = of_n1;
    let made = advance(&mut fleet);
    assert_eq!(reclaimed(&made).len(), 1, "{}", describe(&made));
}

#[test]
fn an_idle_moment_begins_no_new_time() {
    let mut fleet = read_fleet(FAIR);
    let first = advance(&mut fleet);
    for node in &mut fleet.nodes {
        node.idle_since = Some(NOW);
    }
    fleet.now += 60;
    let idle = advance(&mut fleet);
    assert_eq!(waiting(&idle), waiting(&first));
    for node in &mut fleet.nodes {
        node.idle_since = None;
    }
    fleet.now += 600;
    assert_eq!(reclaimed(&advance(&mut fleet)).len(), 2);
}

#[test]
fn a_gang_that_waits_for_further_nodes_keeps_those_that_it_counts_on() {
    let text = FAIR.replace("demand a/g never 4x4", "demand a/g never 5x4 gang\nnode m1 a/g joining");
    let mut fleet = read_fleet(&text);
    for _ in 0..5 {
        let made = advance(&mut fleet);
        assert_eq!((made.actions.len(), waiting(&made)), (0, WaitingTime::default()));
        fleet.now += 660;
    }
    let NodeState::Owned(owner) = &mut fleet.nodes[0].state else {
        panic!("it has no owner");
    };
    owner.phase = Phase::Assigned;
    let arrived = fleet.now;
    assert_eq!(
        waiting(&advance(&mut fleet)).since,
        Some(arrived),
        "it may start from now on"
    );
    fleet.now += 659;
    assert_eq!(advance(&mut fleet).actions, []);
    fleet.now += 1;
    assert!(!reclaimed(&advance(&mut fleet)).is_empty());
}

/// Important pods wait for what is left of nodes with other pods, and never start. The pods of another tenant are more important than those that run.
const PRIORITY: &str = "
    pool h100 gpus=8 idle=300 hold=600 grace=1800
    tenant a
    group a/g h100 0..8
    demand a/g never 2x4 prio=9
    node n1..n2 a/g used=4 age=9000 prio=1
    tenant b
    group b/g h100 0..8
    demand b/g late 1x8 prio=5
";

/// The fleet after eleven minutes, and the plan that reclaims a node.
fn reclaim_by_priority() -> (Fleet, Plan) {
    let mut fleet = read_fleet(PRIORITY);
    assert_eq!(advance(&mut fleet).actions, []);
    fleet.now += 660;
    let made = advance(&mut fleet);
    assert_eq!(reclaimed(&made).len(), 1, "{}", describe(&made));
    (fleet, made)
}

#[test]
fn pods_that_never_start_do_not_take_a_node_back_from_others() {
    let (mut fleet, made) = reclaim_by_priority();
    assert_eq!(
        paused_until(&made),
        Some(fleet.now + 1800 + 600),
        "its pods would come before those of b, until the node is drained, and after that"
    );
    for _ in 0..18 {
        let made = advance(&mut fleet);
        assert_eq!(made.actions, [], "{}", describe(&made));
        fleet.now += 100;
    }
    let is_cordoned =
        |state: &NodeState| matches!(state, NodeState::Owned(owner) if matches!(owner.phase, Phase::Cordoned { .. }));
    let node = fleet.nodes.iter_mut().find(|node| is_cordoned(&node.state)).unwrap();
    (node.state, node.pods, node.used) = (NodeState::Free, 0, Amounts::new());
    let made = plan(&fleet);
    let is_for_b = |kind: &ActionKind| matches!(kind, ActionKind::Reserve { tenant, .. } if tenant == "b");
    assert!(
        made.actions.iter().any(|action| is_for_b(&action.kind)),
        "{}",
        describe(&made)
    );
}

/// Each of the two pods that never start may wait for either node once both are lost. The important one, whose node a pod as important reclaims for a fair share, would
/// come before the less important pod, which reclaims the other node.
#[test]
fn pods_that_lose_one_node_do_not_take_back_another_that_is_lost_at_the_same_time() {
    let mut fleet = read_fleet(
        "
        pool h100 gpus=8 idle=300 hold=600 grace=300 reclaim=fair-share
        tenant a
        group a/g h100 0..8
        demand a/g never-0 1x4 since=900
        demand a/g never-1 1x4 since=900 prio=2
        node n1 a/g used=1 age=9000
        node n2 a/g used=2 age=9000
        tenant b
        group b/g h100 0..8
        demand b/g first 2x4 prio=2
        demand b/g second 1x8 prio=1 since=60
        ",
    );
    check_that_both_nodes_are_lost_for_good(&mut fleet);
}

/// The gang is beyond the nominal quota as a whole, although each of its nodes would be within it.
#[test]
fn pods_that_never_start_take_no_node_back_from_a_gang_beyond_its_nominal_quota() {
    let mut fleet = read_fleet(
        "
        pool h100 gpus=8 idle=300 hold=600 grace=300
        quota own nominal=8
        tenant a
        group a/g h100 0..8
        demand a/g never 1x4 since=900 prio=9
        node n1 a/g used=4 age=9000 prio=1
        tenant c
        group c/g h100 0..8
        node n2 c/g used=8 age=9000 prio=1
        tenant b quota=own
        group b/g h100 0..8
        demand b/g late 2x8 gang prio=5
        ",
    );
    check_that_both_nodes_are_lost_for_good(&mut fleet);
}

/// The pods of tenant a have waited for eleven minutes. A plan reclaims both nodes and begins a pause, and the next ones change nothing.
fn check_that_both_nodes_are_lost_for_good(fleet: &mut Fleet) {
    let waiting = WaitingTime {
        since: Some(NOW - LEAST_PATIENCE),
        until: None,
    };
    let unused = UnusedNodes {
        waiting,
        ..UnusedNodes::default()
    };
    fleet.tenants[0].unused.insert("h100".into(), unused);
    let made = advance(fleet);
    assert_eq!(reclaimed(&made), ["n1", "n2"], "{}", describe(&made));
    assert_eq!(paused_until(&made), Some(NOW + 300 + 600), "{}", describe(&made));
    for _ in 0..4 {
        fleet.now += 60;
        let made = advance(fleet);
        assert_eq!(made.actions, [], "{}", describe(&made));
    }
}

#[test]
fn a_node_stays_with_its_tenant_if_nobody_else_needs_it_any_more() {
    let (mut fleet, _) = reclaim_by_priority();
    fleet.tenants[1].node_groups[0].demand.clear();
    let made = advance(&mut fleet);
    assert_eq!(made.actions.len(), 1);
    assert_eq!(made.actions[0].kind, ActionKind::CancelRelease);
}

#[test]
fn pods_of_a_lower_priority_that_wait_there_begin_no_pause() {
    let mut fleet = read_fleet(&PRIORITY.replace("never 2x4 prio=9", "never 2x4 prio=2"));
    let late = fleet.tenants[1].node_groups[0].demand.split_off(0);
    advance(&mut fleet);
    fleet.now += 660;
    fleet.tenants[1].node_groups[0].demand = late;
    let made = advance(&mut fleet);
    assert_eq!((reclaimed(&made).len(), paused_until(&made)), (1, None));
}

#[test]
fn a_tenant_that_is_owed_a_node_begins_no_pause() {
    let text = PRIORITY.replace("tenant b", "quota own nominal=8\ntenant b quota=own");
    let mut fleet = read_fleet(&text);
    let made = advance(&mut fleet);
    assert_eq!(
        (reclaimed(&made).len(), paused_until(&made)),
        (1, None),
        "it did not wait"
    );
    let mut fleet = read_fleet(&text);
    let late = fleet.tenants[1].node_groups[0].demand.split_off(0);
    advance(&mut fleet);
    fleet.now += 660;
    fleet.tenants[1].node_groups[0].demand = late;
    let made = advance(&mut fleet);
    assert_eq!((reclaimed(&made).len(), paused_until(&made)), (1, None));
}

#[test]
fn pods_wait_on_although_a_release_failed() {
    let mut fleet = read_fleet(PRIORITY);
    advance(&mut fleet);
    fleet.now += 660;
    let made = plan(&fleet);
    let failed: BTreeSet<String> = ["n1".to_owned(), "n2".to_owned()].into();
    let remembered = remember_unused_nodes(&fleet, &made, &failed);
    assert_eq!(remembered["a"]["h100"].waiting, waiting(&made));
    assert!(waiting(&made).until.is_none(), "they count on the other node");
}

#[test]
fn nothing_is_remembered_where_nothing_is_reclaimed() {
    let mut fleet = read_fleet(&FAIR.replace("fair-share", "never"));
    assert_eq!(advance(&mut fleet).unused_nodes.len(), 0);
}
