//! Where pods are placed, and which tenants get free nodes.

use super::plan_and_describe;
use super::support::{describe, read_fleet};
use super::unused::reserved;
use berth_planner::plan;

#[test]
fn a_limit_that_forbids_the_node_of_many_pods_may_allow_a_smaller_one_for_few() {
    let made = plan(&read_fleet(
        "
        pool h100 gpus=8 order=fifo
        quota small limit=4
        tenant a quota=small
        group a/g h100 0..8
        demand a/g many 8x1 since=120
        demand a/g one 1x1 since=60
        node n1 free
        node n2 gpus=4 free
    ",
    ));
    assert_eq!(reserved(&made, "a"), 1, "n2: {}", describe(&made));
}

scenario!(
    pods_are_placed_on_held_nodes_before_any_is_reserved,
    "
    pool h100 gpus=8
    tenant a
    group a/web h100 0..8
    demand a/web chat 5x2 since=1
    node n1 a/web used=4 age=60
    node n2 a/web idle=10 age=60
    node n3..n4 free
    "
);

scenario!(
    quarantined_nodes_are_not_assigned,
    "
    pool h100 gpus=8
    tenant a
    group a/g h100 0..8
    demand a/g job 2x8 gang since=9
    node n1 free
    node n2..n3 unavailable
    "
);

scenario!(
    impossible_requests_are_reported_and_hold_up_no_others,
    "
    pool h100 gpus=8
    tenant a
    group a/g h100 0..2
    demand a/g huge 1x16 since=90
    demand a/g wide 3x8 gang since=80
    demand a/g elsewhere 1x1 zone=b since=70
    demand a/g small 1x4 since=9
    node n1..n3 zone=a free
    "
);

scenario!(
    private_nodes_are_reserved_first_and_all_at_once,
    "
    pool h100 gpus=8
    tenant old
    group old/private h100 3..3
    tenant young
    group young/private h100 1..1
    tenant busy
    group busy/burst h100 0..4
    demand busy/burst job 2x8 since=500
    node n1..n3 free
    node n4 busy/burst used=8 age=60
    "
);
