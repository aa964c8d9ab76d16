//! Minimums of node groups: within a nominal quota, and beyond it, where they are borrowed.

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
pub(super) fn reclaimed_in(text: &str) -> Vec<String> {
    let mut fleet = read_fleet(text);
    let made = advance(&mut fleet);
    let again = plan(&fleet);
    assert_eq!(again.actions, [], "{}then\n{}", describe(&made), describe(&again));
    reclaimed(&made).into_iter().map(ToOwned::to_owned).collect()
}

/// Two tenants with a quota each: a, which has nodes as a minimum, and b. Each part is lines of text, or none.
struct Tenants<'a> {
    pool: &'a str,
    quotas: &'a str,
    groups_of_a: &'a str,
    groups_of_b: &'a str,
    demand_of_b: &'a str,
    nodes: &'a str,
}

impl Tenants<'_> {
    fn text(&self) -> String {
        let Self {
            pool,
            quotas,
            groups_of_a,
            groups_of_b,
            demand_of_b,
            nodes,
        } = *self;
        let (a, b) = ("tenant a quota=a", "tenant b quota=b");
        [pool, quotas, a, groups_of_a, b, groups_of_b, demand_of_b, nodes].join("\n")
    }

    fn plan(&self) -> Plan {
        plan(&read_fleet(&self.text()))
    }

    /// See [`reclaimed_in`].
    fn reclaimed(&self) -> Vec<String> {
        reclaimed_in(&self.text())
    }
}

/// Tenant a has four nodes as its minimum, of which its nominal quota covers two.
const BORROWED: Tenants<'_> = Tenants {
    pool: "pool h100 gpus=8 grace=300",
    quotas: "quota a nominal=16\nquota b nominal=16",
    groups_of_a: "group a/g h100 4..8",
    groups_of_b: "group b/g h100 0..8",
    demand_of_b: "demand b/g job 2x8 since=7200",
    nodes: "node n1..n4 a/g idle=7200 age=7200",
};

/// The same, and the four nodes are in use.
const IN_USE: Tenants<'_> = Tenants {
    nodes: "node n1..n4 a/g used=8 age=7200",
    ..BORROWED
};

/// Both tenants have only minimums. Those of a exceed its nominal quota.
const MINIMUMS: Tenants<'_> = Tenants {
    groups_of_a: "group a/g h100 4..4",
    groups_of_b: "group b/private h100 2..2",
    demand_of_b: "",
    ..IN_USE
};

#[test]
fn a_minimum_beyond_the_nominal_quota_goes_to_those_who_are_owed_it() {
    assert_eq!(BORROWED.reclaimed(), ["n3", "n4"], "idle ones");
    assert_eq!(IN_USE.reclaimed(), ["n3", "n4"]);
    let release = ActionKind::Release { drain_at: NOW + 300 };
    assert!(
        IN_USE.plan().actions.iter().all(|action| action.kind == release),
        "the same grace period"
    );
    let covered = Tenants {
        quotas: "quota a nominal=32\nquota b nominal=32",
        demand_of_b: "demand b/g job 9x8 since=7200",
        ..BORROWED
    };
    assert_eq!(covered.reclaimed(), [""; 0], "within the nominal quota");
    let never = Tenants {
        pool: "pool h100 gpus=8 reclaim=never",
        ..BORROWED
    };
    assert_eq!(never.reclaimed(), [""; 0]);
    for (demand_of_b, expected) in [
        ("demand b/g job 2x8 gang since=7200", vec!["n3", "n4"]),
        // That is more than it is owed.
        ("demand b/g job 3x8 gang since=7200", Vec::new()),
    ] {
        let gang = Tenants {
            demand_of_b,
            ..BORROWED
        };
        assert_eq!(gang.reclaimed(), expected, "{demand_of_b}");
    }
}

#[test]
fn a_gang_in_one_domain_gets_the_minimum_that_it_is_owed() {
    let fleet = Tenants {
        pool: "pool h100 gpus=8 domains grace=300",
        demand_of_b: "demand b/g job 2x8 gang single-domain since=7200",
        nodes: "node n1..n2 rack=r1 a/g idle=7200 age=7200\nnode n3..n4 rack=r2 a/g idle=7200 age=7200",
        ..BORROWED
    };
    assert_eq!(fleet.reclaimed(), ["n1", "n2"]);
}

#[test]
fn a_raised_minimum_cancels_no_release_for_those_who_are_owed() {
    let owed = Tenants {
        nodes: "node n1..n2 a/g used=8 age=7200\nnode n3..n4 a/g used=8 age=7200 cordoned=200",
        ..BORROWED
    };
    let made = owed.plan();
    assert_eq!(made.actions, [], "{}", describe(&made));
    let alone = Tenants {
        demand_of_b: "",
        ..owed
    };
    let made = alone.plan();
    let kept = made
        .actions
        .iter()
        .filter(|action| action.kind == ActionKind::CancelRelease);
    assert_eq!(kept.count(), 2, "nobody else needs them: {}", describe(&made));
}

#[test]
fn requests_within_a_nominal_quota_come_before_a_borrowed_minimum() {
    let owed = Tenants {
        quotas: "quota a nominal=0\nquota b nominal=32",
        nodes: "node n1..n4 free",
        ..BORROWED
    };
    let made = owed.plan();
    assert_eq!(
        (reserved(&made, "a"), reserved(&made, "b")),
        (0, 2),
        "{}",
        describe(&made)
    );
    let alone = Tenants {
        demand_of_b: "",
        ..owed
    };
    let alone = alone.plan();
    assert_eq!(reserved(&alone, "a"), 4);
    assert_eq!(alone.node_groups["a"]["g"].borrowed, 4, "{}", describe(&alone));
}

#[test]
fn a_borrowed_minimum_is_shown_and_one_without_any_nominal_quota_is_not() {
    for (quotas, borrowed, why) in [
        (BORROWED.quotas, 2, "two are covered"),
        ("quota a\nquota b", 0, "nobody is owed anything"),
        ("quota a nominal=12\nquota b nominal=16", 2, "whole nodes"),
        ("quota a nominal=32\nquota b nominal=16", 0, "all are covered"),
    ] {
        let alone = Tenants {
            quotas,
            demand_of_b: "",
            ..BORROWED
        };
        assert_eq!(alone.plan().node_groups["a"]["g"].borrowed, borrowed, "{why}");
    }
    let two = Tenants {
        groups_of_a: "group a/g h100 1..8\ngroup a/private h100 2..2",
        demand_of_b: "",
        nodes: "node n5..n6 a/private used=8 age=7200\nnode n1..n2 a/g used=8 age=7200",
        ..BORROWED
    };
    let made = two.plan();
    let groups = &made.node_groups["a"];
    assert_eq!(
        (groups["g"].borrowed, groups["private"].borrowed),
        (2, 0),
        "{}",
        describe(&made)
    );
}

/// Tenant a has a private group, and b has urgent pods that need all of its nodes.
const URGENT: Tenants<'_> = Tenants {
    groups_of_a: "group a/private h100 4..4",
    demand_of_b: "demand b/g urgent 4x8 prio=100 since=7200",
    nodes: "node n1..n4 a/private used=8 age=7200",
    ..BORROWED
};

#[test]
fn private_nodes_are_never_reclaimed_where_nobody_has_a_nominal_quota() {
    for (quotas, expected, why) in [
        ("quota a\nquota b", Vec::new(), "nobody is owed anything"),
        ("quota a nominal=32\nquota b nominal=32", Vec::new(), "all are covered"),
        (
            "quota a\nquota b nominal=8",
            vec!["n4"],
            "as much as is owed, whatever the priority",
        ),
    ] {
        let fleet = Tenants {
            pool: "pool h100 gpus=8 grace=300 reclaim=fair-share",
            quotas,
            ..URGENT
        };
        assert_eq!(fleet.reclaimed(), expected, "{why}");
    }
}

#[test]
fn private_nodes_stay_where_nobody_else_is_owed_nodes_of_their_pool() {
    let pool = "pool h100 gpus=8 product=H100 grace=300";
    let after_another_pool = format!("pool l40s gpus=8\nquota a\nquota b nominal=32\n{pool}");
    let cases = [
        ("no quota", pool, ""),
        ("in another pool", after_another_pool.as_str(), ""),
        (
            "a limit of several pools",
            pool,
            "quota a total=64\nquota b total=64 product-limit=H100:32",
        ),
        (
            "only above both",
            pool,
            "quota org nominal=16\nquota a parent=org\nquota b parent=org",
        ),
        (
            "above the holder",
            pool,
            "quota org nominal=32\nquota a parent=org\nquota b nominal=32",
        ),
    ];
    for (case, pool, quotas) in cases {
        let fleet = Tenants { pool, quotas, ..URGENT };
        assert_eq!(fleet.reclaimed(), [""; 0], "{case}");
    }
    let inside = Tenants {
        pool,
        quotas: "quota org nominal=32\nquota a parent=org\nquota b nominal=8 parent=org",
        ..URGENT
    };
    assert_eq!(inside.reclaimed(), ["n4"], "the other Project has its own");
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
    let one = Tenants {
        pool: "pool h100 gpus=8 grace=300 hold=600",
        quotas: "quota a nominal=8\nquota b nominal=24",
        groups_of_a: "group a/burst h100 0..8\ngroup a/private h100 2..2",
        demand_of_b: "demand b/g job 1x8 since=60",
        nodes: "node n1..n2 a/private idle=7200 age=7200\nnode n3..n4 a/burst used=8 prio=9 age=7200",
        ..BORROWED
    };
    assert_eq!(one.reclaimed(), ["n4"], "although it is in use");
    let three = Tenants {
        demand_of_b: "demand b/g job 3x8 since=60",
        ..one
    };
    assert_eq!(three.reclaimed(), ["n2", "n3", "n4"]);
    let held = Tenants {
        quotas: "quota a nominal=16\nquota b nominal=24",
        nodes: "node n1..n2 a/private idle=7200 age=7200\nnode n3..n4 a/burst used=8 prio=9 age=60",
        ..one
    };
    assert_eq!(held.reclaimed(), [""; 0], "the nominal quota covers the minimum first");
}

#[test]
fn a_minimum_within_a_nominal_quota_reclaims_what_others_borrowed() {
    let mut fleet = read_fleet(&MINIMUMS.text());
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
    let dynamic = Tenants {
        groups_of_a: "group a/g h100 0..4",
        ..MINIMUMS
    };
    assert_eq!(dynamic.reclaimed(), ["n3", "n4"]);
    for (quotas, expected) in [
        ("quota a nominal=16\nquota b nominal=0", Vec::new()),
        ("quota a nominal=16\nquota b nominal=8", vec!["n4"]),
        ("quota a nominal=16\nquota b nominal=16 limit=8", Vec::new()),
    ] {
        let beyond = Tenants { quotas, ..MINIMUMS };
        assert_eq!(beyond.reclaimed(), expected, "{quotas}");
    }
    let paused = MINIMUMS.text().replace("quota=b", "quota=b unused=h100:2");
    assert_eq!(plan(&read_fleet(&paused)).actions, [], "it left nodes unused");
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
    let fleet = Tenants {
        pool: "pool h100 gpus=8",
        quotas: "quota a nominal=8\nquota b nominal=24",
        groups_of_a: "group a/private h100 1..1",
        demand_of_b: "demand b/g job 1x8 since=60",
        nodes: "node n1 free\nnode n2 b/g gpus=16 used=16 age=7200",
        ..BORROWED
    };
    let made = fleet.plan();
    assert_eq!(reserved(&made, "a"), 1, "{}", describe(&made));
}

#[test]
fn the_part_of_a_minimum_within_the_nominal_quota_does_not_wait_for_the_rest() {
    let two = Tenants {
        nodes: "node n1..n2 b/private used=8 age=7200\nnode n3..n4 free",
        ..MINIMUMS
    };
    let made = two.plan();
    assert_eq!(reserved(&made, "a"), 2, "{}", describe(&made));
    let group = &made.node_groups["a"]["g"];
    assert_eq!((group.desired, group.waiting, group.borrowed), (4, 2, 0));
    let one = Tenants {
        nodes: "node n1..n2 b/private used=8 age=7200\nnode n3 free",
        ..MINIMUMS
    };
    let one = one.plan();
    assert_eq!(reserved(&one, "a"), 0, "all of it or nothing: {}", describe(&one));
}
