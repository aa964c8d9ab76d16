//! Gangs get all their nodes or none, in as few topology domains as possible.

use super::{
    plan_and_describe,
    support::{describe, read_fleet},
};
use berth_planner::{WaitReason, plan};
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
