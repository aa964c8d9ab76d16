//! Nodes that a tenant gets for pods that never start.

use super::support::{NOW, describe, executor, read_fleet};
use berth_planner::{ActionKind, ActionReason, Fleet, NodeState, Plan, UnusedNodes, check, plan};

/// Makes a plan, checks it, and carries it out.
fn advance(fleet: &mut Fleet) -> Plan {
    let made = plan(fleet);
    assert_eq!(check(fleet, &made), []);
    executor::apply(fleet, &made);
    made
}

/// Nodes that a plan reserves for a tenant.
fn reserved(made: &Plan, of: &str) -> usize {
    let is_of = |kind: &ActionKind| matches!(kind, ActionKind::Reserve { tenant, .. } if tenant == of);
    made.actions.iter().filter(|action| is_of(&action.kind)).count()
}

/// What a plan says of nodes of pool h100 that tenant a did not use.
fn unused(made: &Plan) -> Option<UnusedNodes> {
    made.unused_nodes.get("a")?.get("h100").copied()
}

const STUCK: &str = "
    pool h100 gpus=8 idle=300 hold=600
    tenant a
    group a/g h100 0..8
    demand a/g stuck 2x8 gang since=1200
    node n1..n2 a/g idle=900 age=900
    node n3..n4 free
";

#[test]
fn nodes_that_waiting_pods_do_not_use_go_back_and_no_others_come_for_a_while() {
    let mut fleet = read_fleet(STUCK);
    let first = advance(&mut fleet);
    assert_eq!(first.actions, [], "its pods may start at any moment");
    assert_eq!(first.replan_at, Some(NOW + 300));
    fleet.now += 300;
    let second = advance(&mut fleet);
    let are_unused = |made: &Plan| {
        let reasons = made.actions.iter().map(|action| &action.reason);
        reasons
            .filter(|reason| matches!(reason, ActionReason::Unused { .. }))
            .count()
    };
    assert_eq!(
        (second.actions.len(), are_unused(&second)),
        (2, 2),
        "{}",
        describe(&second)
    );
    let third = advance(&mut fleet);
    assert_eq!(third.actions, []);
    let message = third.node_groups["a"]["g"].message();
    assert!(
        message.contains("left 2 nodes of pool h100 unused; until 12:15 UTC"),
        "{message}"
    );
    assert_eq!(third.node_groups["a"]["g"].waiting, 2, "an Event says so");
    fleet.nodes.drain(..2);
    fleet.now += 599;
    assert_eq!(advance(&mut fleet).actions, []);
    fleet.now += 1;
    assert_eq!(reserved(&advance(&mut fleet), "a"), 2);
}

#[test]
fn a_pod_that_was_just_created_may_start_on_a_node_that_was_idle_for_long() {
    let mut fleet = read_fleet(&STUCK.replace("age=900", "age=7200").replace("since=1200", "since=0"));
    assert_eq!(unused(&advance(&mut fleet)).unwrap().kept_since, Some(NOW));
    fleet.now += 299;
    for node in &mut fleet.nodes[..2] {
        node.idle_since = None;
    }
    fleet.tenants[0].node_groups[0].demand.clear();
    let made = advance(&mut fleet);
    assert_eq!((made.actions.len(), unused(&made)), (0, None));
}

#[test]
fn nodes_of_a_gang_that_waits_for_further_nodes_are_kept() {
    let text = STUCK.replace(
        "node n1..n2 a/g idle=900 age=900",
        "node n1 a/g idle=900 age=900\nnode n2 a/g joining",
    );
    let mut fleet = read_fleet(&text);
    for _ in 0..3 {
        let made = advance(&mut fleet);
        assert_eq!((made.actions.len(), unused(&made)), (0, None));
        fleet.now += 300;
    }
}

#[test]
fn the_minimum_of_a_group_is_never_unused() {
    let mut fleet = read_fleet(&STUCK.replace("0..8", "2..8"));
    for _ in 0..3 {
        let made = advance(&mut fleet);
        assert_eq!((made.actions.len(), unused(&made)), (0, None));
        fleet.now += 300;
    }
}

/// Pods of tenant a that were created after it left eight nodes unused.
const LATER: &str = "
    pool h100 gpus=8 hold=600
    quota owed nominal=16
    tenant a quota=owed unused=h100:8
    group a/g h100 0..8
    demand a/g new 3x8 since=-1 prio=9
    tenant b
    group b/g h100 0..8
";

#[test]
fn pods_that_are_created_later_get_nodes_one_by_one() {
    let mut fleet = read_fleet(&format!("{LATER}\nnode n1..n4 free"));
    fleet.now += 149;
    assert_eq!(reserved(&advance(&mut fleet), "a"), 0, "after a quarter of the pause");
    fleet.now += 1;
    assert_eq!(reserved(&advance(&mut fleet), "a"), 1);
    assert_eq!(reserved(&advance(&mut fleet), "a"), 0);
    let mut used = 0;
    for node in &mut fleet.nodes {
        if let NodeState::Owned(owner) = &mut node.state {
            owner.phase = berth_planner::Phase::Assigned;
            node.idle_since = None;
            node.used = super::support::gpus(8);
            used += 1;
        }
    }
    assert_eq!(used, 1);
    fleet.tenants[0].node_groups[0].demand[0].pod_sets[0].count = 2;
    assert_eq!(
        reserved(&advance(&mut fleet), "a"),
        2,
        "each that is used allows another"
    );
}

#[test]
fn nothing_is_reclaimed_for_a_tenant_that_left_nodes_unused() {
    let mut fleet = read_fleet(&format!("{LATER}\nnode n1..n4 b/g used=8 age=3600"));
    assert!(
        !plan(&read_fleet(&format!(
            "{}\nnode n1..n4 b/g used=8 age=3600",
            LATER.replace(" unused=h100:8", "")
        )))
        .actions
        .is_empty()
    );
    fleet.now += 5;
    assert_eq!(advance(&mut fleet).actions, []);
}

#[test]
fn a_tenant_that_uses_as_many_nodes_as_it_left_unused_starts_anew() {
    let text = LATER.replace("unused=h100:8", "unused=h100:1");
    let mut fleet = read_fleet(&format!("{text}\nnode n1 a/g used=8\nnode n2..n4 free"));
    fleet.now += 5;
    if let NodeState::Owned(owner) = &mut fleet.nodes[0].state {
        owner.since += 2;
    }
    let made = advance(&mut fleet);
    assert_eq!((reserved(&made, "a"), unused(&made)), (3, None));
}

#[test]
fn pods_that_are_deleted_each_time_before_their_nodes_go_back_count_as_well() {
    let mut fleet = read_fleet(
        "
        pool h100 gpus=8 idle=300 hold=600
        tenant a
        group a/g h100 0..8
        node n1..n4 a/g idle=600 age=600
    ",
    );
    let idle = fleet.nodes.clone();
    for times in 1..=3 {
        let made = advance(&mut fleet);
        assert_eq!(made.actions.len(), 4);
        let unused = unused(&made).unwrap();
        assert_eq!((unused.nodes, unused.times), (4, times));
        assert_eq!(unused.paused_until().is_some(), times == 3, "people delete pods");
        // The same again, later.
        fleet.now += 900;
        fleet.nodes.clone_from(&idle);
        for node in &mut fleet.nodes {
            if let NodeState::Owned(owner) = &mut node.state {
                owner.since = fleet.now - 600;
            }
            node.idle_since = Some(fleet.now - 600);
        }
    }
}
