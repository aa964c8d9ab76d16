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

/// Two minimums within their nominal quotas: the older one, of o, lacks a node more than can be reclaimed, and t's lacks two. The nodes of d are within
/// its own nominal quota.
const OWED: &str = "
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

/// A fleet like [`OWED`] in which the quota of o is below another one, so that its depth comes first.
fn with_deeper_quota(fleet: &str) -> String {
    fleet.replace("quota o nominal=40", "quota above\nquota o nominal=40 parent=above")
}

#[test]
fn a_minimum_that_cannot_be_met_takes_no_node_that_is_reclaimed_for_another() {
    assert_eq!(reclaimed_in(OWED), ["n3", "n4"], "o lacks five");
    assert_eq!(
        reclaimed_in(&OWED.replace("5..5", "4..4")),
        ["n1", "n2", "n3", "n4"],
        "the oldest"
    );
    assert_eq!(
        reclaimed_in(&with_deeper_quota(OWED)),
        ["n3", "n4"],
        "o cannot be met, however deep its quota is"
    );
}

#[test]
fn a_minimum_that_cannot_be_met_takes_no_node_that_requests_within_their_nominal_quota_lack() {
    let text = OWED.replace("t/private h100 2..2", "t/g h100 0..8\n    demand t/g job 2x8 since=60");
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
    assert_eq!(reclaimed_in(&with_deeper_quota(&text)), ["n3", "n4"]);
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

/// A minimum that is borrowed, pods of a higher priority, and nodes with work of the lowest and of the highest priority.
const URGENT: &str = "
    pool h100 gpus=8 grace=300
    tenant a
    group a/private h100 5..5
    tenant b
    group b/g h100 0..8
    demand b/g urgent 1x8 prio=5 since=60
    tenant c
    group c/g h100 0..8
    tenant d
    group d/g h100 0..8
    node n1..n3 c/g used=8 age=7200
    node o1..o4 d/g used=8 age=7200 prio=9
";

#[test]
fn a_priority_reclaims_nothing_for_a_minimum_that_would_still_lack_nodes() {
    assert_eq!(
        reclaimed_in(URGENT),
        [""; 0],
        "a lacks five, and three can be reclaimed"
    );
    let five = URGENT.replace("n1..n3", "n1..n5");
    assert_eq!(reclaimed_in(&five), [""; 0], "none would be left for b");
    let six = URGENT.replace("n1..n3", "n1..n6");
    assert_eq!(reclaimed_in(&six), ["n1", "n2", "n3", "n4", "n5", "n6"]);
    let without = URGENT.replace("5..5", "0..5");
    assert_eq!(reclaimed_in(&without), ["n3"], "the minimum alone is in the way");
    // There are seven nodes.
    let beyond = URGENT.replace("5..5", "8..8");
    assert_eq!(reclaimed_in(&beyond), ["n3"], "one that can never be met is not");
}

#[test]
fn a_gang_reclaims_nothing_for_a_minimum_that_would_still_lack_nodes() {
    let gang = URGENT.replace("urgent 1x8", "urgent 2x8 gang");
    for (nodes, expected) in [("n1..n3", 0), ("n1..n6", 0), ("n1..n7", 7)] {
        let text = gang.replace("n1..n3", nodes);
        assert_eq!(reclaimed_in(&text).len(), expected, "{nodes}");
    }
}

/// A minimum that is borrowed, a gang of a higher priority that needs one domain, and work of the lowest priority in two domains.
const DOMAINS: &str = "
    pool h100 gpus=8 domains grace=300
    tenant a
    group a/private h100 4..4
    tenant b
    group b/g h100 0..8
    demand b/g urgent 4x8 gang single-domain prio=5 since=60
    tenant c
    group c/g h100 0..16
    node n1..n4 rack=r1 c/g used=8 age=7200
    node n5..n8 rack=r2 c/g used=8 age=7200
";

#[test]
fn a_gang_in_one_domain_reclaims_nothing_that_a_minimum_would_take_from_each_domain() {
    assert_eq!(
        reclaimed_in(DOMAINS),
        [""; 0],
        "each domain would have two nodes for it"
    );
    let without = DOMAINS.replace("4..4", "0..4");
    assert_eq!(reclaimed_in(&without).len(), 4, "it would have one of them");
}

#[test]
fn a_gang_in_one_domain_reclaims_where_there_is_enough_for_the_minimum_as_well() {
    let eight = DOMAINS.replace("n5..n8", "n5..n12");
    assert_eq!(reclaimed_in(&eight).len(), 8, "r1 alone has too few, and r2 has eight");
    let seven = DOMAINS.replace("n5..n8", "n5..n11");
    assert_eq!(reclaimed_in(&seven), [""; 0], "neither has eight");
}

#[test]
fn a_gang_that_is_owed_a_part_of_its_nodes_reclaims_nothing_for_a_minimum_that_would_still_lack_nodes() {
    let text = URGENT
        .replace("urgent 1x8", "urgent 2x8 gang")
        .replace("tenant b", "quota b nominal=8\n    tenant b quota=b")
        .replace("o1..o4", "o1..o2");
    assert_eq!(reclaimed_in(&text), [""; 0], "it is owed one node, and needs two");
    let owed = text.replace("nominal=8", "nominal=16");
    assert_eq!(reclaimed_in(&owed).len(), 2, "it is owed both, and comes first");
}

#[test]
fn a_minimum_that_may_have_none_of_the_nodes_is_not_in_the_way() {
    let text = "
        pool h100 gpus=8 grace=300
        quota p nominal=8
        quota x nominal=12 lending=0
        tenant a
        group a/private h100 5..5
        tenant p quota=p unused=h100:2
        group p/private h100 1..1
        tenant b quota=x
        group b/g h100 0..8
        demand b/g urgent 1x8 prio=5 since=60
        tenant c
        group c/g h100 0..8
        tenant d
        group d/g h100 0..8
        node m1 b/g used=8 age=7200 prio=9
        node n1..n3 c/g used=8 age=7200
        node o1..o6 d/g used=8 age=7200 prio=9
    ";
    assert_eq!(reclaimed_in(text), ["n2", "n3"], "one for p, and x lends nothing to a");
    let lent = text.replace("lending=0", "");
    assert_eq!(reclaimed_in(&lent), [""; 0], "a lacks five");
}

#[test]
fn pods_reclaim_nodes_by_priority_for_the_minimum_of_their_own_group() {
    let text = URGENT
        .replace("5..5", "0..5")
        .replace("b/g h100 0..8", "b/g h100 3..8")
        .replace("urgent 1x8", "urgent 3x8");
    assert_eq!(reclaimed_in(&text), ["n1", "n2", "n3"], "they run there");
    let before_another = text.replace(
        "c/g h100 0..8",
        "c/g h100 0..8\n    tenant e\n    group e/private h100 2..2",
    );
    assert_eq!(reclaimed_in(&before_another), ["n1", "n2", "n3"], "e comes after b");
    let after_another = text.replace("a/private h100 0..5", "a/private h100 1..1");
    assert_eq!(reclaimed_in(&after_another), [""; 0], "one is for a");
    let four = text.replace("3..8", "4..8");
    assert_eq!(reclaimed_in(&four), [""; 0], "it would still lack one");
}

#[test]
fn nodes_that_pods_reclaim_for_themselves_are_not_there_for_a_minimum() {
    let text = "
        pool h100 gpus=8 grace=300
        quota small limit=8
        tenant a quota=small
        group a/private h100 2..2
        tenant b
        group b/g h100 0..8
        demand b/g urgent 5x4 prio=5 since=60
        tenant c
        group c/g h100 0..8
        node n1 c/g gpus=4 used=4 age=7200
        node n2 c/g gpus=4 used=4 age=7200 prio=2
        node o1 c/g used=8 age=7200 prio=1
    ";
    assert_eq!(
        reclaimed_in(text),
        ["n1", "o1"],
        "o1 is too large for a, and b would get nothing of n2"
    );
    let two = text.replace("5x4", "2x4");
    assert_eq!(reclaimed_in(&two), ["n1", "o1"], "o1 holds both pods");
}

#[test]
fn a_minimum_reclaims_nothing_that_its_limit_forbids_once_others_have_theirs() {
    let text = "
        pool h100 gpus=8 grace=300
        quota org limit=32
        quota a nominal=16 parent=org
        quota b nominal=8 parent=org
        quota r nominal=8 parent=org
        tenant a quota=a
        group a/private h100 2..2
        tenant b quota=b
        group b/private h100 1..1
        tenant r quota=r
        group r/g h100 0..8
        demand r/g job 1x8 since=60
        tenant h quota=org
        group h/g h100 0..8
        node n1..n2 h/g used=8 age=7200
        node n3 free
    ";
    assert_eq!(reclaimed_in(text), ["n2"], "one for r: there is room for one after b");
}
