//! The rules of the quota tree, one by one.

use super::limits::Scope;
use super::*;
use std::collections::BTreeMap;

fn quota(name: &str, parent: &str, nominal_quota: u64, limit: Option<u64>) -> Quota {
    let of = |amount| BTreeMap::from([("h100".to_string(), amount)]);
    Quota {
        name: name.into(),
        parent: (!parent.is_empty()).then(|| parent.into()),
        nominal_quota: of(nominal_quota),
        limit: limit.map(of).unwrap_or_default(),
        ..Quota::default()
    }
}

fn h100() -> Pool {
    Pool {
        name: "h100".into(),
        ..Pool::default()
    }
}

/// Name and GPUs of a limit.
fn short(limit: Option<QuotaLimit<'_>>) -> Option<(&str, u64)> {
    limit.map(|limit| (limit.quota, limit.gpus))
}

fn tenant(name: &str, quota: &str, weight: u32) -> Tenant {
    Tenant {
        uid: name.into(),
        name: name.into(),
        quota: Some(quota.into()),
        weight,
        ..Tenant::default()
    }
}

/// Tenants 0 and 1 belong to one team, 2 to another; both teams to one organization. Tenant 3 is outside of it.
fn quotas() -> Vec<Quota> {
    vec![
        quota("org", "", 0, Some(40)),
        quota("red", "org", 16, Some(24)),
        quota("blue", "org", 8, None),
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

fn with<R>(check: impl FnOnce(&mut Tree<'_>) -> R) -> R {
    let (quotas, tenants) = (quotas(), tenants());
    let tenants: Vec<&Tenant> = tenants.iter().collect();
    check(&mut Tree::new(&h100(), &quotas, &tenants))
}

fn all(tree: &Tree<'_>) -> TenantSet {
    let mut waiting = tree.empty_set();
    for tenant in 0..tree.count_tenants() {
        tree.insert_tenant(&mut waiting, tenant);
    }
    waiting
}

#[test]
fn a_node_that_moves_within_a_quota_counts_once_for_its_nominal_quota() {
    with(|tree| {
        // Red has all of its 16, of which a loses 8.
        tree.add_used(0, 8);
        tree.add_leaving(0, 8);
        let is_within = |tree: &Tree<'_>, tenant: usize, moved: &[(usize, u64)]| {
            tree.is_within_nominal_quota_after(tenant, 2, 8, moved)
        };
        assert!(
            !is_within(tree, 1, &[]),
            "it is beyond the nominal quota with any other node"
        );
        assert!(is_within(tree, 1, &[(0, 8)]), "the quota has no more with that of a");
        assert!(!is_within(tree, 1, &[(2, 8)]), "but with one of another team");
        assert!(!is_within(tree, 3, &[(0, 8)]), "it has no nominal quota");
        // The node is kept for b, and counts twice until it is gone.
        tree.add_used(1, 8);
        tree.add_moving(1, 0, 8);
        assert!(!is_within(tree, 1, &[]), "the quota is full all the same");
        assert!(tree.is_within_nominal_quota_after(0, 2, 0, &[]), "but not exceeded");
    });
}

#[test]
fn a_limit_holds_for_all_below() {
    with(|tree| {
        tree.add_used(0, 16);
        tree.add_leaving(1, 8);
        assert_eq!(
            short(tree.exceeded_limit(1, 1)),
            Some(("red", 24)),
            "GPUs of leaving nodes still count"
        );
        assert!(tree.may_stay(1, 8) && !tree.may_stay(1, 9), "leaving nodes may stay");
        assert_eq!(
            (short(tree.exceeded_limit(2, 16)), short(tree.exceeded_limit(2, 17))),
            (None, Some(("org", 40)))
        );
        assert_eq!(tree.exceeded_limit(3, 1000), None);
        assert_eq!(
            (short(tree.limit_below(0, 24)), short(tree.limit_below(0, 25))),
            (None, Some(("red", 24)))
        );
    });
}

#[test]
fn nodes_that_drain_count_like_those_that_leave_but_are_no_reason_to_take_others() {
    with(|tree| {
        tree.add_used(0, 8);
        tree.add_draining(1, 16);
        let exceeded = tree.exceeded_limit(0, 1).map(|limit| (limit.quota, limit.draining));
        assert_eq!(exceeded, Some(("red", 16)));
        assert!(tree.may_stay(0, 16), "it has fewer soon");
        assert!(!tree.is_within_nominal_quota_at(0, 2, 1), "16 is in use");
        assert_eq!(tree.find_quota_over_limit(&all(tree)), None);
        let next = tree.next_tenant(&all(tree));
        assert_eq!(next, Some(3), "the one outside has nothing");
        assert!(!tree.is_giving_up_nodes(1), "none comes back to it");
    });
}

#[test]
fn lowest_quota_over_its_limit_gives_first_and_in_it_the_richest_tenant() {
    with(|tree| {
        tree.add_used(0, 24);
        tree.add_used(1, 24);
        tree.add_used(2, 8);
        let holders = all(tree);
        let (quota, limit) = tree.find_quota_over_limit(&holders).unwrap();
        assert_eq!((limit.quota, limit.gpus), ("red", 24));
        // Tenant 1 has three times the weight of tenant 0.
        assert_eq!(tree.find_richest_tenant(quota, &holders), Some(0));
        tree.remove_used(0, 24);
        assert_eq!(tree.find_quota_over_limit(&holders), None, "24 of 24, and 32 of 40");
        tree.add_used(2, 16);
        assert_eq!(
            tree.find_quota_over_limit(&holders).map(|(_, limit)| limit.quota),
            Some("org")
        );
        assert_eq!(
            tree.find_quota_over_limit(&tree.empty_set()),
            None,
            "no tenant has anything to give"
        );
    });
}

#[test]
fn nominal_quotas_add_up() {
    with(|tree| {
        // The nominal quota of the organization is the sum of its teams' nominal quotas.
        tree.add_used(0, 16);
        assert!(tree.is_within_nominal_quota(1, 8), "within the organization's 24");
        assert!(!tree.is_within_nominal_quota(1, 9) && !tree.is_within_nominal_quota(3, 1));
        assert_eq!(tree.borrowed_gpus(0), 0);
        tree.add_used(0, 16);
        assert_eq!(
            tree.borrowed_gpus(0),
            8,
            "8 beyond the organization's nominal quota; 16 beyond the team's"
        );
    });
}

#[test]
fn the_tenant_with_the_least_by_weight_is_next() {
    with(|tree| {
        let waiting = all(tree);
        tree.add_used(3, 8);
        tree.add_used(2, 16);
        // The organization borrows nothing yet, nor does red, which has nothing at all.
        assert_eq!(tree.next_tenant(&waiting), Some(0));
        tree.add_used(0, 8);
        assert_eq!(tree.next_tenant(&waiting), Some(1));
        tree.add_used(1, 16);
        // 40 GPUs exceed a nominal quota of 24 by more than 8 GPUs exceed none.
        assert_eq!(tree.next_tenant(&waiting), Some(3));
        let mut red = tree.empty_set();
        tree.insert_tenant(&mut red, 0);
        tree.insert_tenant(&mut red, 1);
        assert_eq!(tree.next_tenant(&red), Some(1), "16 / 3 is less than 8");
        tree.remove_tenant(&mut red, 1);
        assert_eq!(tree.next_tenant(&red), Some(0));
        assert_eq!(tree.next_tenant(&tree.empty_set()), None);
    });
}

#[test]
fn leaving_nodes_count_for_the_serving_order() {
    with(|tree| {
        let waiting = all(tree);
        tree.add_leaving(3, 8);
        assert_eq!(tree.next_tenant(&waiting), Some(2));
        assert!(tree.is_giving_up_nodes(3) && !tree.is_giving_up_nodes(2));
        tree.remove_leaving(3, 8);
        assert!(!tree.is_giving_up_nodes(3));
    });
}

#[test]
fn gpus_are_borrowed_only_beyond_all_nominal_quotas_below_the_fork() {
    with(|tree| {
        tree.add_used(2, 16);
        assert!(tree.is_borrowed(0, 2, 8), "blue has 16 GPUs and a nominal quota of 8");
        assert!(!tree.is_borrowed(0, 2, 9));
        assert!(!tree.is_borrowed(3, 2, 8), "the organization has less than its 24");
        assert!(tree.is_owed(0, 2, 16) && !tree.is_owed(0, 2, 17));
        assert!(!tree.is_owed(3, 2, 1));
    });
}

#[test]
fn a_nominal_quota_covers_minimums_first() {
    with(|tree| {
        tree.add_used(2, 24);
        tree.change_minimum(2, 0, 16);
        assert!(tree.is_minimum_borrowed(0, 2, 8) && !tree.is_minimum_borrowed(0, 2, 9));
        assert!(tree.is_borrowed(0, 2, 16), "other nodes come before minimums");
        assert!(
            !tree.is_minimum_borrowed(3, 2, 1),
            "the organization's nominal quota covers it"
        );
        assert_eq!(tree.borrowed_minimum_gpus(2), 8, "red can be owed them");
        assert_eq!((tree.minimum_gpus_owed_to(0), tree.minimum_gpus_owed_to(3)), (8, 0));
        tree.change_minimum(3, 0, 8);
        assert_eq!(tree.borrowed_minimum_gpus(3), 8);
        tree.change_minimum(2, 16, 0);
        assert_eq!(tree.borrowed_minimum_gpus(2), 0);
    });
}

#[test]
fn what_the_quota_of_another_team_grants_comes_before_a_minimum_beyond_its_own() {
    let quotas = [
        quota("org", "", 16, None),
        quota("red", "org", 16, None),
        quota("blue", "org", 0, None),
        quota("other", "", 16, None),
    ];
    let tenants = [tenant("a", "red", 1), tenant("b", "blue", 1), tenant("c", "other", 1)];
    let mut tree = Tree::new(&h100(), &quotas, &tenants.iter().collect::<Vec<_>>());
    tree.add_used(1, 16);
    tree.change_minimum(1, 0, 16);
    assert!(
        !tree.is_minimum_borrowed(2, 1, 8),
        "the organization's nominal quota covers it"
    );
    tree.add_used(0, 8);
    assert!(tree.is_minimum_borrowed(2, 1, 8) && !tree.is_minimum_borrowed(2, 1, 9));
    assert!(!tree.is_borrowed(2, 0, 8), "red is within its own");
    assert_eq!(tree.minimum_gpus_owed_to(2), 8);
    tree.add_used(0, 24);
    assert!(
        tree.is_minimum_borrowed(2, 1, 16) && !tree.is_minimum_borrowed(2, 1, 17),
        "16 of them"
    );
    tree.remove_used(0, 32);
    tree.change_minimum(1, 8, 0);
    assert_eq!((tree.minimum_gpus_owed_to(2), tree.borrowed_minimum_gpus(1)), (0, 8));
}

#[test]
fn a_minimum_is_borrowed_only_if_others_have_a_nominal_quota() {
    let own = quota("own", "", 8, None);
    let (quotas, tenants) = ([own], [tenant("a", "own", 1), tenant("b", "", 1)]);
    let mut tree = Tree::new(&h100(), &quotas, &tenants.iter().collect::<Vec<_>>());
    for tenant in [0, 1] {
        tree.add_used(tenant, 32);
        tree.change_minimum(tenant, 0, 32);
    }
    assert_eq!((tree.borrowed_minimum_gpus(0), tree.borrowed_minimum_gpus(1)), (0, 32));
    assert_eq!(
        (tree.nominal_quota_left_at(0, 1), tree.nominal_quota_left_at(1, 1)),
        (0, 0)
    );
    tree.remove_used(0, 28);
    tree.add_leaving(0, 8);
    assert_eq!(tree.nominal_quota_left_at(0, 1), 0, "what leaves still counts");
    assert!(tree.may_stay_within_nominal_quota_at(0, 1, 4) && !tree.may_stay_within_nominal_quota_at(0, 1, 5));
}

#[test]
fn fairness_leaves_the_other_with_no_less() {
    with(|tree| {
        tree.add_used(0, 32);
        tree.add_used(1, 24);
        // b has weight 3: with 48 more it has 72/3 = 24, as a has without 8.
        assert!(tree.is_fairer(1, 0, 48, 8) && !tree.is_fairer(1, 0, 49, 8));
        assert!(!tree.is_fairer(0, 1, 8, 8));
    });
}

#[test]
fn gpus_beyond_the_lending_limit_are_not_lent() {
    let mut own = quota("own", "", 24, None);
    own.lending_limit.insert("h100".into(), 8);
    let (quotas, tenants) = ([own], [tenant("a", "own", 1), tenant("b", "", 1)]);
    let mut tree = Tree::new(&h100(), &quotas, &tenants.iter().collect::<Vec<_>>());
    assert!(tree.has_lending_limits());
    assert_eq!(
        (tree.gpus_not_lent_by_others(1), tree.gpus_not_lent_by_others(0)),
        (16, 0)
    );
    tree.add_used(0, 8);
    assert_eq!(
        tree.gpus_not_lent_by_others(1),
        8,
        "GPUs that the quota uses itself do not count"
    );
}

#[test]
fn limits_of_several_pools_count_what_the_others_have() {
    let pool = |name: &str, product: Option<&str>, gpus: bool| Pool {
        name: name.into(),
        gpu_resource_name: gpus.then(|| "nvidia.com/gpu".into()),
        product: product.map(Into::into),
        ..Pool::default()
    };
    let mut quotas = [quota("x", "", 0, None)];
    quotas[0].total_limit = Some(32);
    quotas[0].product_limit = BTreeMap::from([("H100".to_owned(), 16)]);
    let tenants = [tenant("a", "x", 1)];
    let tenants: Vec<&Tenant> = tenants.iter().collect();
    let tree = |pool: &Pool| Tree::new(pool, &quotas, &tenants);
    let mut first = tree(&pool("first", Some("H100"), true));
    let mut second = tree(&pool("second", Some("H100"), true));
    let mut other = tree(&pool("other", Some("L40S"), true));
    let mut cpu = tree(&pool("cpu", None, false));
    second.add_used(0, 4);
    second.add_leaving(0, 4);
    other.add_used(0, 8);
    cpu.add_used(0, 100);
    first.count_elsewhere(&[&second, &other, &cpu]);
    assert_eq!(first.exceeded_limit(0, 8), None);
    assert_eq!(first.exceeded_limit(0, 9).unwrap().scope, Scope::Product("H100"));
    assert!(first.may_stay(0, 12) && !first.may_stay(0, 13));
    other.count_elsewhere(&[&first, &second, &cpu]);
    assert_eq!(other.exceeded_limit(0, 16), None);
    assert_eq!(other.exceeded_limit(0, 17).unwrap().scope, Scope::AllPools);
    cpu.count_elsewhere(&[&first, &second, &other]);
    assert_eq!(cpu.exceeded_limit(0, 1000), None, "it has no GPUs");
    first.add_used(0, 13);
    let holders = all(&first);
    assert_eq!(
        first.find_quota_over_limit(&holders).unwrap().1.scope,
        Scope::Product("H100")
    );
}

#[test]
fn what_a_quota_above_that_does_not_exist_would_allow_is_not_known() {
    let quotas = [
        quota("x", "missing", 8, None),
        quota("y", "x", 8, None),
        quota("z", "", 8, None),
    ];
    let tenants = [tenant("a", "x", 1), tenant("b", "y", 1), tenant("c", "z", 1)];
    let tree = Tree::new(&h100(), &quotas, &tenants.iter().collect::<Vec<_>>());
    let missing = [0, 1, 2].map(|tenant| tree.missing_quota(tenant));
    assert_eq!(missing, [Some("missing"), Some("missing"), None]);
}

#[test]
fn a_quota_below_itself_is_placed_below_the_root() {
    let quotas = [quota("x", "y", 8, Some(8)), quota("y", "x", 8, None)];
    let tenants = [tenant("a", "x", 1)];
    let tree = Tree::new(&h100(), &quotas, &tenants.iter().collect::<Vec<_>>());
    assert_eq!(short(tree.exceeded_limit(0, 9)), Some(("x", 8)));
}

#[test]
fn what_levels_do_not_lend_is_the_larger_of_their_own_and_of_what_is_below() {
    let lending = |quota: Quota, gpus: u64| Quota {
        lending_limit: BTreeMap::from([("h100".to_string(), gpus)]),
        ..quota
    };
    let quotas = [
        lending(quota("org", "", 40, None), 10),
        lending(quota("red", "org", 16, None), 0),
        quota("blue", "org", 8, None),
    ];
    let tenants = tenants();
    let mut tree = Tree::new(&h100(), &quotas, &tenants.iter().collect::<Vec<_>>());
    let not_lent_to = |tree: &Tree<'_>| [0, 2, 3].map(|tenant| tree.gpus_not_lent_by_others(tenant));
    assert_eq!(not_lent_to(&tree), [0, 16, 30]);
    tree.add_used(2, 20);
    assert_eq!(not_lent_to(&tree), [0, 16, 16], "red uses nothing of its own");
    tree.add_used(0, 16);
    assert_eq!(not_lent_to(&tree), [0, 0, 0]);
    tree.remove_used(0, 8);
    assert_eq!(not_lent_to(&tree), [0, 8, 8]);
    tree.remove_used(2, 20);
    assert_eq!(not_lent_to(&tree), [0, 8, 22]);
}

#[test]
fn what_a_team_does_not_lend_is_not_within_the_nominal_quota_of_its_organization_for_others() {
    let red = Quota {
        lending_limit: BTreeMap::from([("h100".to_string(), 0)]),
        ..quota("red", "org", 16, None)
    };
    let quotas = [quota("org", "", 32, None), red, quota("blue", "org", 8, None)];
    let tenants = [tenant("r", "red", 1), tenant("b", "blue", 1)];
    let mut tree = Tree::new(&h100(), &quotas, &tenants.iter().collect::<Vec<_>>());
    let is_lent = |tree: &Tree<'_>, gpus: u64| tree.is_lent_within_nominal_quota(1, gpus, &[]);
    assert!(is_lent(&tree, 8), "within its own");
    tree.add_used(1, 8);
    assert!(
        is_lent(&tree, 8) && !is_lent(&tree, 9),
        "the organization has 8 besides"
    );
    tree.add_used(0, 8);
    assert!(is_lent(&tree, 8) && !is_lent(&tree, 9), "red uses a part of its own");
    tree.remove_used(0, 8);
    tree.add_leaving(1, 8);
    assert!(!is_lent(&tree, 8));
    assert!(
        tree.is_lent_within_nominal_quota(1, 8, &[(1, 8)]),
        "it has no more then"
    );
}

#[test]
fn a_node_that_moves_within_a_quota_leaves_as_much_owed_as_before() {
    let (quotas, tenants) = (
        [quota("own", "", 16, None)],
        [tenant("a", "own", 1), tenant("b", "own", 1), tenant("c", "", 1)],
    );
    let mut tree = Tree::new(&h100(), &quotas, &tenants.iter().collect::<Vec<_>>());
    tree.add_leaving(0, 8);
    assert!(tree.is_owed(1, 2, 8) && !tree.is_owed(1, 2, 16));
    tree.add_moving(1, 0, 8);
    assert!(tree.is_owed(1, 2, 16) && !tree.is_owed(1, 2, 17));
    tree.remove_moving(1, 0, 8);
    assert!(!tree.is_owed(1, 2, 16));
}
