//! Pools whose nodes have more GPUs once they are assigned: eight whole ones become 56 instances.

use super::{
    advance,
    support::{describe, gpus, read_fleet},
    unused::reserved,
};
use berth_planner::{Amounts, plan};

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

#[test]
fn whole_nodes_are_requested_as_they_are_before_they_are_assigned() {
    const MINIMUM: &str = "
        pool h100 gpus=8 least=56 node-gpus=8
        quota team limit=168
        tenant b quota=team
        group b/g h100 1..1
        tenant a quota=team
        group a/g h100 2..2
        node n1 b/g gpus=56 used=56 age=7200
    ";
    let requested = |text: &str| -> Vec<(u32, Amounts)> {
        let made = plan(&read_fleet(text));
        let shortages = made.scale_ups["h100"].shortages.iter();
        let pods = shortages.flat_map(|shortage| &shortage.pod_sets);
        pods.map(|pods| (pods.count, pods.requests.clone())).collect()
    };
    // No node has 56 GPUs before it is assigned, so that the autoscaler would add none.
    assert_eq!(requested(MINIMUM), [(2, gpus(8))]);
    assert_eq!(requested(&MINIMUM.replace("node-gpus=8", "scaled")), [(2, gpus(1))]);
    let empty = MINIMUM.replace("group b/g h100 1..1", "");
    let empty = empty.replace("node n1 b/g gpus=56 used=56 age=7200", "");
    assert_eq!(requested(&empty), [(2, gpus(8))]);
    assert!(
        requested(&empty.replace("limit=168", "limit=111")).is_empty(),
        "quotas count 56"
    );
}
