//! Manifests that are applied once for each version.

use super::{
    GUARD, NEXT_CHECK, OTHER_ROLE, RETRY, ROLE, WRITER, applied, manifest, set_class, set_data, set_guards,
    with_manifest,
};
use serde_json::json;
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn a_version_is_applied_once() {
    let mut fixture = Box::pin(with_manifest("Once")).await;
    let role = fixture.tenant.get(ROLE).unwrap();
    assert!(role["metadata"]["labels"].is_null(), "it is the team's");
    fixture.tenant.remove(ROLE);
    fixture.context.tenants = std::sync::Arc::default();
    for _ in 0..3 {
        fixture.reconcile().await.unwrap();
        sleep(NEXT_CHECK).await;
    }
    assert!(fixture.tenant.get(ROLE).is_none());
    set_class(&fixture, &manifest("v2", "Once"));
    fixture.reconcile().await.unwrap();
    assert!(fixture.tenant.get(ROLE).is_some());
    assert_eq!(fixture.status()["manifests"][0]["version"], "v2");
}

#[tokio::test(start_paused = true)]
async fn what_was_applied_once_is_the_teams_also_while_the_rest_fails() {
    let mut fixture = Box::pin(with_manifest("Keep")).await;
    let unknown = "apiVersion: rbac.authorization.k8s.io/v1\nkind: Unknown\nmetadata: {name: a}\n";
    set_data(&fixture, "base", &json!({"a": WRITER, "b": unknown}));
    set_class(&fixture, &manifest("v1", "Once"));
    fixture.reconcile().await.unwrap();
    assert_eq!(applied(&fixture), ("False".into(), "ApplyFailed".into()));
    assert!(fixture.tenant.get(OTHER_ROLE).is_some());
    fixture.tenant.remove(OTHER_ROLE);
    for _ in 0..3 {
        sleep(RETRY).await;
        fixture.reconcile().await.unwrap();
    }
    assert!(fixture.tenant.get(OTHER_ROLE).is_none());
    assert_eq!(applied(&fixture), ("False".into(), "ApplyFailed".into()));
}

#[tokio::test(start_paused = true)]
async fn a_version_is_applied_once_also_while_a_server_does_not_answer() {
    let mut fixture = Box::pin(with_manifest("Keep")).await;
    set_guards(&fixture, &[GUARD, WRITER], &["guards"]);
    set_class(&fixture, &manifest("v2", "Once"));
    fixture.tenant.never_answer(Some("/guards"));
    fixture.reconcile().await.unwrap();
    assert!(fixture.tenant.get(OTHER_ROLE).is_some());
    assert_eq!(
        fixture.status()["manifests"][0]["version"],
        "v1",
        "what was applied last"
    );
    fixture.tenant.remove(OTHER_ROLE);
    fixture.tenant.never_answer(None);
    fixture.reconcile().await.unwrap();
    assert_eq!(applied(&fixture), ("True".into(), "Applied".into()));
    assert_eq!(fixture.status()["manifests"][0]["version"], "v2");
    assert!(fixture.tenant.get(OTHER_ROLE).is_none(), "it is the team's");
}
