//! Nodes that pods keep without using them go to others only if these can use exactly these nodes.

use super::advance;
use super::support::{describe, read_fleet};
use super::unused::{released_unused, reserved};
use berth_planner::{Fleet, NodeState, Plan, UnusedNodes, plan};

/// The plan for a fleet in which the pods of tenants a and d have kept idle nodes for long.
pub(super) fn plan_when_due(fleet: &mut Fleet) -> Plan {
    for tenant in &mut fleet.tenants {
        if ["a", "d"].contains(&tenant.uid.as_str()) {
            let unused = UnusedNodes {
                kept_since: Some(fleet.now - 900),
                ..UnusedNodes::default()
            };
            tenant.unused.insert("h100".into(), unused);
        }
    }
    advance(fleet)
}

/// Nodes that a plan releases because others lack them.
pub(super) fn released(text: &str) -> Vec<String> {
    let made = plan_when_due(&mut read_fleet(text));
    released_unused(&made).into_iter().map(ToOwned::to_owned).collect()
}

/// Nodes that were released are free.
pub(super) fn recycle(fleet: &mut Fleet, names: &[&str]) {
    for node in fleet
        .nodes
        .iter_mut()
        .filter(|node| names.contains(&node.name.as_str()))
    {
        (node.state, node.idle_since, node.pods) = (NodeState::Free, None, 0);
        node.used.clear();
    }
}

#[test]
fn a_pod_that_needs_another_node_takes_none() {
    let text = "
        pool h100 gpus=8 idle=300 hold=600
        stuck a 2x8
        node n1..n2 a/g idle=3600 age=3600
        tenant b
        group b/g h100 0..8
        demand b/g pinned 1x8 host=n3
        node n3 b/g used=8 age=3600 host=n3
    ";
    let mut fleet = read_fleet(text);
    for _ in 0..5 {
        let made = plan_when_due(&mut fleet);
        assert_eq!(made.actions, [], "{}", describe(&made));
        fleet.now += 900;
    }
    assert_eq!(
        released(&text.replace("node n1..n2", "node n1 a/g idle=3600 age=3600\nnode n2 host=n3")),
        ["n2"],
        "exactly the one that it needs"
    );
    assert_eq!(
        released(&text.replace("1x8 host=n3", "1x9")),
        [""; 0],
        "it fits on no node"
    );
}

#[test]
fn a_gang_takes_nodes_only_if_it_has_all_of_them_then() {
    for starvation in [600, 6000] {
        let mut fleet = read_fleet(&format!(
            "
            pool h100 gpus=8 idle=300 hold=600 starvation={starvation}
            stuck a 2x8
            node n1..n2 a/g idle=3600 age=3600
            tenant b
            group b/g h100 0..8
            demand b/g train 4x8 gang since=700
            node n3 free
            tenant c
            group c/g h100 0..8
            node n4..n5 c/g used=8 age=3600
        "
        ));
        let made = plan_when_due(&mut fleet);
        assert_eq!(made.actions, [], "{}", describe(&made));
        recycle(&mut fleet, &["n4"]);
        let made = plan_when_due(&mut fleet);
        assert_eq!(released_unused(&made), ["n1", "n2"], "{}", describe(&made));
        assert_eq!(advance(&mut fleet).actions, []);
        recycle(&mut fleet, &["n1", "n2"]);
        assert_eq!(reserved(&plan(&fleet), "b"), 4);
    }
}

#[test]
fn a_gang_that_waits_first_is_not_overtaken() {
    let text = "
        pool h100 gpus=8 idle=300 hold=600 starvation=600
        stuck a 1x8
        node n1 a/g idle=3600 age=3600
        tenant b
        group b/g h100 0..8
        demand b/g train 3x8 gang since=700
        node n2 free zone=a
        tenant c
        group c/g h100 0..8
        demand c/g late 1x8
        node n3..n4 c/g used=8 age=3600 zone=a
    ";
    assert_eq!(released(text), [""; 0], "n1 would be kept for the gang");
    assert_eq!(released(&text.replace("3x8 gang", "3x8 gang zone=a")), ["n1"]);
    let overtaken = text.replace("starvation=600", "starvation=6000");
    assert_eq!(released(&overtaken), [""; 0], "the pod gets n2");
}

#[test]
fn a_gang_of_a_tenant_in_a_pause_does_not_wait_first() {
    let text = "
        pool h100 gpus=8 idle=300 hold=600 starvation=600
        quota own nominal=24
        stuck a 1x8
        node n1 a/g idle=3600 age=3600
        tenant c
        group c/g h100 0..8
        node n2..n3 c/g used=8 age=3600
        tenant first quota=own unused=h100:8
        group first/g h100 0..8
        demand first/g train 3x8 gang since=1200
        tenant b
        group b/g h100 0..8
        demand b/g late 1x8
    ";
    let mut fleet = read_fleet(text);
    let made = plan_when_due(&mut fleet);
    assert_eq!(released_unused(&made), ["n1"], "{}", describe(&made));
    recycle(&mut fleet, &["n1"]);
    let made = plan(&fleet);
    let both = (reserved(&made, "b"), reserved(&made, "first"));
    assert_eq!(both, (1, 0), "{}", describe(&made));
}

#[test]
fn a_gang_that_waits_first_keeps_no_node_that_it_cannot_use() {
    let text = "
        pool h100 gpus=8 idle=300 hold=600 starvation=600
        stuck a 2x8
        node n1 a/g idle=3600 age=3600 zone=a
        node n2 a/g idle=3600 age=3600 zone=b
        tenant c
        group c/private h100 1..1
        tenant e
        group e/g h100 0..8
        node n3..n5 e/g used=8 age=3600 zone=a
        tenant first
        group first/g h100 0..8
        demand first/g train 4x8 gang zone=a since=1200
        tenant b
        group b/g h100 0..8
        demand b/g late 1x8 zone=b
    ";
    assert_eq!(released(text), ["n1", "n2"], "n1 is for the minimum");
}

#[test]
fn a_group_keeps_its_minimum_also_if_some_of_its_nodes_are_idle_in_truth() {
    let text = "
        pool h100 gpus=8 idle=300 hold=600
        tenant a
        group a/g h100 1..3
        demand a/g stuck 2x8 since=3600
        demand a/g wide 2x8 gang since=3000
        node n1..n3 a/g idle=3600 age=3600
        tenant b
        group b/g h100 0..8
        demand b/g train 3x8 gang
    ";
    assert_eq!(released(text), [""; 0]);
    assert_eq!(
        released(&text.replace("1..3", "0..3")),
        ["n1", "n2"],
        "n3 goes in any case"
    );
}

#[test]
fn a_gang_gets_nodes_that_would_not_be_kept_for_the_one_before_it() {
    let text = "
        pool h100 gpus=8 domains idle=300 hold=600 starvation=600
        stuck a 4x8
        node n1..n2 rack=r1 free
        node n3..n4 rack=r1 a/g idle=3600 age=3600
        node n5..n6 rack=r2 a/g idle=3600 age=3600
        tenant c
        group c/g h100 0..8
        node n7..n8 rack=r1 c/g used=8 age=3600
        node m1..m3 rack=r2 c/g used=8 age=3600
        tenant first
        group first/g h100 0..8
        demand first/g large 5x8 gang single-domain since=1200
        tenant b
        group b/g h100 0..8
        demand b/g train 2x8 gang single-domain since=60
    ";
    for late in ["2x8 gang single-domain", "2x8 gang", "2x8"] {
        let mut fleet = read_fleet(&text.replace("2x8 gang single-domain", late));
        let made = plan_when_due(&mut fleet);
        assert_eq!(released_unused(&made), ["n5", "n6"], "{late}: {}", describe(&made));
        assert_eq!(advance(&mut fleet).actions, [], "{late}");
        recycle(&mut fleet, &["n5", "n6"]);
        assert_eq!(reserved(&plan(&fleet), "b"), 2, "{late}");
    }
}

#[test]
fn other_requests_of_a_tenant_do_not_keep_its_nodes() {
    let mut fleet = read_fleet(
        "
        pool h100 gpus=8 idle=300 hold=600
        tenant a
        group a/g h100 0..1
        demand a/g stuck 1x8 since=3600
        demand a/g small 1x1 since=600 zone=b
        node n1 a/g idle=3600 age=3600 zone=a
        node n2 free zone=b
        tenant b
        group b/g h100 0..8
        demand b/g late 1x8 zone=a
    ",
    );
    let made = plan_when_due(&mut fleet);
    assert_eq!(released_unused(&made), ["n1"], "{}", describe(&made));
    recycle(&mut fleet, &["n1"]);
    let made = plan(&fleet);
    let both = (reserved(&made, "a"), reserved(&made, "b"));
    assert_eq!(both, (1, 1), "{}", describe(&made));
}

#[test]
fn an_idle_node_in_each_domain_does_not_keep_gangs_from_starting() {
    let mut fleet = read_fleet(
        "
        pool h100 gpus=8 domains idle=300 hold=600
        tenant a
        group a/g h100 0..2
        demand a/g stuck 2x8 since=3600
        node n1 rack=r1 a/g idle=3600 age=3600
        node n2 rack=r1 free
        node n3 rack=r2 a/g idle=3600 age=3600
        node n4 rack=r2 free
        tenant b
        group b/g h100 0..8
        demand b/g train 2x8 gang single-domain since=60
    ",
    );
    let made = plan_when_due(&mut fleet);
    assert_eq!(released_unused(&made), ["n1"], "one is enough: {}", describe(&made));
    assert_eq!(advance(&mut fleet).actions, []);
    recycle(&mut fleet, &["n1"]);
    let made = plan(&fleet);
    assert_eq!(reserved(&made, "b"), 2, "{}", describe(&made));
}

#[test]
fn a_gang_gets_nodes_of_several_tenants_if_they_are_in_one_domain() {
    let text = "
        pool h100 gpus=8 domains idle=300 hold=600
        stuck a 1x8
        node n1 rack=r1 a/g idle=3600 age=3600
        stuck d 1x8
        node n2 rack=r1 d/g idle=3600 age=3600
        tenant b
        group b/g h100 0..8
        demand b/g train 2x8 gang single-domain since=60
        tenant c
        group c/g h100 0..8
        node n3 rack=r1 c/g used=8 age=3600
        node n4..n5 rack=r2 c/g used=8 age=3600
    ";
    assert_eq!(released(text), ["n1", "n2"]);
    let apart = text.replace("node n2 rack=r1", "node n2 rack=r2");
    assert_eq!(released(&apart), [""; 0]);
    assert_eq!(released(&apart.replace(" single-domain", "")), ["n1", "n2"]);
}

#[test]
fn of_two_tenants_whose_pods_do_not_start_one_loses_nodes() {
    let text = "
        pool h100 gpus=8 idle=300 hold=600
        stuck a 2x8
        node n1 a/g idle=3600 age=3600
        stuck d 2x8
        node n2 d/g idle=3600 age=3600
    ";
    assert_eq!(released(text).len(), 1);
}

#[test]
fn nodes_that_no_request_needs_go_first() {
    let text = "
        pool h100 gpus=8 idle=300 hold=600
        stuck a 1x8
        node n1 a/g used=8 age=3600
        node n2 a/g idle=3600 age=3600
        node n3 a/g idle=3600 age=3600
        tenant b
        group b/g h100 0..8
        demand b/g late 3x8
    ";
    let made = plan_when_due(&mut read_fleet(text));
    assert_eq!(released_unused(&made), ["n2"], "{}", describe(&made));
    let all: Vec<&str> = made.actions.iter().map(|action| action.node.as_str()).collect();
    assert_eq!(all, ["n2", "n3"], "n3 goes in any case: {}", describe(&made));
}

#[test]
fn nodes_of_a_gang_that_waits_for_nodes_which_are_recycled_are_kept() {
    let text = "
        pool h100 gpus=8 idle=300 hold=600 order=fifo
        tenant a
        group a/g h100 0..8
        demand a/g train 4x8 gang since=1200
        node n1..n2 a/g idle=1800 age=3600
        node n3..n4 recycling
        tenant b
        group b/g h100 0..8
        demand b/g late 2x8
    ";
    assert_eq!(released(text), [""; 0]);
    let complete = text
        .replace("4x8 gang", "2x8 gang")
        .replace("node n3..n4 recycling", "");
    assert_eq!(released(&complete), ["n1", "n2"], "it waits for no node");
}

#[test]
fn the_nodes_that_a_group_loses_last_are_its_minimum() {
    let text = "
        pool h100 gpus=8 domains idle=300 hold=600 reclaim=never starvation=30
        tenant a
        group a/g h100 2..5
        demand a/g stuck 99x4 since=3600
        tenant b
        group b/g h100 0..99
        demand b/g late 2x2
        demand b/g train 4x4 single-domain since=60
        tenant c
        group c/g h100 0..8
        node n1 rack=r1 a/g idle=3600 age=3600
        node n2 rack=r1 gpus=4 a/g idle=3600 age=3600
        node n3 rack=r1 c/g used=8 age=3600
        node n4..n5 rack=r2 a/g idle=3600 age=3600
        node n6 rack=r3 free
        node n7 rack=r3 a/g idle=3600 age=3600
    ";
    // Once n1 was released, n7 would be of the minimum, and n1 would be kept for the first request instead of n6.
    let made = plan_when_due(&mut read_fleet(text));
    assert_eq!(
        (released_unused(&made), reserved(&made, "b")),
        (Vec::new(), 1),
        "{}",
        describe(&made)
    );
    assert_eq!(
        released(&text.replace("2..5", "0..5")),
        ["n1", "n7"],
        "n6 and n7 are for the first one"
    );
}
