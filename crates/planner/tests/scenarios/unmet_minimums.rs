//! Minimums of node groups that cannot be met now, and what others get meanwhile.

use super::minimums::reclaimed_in;
use super::support::{describe, read_fleet};
use super::unused::reserved;
use berth_planner::plan;

#[test]
fn a_minimum_that_can_never_be_met_keeps_no_node() {
    let text = "
        pool h100 gpus=8 idle=300 hold=600
        tenant a
        group a/g h100 0..8
        demand a/g stuck 1x8 since=900
        node n1 a/g idle=600 age=3600
        node n2 free
        tenant c
        group c/private h100 3..3
        tenant b
        group b/g h100 0..8
        demand b/g late 1x8
    ";
    let made = plan(&read_fleet(text));
    assert_eq!(reserved(&made, "b"), 1, "there are two nodes: {}", describe(&made));
    let made = plan(&read_fleet(&text.replace("3..3", "2..2")));
    assert_eq!(reserved(&made, "b"), 0, "n1 may come: {}", describe(&made));
}

#[test]
fn a_minimum_that_cannot_be_met_takes_no_node_that_is_reclaimed_for_another() {
    let text = "
        pool h100 gpus=8 grace=300
        quota o nominal=40
        quota t nominal=16
        quota d nominal=16
        tenant o quota=o
        group o/private h100 5..5
        tenant t quota=t
        group t/private h100 2..2
        tenant d quota=d
        group d/g h100 0..8
        tenant b
        group b/g h100 0..8
        node n1..n4 b/g used=8 age=7200
        node n5..n6 d/g used=8 age=7200
    ";
    assert_eq!(reclaimed_in(text), ["n3", "n4"], "o lacks five");
    assert_eq!(
        reclaimed_in(&text.replace("5..5", "4..4")),
        ["n1", "n2", "n3", "n4"],
        "the oldest"
    );
    let deeper = text.replace("quota o nominal=40", "quota above\nquota o nominal=40 parent=above");
    assert_eq!(
        reclaimed_in(&deeper),
        ["n3", "n4"],
        "o cannot be met, however deep its quota is"
    );
}

#[test]
fn a_minimum_that_cannot_be_met_takes_no_node_that_requests_within_their_nominal_quota_lack() {
    let text = "
        pool h100 gpus=8 grace=300
        quota o nominal=40
        quota t nominal=16
        quota d nominal=16
        tenant o quota=o
        group o/private h100 5..5
        tenant t quota=t
        group t/g h100 0..8
        demand t/g job 2x8 since=60
        tenant d quota=d
        group d/g h100 0..8
        tenant b
        group b/g h100 0..8
        node n1..n4 b/g used=8 age=7200
        node n5..n6 d/g used=8 age=7200
    ";
    for job in ["2x8", "2x8 gang"] {
        let text = text.replace("2x8", job);
        let made = plan(&read_fleet(&text));
        assert_eq!(reclaimed_in(&text), ["n3", "n4"], "{}", describe(&made));
        assert_eq!(
            made.node_groups["t"]["g"].waiting,
            2,
            "both come to it: {}",
            describe(&made)
        );
    }
    let deeper = text.replace("quota o nominal=40", "quota above\nquota o nominal=40 parent=above");
    assert_eq!(reclaimed_in(&deeper), ["n3", "n4"]);
    let met = text.replace("5..5", "4..4");
    assert_eq!(
        reclaimed_in(&met),
        ["n1", "n2", "n3", "n4"],
        "a minimum comes before requests"
    );
    let free = text.replace("n1..n4 b/g used=8 age=7200", "n1..n4 free");
    let made = plan(&read_fleet(&free));
    assert_eq!(
        (reserved(&made, "o"), reserved(&made, "t")),
        (0, 2),
        "{}",
        describe(&made)
    );
    let never = free.replace("grace=300", "grace=300 reclaim=never");
    let made = plan(&read_fleet(&never));
    assert_eq!(
        (reserved(&made, "o"), reserved(&made, "t")),
        (0, 0),
        "o waits for the others: {}",
        describe(&made)
    );
}
