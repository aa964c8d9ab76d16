//! What the tree says, rule by rule.

use super::*;
use std::collections::BTreeMap;

fn share(name: &str, parent: &str, guaranteed: u64, limit: Option<u64>) -> Quota {
    let of = |amount| BTreeMap::from([("h100".to_string(), amount)]);
    Quota {
        name: name.into(),
        parent: (!parent.is_empty()).then(|| parent.into()),
        nominal_quota: of(guaranteed),
        limit: limit.map(of).unwrap_or_default(),
        ..Quota::default()
    }
}

fn tenant(name: &str, share: &str, weight: u32) -> Tenant {
    Tenant {
        uid: name.into(),
        name: name.into(),
        quota: Some(share.into()),
        weight,
        ..Tenant::default()
    }
}

/// Tenants 0 and 1 of one team, 2 of another, both of one organization; 3 beside it.
fn shares() -> Vec<Quota> {
    vec![
        share("org", "", 0, Some(40)),
        share("red", "org", 16, Some(24)),
        share("blue", "org", 8, None),
    ]
}

fn tenants() -> Vec<Tenant> {
    vec![
        tenant("a", "red", 1),
        tenant("b", "red", 3),
        tenant("c", "blue", 1),
        tenant("d", "", 1),
    ]
}

fn with<R>(look: impl FnOnce(&mut Tree<'_>) -> R) -> R {
    let (shares, tenants) = (shares(), tenants());
    let tenants: Vec<&Tenant> = tenants.iter().collect();
    look(&mut Tree::new("h100", &shares, &tenants))
}

fn all(tree: &Tree<'_>) -> Waiting {
    let mut waiting = tree.nobody();
    for tenant in 0..tree.tenants() {
        tree.enter(&mut waiting, tenant);
    }
    waiting
}

#[test]
fn a_limit_holds_for_all_below() {
    with(|tree| {
        tree.take(0, 16);
        tree.leave(1, 8);
        assert_eq!(tree.limit(1, 1), Some(("red", 24)), "what is leaving is still there");
        assert!(tree.may_stay(1, 8) && !tree.may_stay(1, 9), "what is leaving may stay");
        assert_eq!((tree.limit(2, 16), tree.limit(2, 17)), (None, Some(("org", 40))));
        assert_eq!(tree.limit(3, 1000), None);
        assert_eq!((tree.never(0, 24), tree.never(0, 25)), (None, Some(("red", 24))));
    });
}

#[test]
fn beyond_a_limit_the_lowest_share_gives_first_and_in_it_whoever_has_the_most() {
    with(|tree| {
        tree.take(0, 24);
        tree.take(1, 24);
        tree.take(2, 8);
        let holders = all(tree);
        let (share, name, limit) = tree.beyond_limit(&holders).unwrap();
        assert_eq!((name, limit), ("red", 24));
        // The second one's weight is three times the first one's.
        assert_eq!(tree.richest_below(share, &holders), Some(0));
        tree.give_back(0, 24);
        assert_eq!(tree.beyond_limit(&holders), None, "24 of 24, and 32 of 40");
        tree.take(2, 16);
        assert_eq!(tree.beyond_limit(&holders).map(|(_, name, _)| name), Some("org"));
        assert_eq!(tree.beyond_limit(&tree.nobody()), None, "nobody has anything to give");
    });
}

#[test]
fn guarantees_add_up() {
    with(|tree| {
        // The organization is guaranteed what its teams are.
        tree.take(0, 16);
        assert!(tree.is_guaranteed(1, 8), "within the organization's 24");
        assert!(!tree.is_guaranteed(1, 9) && !tree.is_guaranteed(3, 1));
        assert_eq!(tree.borrowed(0), 0);
        tree.take(0, 16);
        assert_eq!(tree.borrowed(0), 8, "beyond the organization's; 16 beyond the team's");
    });
}

#[test]
fn whoever_has_the_least_by_weight_is_next() {
    with(|tree| {
        let waiting = all(tree);
        tree.take(3, 8);
        tree.take(2, 16);
        // The organization borrows nothing yet, nor does red, which has nothing at all.
        assert_eq!(tree.next(&waiting), Some(0));
        tree.take(0, 8);
        assert_eq!(tree.next(&waiting), Some(1));
        tree.take(1, 16);
        // 40 of 24 guaranteed are more than 8 of 0.
        assert_eq!(tree.next(&waiting), Some(3));
        let mut red = tree.nobody();
        tree.enter(&mut red, 0);
        tree.enter(&mut red, 1);
        assert_eq!(tree.next(&red), Some(1), "16 by 3 are less than 8");
        tree.exit(&mut red, 1);
        assert_eq!(tree.next(&red), Some(0));
        assert_eq!(tree.next(&tree.nobody()), None);
    });
}

#[test]
fn what_is_leaving_counts_for_the_turn() {
    with(|tree| {
        let waiting = all(tree);
        tree.leave(3, 8);
        assert_eq!(tree.next(&waiting), Some(2));
        assert!(tree.gives_up(3) && !tree.gives_up(2));
        tree.stay(3, 8);
        assert!(!tree.gives_up(3));
    });
}

#[test]
fn borrowed_is_what_no_share_below_the_fork_needs_for_its_guarantee() {
    with(|tree| {
        tree.take(2, 16);
        assert!(tree.is_borrowed(0, 2, 8), "blue is guaranteed 8 of its 16");
        assert!(!tree.is_borrowed(0, 2, 9));
        assert!(!tree.is_borrowed(3, 2, 8), "the organization has less than its 24");
        assert!(tree.is_due(0, 2, 16) && !tree.is_due(0, 2, 17));
        assert!(!tree.is_due(3, 2, 1));
    });
}

#[test]
fn fairness_leaves_the_other_with_no_less() {
    with(|tree| {
        tree.take(0, 32);
        tree.take(1, 24);
        // b has weight 3: with 48 more it has 72/3 = 24, as a has without 8.
        assert!(tree.is_fairer(1, 0, 48, 8) && !tree.is_fairer(1, 0, 49, 8));
        assert!(!tree.is_fairer(0, 1, 8, 8));
    });
}

#[test]
fn what_is_not_lent_is_kept() {
    let mut own = share("own", "", 24, None);
    own.lending_limit.insert("h100".into(), 8);
    let (shares, tenants) = ([own], [tenant("a", "own", 1), tenant("b", "", 1)]);
    let mut tree = Tree::new("h100", &shares, &tenants.iter().collect::<Vec<_>>());
    assert!(tree.keeps());
    assert_eq!((tree.kept_for_others(1), tree.kept_for_others(0)), (16, 0));
    tree.take(0, 8);
    assert_eq!(tree.kept_for_others(1), 8, "what it uses of it need not be kept");
}

#[test]
fn a_share_below_itself_stands_below_the_root() {
    let shares = [share("x", "y", 8, Some(8)), share("y", "x", 8, None)];
    let tenants = [tenant("a", "x", 1)];
    let tree = Tree::new("h100", &shares, &tenants.iter().collect::<Vec<_>>());
    assert_eq!(tree.limit(0, 9), Some(("x", 8)));
}
