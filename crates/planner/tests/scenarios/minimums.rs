//! Minimums of node groups that cannot be met now.

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
