//! Nodes that a tenant gets for pods that never start.

use super::{
    advance, plan,
    support::{NOW, describe, gpus, read_fleet},
};
use berth_planner::{
    ActionKind, ActionReason, Fleet, NodeState, Owner, Phase, Plan, Seconds, UnusedNodes, remember_unused_nodes,
};
use std::collections::BTreeSet;

/// Nodes that a plan reserves for a tenant.
pub(super) fn reserved(made: &Plan, of: &str) -> usize {
    let is_of = |kind: &ActionKind| matches!(kind, ActionKind::Reserve { tenant, .. } if tenant == of);
    made.actions.iter().filter(|action| is_of(&action.kind)).count()
}

/// Nodes that a plan releases because pods which wait do not use them.
pub(super) fn released_unused(made: &Plan) -> Vec<&str> {
    let actions = made.actions.iter();
    let unused = actions.filter(|action| matches!(action.reason, ActionReason::Unused { .. }));
    unused.map(|action| action.node.as_str()).collect()
}

/// What a plan says of nodes of pool h100 that tenant a did not use.
pub(super) fn unused(made: &Plan) -> Option<UnusedNodes> {
    made.unused_nodes.get("a")?.get("h100").copied()
}

/// Makes all nodes idle since then, or none.
fn set_idle_since(fleet: &mut Fleet, since: Option<Seconds>) {
    for node in &mut fleet.nodes {
        node.idle_since = since;
    }
}

/// Checks that nodes are never released as unused, nor counted.
fn check_that_nodes_stay(fleet: &mut Fleet) {
    for _ in 0..3 {
        let made = advance(fleet);
        assert_eq!((made.actions.len(), unused(&made)), (0, None));
        fleet.now += 660;
    }
}

const STUCK: &str = "
    pool h100 gpus=8 idle=300 hold=600
    tenant a
    group a/g h100 0..8
    demand a/g stuck 2x8 gang since=1200
    node n1..n2 a/g idle=900 age=900
    tenant b
    group b/g h100 0..8
    demand b/g late 2x8
";

#[test]
fn nodes_that_nobody_else_lacks_stay_although_no_pod_uses_them() {
    let mut fleet = read_fleet(&STUCK.replace("2x8 gang", "2x8"));
    let late = fleet.tenants[1].node_groups[0].demand.split_off(0);
    for _ in 0..9 {
        assert_eq!(advance(&mut fleet).actions, []);
        fleet.now += 660;
    }
    fleet.tenants[1].node_groups[0].demand = late;
    fleet.tenants[1].node_groups[0].demand[0].pod_sets[0].count = 1;
    let made = advance(&mut fleet);
    assert_eq!(released_unused(&made), ["n1"], "one is enough: {}", describe(&made));
    assert_eq!(advance(&mut fleet).actions, []);
}

#[test]
fn nothing_is_taken_from_a_tenant_for_another_one_that_left_nodes_unused() {
    let text = STUCK.replace("tenant b", "tenant b unused=h100:8");
    let mut fleet = read_fleet(&text);
    fleet.now += 5;
    advance(&mut fleet);
    fleet.now += 1;
    fleet.tenants[0].unused.get_mut("h100").unwrap().kept_since = Some(NOW - 900);
    set_idle_since(&mut fleet, Some(NOW - 3000));
    assert_eq!(advance(&mut fleet).actions, [], "there is a pause for b");
}

#[test]
fn nodes_that_waiting_pods_do_not_use_go_back_and_others_get_them_first() {
    let mut fleet = read_fleet(STUCK);
    let first = advance(&mut fleet);
    assert_eq!(first.actions, [], "its pods may start at any moment");
    assert_eq!(first.replan_at, Some(NOW + 660));
    fleet.now += 659;
    assert_eq!(
        advance(&mut fleet).actions,
        [],
        "the scheduler waits for volumes for ten minutes"
    );
    fleet.now += 1;
    let second = advance(&mut fleet);
    assert_eq!(released_unused(&second), ["n1", "n2"], "{}", describe(&second));
    let third = advance(&mut fleet);
    assert_eq!(third.actions, []);
    let message = third.node_groups["a"]["g"].message();
    assert!(
        message.contains("left nodes of pool h100 unused: until 12:21 UTC others are served first"),
        "{message}"
    );
    assert_eq!(third.node_groups["a"]["g"].waiting, 2, "an Event says so");
    for node in &mut fleet.nodes {
        (node.state, node.idle_since) = (NodeState::Free, None);
    }
    let made = plan(&fleet);
    assert_eq!(
        (reserved(&made, "a"), reserved(&made, "b")),
        (0, 2),
        "{}",
        describe(&made)
    );
    fleet.tenants[1].node_groups[0].demand.clear();
    let made = plan(&fleet);
    assert_eq!(reserved(&made, "a"), 2, "nobody else needs them: {}", describe(&made));
}

#[test]
fn nodes_of_another_pod_have_their_own_time() {
    let mut fleet = read_fleet(
        "
        pool h100 gpus=8 idle=300 hold=600
        tenant a
        group a/g h100 0..8
        group a/h h100 0..8
        demand a/g stuck 1x8 since=1200
        demand a/h other 1x8 since=5
        node n1 a/g idle=900 age=900
        node n2 a/h idle=10 age=10
        tenant b
        group b/g h100 0..8
        demand b/g late 5x8
    ",
    );
    advance(&mut fleet);
    fleet.now += 660;
    let made = advance(&mut fleet);
    assert_eq!(released_unused(&made), ["n1"]);
    fleet.nodes.remove(0);
    fleet.now = NOW - 10 + 660 + 659;
    assert_eq!(released_unused(&advance(&mut fleet)), [""; 0]);
    fleet.now += 1;
    assert_eq!(released_unused(&advance(&mut fleet)), ["n2"]);
}

#[test]
fn a_release_that_fails_counts_once() {
    let mut fleet = read_fleet(STUCK);
    advance(&mut fleet);
    fleet.now += 660;
    let before = fleet.tenants[0].unused.clone();
    let all = BTreeSet::from(["n1".to_owned(), "n2".to_owned()]);
    for _ in 0..3 {
        let made = plan(&fleet);
        assert_eq!(released_unused(&made), ["n1", "n2"]);
        let remembered = remember_unused_nodes(&fleet, &made, &all);
        assert_eq!(remembered["a"], before, "none was released");
        fleet.tenants[0].unused.clone_from(&remembered["a"]);
        fleet.now += 700;
    }
    let made = plan(&fleet);
    let remembered = remember_unused_nodes(&fleet, &made, &BTreeSet::new());
    assert_eq!(remembered["a"]["h100"].nodes, 2);
    assert_eq!(remembered, made.unused_nodes);
}

#[test]
fn a_release_that_fails_hides_no_other() {
    let other_pool = "
        pool l40s gpus=8 idle=300 hold=600
        group a/h l40s 0..8
        demand a/h stuck 1x8 since=1200
        group b/h l40s 0..8
        demand b/h late 1x8
        node m1 a/h idle=900 age=900
    ";
    let mut fleet = read_fleet(&format!("{STUCK}{other_pool}"));
    advance(&mut fleet);
    fleet.now += 660;
    let made = plan(&fleet);
    assert_eq!(released_unused(&made), ["m1", "n1", "n2"]);
    let kept = BTreeSet::from(["m1".to_owned(), "n2".to_owned()]);
    let remembered = remember_unused_nodes(&fleet, &made, &kept);
    let h100 = remembered["a"]["h100"];
    assert_eq!((h100.nodes, h100.times, h100.kept_since), (1, 3, Some(NOW)));
    assert_eq!(
        remembered["a"]["l40s"], fleet.tenants[0].unused["l40s"],
        "none was released there"
    );
}

#[test]
fn nodes_that_pods_cannot_use_are_not_left_unused() {
    let text = STUCK.replace("age=900\n", "age=900 unusable\n");
    let text = text.replace("demand a/g stuck 2x8 gang since=1200", "");
    let mut fleet = read_fleet(&text);
    let made = advance(&mut fleet);
    assert_eq!((made.actions.len(), unused(&made)), (2, None), "{}", describe(&made));
}

#[test]
fn minimums_are_no_nodes_that_were_never_used() {
    let mut fleet = read_fleet(
        "
        pool h100 gpus=8 idle=300 hold=600
        tenant a
        group a/private h100 4..4
        group a/g h100 0..8
        node n1..n4 a/private idle=7200 age=7200
        node n5..n6 a/g used=8 age=900
        node n7 a/g idle=900 age=900
    ",
    );
    let made = advance(&mut fleet);
    assert_eq!((made.actions.len(), unused(&made)), (1, None), "{}", describe(&made));
}

#[test]
fn the_node_that_was_used_last_is_kept_for_the_next_pod() {
    let mut fleet = read_fleet(
        "
        pool h100 gpus=8 idle=300 hold=600
        tenant a
        group a/g h100 0..8
        demand a/g next 1x8
        node n1 a/g idle=900 age=3600
        node n2 a/g idle=5 age=3600
    ",
    );
    let made = advance(&mut fleet);
    let released: Vec<_> = made
        .actions
        .iter()
        .map(|action| (&*action.node, &action.reason))
        .collect();
    assert_eq!(released, [("n1", &ActionReason::Idle { idle: 900 })]);
    assert_eq!(unused(&made), None);
}

#[test]
fn a_pod_that_was_just_created_may_start_on_a_node_that_was_idle_for_long() {
    let mut fleet = read_fleet(&STUCK.replace("age=900", "age=7200").replace("since=1200", "since=0"));
    assert_eq!(unused(&advance(&mut fleet)).unwrap().kept_since, Some(NOW));
    fleet.now += 659;
    set_idle_since(&mut fleet, None);
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
    check_that_nodes_stay(&mut fleet);
}

#[test]
fn nodes_that_no_other_tenant_would_get_are_not_left_unused() {
    let mut fleet = read_fleet(&STUCK.replace("age=900\n", "age=900 closed\n"));
    check_that_nodes_stay(&mut fleet);
}

#[test]
fn the_minimum_of_a_group_is_never_unused() {
    let mut fleet = read_fleet(&STUCK.replace("a/g h100 0..8", "a/g h100 2..8"));
    check_that_nodes_stay(&mut fleet);
}

/// Tenant a left eight nodes unused. The quota that owes it nodes, the priority and the age of its pods would let it have them first.
const PAUSED: &str = "
    pool h100 gpus=8 hold=600
    quota owed nominal=16
    tenant a quota=owed unused=h100:8
    group a/g h100 0..8
    demand a/g new 3x8 since=900 prio=9
    tenant b
    group b/g h100 0..8
";

#[test]
fn requests_of_other_tenants_are_served_first_and_nothing_is_refused() {
    for order in ["fair-share", "fifo"] {
        let text = PAUSED.replace(
            "hold=600",
            if order == "fifo" {
                "hold=600 order=fifo"
            } else {
                "hold=600"
            },
        );
        let mut fleet = read_fleet(&format!("{text}\ndemand b/g small 3x8\nnode n1..n4 free"));
        fleet.now += 5;
        let made = plan(&fleet);
        let both = (reserved(&made, "a"), reserved(&made, "b"));
        assert_eq!(both, (1, 3), "{order}: {}", describe(&made));
        let message = made.node_groups["a"]["g"].message();
        assert!(message.contains("until 12:10 UTC others are served first"), "{message}");
        assert_eq!(made.replan_at, Some(NOW + 600));
        fleet.now += 595;
        let made = plan(&fleet);
        let both = (reserved(&made, "a"), reserved(&made, "b"));
        assert_eq!(both, (3, 1), "{order}: {}", describe(&made));
    }
}

#[test]
fn another_gang_of_the_tenant_gets_all_its_nodes() {
    let text = PAUSED.replace(
        "demand a/g new 3x8 since=900 prio=9",
        "demand a/g again 4x8 gang since=900",
    );
    let mut fleet = read_fleet(&format!("{text}\nnode n1..n4 free"));
    fleet.now += 5;
    assert_eq!(reserved(&advance(&mut fleet), "a"), 4);
    fleet.tenants[0].unused.get_mut("h100").unwrap().nodes = 4;
    fleet.now += 60;
    fleet.tenants[0].node_groups[0].demand.clear();
    for node in &mut fleet.nodes {
        if let NodeState::Owned(owner) = &mut node.state {
            owner.phase = Phase::Assigned;
        }
        (node.idle_since, node.used) = (None, gpus(8));
    }
    assert_eq!(
        unused(&advance(&mut fleet)),
        None,
        "it uses as many nodes as it left unused"
    );
}

#[test]
fn a_gang_that_starts_again_takes_back_a_node_that_was_to_be_reclaimed() {
    let text = PAUSED.replace("demand a/g new 3x8 since=900 prio=9", "demand a/g again 2x8 gang");
    let mut fleet = read_fleet(&format!("{text}\nnode n1..n2 a/g cordoned=300 age=3600"));
    fleet.now += 60;
    set_idle_since(&mut fleet, Some(NOW + 50));
    let made = plan(&fleet);
    let kept = made
        .actions
        .iter()
        .filter(|action| action.kind == ActionKind::CancelRelease);
    assert_eq!(kept.count(), 2, "{}", describe(&made));
    set_idle_since(&mut fleet, Some(NOW - 900));
    assert_eq!(plan(&fleet).actions, [], "it was left unused");
}

#[test]
fn an_autoscaler_goes_on() {
    let text = PAUSED.replace("hold=600", "hold=600 scaled max-nodes=5 node-gpus=8");
    let mut fleet = read_fleet(&format!("{text}\ndemand b/g small 3x8"));
    fleet.now += 5;
    let made = advance(&mut fleet);
    let shortages = made.scale_ups["h100"].shortages.iter();
    let tenants: Vec<_> = shortages.map(|shortage| shortage.tenant.as_str()).collect();
    assert_eq!(tenants, ["b", "a"]);
    assert_eq!(made.scale_ups["h100"].nodes, 5);
}

#[test]
fn nothing_is_reclaimed_for_a_tenant_that_left_nodes_unused() {
    let mut fleet = read_fleet(&format!("{PAUSED}\nnode n1..n4 b/g used=8 age=3600"));
    assert!(
        !plan(&read_fleet(&format!(
            "{}\nnode n1..n4 b/g used=8 age=3600",
            PAUSED.replace(" unused=h100:8", "")
        )))
        .actions
        .is_empty()
    );
    fleet.now += 5;
    assert_eq!(advance(&mut fleet).actions, []);
}

#[test]
fn a_tenant_that_uses_as_many_nodes_as_it_left_unused_starts_anew() {
    let text = PAUSED.replace("unused=h100:8", "unused=h100:1");
    let mut fleet = read_fleet(&format!("{text}\nnode n1 a/g used=8\nnode n2..n4 free"));
    fleet.now += 5;
    if let NodeState::Owned(owner) = &mut fleet.nodes[0].state {
        owner.since += 2;
    }
    let made = advance(&mut fleet);
    assert_eq!((reserved(&made, "a"), unused(&made)), (3, None));
}

#[test]
fn nodes_that_others_lack_one_by_one_are_left_unused_once() {
    let text = STUCK.replace("2x8 gang", "3x8").replace("n1..n2", "n1..n3");
    let mut fleet = read_fleet(&text.replace("late 2x8", "late 1x8"));
    advance(&mut fleet);
    for at in 0..3 {
        fleet.now += 660;
        let made = advance(&mut fleet);
        assert_eq!(released_unused(&made), [fleet.nodes[at].name.as_str()]);
        assert_eq!(unused(&made).unwrap().paused_until(), Some(fleet.now + 600));
        // Another tenant uses it, and lacks one more.
        let node = &mut fleet.nodes[at];
        node.state = NodeState::Owned(Owner {
            tenant: "b".into(),
            node_group: "g".into(),
            since: fleet.now,
            phase: Phase::Assigned,
        });
        (node.idle_since, node.used, node.pods) = (None, gpus(8), 1);
    }
}

#[test]
fn nodes_whose_pods_were_deleted_count_also_if_another_request_takes_them() {
    let mut fleet = read_fleet(
        "
        pool h100 gpus=8 idle=300 hold=600
        tenant a
        group a/g h100 0..8
        demand a/g large 8x8 gang since=100
        node n1..n4 a/g idle=600 age=600
        tenant b
        group b/g h100 0..8
        demand b/g late 4x8
        tenant c
        group c/g h100 0..8
        node n5..n8 c/g used=8 age=3600
    ",
    );
    let made = advance(&mut fleet);
    let unused = unused(&made).unwrap();
    assert_eq!((unused.nodes, unused.times), (4, 1), "{}", describe(&made));
}

#[test]
fn nodes_that_pods_do_not_need_because_they_are_divided_are_never_unused() {
    let mut fleet = read_fleet(
        "
        pool h100 gpus=8 divided idle=300 hold=600
        tenant a
        group a/g h100 0..8
        node n1..n4 a/g idle=600 age=600
    ",
    );
    let made = advance(&mut fleet);
    assert_eq!((made.actions.len(), unused(&made)), (4, None), "{}", describe(&made));
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
