//! Objects that no manifest has any more.

use super::{
    OTHER_ROLE, RETRY, ROLE, applied, map_path, serve_kind, set_class, set_documents, set_roles, with_manifest,
};
use serde_json::json;
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn what_no_manifest_has_any_more_is_deleted_also_by_another_control() {
    let mut fixture = Box::pin(with_manifest("Keep")).await;
    set_roles(&fixture, "base", &["writer"], "get");
    fixture.reconcile().await.unwrap();
    assert!(fixture.tenant.get(ROLE).is_none() && fixture.tenant.get(OTHER_ROLE).is_some());
    // A ConfigMap that is gone deletes nothing.
    fixture.host.remove(&map_path("base"));
    fixture.reconcile().await.unwrap();
    assert_eq!(applied(&fixture), ("False".into(), "ConfigMapMissing".into()));
    assert!(fixture.tenant.get(OTHER_ROLE).is_some());
    assert_eq!(fixture.condition("Ready").unwrap()["status"], "True");
    // A class without manifests does.
    fixture.context.tenants = std::sync::Arc::default();
    set_class(&fixture, &json!([]));
    for _ in 0..5 {
        fixture.reconcile().await.unwrap();
        sleep(RETRY).await;
    }
    assert!(fixture.tenant.get(OTHER_ROLE).is_none());
    assert!(fixture.condition("ManifestsApplied").is_none() && fixture.status()["manifests"].is_null());
}

#[tokio::test(start_paused = true)]
async fn an_object_that_lost_its_labels_is_not_deleted() {
    let mut fixture = Box::pin(with_manifest("Keep")).await;
    let mut foreign = fixture.tenant.get(ROLE).unwrap();
    foreign["metadata"]["labels"] = json!({});
    fixture.tenant.insert(ROLE, foreign);
    set_roles(&fixture, "base", &["writer"], "get");
    fixture.reconcile().await.unwrap();
    assert!(fixture.tenant.get(ROLE).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_cannot_be_deleted_is_released() {
    let mut fixture = Box::pin(with_manifest("Keep")).await;
    serve_kind(&fixture, "v1", "Namespace", false, &["namespaces"]);
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: default, labels: {pod-security.kubernetes.io/enforce: baseline}}";
    set_documents(&fixture, &[namespace]);
    // The second sees that what is deleted is gone.
    for _ in 0..2 {
        fixture.reconcile().await.unwrap();
    }
    assert_eq!(applied(&fixture), ("True".into(), "Applied".into()));
    let path = "/api/v1/namespaces/default";
    assert_eq!(
        fixture.tenant.get(path).unwrap()["metadata"]["labels"]["berth.dev/managed-by"],
        "platform"
    );
    set_roles(&fixture, "base", &["reader"], "get");
    for _ in 0..2 {
        fixture.reconcile().await.unwrap();
    }
    assert!(fixture.tenant.get(path).is_some());
    assert_eq!(applied(&fixture), ("True".into(), "Applied".into()));
}
