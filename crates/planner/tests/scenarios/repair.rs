//! Nodes that are not Ready, in a pool that repairs its nodes: which of them their groups lose, and what they get.

use super::advance;
use super::support::{NOW, describe, read_fleet, repaired};
use berth_planner::{ActionKind, Fleet, NodeState, WaitReason, plan};

/// A group of three nodes, of which one is not Ready for eleven minutes, and a free node.
const BROKEN: &str = "
    pool h100 gpus=8 repair=600:1
    tenant a
    group a/private h100 3..3
    node n1..n2 a/private used=8 age=3600
    node n3 a/private used=8 age=3600 not-ready=660
    node n4 free
";

/// The nodes that are taken as not Ready and those that are reserved, by the plan for a fleet. Nothing is left to do after it.
fn changed_in(text: &str) -> (Vec<String>, Vec<String>) {
    let mut fleet = read_fleet(text);
    let made = advance(&mut fleet);
    let again = plan(&fleet);
    assert_eq!(again.actions, [], "{}then\n{}", describe(&made), describe(&again));
    let is_reserved = |kind: &ActionKind| matches!(kind, ActionKind::Reserve { .. });
    let reserved = made.actions.iter().filter(|action| is_reserved(&action.kind));
    let reserved = reserved.map(|action| action.node.clone()).collect();
    (repaired(&made).into_iter().map(ToOwned::to_owned).collect(), reserved)
}

/// The same as text.
fn change_in(text: &str) -> String {
    let (repaired, reserved) = changed_in(text);
    format!("-{} +{}", repaired.join(","), reserved.join(","))
}

/// As [`BROKEN`], with two nodes that are not Ready.
fn two_broken() -> String {
    let text = BROKEN.replace("600:1", "600:2").replace("node n1..n2", "node n1");
    format!("{text}\nnode n2 a/private used=8 age=3600 not-ready=661")
}

/// Says that the pods of a node have ended as far as the host knows, so that no quota counts it.
fn end_pods(fleet: &mut Fleet, node: &str) {
    let found = fleet.nodes.iter_mut().find(|known| known.name == node);
    let Some(node) = found else {
        panic!("no node {node}");
    };
    node.state = NodeState::Unavailable {
        reason: "it is not Ready".into(),
    };
}

/// The nodes of all actions once the pods of this node have ended.
fn changed_once_pods_have_ended(fleet: &mut Fleet, node: &str) -> Vec<String> {
    end_pods(fleet, node);
    let made = advance(fleet);
    made.actions.into_iter().map(|action| action.node).collect()
}

#[test]
fn a_group_gets_another_node_for_one_that_is_not_ready_for_too_long() {
    let made = plan(&read_fleet(BROKEN));
    assert_eq!(change_in(BROKEN), "-n3 +n4");
    let action = made.actions.iter().find(|action| action.node == "n3").unwrap();
    assert_eq!(action.kind, ActionKind::Release { drain_at: NOW }, "at once");
    assert_eq!(action.reason.to_string(), "not Ready for 11 min");
    assert_eq!(made.node_groups["a"]["private"].held, 3, "{}", describe(&made));
}

#[test]
fn a_node_stays_until_its_time_is_over() {
    let text = BROKEN.replace("not-ready=660", "not-ready=540");
    let made = plan(&read_fleet(&text));
    assert_eq!(change_in(&text), "- +");
    assert_eq!(made.replan_at, Some(NOW + 60));
    assert_eq!(change_in(&BROKEN.replace("not-ready=660", "")), "- +", "it came back");
}

#[test]
fn a_pool_that_does_not_say_so_repairs_no_node() {
    assert_eq!(change_in(&BROKEN.replace("repair=600:1", "")), "- +");
    assert!(
        plan(&read_fleet(&BROKEN.replace("repair=600:1", "")))
            .pool_health
            .is_empty()
    );
    assert_eq!(change_in(&BROKEN.replace("repair=600:1", "repair=600:0")), "- +");
}

#[test]
fn no_node_is_taken_while_too_many_are_not_ready() {
    for other in ["unavailable", "recycling", "draining=a", "a/private used=8 age=60"] {
        let text = format!("{BROKEN}\nnode n5 {other} not-ready=1").replace("3..3", "3..4");
        let made = plan(&read_fleet(&text));
        assert_eq!(repaired(&made), [""; 0], "{other}: {}", describe(&made));
        let health = made.pool_health["h100"];
        assert!(!health.allows_repair() && health.not_ready == 2, "{health:?}");
        assert_eq!(
            repaired(&plan(&read_fleet(&text.replace("600:1", "600:2")))),
            ["n3"],
            "{other}"
        );
    }
    let new = format!("{BROKEN}\nnode n5 starting not-ready=1");
    assert_eq!(change_in(&new), "-n3 +n4", "a new node is no outage");
}

#[test]
fn a_node_that_people_cordoned_stays() {
    let text = BROKEN.replace("not-ready=660", "not-ready=660 maintained");
    assert_eq!(change_in(&text), "- +");
    assert_eq!(plan(&read_fleet(&text)).pool_health["h100"].not_ready, 1);
}

#[test]
fn a_node_of_a_minimum_stays_while_nothing_can_take_its_place() {
    let none = BROKEN.replace("node n4 free", "");
    assert_eq!(change_in(&none), "- +");
    assert_eq!(plan(&read_fleet(&none)).pool_health["h100"].without_replacement, 1);
    assert_eq!(
        change_in(&none.replace("gpus=8", "gpus=8 scaled")),
        "-n3 +",
        "an autoscaler adds one"
    );
    assert_eq!(
        change_in(&none.replace("gpus=8", "gpus=8 max-nodes=3")),
        "- +",
        "the pool is full"
    );
    let two = none
        .replace("600:1", "600:2")
        .replace("node n1..n2", "node n4 free\nnode n1");
    let two = format!("{two}\nnode n2 a/private used=8 age=3600 not-ready=661");
    assert_eq!(change_in(&two), "-n2 +n4", "the one first that is not Ready for longer");
}

#[test]
fn a_node_beyond_the_minimum_goes_without_another_one() {
    let text = "
        pool h100 gpus=8 idle=300 repair=600:1
        tenant a
        group a/g h100 0..2
        node n1 a/g used=8 age=3600
        node n2 a/g used=8 age=3600 not-ready=660
    ";
    assert_eq!(change_in(text), "-n2 +");
    let waits = format!("{text}\ndemand a/g job 1x8 since=5\nnode n3 free");
    assert_eq!(
        change_in(&waits),
        "-n2 +n3",
        "it counts for the maximum of its group no more"
    );
}

#[test]
fn a_node_that_leaves_its_tenant_leaves_at_once() {
    let text = "
        pool h100 gpus=8 grace=300 repair=600:1
        tenant a
        group a/g h100 1..2
        node n1 a/g used=8 age=3600
        node n2 a/g used=8 age=3600 cordoned=200 not-ready=660
    ";
    assert_eq!(change_in(text), "-n2 +");
    let needed = text.replace("1..2", "2..2").replace("node n1", "node n3 free\nnode n1");
    assert_eq!(change_in(&needed), "-n2 +n3", "its release is not cancelled");
}

#[test]
fn a_quota_counts_the_node_until_its_pods_have_ended() {
    let text = BROKEN.replace("tenant a", "quota team limit=24\ntenant a quota=team");
    let mut fleet = read_fleet(&text);
    let made = advance(&mut fleet);
    assert_eq!(repaired(&made), ["n3"]);
    assert_eq!(made.actions.len(), 1, "{}", describe(&made));
    let waits = &made.node_groups["a"]["private"].waits;
    assert!(
        matches!(waits[0].reason, WaitReason::QuotaLimit { draining: 8, .. }),
        "{waits:?}"
    );
    // The snapshot says so when no pod of the tenant can be there any more, as far as the host knows.
    assert_eq!(changed_once_pods_have_ended(&mut fleet, "n3"), ["n4"]);
}

#[test]
fn a_node_stays_if_quotas_allow_no_other_one() {
    let limits = [
        "quota team limit=16\ntenant a quota=team",
        "quota team parent=missing\ntenant a quota=team",
    ];
    for quota in limits {
        let made = plan(&read_fleet(&BROKEN.replace("tenant a", quota)));
        let over_limit = made.actions.iter().filter(|action| action.node == "n3");
        assert_eq!(repaired(&made), [""; 0], "{quota}: {}", describe(&made));
        assert!(over_limit.count() <= 1);
    }
    let not_lent = "quota other nominal=8 lending=0\nquota team\ntenant a quota=team";
    assert_eq!(change_in(&BROKEN.replace("tenant a", not_lent)), "- +");
}

#[test]
fn nobody_waits_for_a_node_that_is_not_ready() {
    let text = "
        pool h100 gpus=8 repair=600:3
        tenant a
        group a/g h100 0..2
        demand a/g job 1x8 since=5
        node n1 draining=a not-ready=660
        node n2 recycling not-ready=660
    ";
    let made = plan(&read_fleet(text));
    let waits = &made.node_groups["a"]["g"].waits;
    assert!(
        matches!(&waits[0].reason, WaitReason::NoFreeNodes(capacity) if capacity.recycling == 0),
        "{waits:?}"
    );
    let made = plan(&read_fleet(&text.replace("not-ready=660", "")));
    let waits = &made.node_groups["a"]["g"].waits;
    assert!(matches!(waits[0].reason, WaitReason::NodesComing(_)), "{waits:?}");
}

#[test]
fn reservations_do_not_wait_for_a_node_that_is_lost() {
    let text = BROKEN.replace(
        "node n1..n2 a/private used=8 age=3600",
        "node n1 a/private used=8 age=3600\nnode n2 a/private reserved=3",
    );
    let mut fleet = read_fleet(&text.replace("node n4 free", "node n4 free\nnode n5 free"));
    let made = advance(&mut fleet);
    assert_eq!(repaired(&made), ["n3"], "{}", describe(&made));
    assert_eq!(plan(&fleet).actions, [], "{}", describe(&made));
}

#[test]
fn a_node_stays_while_its_tenant_lacks_others_that_it_gets_together_with_this_one() {
    let text = BROKEN.replace("3..3", "5..5");
    assert_eq!(change_in(&text), "- +", "one is free, and three would be needed");
    assert_eq!(plan(&read_fleet(&text)).pool_health["h100"].without_replacement, 1);
    assert_eq!(
        change_in(&format!("{text}\nnode n5 free")),
        "- +n4,n5",
        "they come first"
    );
    assert_eq!(change_in(&format!("{text}\nnode n5..n6 free")), "-n3 +n4,n5,n6");
    let other_group = BROKEN.replace("group a", "group a/burst h100 2..2\ngroup a");
    assert_eq!(change_in(&other_group), "- +");
    let limited = format!(
        "{}\nnode n5..n6 free",
        text.replace("tenant a", "quota team limit=24\ntenant a quota=team")
    );
    assert_eq!(change_in(&limited), "- +", "its quota forbids what it lacks");
}

#[test]
fn what_a_tenant_lacks_beyond_its_nominal_quota_keeps_no_node_that_is_not_ready() {
    let text = BROKEN
        .replace("3..3", "5..5")
        .replace("tenant a", "quota team nominal=24\ntenant a quota=team");
    let mut fleet = read_fleet(&text);
    let made = advance(&mut fleet);
    assert_eq!(repaired(&made), ["n3"], "{}", describe(&made));
    assert_eq!(changed_once_pods_have_ended(&mut fleet, "n3"), ["n4"]);
}

#[test]
fn no_more_nodes_of_minimums_are_taken_than_an_autoscaler_may_add() {
    let text = two_broken().replace("node n4 free", "");
    for (max_nodes, expected) in [(3, "- +"), (4, "-n2 +"), (5, "-n2,n3 +")] {
        let pool = format!("gpus=8 max-nodes={max_nodes}");
        assert_eq!(change_in(&text.replace("gpus=8", &pool)), expected, "{max_nodes}");
    }
}

#[test]
fn what_others_do_not_lend_takes_the_place_of_no_node() {
    let text = format!("{}\nnode n5 free", two_broken());
    assert_eq!(change_in(&text), "-n2,n3 +n4,n5");
    let not_lent = "quota other nominal=8 lending=0\nquota team\ntenant a quota=team";
    assert_eq!(change_in(&text.replace("tenant a", not_lent)), "-n2 +n4");
}

#[test]
fn after_an_outage_the_time_begins_anew() {
    let mut fleet = read_fleet(BROKEN);
    fleet.pools[0].repair.as_mut().unwrap().allowed_since = Some(NOW - 10);
    let made = advance(&mut fleet);
    assert_eq!(made.actions, [], "the last ones come back as well: {}", describe(&made));
    assert_eq!(made.replan_at, Some(NOW + 590));
    fleet.now += 590;
    assert_eq!(repaired(&advance(&mut fleet)), ["n3"]);
}

#[test]
fn no_free_node_is_kept_for_a_gang_that_counts_on_one_that_is_not_ready() {
    let text = "
        pool h100 gpus=8 starvation=600 repair=600:1
        tenant a
        group a/g h100 0..8
        demand a/g train 3x8 gang since=3600
        tenant b
        group b/g h100 0..8
        demand b/g small 1x8 since=60
        node n1..n2 free
        node n3 recycling not-ready=660
    ";
    let reserved = |text: &str| {
        let made = plan(&read_fleet(text));
        let nodes = made.actions.iter().map(|action| action.node.clone());
        nodes.collect::<Vec<String>>()
    };
    assert_eq!(reserved(text), ["n1"]);
    assert_eq!(reserved(&text.replace("not-ready=660", "")), [""; 0], "it comes soon");
}
