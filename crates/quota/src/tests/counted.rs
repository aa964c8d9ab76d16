//! Tenants that run with a class that sets no limit for what a quota limits: they have what the host counts.

use super::*;

const STORAGE: TreeResource = TreeResource::RequestsStorage;

/// A tenant that runs with a class without a limit of storage. It was created before there was a quota of that.
fn runs(counted: Option<u64>) -> Claim {
    let mut runs = claim("runs", 1, "p", &[TENANTS]);
    runs.reserved = Some(Amounts::from([(TENANTS, 1)]));
    runs.unlimited = BTreeSet::from([STORAGE]);
    runs.counted = counted.map(|amount| (STORAGE, amount)).into_iter().collect();
    runs
}

/// A new tenant in a Project that requests so much storage.
fn new(project: &str, storage: u64) -> Claim {
    let mut new = claim("new", 2, project, &[]);
    new.requested = Some(Amounts::from([(STORAGE, storage)]));
    new
}

/// Two Projects of an Organization. The first has a quota of 10 of storage, and the Organization has `of_organization`.
fn tree(of_organization: &[TreeQuota]) -> Tree {
    let organizations = [organization("lab", of_organization)];
    let mut quota = limited(STORAGE, 10);
    quota.borrowing_limit = Some(Amount::from(0_u32));
    let projects = [
        project("p", Some("lab"), 1, &[], &[quota]),
        project("beside", Some("lab"), 2, &[], &[]),
    ];
    Tree::new(&organizations, &projects)
}

fn held(outcome: &Outcome<'_>) -> (Option<u64>, OverQuota) {
    match &outcome.decisions["runs"] {
        Decision::Reserved { amounts, over } => (amounts.get(&STORAGE).copied(), over.clone()),
        Decision::Waiting {
            kept: Some(kept), over, ..
        } => (kept.get(&STORAGE).copied(), over.clone()),
        other => panic!("{other:?}"),
    }
}

/// Resources of a tenant that the host has not counted.
fn uncounted(outcome: &Outcome<'_>, uid: &str) -> BTreeSet<TreeResource> {
    outcome.uncounted.get(uid).cloned().unwrap_or_default()
}

/// That a tenant waits until the tenant `runs` is counted, which is of its own Project or of another.
fn not_counted(is_own: bool) -> Shortage {
    Shortage::NotCounted {
        resource: STORAGE,
        tenants: is_own.then(|| "team/runs".to_owned()).into_iter().collect(),
        others: usize::from(!is_own),
    }
}

fn reason(outcome: &Outcome<'_>, uid: &str) -> Option<Shortage> {
    match &outcome.decisions[uid] {
        Decision::Waiting { shortage, .. } => Some(shortage.clone()),
        _ => None,
    }
}

#[test]
fn what_the_host_counts_is_reserved() {
    let tree = tree(&[]);
    for (counted, requested, is_granted) in [(6, 4, true), (6, 5, false), (0, 10, true), (12, 1, false)] {
        let outcome = decide(&tree, &[runs(Some(counted)), new("p", requested)]);
        let over = if counted > 10 {
            OverQuota::from([(STORAGE, 10)])
        } else {
            OverQuota::new()
        };
        assert_eq!(held(&outcome), (Some(counted), over), "{counted}");
        assert_eq!(
            reason(&outcome, "runs"),
            Some(Shortage::NoLimit { resource: STORAGE }),
            "it waits for a limit"
        );
        assert_eq!(reason(&outcome, "new").is_none(), is_granted, "{counted} {requested}");
        let granted = if is_granted { requested } else { 0 };
        assert_eq!(outcome.usage.of_project("p")[0].reserved, counted + granted);
    }
}

#[test]
fn nobody_gets_more_that_shares_the_quota_until_it_is_counted() {
    let of_project = tree(&[]);
    let outcome = decide(&of_project, &[runs(None), new("p", 1)]);
    assert_eq!(held(&outcome).0, None, "0 would be an amount that was counted");
    assert_eq!(uncounted(&outcome, "runs"), BTreeSet::from([STORAGE]));
    assert!(uncounted(&outcome, "new").is_empty());
    assert_eq!(reason(&outcome, "new"), Some(not_counted(true)));
    assert_eq!(
        reason(&decide(&of_project, &[runs(None), new("beside", 1)]), "new"),
        None
    );
    // What does not grow is not held up.
    let mut other = new("p", 3);
    other.reserved = Some(Amounts::from([(STORAGE, 3)]));
    assert_eq!(reason(&decide(&of_project, &[runs(None), other]), "new"), None);
    let of_both = tree(&[limited(STORAGE, 20)]);
    let outcome = decide(&of_both, &[runs(None), new("beside", 1)]);
    assert_eq!(reason(&outcome, "new"), Some(not_counted(false)));
    assert_eq!(
        reason(&decide(&of_both, &[runs(Some(3)), new("beside", 1)]), "new"),
        None
    );
}

#[test]
fn what_was_counted_once_stays_reserved() {
    let tree = tree(&[]);
    let mut tenant = runs(Some(6));
    tenant.reserved = Some(Amounts::from([(TENANTS, 1), (STORAGE, 6)]));
    for (counted, expected) in [(Some(6), 6), (Some(2), 6), (None, 6), (Some(7), 7)] {
        tenant.counted = counted.map(|amount| (STORAGE, amount)).into_iter().collect();
        let outcome = decide(&tree, &[tenant.clone(), new("p", 10 - expected)]);
        assert_eq!(held(&outcome).0, Some(expected), "{counted:?}");
        assert_eq!(reason(&outcome, "new"), None, "{counted:?}");
    }
}

#[test]
fn a_spec_that_is_not_accepted_changes_nothing_of_that() {
    let tree = tree(&[]);
    for unlimited in [BTreeSet::from([STORAGE]), BTreeSet::new()] {
        let mut tenant = runs(Some(6));
        tenant.requested = None;
        tenant.unlimited = unlimited;
        let outcome = decide(&tree, &[tenant.clone(), new("p", 5)]);
        assert_eq!(held(&outcome).0, Some(6));
        assert_eq!(reason(&outcome, "runs"), None, "it requests nothing");
        assert!(reason(&outcome, "new").is_some());
        tenant.counted.clear();
        let outcome = decide(&tree, &[tenant, new("p", 1)]);
        assert_eq!(reason(&outcome, "new"), Some(not_counted(true)));
    }
}

#[test]
fn without_the_quota_nothing_is_counted() {
    let tree = Tree::new(&NO_ORGANIZATIONS, &[project("p", None, 1, &[], &[limited(TENANTS, 9)])]);
    let mut tenant = runs(Some(6));
    tenant.reserved = Some(Amounts::from([(TENANTS, 1), (STORAGE, 6)]));
    let outcome = decide(&tree, std::slice::from_ref(&tenant));
    assert_eq!(held(&outcome).0, None);
    assert_eq!(reason(&outcome, "runs"), None);
    tenant.requested = None;
    assert_eq!(held(&decide(&tree, &[tenant])).0, None);
}

#[test]
fn a_limit_that_the_class_gets_ends_it() {
    let tree = tree(&[]);
    let decide_with = |limit: u64, counted: Option<u64>, at_most: Option<u64>| {
        let mut tenant = runs(counted);
        tenant.requested = Some(Amounts::from([(TENANTS, 1), (STORAGE, limit)]));
        tenant.unlimited.clear();
        tenant.reserved = Some(Amounts::from([(TENANTS, 1), (STORAGE, 6)]));
        tenant.at_most.extend(at_most.map(|amount| (STORAGE, amount)));
        let outcome = decide(&tree, &[tenant]);
        (held(&outcome).0, reason(&outcome, "runs").is_some())
    };
    assert_eq!(decide_with(8, None, None), (Some(8), false));
    assert_eq!(decide_with(11, None, None), (Some(6), true));
    assert_eq!(decide_with(4, None, None), (Some(6), false), "what exists is not known");
    assert_eq!(decide_with(4, None, Some(5)), (Some(5), false));
}

#[test]
fn a_limit_that_comes_with_the_quota_takes_effect_once_what_exists_is_counted() {
    let tree = tree(&[]);
    for limit in [0, 4, 9, 11] {
        let mut tenants = [runs(None), new("p", 1)];
        tenants[0].unlimited.clear();
        tenants[0].requested = Some(Amounts::from([(TENANTS, 1), (STORAGE, limit)]));
        // As often as it is decided.
        for _ in 0..3 {
            let outcome = decide(&tree, &tenants);
            assert_eq!(held(&outcome).0, None, "{limit}");
            assert_eq!(uncounted(&outcome, "runs"), BTreeSet::from([STORAGE]), "{limit}");
            for uid in ["runs", "new"] {
                assert_eq!(reason(&outcome, uid), Some(not_counted(true)), "{limit}");
            }
            record(&mut tenants, &outcome);
        }
        tenants[0].counted = Amounts::from([(STORAGE, 9)]);
        let outcome = decide(&tree, &tenants);
        assert!(outcome.uncounted.is_empty(), "{limit}");
        assert_eq!(
            held(&outcome).0,
            Some(9),
            "{limit}: what exists above the limit is reserved"
        );
        assert_eq!(reason(&outcome, "runs").is_some(), limit > 10, "{limit}");
        assert_eq!(reason(&outcome, "new"), None, "{limit}");
    }
}

/// A tree without a quota of storage.
fn tree_without_quota() -> Tree {
    Tree::new(&NO_ORGANIZATIONS, &[project("p", None, 1, &[], &[limited(TENANTS, 9)])])
}

#[test]
fn a_limit_that_comes_before_the_quota_is_no_count() {
    let mut tenants = [runs(None), new("p", 6)];
    tenants[0].unlimited.clear();
    tenants[0].requested = Some(Amounts::from([(TENANTS, 1), (STORAGE, 4)]));
    let (without, with) = (tree_without_quota(), tree(&[]));
    let outcome = decide(&without, &tenants[..1]);
    assert_eq!(held(&outcome).0, Some(4), "the limit holds at once");
    assert_eq!(uncounted(&outcome, "runs"), BTreeSet::from([STORAGE]));
    // The quota comes before the count. What is reserved and not counted is not known to the next decision.
    let outcome = decide(&with, &tenants);
    assert_eq!(reason(&outcome, "new"), Some(not_counted(true)));
    assert_eq!(held(&outcome).0, None);
    // The quota comes after the count.
    tenants[0].counted = Amounts::from([(STORAGE, 9)]);
    let outcome = decide(&without, &tenants[..1]);
    assert_eq!(held(&outcome).0, Some(9), "what exists above the limit is reserved");
    assert!(outcome.uncounted.is_empty());
    record(&mut tenants[..1], &outcome);
    tenants[0].counted.clear();
    let outcome = decide(&with, &tenants);
    assert_eq!(held(&outcome), (Some(9), OverQuota::new()));
    assert!(matches!(
        reason(&outcome, "new"),
        Some(Shortage::NotEnough { available: 1, .. })
    ));
}

#[test]
fn of_a_new_tenant_nothing_has_to_be_counted() {
    let without = tree_without_quota();
    let outcome = decide(&without, &[new("p", 4)]);
    assert!(outcome.uncounted.is_empty());
    assert_eq!(reason(&outcome, "new"), None);
}

#[test]
fn what_was_counted_as_nothing_is_known() {
    let tree = tree(&[]);
    let mut tenant = runs(None);
    tenant.reserved = Some(Amounts::from([(TENANTS, 1), (STORAGE, 0)]));
    // Its class limits it or not, its spec is accepted or not, and it is deleted: its ResourceQuota is gone before its namespace.
    for unlimited in [BTreeSet::from([STORAGE]), BTreeSet::new()] {
        for requested in [Some(Amounts::from([(TENANTS, 1)])), None] {
            tenant.unlimited.clone_from(&unlimited);
            tenant.requested = requested;
            let outcome = decide(&tree, &[tenant.clone(), new("p", 10)]);
            assert!(outcome.uncounted.is_empty());
            assert_eq!(reason(&outcome, "new"), None);
        }
    }
}

#[test]
fn a_message_names_the_tenants_of_the_own_project_that_are_not_counted() {
    let of_both = tree(&[limited(STORAGE, 20)]);
    let message = |project: &str| {
        let outcome = decide(&of_both, &[runs(None), new(project, 1)]);
        reason(&outcome, "new").unwrap().to_string()
    };
    let (own, others) = (message("p"), message("beside"));
    assert!(own.contains("nobody gets more: team/runs. That"), "{own}");
    assert!(
        others.contains("nobody gets more: 1 of other Projects. That"),
        "{others}"
    );
    assert!(
        own.ends_with("correct requests.storage in spec.quotas, or to remove it there"),
        "{own}"
    );
}
