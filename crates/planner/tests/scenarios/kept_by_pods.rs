//! Nodes that only pods keep which use none of their devices.

use super::{
    advance,
    support::{describe, read_fleet},
    unused::released_unused,
};

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
