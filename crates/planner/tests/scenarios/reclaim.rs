//! Which borrowed nodes are reclaimed, and for which requests.

use super::{
    advance,
    minimums::reclaimed_in,
    plan_and_describe,
    support::{describe, read_fleet},
};

scenario!(
    a_request_within_nominal_quota_reclaims_borrowed_nodes,
    "
    pool h100 gpus=8 grace=300
    quota vision nominal=16
    quota speech
    tenant v quota=vision
    group v/g h100 0..4
    demand v/g job 2x8 gang since=5
    tenant s quota=speech
    group s/g h100 0..8
    node n1 s/g used=8 age=7200 prio=2
    node n2 s/g used=8 age=3600
    node n3 s/g used=8 age=1800
    node n4 s/g idle=10 age=1800
    "
);

scenario!(
    incoming_nodes_are_used_before_any_is_reclaimed,
    "
    pool h100 gpus=8 grace=300
    quota vision nominal=24
    tenant v quota=vision
    group v/g h100 0..4
    demand v/g job 3x8 since=5
    tenant s
    group s/g h100 0..8
    node n1 s/g used=8 age=7200 cordoned=100
    node n2 recycling
    node n3..n5 s/g used=8 age=1800
    "
);

scenario!(
    no_nodes_are_reclaimed_for_a_gang_that_would_still_not_fit,
    "
    pool h100 gpus=8 grace=300
    quota vision nominal=32
    quota speech nominal=16
    tenant v quota=vision
    group v/g h100 0..4
    demand v/g job 4x8 gang since=5
    tenant s quota=speech
    group s/g h100 0..8
    node n1..n5 s/g used=8 age=7200
    "
);

scenario!(
    fair_share_reclaim_takes_nodes_from_the_tenant_above_its_share,
    "
    pool h100 gpus=8 grace=300 reclaim=fair-share
    tenant a
    group a/g h100 0..8
    tenant b
    group b/g h100 0..8
    demand b/g job 8x8 since=5
    node n1..n6 a/g used=8 age=7200
    "
);

scenario!(
    no_node_is_reclaimed_within_the_min_hold_duration,
    "
    pool h100 gpus=8 grace=300 hold=3600
    quota vision nominal=16
    tenant v quota=vision
    group v/g h100 0..4
    demand v/g job 2x8 since=5
    tenant s
    group s/g h100 0..8
    node n1 s/g used=8 age=1800
    node n2 s/g used=8 age=3400
    "
);

scenario!(
    higher_priority_is_served_first_and_reclaims_lower,
    "
    pool h100 gpus=8 grace=300
    tenant a
    group a/g h100 0..8
    demand a/g batch 4x8 since=900
    tenant b
    group b/g h100 0..8
    demand b/g urgent 2x8 prio=100 since=5
    node n1 free
    node n2 a/g used=8 age=7200 prio=0
    node n3 a/g used=8 age=7200 prio=200
    "
);

scenario!(
    the_smallest_gang_is_reclaimed_first_and_whole,
    "
    pool h100 gpus=8 grace=300
    quota vision nominal=24
    tenant v quota=vision
    group v/g h100 0..4
    demand v/g job 3x8 since=5
    tenant s
    group s/g h100 0..8
    node n1 s/g used=8 age=7200 gang=large
    node n2 s/g used=4 age=7200 gang=large
    node n3 s/g used=4 age=7200 gang=large
    node n4 s/g used=8 age=7200 gang=small
    node n5 s/g used=8 age=7200 gang=small
    node n6 s/g used=8 age=7200
    "
);

scenario!(
    an_idle_node_is_used_before_one_in_use_is_reclaimed,
    "
    pool h100 gpus=8 grace=300
    quota vision nominal=8
    tenant v quota=vision
    group v/g h100 0..4
    demand v/g job 1x8 since=5
    tenant s
    group s/g h100 0..8
    demand s/g more 3x8 gang since=5
    node n1 s/g used=8 age=7200 cordoned=100
    node n2 s/g idle=400 age=3600
    node n3 s/g used=8 age=7200
    "
);

scenario!(
    a_tenant_that_keeps_a_cordoned_node_may_reclaim_others,
    "
    pool h100 gpus=8 grace=120
    tenant a
    group a/g h100 0..1
    tenant b
    group b/g h100 0..4
    demand b/g urgent 1x8 prio=1 since=5
    node n1 a/g used=8 age=7200
    node n2 b/g used=8 age=7200 prio=1 cordoned=100
    node n3 b/g used=8 age=7200 prio=1
    "
);

scenario!(
    fifo_pools_reclaim_nothing_for_fairness,
    "
    pool h100 gpus=8 grace=300 order=fifo reclaim=fair-share
    tenant a
    group a/g h100 0..8
    demand a/g long 5x8 since=900
    tenant b
    group b/g h100 0..8
    demand b/g job 1x8 since=5
    node n1..n2 a/g used=8 age=7200
    "
);

scenario!(
    a_reclaimed_node_goes_to_a_waiting_minimum_first,
    "
    pool h100 gpus=8 grace=300
    tenant p
    group p/private h100 1..1
    tenant u
    group u/g h100 0..4
    demand u/g urgent 1x8 prio=5 since=5
    tenant s
    group s/g h100 0..8
    node n1..n3 s/g used=8 age=7200
    "
);

/// Pods that wait may never start. Those who wait themselves with as high a priority keep what they count on.
#[test]
fn nodes_in_use_that_others_count_on_are_reclaimed_for_a_priority_above_theirs_alone() {
    let text = "
        pool h100 gpus=8 grace=300 RULE
        tenant a
        group a/g h100 0..8
        demand a/g stuck 4x4 prio=STUCK since=900
        node n1..n4 a/g used=4 age=7200 prio=1
        tenant b
        group b/g h100 0..8
        demand b/g late 1x8 prio=LATE since=5
    ";
    for (rule, stuck, late, reclaimed) in [
        ("", "0", "5", 1),
        ("", "4", "5", 1),
        ("", "5", "5", 0),
        ("", "9", "5", 0),
        ("", "0", "1", 0),
        ("reclaim=fair-share", "0", "1", 0),
        ("reclaim=fair-share", "0", "5", 1),
    ] {
        let text = text.replace("RULE", rule);
        let mut fleet = read_fleet(&text.replace("STUCK", stuck).replace("LATE", late));
        let made = advance(&mut fleet);
        let case = format!("{rule} {stuck} {late}: {}", describe(&made));
        assert_eq!(made.actions.len(), reclaimed, "{case}");
        // They do not take it back.
        assert_eq!(advance(&mut fleet).actions, [], "{case}");
    }
    // Nothing but what they count on keeps them from those who have less.
    let alone = text.replace("demand a/g", "#").replace("RULE", "reclaim=fair-share");
    let mut fleet = read_fleet(&alone.replace("LATE", "1"));
    assert_eq!(advance(&mut fleet).actions.len(), 1);
}

/// A minimum gets the first of them. One that is not counted on, with work that is more important, comes before them in the list.
#[test]
fn nodes_that_others_count_on_are_enough_for_a_minimum_that_waits_and_for_a_request() {
    let text = "
        pool h100 gpus=8 grace=300
        tenant p
        group p/private h100 1..1
        tenant u
        group u/g h100 0..4
        demand u/g urgent 1x8 prio=5 since=5
        tenant s
        group s/g h100 0..8
        demand s/g stuck 2x4 since=900
        node n1 s/g used=8 age=7200 prio=6
        node n2..n3 s/g used=4 age=7200 prio=1
    ";
    assert_eq!(reclaimed_in(text), ["n2", "n3"]);
    // One is not: the request would get none.
    let one = text.replace("n2..n3", "n2");
    assert_eq!(reclaimed_in(&one), Vec::<String>::new());
}

/// Only pods that fit on what is left of a node could take it back.
#[test]
fn pods_that_cannot_use_a_node_keep_it_from_nobody() {
    let text = "
        pool h100 gpus=8 grace=300
        tenant a
        group a/g h100 0..8
        demand a/g stuck 1x4 since=900
        demand a/g important PODS prio=9 since=900
        node n1 a/g used=4 age=7200 prio=1
        tenant b
        group b/g h100 0..8
        demand b/g late 1x8 prio=5 since=5
    ";
    for (pods, reclaimed) in [
        ("1x4", 0),
        ("2x2", 0),
        ("1x8", 1),
        ("1x16", 1),
        ("1x4 zone=elsewhere", 1),
        ("1x4 existing-only zone=elsewhere", 1),
    ] {
        let nodes = reclaimed_in(&text.replace("PODS", pods));
        assert_eq!(nodes.len(), reclaimed, "{pods}");
    }
}

/// Each quota lends nothing, and all nodes are in use: once a node is free, it is not lent.
const NOT_LENT: &str = "
    pool h100 gpus=8 grace=300
    quota x nominal=16 lending=0
    quota team nominal=8
    tenant b QUOTA
    group b/g h100 0..8
    demand b/g urgent PODS prio=5 since=60
    tenant c
    group c/g h100 0..8
    tenant d QUOTA
    group d/g h100 0..8
    node n1..n3 c/g used=8 age=7200
    node n4 d/g used=8 age=7200 prio=9
";

#[test]
fn nothing_is_reclaimed_by_priority_that_others_do_not_lend() {
    for pods in ["1x8", "2x4", "1x8 gang", "2x8 gang"] {
        let text = NOT_LENT.replace("PODS", pods);
        for quota in ["", "quota=team"] {
            let text = text.replace("QUOTA", quota);
            assert_eq!(reclaimed_in(&text), [""; 0], "{pods} {quota}");
            let lent = reclaimed_in(&text.replace("lending=0", ""));
            assert!(!lent.is_empty(), "{pods} {quota}");
        }
    }
}

/// The request is within the nominal quota as soon as its own team loses a node.
#[test]
fn a_node_of_the_same_quota_is_reclaimed_although_others_lend_nothing() {
    for pods in ["1x8", "1x8 gang"] {
        let text = NOT_LENT.replace("PODS", pods).replace("QUOTA", "quota=team");
        let text = text
            .replace("prio=9", "prio=1")
            .replace("c/g used=8", "c/g prio=9 used=8");
        assert_eq!(reclaimed_in(&text), ["n4"], "{pods}");
    }
}
