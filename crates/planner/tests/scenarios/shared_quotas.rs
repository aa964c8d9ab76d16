//! Tenants that share a nominal quota: a node that moves from one of them to another changes nothing for the quota.

use super::advance;
use super::support::{NOW, describe, read_fleet};
use berth_planner::{ActionKind, Fleet, LEAST_PATIENCE, Plan, UnusedNodes, WaitingTime};

/// Names of the nodes that a plan releases.
fn released(made: &Plan) -> Vec<&str> {
    let actions = made.actions.iter();
    let released = actions.filter(|action| matches!(action.kind, ActionKind::Release { .. }));
    released.map(|action| action.node.as_str()).collect()
}

/// A plan for a fleet releases these nodes, and no action follows, however often it is planned again.
fn check_that_it_settles(text: &str, expected: &[&str]) {
    let mut fleet = read_fleet(text);
    check_that_fleet_settles(&mut fleet, expected);
}

fn check_that_fleet_settles(fleet: &mut Fleet, expected: &[&str]) {
    let made = advance(fleet);
    assert_eq!(released(&made), expected, "{}", describe(&made));
    assert_eq!(made.actions.len(), expected.len(), "{}", describe(&made));
    for _ in 0..4 {
        fleet.now += 10;
        let next = advance(fleet);
        assert_eq!(next.actions, [], "{}then\n{}", describe(&made), describe(&next));
    }
}

/// Tenant a has all that the quota grants, and a pod that fits on what is left of its node. A pod of tenant b is more important.
const TEAM: &str = "
    pool h100 gpus=8 grace=300
    quota team nominal=8
    tenant a quota=team
    group a/g h100 0..8
    demand a/g next 1x4
    tenant b quota=team
    group b/g h100 0..8
    demand b/g late 1x8 prio=1
    node n1 a/g used=4 age=9000
";

#[test]
fn a_node_that_is_reclaimed_within_a_quota_is_not_taken_back_by_less_important_pods() {
    check_that_it_settles(TEAM, &["n1"]);
}

#[test]
fn nor_if_others_lend_nothing() {
    let text = TEAM.replace("quota team", "quota x nominal=16 lending=0\n    quota team");
    check_that_it_settles(&text, &["n1"]);
    let draining = text.replace("n1 a/g used=4 age=9000", "n1 draining=a used=4");
    check_that_it_settles(&draining, &[]);
}

#[test]
fn nor_after_these_pods_have_waited_for_eleven_minutes() {
    let mut fleet = read_fleet(TEAM);
    let waiting = WaitingTime {
        since: Some(NOW - LEAST_PATIENCE),
        until: None,
    };
    let unused = UnusedNodes {
        waiting,
        ..UnusedNodes::default()
    };
    fleet.tenants[0].unused.insert("h100".into(), unused);
    check_that_fleet_settles(&mut fleet, &["n1"]);
}

#[test]
fn nor_are_nodes_of_a_gang() {
    let text = TEAM
        .replace("nominal=8", "nominal=16")
        .replace("next 1x4", "next 2x4")
        .replace("late 1x8", "late 2x8 gang")
        .replace("node n1", "node n1..n2");
    check_that_it_settles(&text, &["n1", "n2"]);
}

/// The node of tenant c is in use as a minimum beyond its quota. A gang of tenant b within the quota needs it and the one that tenant a loses already.
#[test]
fn a_gang_is_owed_other_nodes_although_one_of_its_quota_is_being_released() {
    let text = "
        pool h100 gpus=8 domains grace=300
        quota team nominal=16
        tenant a quota=team
        group a/g h100 0..8
        tenant b quota=team
        group b/g h100 0..8
        demand b/g job 2x8 gang prio=1
        tenant c
        group c/g h100 1..8
        node n1 rack=r1 a/g used=4 age=9000
        node n2 rack=r1 c/g used=8 age=9000
    ";
    for text in [text, &text.replace("gang", "gang single-domain")] {
        check_that_it_settles(text, &["n1", "n2"]);
        for state in ["a/g used=4 age=9000 cordoned=300", "draining=a used=4"] {
            check_that_it_settles(&text.replace("a/g used=4 age=9000", state), &["n2"]);
        }
    }
}

/// The first node that comes is beyond the quota: b waits for the other one within it, and the less important of its pods for the first.
#[test]
fn a_node_of_the_quota_is_counted_on_although_another_one_comes_before_it() {
    let text = TEAM.replace("late 1x8 prio=1", "high 1x8 prio=2\n demand b/g mid 1x8 prio=1");
    check_that_it_settles(&format!("{text}\nnode n2 recycling"), &["n1"]);
}

/// The node is within the quota for b, so a tenant outside of it does not get it first although its pod has waited for longer.
#[test]
fn a_tenant_outside_of_the_quota_takes_no_node_that_moves_within_it() {
    check_that_it_settles(
        "
        pool h100 gpus=8 grace=300 order=fifo
        quota team nominal=8
        tenant a quota=team
        group a/g h100 0..8
        tenant b quota=team
        group b/g h100 0..8
        demand b/g job 1x4 prio=2
        tenant c
        group c/g h100 0..8
        demand c/g early 1x8 prio=2 since=60
        node n1 a/g used=6 age=9000
        node n2 c/g used=6 age=9000 prio=1
        ",
        &["n1"],
    );
}

/// Both may have as much as before: a pod that is as important reclaims nothing.
#[test]
fn nothing_is_reclaimed_within_a_quota_for_pods_that_are_no_more_important() {
    check_that_it_settles(&TEAM.replace("prio=1", "prio=0"), &[]);
}
