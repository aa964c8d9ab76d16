//! Which nodes are requested from an autoscaler.

use super::{plan, plan_and_describe, read_fleet};

scenario!(
    a_scaled_pool_requests_only_what_existing_nodes_do_not_hold,
    "
    pool h100 gpus=8 scaled
    tenant a
    group a/burst h100 0..16
    demand a/burst train-8 8x8 gang since=60
    tenant b
    group b/web h100 0..4
    demand b/web chat 3x8 zone=c since=5
    demand b/web never 1x8 zone=d since=5
    node n1..n2 zone=c free
    node n3 zone=c b/web used=8 age=60
    node n4 zone=a recycling
    node n5 starting
    "
);

scenario!(
    an_empty_pool_is_scaled_from_zero,
    "
    pool h100 gpus=8 scaled
    tenant a
    group a/own h100 2..2
    group a/burst h100 0..8
    demand a/burst train 4x8 gang since=60
    demand a/burst job 3x1 since=5
    "
);

// As long as the size of its nodes is unknown, a pod may need one of its own.
scenario!(
    an_empty_pool_is_scaled_no_further_than_groups_may_grow,
    "
    pool h100 gpus=8 scaled max-nodes=4
    quota s limit=16
    tenant a quota=s
    group a/g h100 0..1
    demand a/g trick 500x1 gang since=90
    tenant b quota=s
    group b/g h100 0..8
    demand b/g jobs 5x8 since=80
    tenant c
    group c/g h100 0..8
    demand c/g by-name 2x8 existing-only since=70
    demand c/g job 1x8 since=60
    "
);

scenario!(
    a_pool_is_not_scaled_beyond_its_limits,
    "
    pool h100 gpus=8 max-nodes=4 max-pods=20 node-gpus=8
    quota s limit=32
    tenant a quota=s
    group a/g h100 0..2
    demand a/g jobs 30x1 since=90
    tenant b quota=s
    group b/g h100 0..8
    demand b/g train-3 3x8 gang since=60
    demand b/g huge 6x8 gang since=50
    tenant c
    group c/g h100 0..8
    demand c/g more 40x1 since=10
    "
);

scenario!(
    starting_nodes_are_not_requested_twice,
    "
    pool h100 gpus=8 max-nodes=4
    tenant a
    group a/g h100 0..8
    demand a/g train-4 4x8 gang since=90
    node n1..n2 free
    node n3 starting
    "
);

#[test]
fn pods_that_request_more_gpus_than_any_node_has_do_not_get_around_limits() {
    // As long as the pool has no node, nothing says how many GPUs one has.
    let text = format!(
        "
        pool l40s gpus=8
        pool h100 gpus=8 scaled
        quota team total=64
        tenant a quota=team
        group a/other l40s 1..1
        group a/g h100 0..8
        demand a/g job 3x{}
        node n1 pool=l40s a/other used=8 age=60
        ",
        u64::MAX
    );
    let requested = |text: &str| plan(&read_fleet(text)).scale_ups["h100"].nodes;
    assert_eq!(
        requested(&text),
        0,
        "the sum with the node of the other pool is too large"
    );
    assert_eq!(requested(&text.replace(" total=64", "")), 3);
}
