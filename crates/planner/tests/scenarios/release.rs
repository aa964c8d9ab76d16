//! Which nodes are released, and which reservations and releases are cancelled.

use super::{advance, describe, plan, plan_and_describe, read_fleet};

scenario!(
    idle_nodes_are_released_from_partial_domains_first,
    "
    pool h100 gpus=8 domains idle=300 hold=600
    tenant a
    group a/g h100 2..8
    node n1..n2 rack=r1 a/g idle=400 age=3600
    node n3 rack=r2 a/g idle=400 age=3600
    node n4 rack=r2 free
    node n5 rack=r3 a/g idle=100 age=3600
    node n6 rack=r3 a/g used=1 age=3600
    "
);

scenario!(
    a_release_is_cancelled_when_the_node_is_needed_again,
    "
    pool h100 gpus=8 idle=300
    tenant a
    group a/g h100 0..8
    demand a/g job 1x8 since=1
    node n1 a/g cordoned=0 idle=400 age=3600
    node n2 free
    "
);

scenario!(
    an_unneeded_release_is_cancelled,
    "
    pool h100 gpus=8 grace=300
    quota vision nominal=16
    tenant v quota=vision
    group v/g h100 0..4
    tenant s
    group s/g h100 0..8
    node n1 s/g used=8 age=7200 cordoned=100
    "
);

scenario!(
    nodes_of_a_deleted_tenant_are_released_at_once,
    "
    pool h100 gpus=8 hold=3600
    tenant a deleted
    group a/g h100 2..2
    tenant b
    group b/g h100 1..1
    node n1 a/g used=8 age=10
    node n2 a/g reserved=2
    node n3 unknown/g used=8 age=10 cordoned=100
    node n4 b/other used=8 age=10
    node n5 b/g used=8 age=10
    "
);

scenario!(
    incomplete_reservations_are_completed_or_cancelled,
    "
    pool h100 gpus=8
    tenant a
    group a/g h100 0..8
    demand a/g train-3 3x8 gang since=9
    tenant b
    group b/g h100 0..8
    demand b/g train-4 4x8 gang since=8
    node n1..n2 a/g reserved=3
    node n3 b/g reserved=4
    node n4 free
    "
);

scenario!(
    a_lowered_limit_releases_nodes,
    "
    pool h100 gpus=8 grace=300 reclaim=never
    quota speech limit=24
    quota vision
    tenant a quota=speech
    group a/g h100 1..8
    demand a/g more 1x8 since=5
    tenant b quota=speech
    group b/g h100 0..8
    tenant c quota=vision
    group c/g h100 0..8
    demand c/g job 1x8 since=5
    node n1 a/g used=8 age=60
    node n2..n4 b/g used=8 age=60
    node n5 b/g idle=10 age=60
    "
);

scenario!(
    a_release_over_a_limit_is_not_cancelled,
    "
    pool h100 gpus=8 grace=300
    quota speech limit=8
    tenant a quota=speech
    group a/g h100 0..8
    demand a/g more 1x8 since=5
    node n1 a/g used=8 age=60
    node n2 a/g used=8 age=60 cordoned=100
    node n3 a/g idle=30 age=60 cordoned=0
    "
);

scenario!(
    a_shrunk_group_releases_its_least_used_nodes,
    "
    pool h100 gpus=8 domains grace=300
    tenant a
    group a/g h100 0..2
    demand a/g job 3x8 since=5
    node n1 rack=r1 a/g used=8 age=60
    node n2 rack=r2 a/g idle=10 age=60
    node n3 rack=r1 a/g used=2 age=60 prio=5
    node n4 rack=r1 a/g used=2 age=60 unusable
    node n5 rack=r2 a/g used=8 age=60 cordoned=100
    "
);

/// The nodes that are taken from a quota of this limit. The groups have the same pods on each node.
fn nodes_over(limit: u32) -> Vec<String> {
    let fleet = read_fleet(&format!(
        "
        pool h100 gpus=8 grace=300
        quota speech limit={limit}
        tenant a quota=speech
        group a/g h100 0..8
        node n1 a/g used=8 age=900 prio=5
        node n2 a/g used=8 age=60
        node n3 a/g used=8 age=600 prio=9
        node n4 a/g used=8 age=900
        node n5 a/g used=8 age=60 prio=5
        "
    ));
    let actions = plan(&fleet).actions.into_iter();
    let mut nodes: Vec<String> = actions.map(|action| action.node).collect();
    nodes.sort_unstable();
    nodes
}

#[test]
fn a_lowered_limit_takes_the_least_important_work_and_then_the_youngest() {
    assert!(nodes_over(40).is_empty());
    assert_eq!(nodes_over(32), ["n2"]);
    assert_eq!(nodes_over(24), ["n2", "n4"]);
    assert_eq!(nodes_over(16), ["n2", "n4", "n5"]);
    assert_eq!(nodes_over(8), ["n1", "n2", "n4", "n5"]);
}

#[test]
fn pods_that_count_on_too_few_nodes_wait_also_if_their_tenant_keeps_another_one() {
    let made = plan(&read_fleet(
        "
        pool h100 gpus=8 grace=300
        tenant a
        group a/g h100 0..8
        demand a/g job 3x8 since=60
        node n1 a/g used=8 age=7200 cordoned=100
        node n2 recycling
    ",
    ));
    assert_eq!(made.node_groups["a"]["g"].waiting, 3, "{}", describe(&made));
}

#[test]
fn idle_nodes_go_back_in_the_plan_that_leaves_another_node_to_their_group() {
    let mut fleet = read_fleet(
        "
        pool h100 gpus=8 idle=120 grace=60
        tenant a
        group a/g h100 2..4
        node n1..n2 a/g idle=900 age=3600
        node n3 a/g used=8 age=3600
        node n4 a/g used=8 age=3600 cordoned=60
    ",
    );
    let made = advance(&mut fleet);
    let nodes: Vec<&str> = made.actions.iter().map(|action| action.node.as_str()).collect();
    assert_eq!(nodes, ["n1", "n2", "n4"], "{}", describe(&made));
    assert_eq!(plan(&fleet).actions, [], "the minimum of two is in use");
}
