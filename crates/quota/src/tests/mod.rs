//! Decisions and use of whole trees: examples, and properties over random histories.

mod counted;
mod histories;
mod missing_organization;
mod properties;

use crate::{Amounts, Claim, Decision, Key, Outcome, OverQuota, Shortage, Tree, Usage, decide};
use berth_api::{Amount, Organization, OrganizationSpec, Project, ProjectSpec, TreeQuota, TreeResource};
use std::collections::BTreeSet;

const TENANTS: TreeResource = TreeResource::TenantClusters;
const PODS: TreeResource = TreeResource::Pods;
const NO_ORGANIZATIONS: [Organization; 0] = [];

/// A quota of a resource with nothing but a nominal quota.
pub(crate) fn limited(resource: TreeResource, nominal: u32) -> TreeQuota {
    TreeQuota {
        resource,
        pool_name: None,
        gpu_product: None,
        nominal_quota: nominal.into(),
        borrowing_limit: None,
        lending_limit: None,
    }
}

/// A Project that was created at a second.
pub(crate) fn project(
    name: &str,
    organization: Option<&str>,
    created: i64,
    namespaces: &[&str],
    quotas: &[TreeQuota],
) -> Project {
    let spec = ProjectSpec {
        organization_name: organization.map(Into::into),
        namespaces: namespaces.iter().map(ToString::to_string).collect(),
        quotas: quotas.to_vec(),
        ..ProjectSpec::default()
    };
    let mut project = Project::new(name, spec);
    let time = serde_json::json!(format!("1970-01-01T00:00:{created:02}Z"));
    project.metadata.creation_timestamp = serde_json::from_value(time).ok();
    project
}

fn organization(name: &str, quotas: &[TreeQuota]) -> Organization {
    let spec = OrganizationSpec {
        quotas: quotas.to_vec(),
        ..OrganizationSpec::default()
    };
    Organization::new(name, spec)
}

fn with_limits(nominal: u32, lending: Option<u32>, borrowing: Option<u32>) -> TreeQuota {
    TreeQuota {
        lending_limit: lending.map(Amount::from),
        borrowing_limit: borrowing.map(Amount::from),
        ..limited(TENANTS, nominal)
    }
}

/// A new tenant that is created at a second and requests one of each of these.
fn claim(uid: &str, created: i64, project: &str, resources: &[TreeResource]) -> Claim {
    Claim {
        uid: uid.into(),
        name: format!("team/{uid}"),
        created,
        project: project.into(),
        requested: Some(resources.iter().map(|resource| (resource.clone(), 1)).collect()),
        unlimited: BTreeSet::new(),
        reserved: None,
        at_most: Amounts::from([(TENANTS, 1)]),
        counted: Amounts::new(),
    }
}

fn reserved<'o>(outcome: &'o Outcome<'_>) -> Vec<&'o str> {
    let decisions = outcome.decisions.iter();
    decisions
        .filter(|(_, decision)| matches!(decision, Decision::Reserved { .. }))
        .map(|(uid, _)| uid.as_str())
        .collect()
}

/// What the tenants have after a decision, for the next one.
fn record(claims: &mut [Claim], outcome: &Outcome<'_>) {
    for claim in claims {
        claim.reserved = match &outcome.decisions[&claim.uid] {
            Decision::Reserved { amounts, .. } => Some(amounts.clone()),
            Decision::Waiting { kept, .. } => kept.clone(),
            Decision::Nothing => None,
        };
    }
}

#[test]
fn the_oldest_tenants_get_what_there_is_and_the_others_are_told_what_is_missing() {
    let tree = Tree::new(&NO_ORGANIZATIONS, &[project("p", None, 1, &[], &[limited(TENANTS, 2)])]);
    let claims: Vec<Claim> = (0..5)
        .map(|number| claim(&format!("t{number}"), 10 - number, "p", &[TENANTS]))
        .collect();
    let outcome = decide(&tree, &claims);
    assert_eq!(reserved(&outcome), ["t3", "t4"]);
    let Decision::Waiting {
        kept: None,
        over,
        shortage,
    } = &outcome.decisions["t0"]
    else {
        panic!("{:?}", outcome.decisions["t0"])
    };
    assert!(over.is_empty());
    assert_eq!(
        shortage.to_string(),
        "the tenant needs 1 of tenantclusters and 0 are left: Project p has reserved 2 of 2; delete tenants, or ask the platform team \
         for more quota"
    );
}

#[test]
fn a_tenant_gets_all_or_nothing_and_does_not_hold_up_smaller_ones() {
    let quotas = [limited(TENANTS, 9), limited(PODS, 1)];
    let tree = Tree::new(&NO_ORGANIZATIONS, &[project("p", None, 1, &[], &quotas)]);
    let mut large = claim("large", 1, "p", &[TENANTS]);
    large.requested = Some(Amounts::from([(TENANTS, 1), (PODS, 2)]));
    let outcome = decide(&tree, &[large, claim("small", 2, "p", &[TENANTS, PODS])]);
    assert_eq!(reserved(&outcome), ["small"]);
    let Decision::Waiting { shortage, .. } = &outcome.decisions["large"] else {
        panic!()
    };
    assert!(matches!(shortage, Shortage::NotEnough { resource, .. } if *resource == PODS));
    assert_eq!(
        outcome.usage.of_project("p")[0].reserved,
        1,
        "nothing is kept for the large one"
    );
}

#[test]
fn projects_borrow_what_others_lend_and_no_more() {
    let organizations = [organization("lab", &[with_limits(10, None, Some(0))])];
    let projects = [
        project("a", Some("lab"), 1, &[], &[with_limits(4, Some(1), None)]),
        project("b", Some("lab"), 2, &[], &[with_limits(4, None, Some(2))]),
        project("c", Some("lab"), 3, &[], &[]),
    ];
    let tree = Tree::new(&organizations, &projects);
    let usage = Usage::new(&tree);
    let key = Key::of(TENANTS);
    // Its own 4, 2 of the Organization alone, 4 of b.
    assert_eq!(usage.available("a", &key), Some(10));
    // Limited by what it may borrow.
    assert_eq!(usage.available("b", &key), Some(6));
    // Everything but what a does not lend.
    assert_eq!(usage.available("c", &key), Some(7));
    assert_eq!(usage.available("c", &Key::of(PODS)), None);
}

#[test]
fn organizations_borrow_from_each_other() {
    let organizations = [
        organization("a", &[with_limits(2, None, None)]),
        organization("b", &[with_limits(5, Some(3), None)]),
    ];
    let projects = [
        project("pa", Some("a"), 1, &[], &[]),
        project("pb", Some("b"), 1, &[], &[]),
    ];
    let tree = Tree::new(&organizations, &projects);
    let mut usage = Usage::new(&tree);
    let key = Key::of(TENANTS);
    assert_eq!(usage.available("pa", &key), Some(5));
    usage.add("pa", &key, 5);
    assert_eq!(usage.available("pb", &key), Some(2), "what b does not lend");
    assert_eq!(usage.of_organization("a")[0].borrowed(), 3);
    usage.remove("pa", &key, 5);
    assert_eq!(usage.available("pb", &key), Some(7));
}

#[test]
fn what_exists_stays_when_a_quota_is_lowered_and_the_youngest_is_over() {
    let mut claims = [claim("old", 1, "p", &[TENANTS]), claim("new", 2, "p", &[TENANTS])];
    let wide = Tree::new(&NO_ORGANIZATIONS, &[project("p", None, 1, &[], &[limited(TENANTS, 2)])]);
    let outcome = decide(&wide, &claims);
    record(&mut claims, &outcome);
    let narrow = Tree::new(&NO_ORGANIZATIONS, &[project("p", None, 1, &[], &[limited(TENANTS, 1)])]);
    let outcome = decide(&narrow, &claims);
    let over = |uid: &str| match &outcome.decisions[uid] {
        Decision::Reserved { over, .. } => over.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        (over("old"), over("new")),
        (OverQuota::new(), OverQuota::from([(TENANTS, 0)]))
    );
    assert_eq!(outcome.usage.of_project("p")[0].borrowed(), 1);
}

#[test]
fn a_tenant_that_is_over_a_quota_stays_so_when_it_requests_more() {
    let quotas = [limited(TENANTS, 9), limited(PODS, 4)];
    let tree = Tree::new(&NO_ORGANIZATIONS, &[project("p", None, 1, &[], &quotas)]);
    let mut tenant = claim("a", 1, "p", &[]);
    tenant.reserved = Some(Amounts::from([(TENANTS, 1), (PODS, 10)]));
    let expected = OverQuota::from([(PODS, 4)]);
    for (requested, waits) in [
        (Amounts::from([(TENANTS, 1), (PODS, 20)]), true),
        (Amounts::from([(TENANTS, 2), (PODS, 10)]), false),
        (Amounts::from([(TENANTS, 1), (PODS, 10)]), false),
    ] {
        tenant.requested = Some(requested);
        let outcome = decide(&tree, std::slice::from_ref(&tenant));
        match &outcome.decisions["a"] {
            Decision::Reserved { over, .. } if !waits => assert_eq!(over, &expected),
            Decision::Waiting { over, .. } if waits => assert_eq!(over, &expected),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_tenants_use_is_summed_up_and_limits_nothing() {
    let organizations = [organization("lab", &[limited(PODS, 10)])];
    let projects = [
        project("a", Some("lab"), 1, &[], &[with_limits(4, Some(1), None)]),
        project("b", Some("lab"), 2, &[], &[]),
        project("alone", None, 3, &[], &[limited(PODS, 1)]),
    ];
    let tree = Tree::new(&organizations, &projects);
    let mut usage = Usage::new(&tree);
    let key = Key::of(PODS);
    let before = usage.available("a", &key);
    for (project, amount) in [("a", 3), ("b", 4), ("alone", 5), ("unknown", 9)] {
        usage.add_used(project, &key, amount);
        usage.add_used(project, &Key::of(TreeResource::Services), 1);
    }
    assert_eq!(usage.available("a", &key), before);
    assert!(usage.is_limited("b", &key) && !usage.is_limited("b", &Key::of(TENANTS)));
    let used = |all: Vec<crate::QuotaUse>| {
        let found = all.into_iter().find(|used| used.key == key);
        found.map(|used| (used.nominal, used.reserved, used.used))
    };
    assert_eq!(used(usage.of_project("a")), Some((0, 0, 3)));
    assert_eq!(used(usage.of_organization("lab")), Some((10, 0, 7)));
    assert_eq!(used(usage.of_root()), Some((11, 0, 12)));
}

#[test]
fn a_level_is_over_its_limit_only_beyond_what_it_may_borrow() {
    let organizations = [organization("lab", &[with_limits(3, None, Some(1))])];
    let projects = [
        project("a", Some("lab"), 1, &[], &[with_limits(4, None, Some(2))]),
        project("b", Some("lab"), 2, &[], &[with_limits(1, None, None)]),
    ];
    let tree = Tree::new(&organizations, &projects);
    let mut usage = Usage::new(&tree);
    let key = Key::of(TENANTS);
    let limits = |usage: &Usage<'_>| {
        let all = [
            usage.of_project("a"),
            usage.of_project("b"),
            usage.of_organization("lab"),
        ];
        all.map(|used| (used[0].limit, used[0].is_over_limit()))
    };
    usage.add("a", &key, 6);
    // The nominal quota of the Organization is the sum of those of its Projects.
    assert_eq!(limits(&usage), [(Some(6), false), (None, false), (Some(6), false)]);
    usage.add("b", &key, 9);
    assert_eq!(limits(&usage), [(Some(6), false), (None, false), (Some(6), true)]);
    usage.add("a", &key, 1);
    assert_eq!(limits(&usage), [(Some(6), true), (None, false), (Some(6), true)]);
}

#[test]
fn a_tenant_that_cannot_grow_keeps_what_it_has_and_one_that_shrinks_gives_back() {
    let tree = Tree::new(&NO_ORGANIZATIONS, &[project("p", None, 1, &[], &[limited(PODS, 10)])]);
    let mut claims = [claim("a", 1, "p", &[]), claim("b", 2, "p", &[])];
    claims[0].reserved = Some(Amounts::from([(PODS, 5)]));
    claims[0].requested = Some(Amounts::from([(PODS, 8)]));
    claims[1].reserved = Some(Amounts::from([(PODS, 5)]));
    claims[1].requested = Some(Amounts::from([(PODS, 3)]));
    claims[1].at_most = Amounts::from([(PODS, 3)]);
    let outcome = decide(&tree, &claims);
    assert_eq!(reserved(&outcome), ["b"]);
    let Decision::Waiting { kept, .. } = &outcome.decisions["a"] else {
        panic!()
    };
    assert_eq!(kept.as_ref().unwrap()[&PODS], 5);
    assert_eq!(outcome.usage.of_project("p")[0].reserved, 8);
    claims[1].requested = Some(Amounts::from([(PODS, 2)]));
    claims[1].at_most = Amounts::from([(PODS, 2)]);
    assert_eq!(reserved(&decide(&tree, &claims)), ["a", "b"]);
}

#[test]
fn a_class_without_a_limit_is_not_enough_for_a_quota() {
    let storage = TreeResource::RequestsStorage;
    let mut tenant = claim("a", 1, "p", &[TENANTS]);
    tenant.unlimited = BTreeSet::from([storage.clone()]);
    let tree = Tree::new(
        &NO_ORGANIZATIONS,
        &[project("p", None, 1, &[], &[limited(storage.clone(), 10)])],
    );
    let outcome = decide(&tree, std::slice::from_ref(&tenant));
    let Decision::Waiting { shortage, .. } = &outcome.decisions["a"] else {
        panic!()
    };
    assert_eq!(shortage, &Shortage::NoLimit { resource: storage });
    let without = Tree::new(&NO_ORGANIZATIONS, &[project("p", None, 1, &[], &[])]);
    assert_eq!(reserved(&decide(&without, std::slice::from_ref(&tenant))), ["a"]);
}

#[test]
fn resources_of_the_host_are_reserved_like_others() {
    let memory = TreeResource::Host("requests.memory".into());
    let mut quota = limited(memory.clone(), 0);
    quota.nominal_quota = Amount::Text("3Gi".into());
    let tree = Tree::new(&NO_ORGANIZATIONS, &[project("p", None, 1, &[], &[quota])]);
    assert_eq!(tree.resources(), BTreeSet::from([memory.clone()]));
    let mut claims = [claim("a", 1, "p", &[]), claim("b", 2, "p", &[])];
    for tenant in &mut claims {
        tenant.requested = Some(Amounts::from([(memory.clone(), 2 << 30)]));
    }
    let outcome = decide(&tree, &claims);
    assert_eq!(reserved(&outcome), ["a"]);
    let Decision::Waiting { shortage, .. } = &outcome.decisions["b"] else {
        panic!()
    };
    assert_eq!(
        shortage.to_string(),
        "the tenant needs 2Gi of requests.memory and 1Gi are left: Project p has reserved 2Gi of 3Gi; delete tenants, or ask the \
         platform team for more quota or a class with a lower requests.memory of limits.resources"
    );
    // The largest amounts add up without overflow.
    claims[0].reserved = Some(Amounts::from([(memory.clone(), u64::MAX)]));
    claims[1].reserved = Some(Amounts::from([(memory, u64::MAX)]));
    for tenant in &mut claims {
        tenant.requested = None;
    }
    assert_eq!(decide(&tree, &claims).usage.of_project("p")[0].reserved, u64::MAX);
}

#[test]
fn a_tenant_that_is_not_accepted_takes_nothing_and_loses_nothing() {
    let tree = Tree::new(&NO_ORGANIZATIONS, &[project("p", None, 1, &[], &[limited(TENANTS, 1)])]);
    let mut claims = [claim("a", 1, "p", &[TENANTS]), claim("b", 2, "p", &[TENANTS])];
    claims[0].requested = None;
    let outcome = decide(&tree, &claims);
    assert_eq!(outcome.decisions["a"], Decision::Nothing);
    assert_eq!(reserved(&outcome), ["b"]);
    claims[0].reserved = Some(Amounts::from([(TENANTS, 1)]));
    assert_eq!(reserved(&decide(&tree, &claims)), ["a"]);
}
