//! Pools whose nodes have more GPUs once they are assigned: eight whole ones become 56 instances.

use super::{
    advance,
    support::{describe, read_fleet},
    unused::reserved,
};

const DIVIDED: &str = "
    pool h100 gpus=8 least=56
    quota team nominal=56 limit=56
    tenant a quota=team
    group a/g h100 0..8
    demand a/g job 56x1
    node n1..n4 free gpus=56
    node n5..n8 free
";

#[test]
fn a_quota_counts_what_nodes_will_have() {
    // With and without nodes whose capacity is counted as it will be.
    for text in [
        DIVIDED.to_owned(),
        DIVIDED.replace("node n1..n4 free gpus=56", ""),
        DIVIDED.replace("group a/g h100 0..8", "group a/g h100 4..8"),
    ] {
        let mut fleet = read_fleet(&text);
        let made = advance(&mut fleet);
        assert_eq!(reserved(&made, "a"), 1, "56 GPUs are one node: {}", describe(&made));
        assert_eq!(advance(&mut fleet).actions, []);
    }
}

#[test]
fn a_node_counts_as_it_will_be_until_it_reports_so() {
    let joining = DIVIDED.replace("node n5..n8 free", "node n5 a/g joining");
    let assigned = DIVIDED.replace("node n5..n8 free", "node n5 a/g used=8 age=5");
    for text in [joining, assigned] {
        let mut fleet = read_fleet(&text);
        let made = advance(&mut fleet);
        assert_eq!(reserved(&made, "a"), 0, "the limit is reached: {}", describe(&made));
    }
}
