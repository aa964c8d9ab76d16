//! Gangs get all their nodes or none, in as few topology domains as possible.

use super::{
    advance, plan_and_describe,
    support::{NOW, describe, read_fleet},
};
use berth_planner::{ActionKind, WaitReason, plan};
use std::fmt::Write;

scenario!(
    a_gang_gets_all_its_nodes,
    "
    pool h100 gpus=8
    tenant a
    group a/burst h100 0..8
    demand a/burst train-8 8x8 gang since=1
    node n1..n9 free
    "
);

scenario!(
    a_gang_waits_until_all_its_nodes_are_free,
    "
    pool h100 gpus=8
    tenant a
    group a/burst h100 0..8
    demand a/burst train-8 8x8 gang since=1
    node n1..n7 free
    node n8 recycling
    "
);

scenario!(
    small_requests_overtake_a_gang_that_cannot_start,
    "
    pool h100 gpus=8 starvation=600
    tenant a
    group a/burst h100 0..8
    demand a/burst train-4 4x8 gang since=60
    tenant b
    group b/web h100 0..8
    demand b/web chat 1x1 since=5
    node n1..n2 free
    node n3..n4 b/web used=8 age=3600
    "
);

scenario!(
    a_starved_gang_is_no_longer_overtaken,
    "
    pool h100 gpus=8 starvation=600
    tenant a
    group a/burst h100 0..8
    demand a/burst train-4 4x8 gang since=700
    tenant b
    group b/web h100 0..8
    demand b/web chat 1x1 since=5
    node n1..n2 free
    node n3..n4 b/web used=8 age=3600
    "
);

#[test]
fn free_nodes_are_kept_for_a_gang_for_a_tenth_of_its_wait_and_for_ten_minutes_at_least() {
    let kept = |wait: i64, since_first: i64, since_last: i64| {
        let mut fleet = read_fleet(&format!(
            "
            pool h100 gpus=8 starvation=600
            tenant a
            group a/burst h100 0..8
            demand a/burst train-4 4x8 gang since={wait}
            tenant b
            group b/web h100 0..8
            demand b/web chat 1x1 since=5
            node n1 free={since_first}
            node n2 free={since_last}
            node n3..n4 b/web used=8 age=3600
            "
        ));
        let made = advance(&mut fleet);
        assert_eq!(plan(&fleet).actions, [], "{}", describe(&made));
        made.actions.is_empty().then_some(made.replan_at)
    };
    for (wait, since_first, since_last, expected) in [
        (700, 60, 60, Some(540)),
        (700, 60, 5, Some(540)),
        // They are kept from others only since the limit.
        (700, 90_000, 5, Some(500)),
        (1199, 90_000, 5, Some(1)),
        (1200, 90_000, 5, None),
        // For a minute they are for others. What these do not use is kept for ten minutes again.
        (1259, 90_000, 5, None),
        (1260, 90_000, 5, Some(600)),
        (1859, 90_000, 5, Some(1)),
        (1860, 90_000, 5, None),
        (6_009, 600, 5, Some(1)),
        (6_000, 600, 5, None),
        // A node that becomes free after 8,100 s is kept for 900 s, a tenth of 9,000 s.
        (8_100 + 899, 899, 0, Some(1)),
        (8_100 + 900, 900, 0, None),
        (90_000 + 9_999, 9_999, 0, Some(1)),
        (90_000 + 10_000, 10_000, 9_999, None),
    ] {
        let expected = expected.map(|more| Some(NOW + more));
        assert_eq!(kept(wait, since_first, since_last), expected, "{wait} {since_first}");
    }
}

#[test]
fn nodes_that_were_kept_for_too_long_are_kept_for_no_other_gang() {
    let made = plan(&read_fleet(
        "
        pool h100 gpus=8 starvation=600
        tenant a
        group a/burst h100 0..8
        demand a/burst train-4 4x8 gang since=1200
        demand a/burst next-4 4x8 gang since=700
        tenant b
        group b/web h100 0..8
        demand b/web chat 1x8 since=5
        node n1..n2 free=3600
        node n3..n4 b/web used=8 age=3600
        ",
    ));
    let [reserved] = &made.actions[..] else {
        panic!("{}", describe(&made));
    };
    assert!(matches!(&reserved.kind, ActionKind::Reserve { tenant, .. } if tenant == "b"));
}

#[test]
fn free_nodes_are_kept_for_longer_where_an_autoscaler_may_add_those_that_a_gang_lacks() {
    let has_actions = |pool: &str, gang: &str| {
        let made = plan(&read_fleet(&format!(
            "
            pool h100 gpus=8 starvation=600 {pool}
            tenant a
            group a/burst h100 0..8
            demand a/burst train-4 4x8 gang since=1200 {gang}
            tenant b
            group b/web h100 0..8
            demand b/web chat 1x8 since=5
            node n1..n2 free=3600
            node n3..n4 b/web used=8 age=3600
            "
        )));
        !made.actions.is_empty()
    };
    assert!(has_actions("", "") && has_actions("scaled max-nodes=4", ""));
    assert!(!has_actions("scaled max-nodes=5", "") && !has_actions("scaled", ""));
    assert!(has_actions("scaled", "existing-only"), "no nodes come for it");
}

scenario!(
    the_tightest_domain_is_taken_and_whole_ones_stay_whole,
    "
    pool h100 gpus=8 domains
    tenant a
    group a/train h100 0..8
    demand a/train job 2x8 gang since=1
    tenant b
    group b/train h100 0..8
    node n1..n4 rack=r1 free
    node n5..n7 rack=r2 free
    node n8 rack=r2 b/train used=8 age=60
    "
);

scenario!(
    a_single_domain_gang_waits_although_enough_nodes_are_free,
    "
    pool h100 gpus=8 domains
    tenant a
    group a/train h100 0..8
    demand a/train job 4x8 gang single-domain since=1
    tenant b
    group b/train h100 0..8
    node n1..n3 rack=r1 free
    node n4 rack=r1 b/train used=8 age=60
    node n5..n7 rack=r2 free
    node n8 rack=r2 recycling
    "
);

scenario!(
    no_nodes_are_kept_for_a_gang_that_minimums_leave_too_few,
    "
    pool h100 gpus=8 starvation=0
    tenant a
    group a/g h100 1..1
    tenant b
    group b/g h100 0..2
    demand b/g train 2x8 gang since=60
    demand b/g small 1x1 since=5
    node n1..n2 free
    "
);

#[test]
fn gangs_beyond_all_quotas_do_not_use_up_the_searches_of_domains() {
    let mut text = String::from("pool h100 gpus=8 domains\nquota own nominal=8\n");
    for at in 1..=6 {
        writeln!(
            text,
            "tenant t{at}
            group t{at}/g h100 0..8
            demand t{at}/g job 2x8 gang single-domain zone=z{at} since=1
            node n{at}0 rack=r{at} zone=z{at} free
            node n{at}1 rack=r{at} zone=z{at} recycling"
        )
        .unwrap();
    }
    let made = plan(&read_fleet(&text));
    for at in 1..=6 {
        let waits = &made.node_groups[&format!("t{at}")]["g"].waits;
        let is_coming = waits
            .iter()
            .any(|wait| matches!(wait.reason, WaitReason::NodesComing(_)));
        assert!(is_coming, "t{at}: {}", describe(&made));
    }
}

/// Nodes that a plan for a fleet takes from their tenants.
fn released(text: &str) -> Vec<String> {
    let made = plan(&read_fleet(text));
    let releases = made.actions.iter();
    let releases = releases.filter(|action| matches!(action.kind, ActionKind::Release { .. }));
    releases.map(|action| action.node.clone()).collect()
}

#[test]
fn gangs_of_one_tenant_that_fit_in_no_domain_leave_others_their_turn() {
    let mut text = String::from(
        "
        pool h100 gpus=8 domains idle=300 hold=600 grace=300
        quota x nominal=16
        quota own nominal=16
        quota c nominal=8
        tenant c quota=c
        group c/private h100 1..1
        node n1 rack=r1 zone=a c/private used=8 age=3600
        node n2 rack=r1 zone=a free
        tenant d
        group d/g h100 0..8
        node n3..n4 rack=r2 zone=b d/g used=8 age=3600
        tenant b quota=own
        group b/g h100 0..8
        demand b/g train 2x8 gang single-domain zone=b
        tenant x quota=x
        group x/g h100 0..99
        ",
    );
    for gang in 1..=20 {
        writeln!(
            text,
            "demand x/g never-{gang} 2x8 gang single-domain zone=a prio=5 since=3600"
        )
        .unwrap();
    }
    assert_eq!(released(&text), ["n3", "n4"]);
}

#[test]
fn a_gang_beyond_its_nominal_quota_has_one_turn_at_all_depths_of_quotas() {
    let mut text = String::from("pool h100 gpus=8 domains\n");
    for tenant in 1..=5 {
        writeln!(
            text,
            "quota q{tenant} nominal=8
            tenant t{tenant} quota=q{tenant}
            group t{tenant}/g h100 0..8
            demand t{tenant}/g train 2x8 gang single-domain since=5
            node n{tenant}1..n{tenant}2 rack=r{tenant} recycling"
        )
        .unwrap();
    }
    let made = plan(&read_fleet(&text));
    for tenant in 1..=5 {
        let waits = &made.node_groups[&format!("t{tenant}")]["g"].waits;
        assert!(
            matches!(waits[0].reason, WaitReason::NodesComing(_)),
            "t{tenant}: {}",
            describe(&made)
        );
    }
}

#[test]
fn a_nominal_quota_gets_nodes_of_one_domain_also_from_pods_that_do_not_start() {
    let text = "
        pool h100 gpus=8 domains idle=300 hold=600
        quota own nominal=16
        tenant a
        group a/g h100 0..8
        demand a/g stuck 1x8 since=700
        node n1 rack=r1 a/g idle=700 age=3600
        node n2 rack=r1 free
        tenant b quota=own
        group b/g h100 0..8
        demand b/g train 2x8 gang single-domain since=5
    ";
    assert_eq!(released(text), ["n1"]);
    let borrowing = text.replace("tenant b quota=own", "tenant b");
    assert_eq!(released(&borrowing), [""; 0], "n1 may be used at any moment");
}

#[test]
fn a_gang_keeps_no_nodes_that_others_do_not_lend() {
    let text = "
        pool h100 gpus=8 starvation=600
        quota own nominal=8 lending=0
        tenant a
        group a/g h100 0..8
        demand a/g first 1x8 prio=1
        tenant b
        group b/g h100 0..8
        demand b/g train 2x8 gang prio=1 since=900
        tenant c
        group c/g h100 0..8
        demand c/g second 1x8 prio=1
        node n1 c/g used=8 age=7200 prio=1
        tenant d
        group d/g h100 0..8
        node n2..n4 d/g used=8 age=7200
        tenant e quota=own
        group e/g h100 0..8
        node n5 free
    ";
    let mut fleet = read_fleet(text);
    let made = advance(&mut fleet);
    assert_eq!(made.actions, [], "a node is free, for e: {}", describe(&made));
    // One of two is lent.
    let two = text
        .replace("n5 free", "n5..n6 free")
        .replace("demand a/g first 1x8 prio=1", "")
        .replace("train 2x8", "train 3x8");
    let made = plan(&read_fleet(&two));
    assert_eq!(made.actions, [], "{}", describe(&made));
    assert_eq!(made.node_groups["b"]["g"].desired, 1, "{}", describe(&made));
}
