//! Kinds that the tenant does not serve, or that the team serves as something else.

use super::{GUARD, ROLE, applied, message, set_documents, set_guards, set_roles, with_manifest};
use serde_json::json;

/// What defines the kind of `GUARD`.
const DEFINITION: &str = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n\
                          metadata: {name: guards.platform.example}\n\
                          spec: {group: platform.example, names: {kind: Guard, plural: guards}}\n";

#[tokio::test(start_paused = true)]
async fn a_kind_that_the_tenant_does_not_serve_is_reported_and_tried_again() {
    let mut fixture = Box::pin(with_manifest("Keep")).await;
    let unknown = "apiVersion: rbac.authorization.k8s.io/v1\nkind: Unknown\nmetadata: {name: a}";
    set_documents(&fixture, &[unknown]);
    fixture.reconcile().await.unwrap();
    assert_eq!(applied(&fixture), ("False".into(), "ApplyFailed".into()));
    let message = message(&fixture);
    assert!(
        message.contains("Unknown a: the tenant does not serve the kind"),
        "{message}"
    );
    assert_eq!(
        fixture.status()["manifests"][0]["version"],
        "v1",
        "what was applied last"
    );
    set_roles(&fixture, "base", &["reader"], "list");
    fixture.reconcile().await.unwrap();
    assert_eq!(applied(&fixture), ("True".into(), "Applied".into()));
    assert_eq!(fixture.tenant.get(ROLE).unwrap()["rules"][0]["verbs"], json!(["list"]));
}

#[tokio::test(start_paused = true)]
async fn objects_of_a_kind_that_the_manifests_define_go_to_no_other_resource() {
    let guard = |plural: &str| format!("/apis/platform.example/v1/{plural}/g1");
    let mut fixture = Box::pin(with_manifest("Keep")).await;
    // The team's kind, as long as the class has none.
    set_guards(&fixture, &[GUARD], &["evils"]);
    for _ in 0..2 {
        fixture.reconcile().await.unwrap();
    }
    assert_eq!(applied(&fixture), ("True".into(), "Applied".into()));
    assert!(fixture.tenant.get(&guard("evils")).is_some());
    fixture.tenant.remove(&guard("evils"));
    set_guards(&fixture, &[DEFINITION, GUARD], &["evils"]);
    for _ in 0..2 {
        fixture.reconcile().await.unwrap();
        assert_eq!(applied(&fixture), ("False".into(), "ApplyFailed".into()));
        assert!(fixture.tenant.get(&guard("evils")).is_none());
    }
    set_guards(&fixture, &[DEFINITION, GUARD], &["evils", "guards"]);
    fixture.reconcile().await.unwrap();
    assert_eq!(applied(&fixture), ("True".into(), "Applied".into()));
    assert!(fixture.tenant.get(&guard("guards")).is_some());
    assert!(fixture.tenant.get(&guard("evils")).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_kind_with_two_resources_is_reported() {
    let mut fixture = Box::pin(with_manifest("Keep")).await;
    set_guards(&fixture, &[GUARD], &["evils", "guards"]);
    fixture.reconcile().await.unwrap();
    assert_eq!(applied(&fixture), ("False".into(), "ApplyFailed".into()));
    let message = message(&fixture);
    assert!(
        message.contains("Guard g1: the tenant serves the kind as evils"),
        "{message}"
    );
    assert!(fixture.tenant.find("/apis/platform.example/").is_empty());
}
