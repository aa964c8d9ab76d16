//! Nodes that pods keep without using them, and what quotas, limits and minimums of others allow.

use super::advance;
use super::lacking::{plan_when_due, recycle, released};
use super::support::{describe, read_fleet};
use super::unused::{released_unused, reserved};
use berth_planner::{NodeState, plan};

#[test]
fn limits_of_others_count() {
    let text = "
        pool h100 gpus=8 idle=300 hold=600
        quota small limit=4
        stuck a 1x8
        node n1 a/g idle=3600 age=3600
        tenant b quota=small
        group b/g h100 0..8
        demand b/g late 1x4
        tenant c
        group c/g h100 0..8
        node n2 c/g gpus=4 used=4 age=3600
    ";
    assert_eq!(released(text), [""; 0], "it may not have a node of eight GPUs");
    assert_eq!(released(&text.replace("limit=4", "limit=8")), ["n1"]);
    let small = text.replace("stuck a 1x8", "stuck a 1x8 1x4");
    let small = format!("{small}\nnode n3 a/g gpus=4 idle=3000 age=3600");
    assert_eq!(released(&small), ["n3"], "it may have a smaller one");
}

#[test]
fn requests_within_a_nominal_quota_get_nodes_before_urgent_ones() {
    let text = "
        pool h100 gpus=8 idle=300 hold=600 reclaim=never
        quota own nominal=8
        stuck a 2x8
        node n1 a/g idle=3600 age=3600 zone=a
        node n2 a/g idle=3600 age=3600
        tenant b quota=own
        group b/g h100 0..8
        demand b/g late 1x8
        tenant c
        group c/g h100 0..8
        demand c/g urgent 1x8 prio=5 zone=a
    ";
    assert_eq!(released(text), ["n1"], "the next plan gives n1 to b");
    let borrowing = text.replace("tenant b quota=own", "tenant b");
    assert_eq!(released(&borrowing), ["n1", "n2"]);
}

#[test]
fn nodes_that_others_would_not_be_lent_stay() {
    let text = "
        pool h100 gpus=8 idle=300 hold=600
        quota own nominal=16 lending=0
        stuck a 2x8 quota=own
        node n1..n2 a/g idle=3600 age=3600
        tenant b
        group b/g h100 0..8
        demand b/g late 2x8
    ";
    assert_eq!(released(text), [""; 0]);
    assert_eq!(released(&text.replace("lending=0", "lending=8")), ["n1"]);
    assert_eq!(
        released(
            &text
                .replace("late 2x8", "late 2x8 gang")
                .replace("lending=0", "lending=8")
        ),
        [""; 0]
    );
    assert_eq!(released(&text.replace("lending=0", "lending=16")), ["n1", "n2"]);
}

#[test]
fn free_nodes_that_are_not_lent_do_not_keep_unused_ones_where_they_are() {
    let text = "
        pool h100 gpus=8 domains idle=300 hold=600
        quota own nominal=8 lending=0
        stuck a 3x8
        node n0 rack=r1 free
        node n1..n3 rack=r1 a/g idle=3600 age=3600
        tenant b
        group b/g h100 0..8
        demand b/g late 1x8
    ";
    for (late, expected) in [
        ("1x8", vec!["n1"]),
        ("2x8 gang", vec!["n1", "n2"]),
        ("2x8 gang single-domain", vec!["n1", "n2"]),
    ] {
        let mut fleet = read_fleet(&text.replace("1x8", late));
        let made = plan_when_due(&mut fleet);
        assert_eq!(released_unused(&made), expected, "{late}: {}", describe(&made));
        assert_eq!(advance(&mut fleet).actions, [], "{late}: they are cordoned");
        for node in fleet.nodes.iter_mut().filter(|node| expected.contains(&&*node.name)) {
            node.idle_since = None;
            node.state = NodeState::Recycling {
                previous_tenant: "a".into(),
                since: fleet.now,
            };
        }
        assert_eq!(advance(&mut fleet).actions, [], "{late}: they are recycled");
        recycle(&mut fleet, &expected);
        assert_eq!(reserved(&plan(&fleet), "b"), expected.len(), "{late}");
    }
}

#[test]
fn minimums_get_nodes_before_requests() {
    let mut fleet = read_fleet(
        "
        pool h100 gpus=8 idle=300 hold=600
        stuck a 2x8
        node n1..n2 a/g idle=3600 age=3600
        tenant b
        group b/g h100 0..8
        demand b/g late 1x8
        tenant c
        group c/private h100 2..2
    ",
    );
    let made = plan_when_due(&mut fleet);
    assert_eq!(released_unused(&made), ["n1", "n2"], "{}", describe(&made));
    recycle(&mut fleet, &["n1", "n2"]);
    let made = plan(&fleet);
    let both = (reserved(&made, "b"), reserved(&made, "c"));
    assert_eq!(both, (0, 2), "{}", describe(&made));
}

#[test]
fn a_minimum_that_is_lent_no_nodes_keeps_nobody_from_its_own() {
    for minimum in [1, 2] {
        let mut fleet = read_fleet(&format!(
            "
            pool h100 gpus=8 idle=300 hold=600
            quota own nominal=16 lending=0
            stuck a 2x8 quota=own
            node n1..n2 a/g idle=3600 age=3600
            tenant b quota=own
            group b/g h100 0..8
            demand b/g late 1x8
            tenant c
            group c/private h100 {minimum}..{minimum}
        "
        ));
        let made = plan_when_due(&mut fleet);
        assert_eq!(released_unused(&made), ["n1"], "{}", describe(&made));
        assert_eq!(advance(&mut fleet).actions, []);
        recycle(&mut fleet, &["n1"]);
        let made = plan(&fleet);
        let both = (reserved(&made, "b"), reserved(&made, "c"));
        assert_eq!(both, (1, 0), "{}", describe(&made));
    }
}

#[test]
fn a_minimum_that_is_lent_too_few_nodes_keeps_those_that_it_is_lent() {
    let mut fleet = read_fleet(
        "
        pool h100 gpus=8 idle=300 hold=600
        quota own nominal=8 lending=0
        stuck a 2x8
        node n1 a/g idle=3600 age=3600
        node n2 a/g idle=10 age=3600
        node n3 free
        tenant b
        group b/g h100 0..8
        demand b/g late 1x8
        tenant c
        group c/private h100 2..2
    ",
    );
    let made = plan_when_due(&mut fleet);
    assert_eq!(released_unused(&made), ["n1"], "{}", describe(&made));
    recycle(&mut fleet, &["n1"]);
    assert_eq!(advance(&mut fleet).actions, [], "one of both is kept for the minimum");
    recycle(&mut fleet, &["n2"]);
    let made = plan(&fleet);
    let both = (reserved(&made, "b"), reserved(&made, "c"));
    assert_eq!(both, (0, 2), "{}", describe(&made));
}
