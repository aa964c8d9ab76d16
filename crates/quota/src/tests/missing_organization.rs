//! Projects that name an Organization that does not exist.

use super::*;

/// A Project with quotas of 3 tenants and 5 pods of an Organization that does not exist, and one beside it that may borrow.
fn projects() -> [Project; 2] {
    [
        project(
            "typo",
            Some("reserach"),
            1,
            &[],
            &[limited(TENANTS, 3), limited(PODS, 5)],
        ),
        project("beside", None, 1, &[], &[limited(TENANTS, 1)]),
    ]
}

fn has(mut claim: Claim, amounts: &[(TreeResource, u64)]) -> Claim {
    claim.reserved = Some(amounts.iter().cloned().collect());
    claim
}

#[test]
fn its_tenants_keep_what_they_have_and_get_no_more() {
    let projects = projects();
    let tree = Tree::new(&NO_ORGANIZATIONS, &projects);
    let runs = has(claim("runs", 1, "typo", &[TENANTS, PODS]), &[(TENANTS, 1), (PODS, 1)]);
    let grows = has(claim("grows", 2, "typo", &[TENANTS, PODS]), &[(TENANTS, 1)]);
    // There is quota in the Project itself.
    let outcome = decide(&tree, &[runs, grows, claim("new", 3, "typo", &[TENANTS])]);
    assert_eq!(reserved(&outcome), ["runs"]);
    let kept = |uid: &str| match &outcome.decisions[uid] {
        Decision::Waiting { kept, over, shortage } => {
            assert!(over.is_empty(), "{over:?}");
            assert_eq!(shortage.reason(), "UnknownOrganization");
            (kept.clone(), shortage.to_string())
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(kept("grows").0, Some([(TENANTS, 1)].into()));
    let (kept, message) = kept("new");
    assert_eq!(kept, None);
    assert!(
        message.contains("Project typo names Organization reserach, which does not exist"),
        "{message}"
    );
    // As soon as it exists, they get what fits.
    let created = [organization("reserach", &[limited(TENANTS, 2)])];
    let tree = Tree::new(&created, &projects);
    assert_eq!(
        reserved(&decide(&tree, &[claim("new", 3, "typo", &[TENANTS])])),
        ["new"]
    );
}

#[test]
fn even_without_quotas_of_its_own() {
    let projects = [project("typo", Some("reserach"), 1, &[], &[])];
    let tree = Tree::new(&NO_ORGANIZATIONS, &projects);
    assert!(reserved(&decide(&tree, &[claim("new", 1, "typo", &[TENANTS])])).is_empty());
}

#[test]
fn what_it_has_is_over_its_own_limits_only() {
    let over = |borrowing: Option<u32>| {
        let projects = [project(
            "typo",
            Some("reserach"),
            1,
            &[],
            &[with_limits(1, None, borrowing)],
        )];
        let tree = Tree::new(&NO_ORGANIZATIONS, &projects);
        let claims = [
            has(claim("a", 1, "typo", &[TENANTS]), &[(TENANTS, 1)]),
            has(claim("b", 2, "typo", &[TENANTS]), &[(TENANTS, 1)]),
        ];
        let outcome = decide(&tree, &claims);
        assert_eq!(outcome.usage.of_project("typo")[0].reserved, 2);
        match &outcome.decisions["b"] {
            Decision::Reserved { over, .. } => over.clone(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(over(None), OverQuota::new());
    assert_eq!(over(Some(0)), OverQuota::from([(TENANTS, 0)]));
}

#[test]
fn it_lends_nothing_to_others_and_takes_nothing_from_them() {
    let projects = projects();
    let tree = Tree::new(&NO_ORGANIZATIONS, &projects);
    let key = Key::of(TENANTS);
    let mut usage = Usage::new(&tree);
    assert_eq!(usage.available("beside", &key), Some(1), "it does not borrow");
    usage.add("typo", &key, 7);
    assert_eq!(usage.available("beside", &key), Some(1));
    assert_eq!(usage.of_root()[0].reserved, 7, "it is counted");
    usage.remove("typo", &key, 7);
    assert_eq!(usage.of_root()[0].reserved, 0);
    assert_eq!(usage.available("beside", &key), Some(1));
}
