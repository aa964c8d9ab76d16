//! Tenants whose limits get lower: what exists stays reserved until it is deleted.

use crate::{Amounts, Claim, Decision, Tree, decide, tests};
use berth_api::{Organization, TreeResource};
use proptest::prelude::*;
use std::collections::BTreeSet;

const PODS: TreeResource = TreeResource::Pods;
const SERVICES: TreeResource = TreeResource::Services;
const NO_ORGANIZATIONS: [Organization; 0] = [];
/// Pods that the Project has.
const QUOTA: u64 = 12;

fn tree() -> Tree {
    let quotas = [tests::limited(PODS, 12), tests::limited(SERVICES, 12)];
    Tree::new(&NO_ORGANIZATIONS, &[tests::project("p", None, 1, &[], &quotas)])
}

fn claim(uid: &str, reserved: Option<Amounts>, requested: Amounts, at_most: Amounts) -> Claim {
    Claim {
        uid: uid.into(),
        name: format!("team/{uid}"),
        created: 0,
        project: "p".into(),
        requested: Some(requested),
        unlimited: BTreeSet::new(),
        reserved,
        at_most,
        counted: Amounts::new(),
    }
}

fn pods(amount: u64) -> Amounts {
    Amounts::from([(PODS, amount)])
}

fn decided(claim: &Claim) -> Amounts {
    match decide(&tree(), std::slice::from_ref(claim))
        .decisions
        .remove(&claim.uid)
    {
        Some(Decision::Reserved { amounts, .. }) => amounts,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_reservation_shrinks_to_what_exists() {
    for (reserved, requested, at_most, expected) in [
        (10, 2, Some(7), 7),
        (10, 2, Some(2), 2),
        (10, 2, Some(0), 2),
        (10, 0, Some(0), 0),
        (10, 2, Some(10), 10),
        // More than what is reserved was never granted.
        (10, 2, Some(11), 10),
        (10, 2, Some(u64::MAX), 10),
        (10, 10, Some(0), 10),
        // Not known.
        (10, 2, None, 10),
        (10, 0, None, 10),
    ] {
        let at_most = at_most.map(pods).unwrap_or_default();
        let claim = claim("a", Some(pods(reserved)), pods(requested), at_most.clone());
        assert_eq!(decided(&claim), pods(expected), "{reserved} {requested} {at_most:?}");
    }
}

#[test]
fn what_exists_stays_reserved_when_another_resource_grows() {
    let amounts = |pods, services| Amounts::from([(PODS, pods), (SERVICES, services)]);
    let claim = claim("a", Some(amounts(10, 1)), amounts(2, 3), pods(6));
    assert_eq!(decided(&claim), amounts(6, 3));
}

#[test]
fn a_new_tenant_gets_what_it_requests_and_no_more() {
    assert_eq!(decided(&claim("a", None, pods(2), pods(9))), pods(2));
    assert_eq!(decided(&claim("a", None, pods(2), Amounts::new())), pods(2));
}

#[test]
fn a_resource_that_the_class_no_longer_limits_is_not_kept() {
    let mut claim = claim("a", Some(pods(10)), Amounts::from([(SERVICES, 1)]), Amounts::new());
    let tree = Tree::new(
        &NO_ORGANIZATIONS,
        &[tests::project("p", None, 1, &[], &[tests::limited(SERVICES, 1)])],
    );
    claim.unlimited = BTreeSet::from([PODS]);
    claim.counted = Amounts::from([(SERVICES, 0)]);
    let outcome = decide(&tree, std::slice::from_ref(&claim));
    let Decision::Reserved { amounts, .. } = &outcome.decisions["a"] else {
        panic!("{outcome:?}")
    };
    assert_eq!(amounts, &Amounts::from([(SERVICES, 1)]));
}

#[test]
fn what_exists_leaves_no_room_for_others() {
    let shrinks = |at_most| claim("a", Some(pods(10)), pods(2), at_most);
    let mut waits = claim("b", None, pods(10), Amounts::new());
    waits.created = 1;
    let tree = tree();
    for (at_most, gets) in [(Amounts::new(), false), (pods(3), false), (pods(2), true)] {
        let outcome = decide(&tree, &[shrinks(at_most.clone()), waits.clone()]);
        let is_reserved = matches!(outcome.decisions["b"], Decision::Reserved { .. });
        assert_eq!(is_reserved, gets, "{at_most:?}");
    }
}

/// A tenant as it runs: what the host lets it have, and what exists.
#[derive(Clone, Debug)]
struct Running {
    claim: Claim,
    enforced: u64,
    exists: u64,
}

#[derive(Clone, Debug)]
enum Step {
    /// A tenant is created, or its limits change.
    Request { tenant: usize, amount: u64 },
    /// The tenant creates and deletes objects, as far as the host lets it.
    Use { tenant: usize, amount: u64 },
    /// Its reconcile enforces the limits, if there is quota for them, and reads what exists.
    Reconcile(usize),
    /// Control restarts: what was read is forgotten.
    Restart,
    /// Quotas are decided.
    Decide,
}

const TENANTS: usize = 4;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..TENANTS, 0..8_u64).prop_map(|(tenant, amount)| Step::Request { tenant, amount }),
        4 => (0..TENANTS, 0..8_u64).prop_map(|(tenant, amount)| Step::Use { tenant, amount }),
        4 => (0..TENANTS).prop_map(Step::Reconcile),
        1 => Just(Step::Restart),
        4 => Just(Step::Decide),
    ];
    proptest::collection::vec(step, 1..80)
}

fn has_quota(claim: &Claim) -> bool {
    let amount = |amounts: &Option<Amounts>| amounts.as_ref().and_then(|amounts| amounts.get(&PODS)).copied();
    amount(&claim.reserved).is_some_and(|reserved| amount(&claim.requested).is_some_and(|amount| amount <= reserved))
}

fn follow(tenants: &mut [Running], step: &Step, tree: &Tree) {
    match *step {
        Step::Request { tenant, amount } => tenants[tenant].claim.requested = Some(pods(amount)),
        Step::Use { tenant, amount } => {
            let tenant = &mut tenants[tenant];
            // What exists above a limit stays; nothing is added to it.
            if amount <= tenant.enforced.max(tenant.exists) {
                tenant.exists = amount;
            }
        }
        Step::Reconcile(tenant) => {
            let tenant = &mut tenants[tenant];
            tenant.claim.at_most.clear();
            if has_quota(&tenant.claim) {
                tenant.enforced = tenant.claim.requested.as_ref().map_or(0, |requested| requested[&PODS]);
                tenant.claim.at_most = pods(tenant.exists.max(tenant.enforced));
            }
        }
        Step::Restart => {
            for tenant in tenants {
                tenant.claim.at_most.clear();
            }
        }
        Step::Decide => {
            let claims: Vec<Claim> = tenants.iter().map(|tenant| tenant.claim.clone()).collect();
            let decisions = decide(tree, &claims).decisions;
            for Running { claim, .. } in tenants {
                claim.reserved = match &decisions[&claim.uid] {
                    Decision::Reserved { amounts, .. } => Some(amounts.clone()),
                    Decision::Waiting { kept, .. } => kept.clone(),
                    Decision::Nothing => None,
                };
            }
        }
    }
}

/// Tenants that request nothing yet.
fn new_tenants() -> Vec<Running> {
    let running = |number| Running {
        claim: claim(&format!("t{number}"), None, pods(0), Amounts::new()),
        enforced: 0,
        exists: 0,
    };
    (0..TENANTS).map(running).collect()
}

proptest! {
    #[test]
    fn what_exists_is_reserved_at_all_times_and_never_more_than_the_quota(steps in steps()) {
        let tree = tree();
        let mut tenants = new_tenants();
        for step in &steps {
            follow(&mut tenants, step, &tree);
            let mut sum = 0;
            for Running { claim, enforced, exists } in &tenants {
                let reserved = claim.reserved.as_ref().map_or(0, |amounts| amounts[&PODS]);
                prop_assert!(reserved >= *exists, "{} has {} and reserved {} after {:?}", claim.uid, exists, reserved, step);
                prop_assert!(reserved >= *enforced, "{} may have {} and reserved {}", claim.uid, enforced, reserved);
                sum += reserved;
            }
            prop_assert!(sum <= QUOTA, "{}", sum);
        }
    }

    #[test]
    fn what_is_not_used_comes_back(steps in steps()) {
        let tree = tree();
        let mut tenants = new_tenants();
        for step in &steps {
            follow(&mut tenants, step, &tree);
        }
        // Everything is deleted, and all request little.
        for number in 0..TENANTS {
            follow(&mut tenants, &Step::Request { tenant: number, amount: 1 }, &tree);
            follow(&mut tenants, &Step::Use { tenant: number, amount: 0 }, &tree);
        }
        for _ in 0..2 {
            follow(&mut tenants, &Step::Decide, &tree);
            for number in 0..TENANTS {
                follow(&mut tenants, &Step::Reconcile(number), &tree);
            }
        }
        follow(&mut tenants, &Step::Decide, &tree);
        for Running { claim, .. } in &tenants {
            prop_assert_eq!(claim.reserved.as_ref(), Some(&pods(1)), "{}", &claim.uid);
        }
    }
}
