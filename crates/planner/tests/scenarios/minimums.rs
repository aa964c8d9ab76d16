//! Minimums of node groups: those that cannot be met now, and those beyond a nominal quota, which are borrowed.

use super::advance;
use super::support::{NOW, describe, read_fleet};
use super::unused::reserved;
use berth_planner::{ActionKind, ActionReason, Plan, plan};

/// Nodes that a plan reclaims.
fn reclaimed(made: &Plan) -> Vec<&str> {
    let actions = made.actions.iter().filter(|action| {
        matches!(
            action.reason,
            ActionReason::Reclaimed { .. } | ActionReason::ReclaimedForMinimum { .. }
        )
    });
    actions.map(|action| action.node.as_str()).collect()
}

/// Reclaimed nodes of the plan for a fleet, and that nothing is left to do after it.
fn reclaimed_in(text: &str) -> Vec<String> {
    let mut fleet = read_fleet(text);
    let made = advance(&mut fleet);
    let again = plan(&fleet);
    assert_eq!(again.actions, [], "{}then\n{}", describe(&made), describe(&again));
    reclaimed(&made).into_iter().map(ToOwned::to_owned).collect()
}

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

/// Tenant a has four nodes as its minimum, of which its nominal quota covers two.
const BORROWED: &str = "
    pool h100 gpus=8 grace=300
    quota a nominal=16
    quota b nominal=16
    tenant a quota=a
    group a/g h100 4..8
    tenant b quota=b
    group b/g h100 0..8
    demand b/g job 2x8 since=7200
    node n1..n4 a/g idle=7200 age=7200
";

#[test]
fn a_minimum_beyond_the_nominal_quota_goes_to_those_who_are_owed_it() {
    assert_eq!(reclaimed_in(BORROWED), ["n3", "n4"], "idle ones");
    let in_use = BORROWED.replace("idle=7200", "used=8");
    assert_eq!(reclaimed_in(&in_use), ["n3", "n4"]);
    let made = plan(&read_fleet(&in_use));
    let release = ActionKind::Release { drain_at: NOW + 300 };
    assert!(
        made.actions.iter().all(|action| action.kind == release),
        "the same grace period"
    );
    let none = BORROWED
        .replace("job 2x8", "job 9x8")
        .replace("nominal=16", "nominal=32");
    assert_eq!(reclaimed_in(&none), [""; 0], "within the nominal quota");
    assert_eq!(reclaimed_in(&BORROWED.replace("grace=300", "reclaim=never")), [""; 0]);
    let gang = BORROWED.replace("job 2x8", "job 2x8 gang");
    assert_eq!(reclaimed_in(&gang), ["n3", "n4"]);
    assert_eq!(
        reclaimed_in(&gang.replace("job 2x8", "job 3x8")),
        [""; 0],
        "more than it is owed"
    );
}

#[test]
fn a_gang_in_one_domain_gets_the_minimum_that_it_is_owed() {
    let text = BORROWED
        .replace("gpus=8 grace", "gpus=8 domains grace")
        .replace("job 2x8", "job 2x8 gang single-domain");
    let racks = "node n1..n2 rack=r1 a/g idle=7200 age=7200\nnode n3..n4 rack=r2 a/g idle=7200 age=7200";
    let text = text.replace("node n1..n4 a/g idle=7200 age=7200", racks);
    assert_eq!(reclaimed_in(&text), ["n1", "n2"]);
}

#[test]
fn a_raised_minimum_cancels_no_release_for_those_who_are_owed() {
    let text = BORROWED.replace(
        "node n1..n4 a/g idle=7200 age=7200",
        "node n1..n2 a/g used=8 age=7200\nnode n3..n4 a/g used=8 age=7200 cordoned=200",
    );
    let made = plan(&read_fleet(&text));
    assert_eq!(made.actions, [], "{}", describe(&made));
    let made = plan(&read_fleet(&text.replace("demand b/g job 2x8 since=7200", "")));
    let kept = made
        .actions
        .iter()
        .filter(|action| action.kind == ActionKind::CancelRelease);
    assert_eq!(kept.count(), 2, "nobody else needs them: {}", describe(&made));
}

#[test]
fn requests_within_a_nominal_quota_come_before_a_borrowed_minimum() {
    let text = BORROWED
        .replace("quota a nominal=16", "quota a nominal=0")
        .replace("quota b nominal=16", "quota b nominal=32")
        .replace("node n1..n4 a/g idle=7200 age=7200", "node n1..n4 free");
    let made = plan(&read_fleet(&text));
    assert_eq!(
        (reserved(&made, "a"), reserved(&made, "b")),
        (0, 2),
        "{}",
        describe(&made)
    );
    let alone = plan(&read_fleet(&text.replace("demand b/g job 2x8 since=7200", "")));
    assert_eq!(reserved(&alone, "a"), 4);
    assert_eq!(alone.node_groups["a"]["g"].borrowed, 4, "{}", describe(&alone));
}

#[test]
fn a_borrowed_minimum_is_shown_and_one_without_any_nominal_quota_is_not() {
    let alone = BORROWED.replace("demand b/g job 2x8 since=7200", "");
    let borrowed = |text: &str| plan(&read_fleet(text)).node_groups["a"]["g"].borrowed;
    assert_eq!(borrowed(&alone), 2);
    assert_eq!(borrowed(&alone.replace("nominal=16", "")), 0, "nobody is owed anything");
    assert_eq!(
        borrowed(&alone.replace("quota a nominal=16", "quota a nominal=12")),
        2,
        "whole nodes"
    );
    assert_eq!(borrowed(&alone.replace("quota a nominal=16", "quota a nominal=32")), 0);
    let two = alone.replace("group a/g h100 4..8", "group a/g h100 1..8\ngroup a/private h100 2..2");
    let two = two.replace("node n1..n4", "node n5..n6 a/private used=8 age=7200\nnode n1..n2");
    let made = plan(&read_fleet(&two.replace("idle=7200", "used=8")));
    let groups = &made.node_groups["a"];
    assert_eq!(
        (groups["g"].borrowed, groups["private"].borrowed),
        (2, 0),
        "{}",
        describe(&made)
    );
}

#[test]
fn private_nodes_are_never_reclaimed_where_nobody_has_a_nominal_quota() {
    let text = "
        pool h100 gpus=8 grace=300 reclaim=fair-share
        quota p
        quota u
        tenant p quota=p
        group p/private h100 4..4
        tenant u quota=u
        group u/g h100 0..8
        demand u/g urgent 4x8 prio=100 since=7200
        node n1..n4 p/private used=8 age=7200
    ";
    assert_eq!(reclaimed_in(text), [""; 0]);
    let covered = text
        .replace("quota p\n", "quota p nominal=32\n")
        .replace("quota u\n", "quota u nominal=32\n");
    assert_eq!(reclaimed_in(&covered), [""; 0]);
    let owed = text.replace("quota u\n", "quota u nominal=8\n");
    assert_eq!(reclaimed_in(&owed), ["n4"], "as much as is owed, whatever the priority");
}

#[test]
fn private_nodes_stay_where_nobody_else_is_owed_nodes_of_their_pool() {
    let fleet = |quotas: &str| {
        format!(
            "{quotas}
            tenant p quota=p
            group p/private h100 4..4
            tenant u quota=u
            group u/g h100 0..8
            demand u/g urgent 4x8 prio=100 since=7200
            node n1..n4 p/private used=8 age=7200"
        )
    };
    let pool = "pool h100 gpus=8 product=H100 grace=300";
    let cases = [
        ("no quota", pool.to_owned()),
        (
            "in another pool",
            format!("pool l40s gpus=8\nquota p\nquota u nominal=32\n{pool}"),
        ),
        (
            "a limit of several pools",
            format!("{pool}\nquota p total=64\nquota u total=64 product-limit=H100:32"),
        ),
        (
            "only above both",
            format!("{pool}\nquota org nominal=16\nquota p parent=org\nquota u parent=org"),
        ),
        (
            "above the holder",
            format!("{pool}\nquota org nominal=32\nquota p parent=org\nquota u nominal=32"),
        ),
    ];
    for (case, quotas) in cases {
        assert_eq!(reclaimed_in(&fleet(&quotas)), [""; 0], "{case}");
    }
    let inside = format!("{pool}\nquota org nominal=32\nquota p parent=org\nquota u nominal=8 parent=org");
    assert_eq!(reclaimed_in(&fleet(&inside)), ["n4"], "the other Project has its own");
}

#[test]
fn what_another_project_is_granted_comes_before_a_minimum_beyond_nominal_quotas() {
    let text = "
        pool h100 gpus=8 grace=300
        quota org nominal=16
        quota red nominal=16 parent=org
        quota blue parent=org
        quota other nominal=16
        tenant r quota=red
        group r/g h100 0..8
        tenant b quota=blue
        group b/private h100 2..2
        tenant o quota=other
        group o/g h100 0..8
        demand o/g job 2x8 since=60
        node n1..n2 r/g used=8 age=7200
        node n3..n4 b/private used=8 age=7200
    ";
    assert_eq!(reclaimed_in(text), ["n3", "n4"], "red has all of the organization's");
    let half = text.replace("node n1..n2", "node n1");
    assert_eq!(reclaimed_in(&half), ["n4"], "red leaves one node");
}

#[test]
fn a_gang_takes_another_domain_if_it_may_not_have_all_nodes_of_the_first() {
    let text = "
        pool h100 gpus=8 domains grace=300
        quota a nominal=8
        quota b nominal=16
        tenant a quota=a
        group a/private h100 2..2
        tenant c
        group c/private h100 2..2
        tenant b quota=b
        group b/g h100 0..8
        demand b/g job 2x8 gang single-domain since=60
        node n1..n2 rack=r1 a/private used=8 age=7200
        node n3..n4 rack=r2 c/private used=8 age=7200
    ";
    assert_eq!(reclaimed_in(text), ["n3", "n4"]);
}

#[test]
fn nodes_of_minimums_are_reclaimed_last() {
    let text = "
        pool h100 gpus=8 grace=300 hold=600
        quota a nominal=8
        quota b nominal=24
        tenant a quota=a
        group a/burst h100 0..8
        group a/private h100 2..2
        tenant b quota=b
        group b/g h100 0..8
        demand b/g job 1x8 since=60
        node n1..n2 a/private idle=7200 age=7200
        node n3..n4 a/burst used=8 prio=9 age=7200
    ";
    assert_eq!(reclaimed_in(text), ["n4"], "although it is in use");
    assert_eq!(reclaimed_in(&text.replace("1x8", "3x8")), ["n2", "n3", "n4"]);
    let covered = text.replace("quota a nominal=8", "quota a nominal=16");
    let held = covered.replace("prio=9 age=7200", "prio=9 age=60");
    assert_eq!(
        reclaimed_in(&held),
        [""; 0],
        "the nominal quota covers the minimum first"
    );
}

/// Both tenants have only minimums. Those of a exceed its nominal quota.
const PRIVATE: &str = "
    pool h100 gpus=8 grace=300
    quota a nominal=16
    quota b nominal=16
    tenant a quota=a
    group a/g h100 4..4
    tenant b quota=b
    group b/private h100 2..2
";

#[test]
fn a_minimum_within_a_nominal_quota_reclaims_what_others_borrowed() {
    let text = format!("{PRIVATE}\nnode n1..n4 a/g used=8 age=7200");
    let mut fleet = read_fleet(&text);
    let made = advance(&mut fleet);
    assert_eq!(reclaimed(&made), ["n3", "n4"], "{}", describe(&made));
    assert!(
        made.actions[0]
            .reason
            .to_string()
            .starts_with("borrowed; the minimum of group private of b takes precedence"),
        "{}",
        describe(&made)
    );
    assert_eq!(plan(&fleet).actions, []);
    let dynamic = text.replace("4..4", "0..4");
    assert_eq!(reclaimed_in(&dynamic), ["n3", "n4"]);
    for beyond in ["nominal=0", "nominal=8", "nominal=16 limit=8"] {
        let text = text.replace("quota b nominal=16", &format!("quota b {beyond}"));
        let expected = if beyond == "nominal=8" { vec!["n4"] } else { Vec::new() };
        assert_eq!(reclaimed_in(&text), expected, "{beyond}");
    }
    let paused = text.replace("tenant b quota=b", "tenant b quota=b unused=h100:2");
    assert_eq!(plan(&read_fleet(&paused)).actions, [], "it left nodes unused");
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

#[test]
fn a_search_that_finds_nothing_does_not_change_what_a_nominal_quota_covers() {
    let text = "
        pool h100 gpus=8 domains hold=600 grace=300
        quota a nominal=8
        quota b nominal=64
        tenant a quota=a
        group a/g h100 1..8
        group a/burst h100 0..8
        tenant b quota=b
        group b/g h100 0..8
        demand b/g wide 3x8 gang single-domain prio=9
        demand b/g large 1x8 zone=large prio=5
        demand b/g small 1x8 zone=small prio=1
        node n1 rack=r1 zone=small a/g used=8 age=3600
        node n2 rack=r1 zone=large a/g gpus=16 used=16 age=7200
        node n3..n4 rack=r2 a/burst used=8 age=60
    ";
    // For the gang both nodes of the group are taken in thought, the small one first.
    assert_eq!(reclaimed_in(text), ["n2"], "n1 is the minimum within the nominal quota");
}

#[test]
fn a_node_that_reports_more_gpus_does_not_change_what_a_nominal_quota_covers() {
    let text = "
        pool h100 gpus=8
        quota a nominal=8
        quota b nominal=24
        tenant a quota=a
        group a/private h100 1..1
        tenant b quota=b
        group b/g h100 0..8
        demand b/g job 1x8 since=60
        node n1 free
        node n2 b/g gpus=16 used=16 age=7200
    ";
    let made = plan(&read_fleet(text));
    assert_eq!(reserved(&made, "a"), 1, "{}", describe(&made));
}

#[test]
fn the_part_of_a_minimum_within_the_nominal_quota_does_not_wait_for_the_rest() {
    let text = format!("{PRIVATE}\nnode n1..n2 b/private used=8 age=7200\nnode n3..n4 free");
    let made = plan(&read_fleet(&text));
    assert_eq!(reserved(&made, "a"), 2, "{}", describe(&made));
    let group = &made.node_groups["a"]["g"];
    assert_eq!((group.desired, group.waiting, group.borrowed), (4, 2, 0));
    let one = plan(&read_fleet(&text.replace("n3..n4", "n3")));
    assert_eq!(reserved(&one, "a"), 0, "all of it or nothing: {}", describe(&one));
}
