//! Nodes that only pods keep which use none of their devices.

use super::{
    advance, plan,
    support::{NOW, describe, read_fleet},
    unused::released_unused,
};
use berth_planner::{ActionKind, ActionReason};

const KEPT: &str = "
    pool h100 gpus=8 idle=300 hold=600
    tenant a
    group a/g h100 0..8
    node n1..n2 a/g idle=1500 age=1500 kept
    tenant b
    group b/g h100 0..8
    demand b/g late 1x8
";

#[test]
fn they_stay_as_long_as_nobody_lacks_them() {
    let mut fleet = read_fleet(KEPT);
    fleet.tenants[1].node_groups[0].demand.clear();
    for _ in 0..5 {
        let made = advance(&mut fleet);
        assert_eq!(made.actions, [], "their pods would come again: {}", describe(&made));
        fleet.now += 660;
    }
}

#[test]
fn they_go_to_others_that_lack_them_after_the_time_of_nodes_that_no_pod_uses() {
    let mut fleet = read_fleet(KEPT);
    assert_eq!(advance(&mut fleet).actions, []);
    fleet.now += 659;
    assert_eq!(advance(&mut fleet).actions, []);
    fleet.now += 1;
    let made = advance(&mut fleet);
    assert_eq!(released_unused(&made).len(), 1, "one is enough: {}", describe(&made));
    assert_eq!(advance(&mut fleet).actions, [], "they do not keep it after all");
}

#[test]
fn they_are_reclaimed_before_nodes_in_use() {
    let text = KEPT
        .replace("node n1..n2", "node n2 a/g used=8 age=1500\nnode n1")
        .replace("tenant b", "quota b nominal=8\ntenant b quota=b");
    let mut fleet = read_fleet(&text);
    let made = advance(&mut fleet);
    let nodes: Vec<&str> = made.actions.iter().map(|action| action.node.as_str()).collect();
    assert_eq!(nodes, ["n1"], "{}", describe(&made));
    assert_eq!(advance(&mut fleet).actions, []);
}

#[test]
fn they_stay_for_the_minimum_of_their_group() {
    let mut fleet = read_fleet(&KEPT.replace("a/g h100 0..8", "a/g h100 2..8"));
    for _ in 0..3 {
        assert_eq!(advance(&mut fleet).actions, []);
        fleet.now += 660;
    }
}

#[test]
fn they_are_reclaimed_for_fairness_and_priority_as_if_they_were_in_use() {
    let text = "
        pool h100 gpus=8 grace=300 idle=300 reclaim=fair-share
        tenant a
        group a/g h100 0..8
        node n1 a/g idle=60 age=7200 kept prio=5
        node n2 a/g used=8 age=7200 prio=1
        node n3 a/g idle=60 age=7200 kept
        node n4 a/g used=8 age=7200 prio=9
        tenant b
        group b/g h100 0..8
        demand b/g late 3x8
    ";
    let urgent = text
        .replace("reclaim=fair-share", "")
        .replace("late 3x8", "late 3x8 prio=3");
    for (text, expected) in [(text.to_owned(), vec!["n3"]), (urgent, vec!["n2", "n3"])] {
        let made = plan(&read_fleet(&text));
        let nodes: Vec<&str> = made.actions.iter().map(|action| action.node.as_str()).collect();
        assert_eq!(nodes, expected, "{}", describe(&made));
        let release = ActionKind::Release { drain_at: NOW + 300 };
        let are_warned = made.actions.iter().all(|action| action.kind == release);
        assert!(are_warned, "the same grace period: {}", describe(&made));
    }
}

#[test]
fn a_node_that_pods_keep_stays_if_it_is_not_reclaimed_after_all() {
    let text = KEPT.replace("node n1..n2 a/g idle=1500", "node n1..n2 a/g cordoned=300 idle=1500");
    let made = plan(&read_fleet(&text.replace("demand b/g late 1x8", "")));
    let kept = made
        .actions
        .iter()
        .filter(|action| action.kind == ActionKind::CancelRelease);
    assert_eq!(kept.count(), 2, "their pods would come again: {}", describe(&made));
}

#[test]
fn they_are_no_nodes_that_were_never_used() {
    let made = plan(&read_fleet(
        "
        pool h100 gpus=8 idle=300 hold=600
        tenant a
        group a/g h100 0..8
        node n1..n4 a/g idle=900 age=900 kept
        node n5..n6 a/g used=8 age=900
        node n7 a/g idle=900 age=900
    ",
    ));
    let reasons: Vec<&ActionReason> = made.actions.iter().map(|action| &action.reason).collect();
    assert_eq!(reasons, [&ActionReason::Idle { idle: 900 }], "{}", describe(&made));
}
