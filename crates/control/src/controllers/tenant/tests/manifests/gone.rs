//! Objects of kinds that the tenant defines count as deleted when its API server itself says so.

use super::{
    super::fixture::UID, Fixture, GUARD, RETRY, WRITER, applied, message, serve_kind, set_documents, set_guards,
    set_registration, until_applied, with_manifest,
};
use serde_json::{Value, json};
use tokio::time::sleep;

const GROUP: &str = "platform.example";
/// Path of the object of the manifest.
const OBJECT: &str = "/apis/platform.example/v1/guards/g1";

fn definition(plural: &str) -> String {
    format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.{GROUP}")
}

/// Defines the kind Guard under a plural name, served in version `v1`; also whether it is established.
fn define(fixture: &Fixture, plural: &str, is_established: &str) {
    define_kind(fixture, "Guard", plural, is_established);
}

/// The same of any kind.
fn define_kind(fixture: &Fixture, kind: &str, plural: &str, is_established: &str) {
    let object = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": {"group": GROUP, "names": {"kind": kind, "plural": plural}, "versions": [
            {"name": "v1alpha1", "served": false, "storage": false},
            {"name": "v1", "served": true, "storage": true}]},
        "status": {"conditions": [{"type": "Established", "status": is_established}]}});
    fixture.tenant.insert(&definition(plural), object);
}

/// A tenant that defines the kind, with an object of the manifest. The manifest drops it, and a server of the team's says that there is none:
/// also the object.
async fn with_hidden_guard() -> (Fixture, Value) {
    let mut fixture = Box::pin(with_manifest("Keep")).await;
    set_guards(&fixture, &[GUARD, WRITER], &["guards"]);
    define(&fixture, "guards", "True");
    set_registration(&fixture, GROUP, false);
    until_applied(&mut fixture).await;
    let hidden = fixture.tenant.get(OBJECT).unwrap();
    fixture.tenant.remove(OBJECT);
    set_documents(&fixture, &[WRITER]);
    (fixture, hidden)
}

/// Reconciles once, and waits until that may be repeated. The object is not known to be deleted, for this reason. Returns the message.
async fn reconcile_in_vain(fixture: &mut Fixture, reason: &str) -> String {
    Box::pin(fixture.reconcile()).await.unwrap();
    assert_eq!(applied(fixture), ("False".into(), reason.into()));
    sleep(RETRY).await;
    message(fixture)
}

/// Reconciles until the manifests are applied. The tenant has no object of the group then.
async fn until_deleted(fixture: &mut Fixture) {
    until_applied(fixture).await;
    assert!(fixture.tenant.find("/apis/platform.example/").is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_object_that_a_server_of_the_team_hides_is_deleted_when_the_server_is_gone() {
    let (mut fixture, hidden) = Box::pin(with_hidden_guard()).await;
    set_registration(&fixture, GROUP, true);
    for _ in 0..3 {
        let message = reconcile_in_vain(&mut fixture, "ApplyFailed").await;
        assert!(
            message.contains(
                "Guard g1: cannot be deleted: the APIService v1.platform.example in the tenant leads to another"
            ),
            "{message}"
        );
    }
    fixture.tenant.insert(OBJECT, hidden);
    set_registration(&fixture, GROUP, false);
    until_deleted(&mut fixture).await;
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_hidden_only_while_control_asks_for_it_is_deleted() {
    let (mut fixture, hidden) = Box::pin(with_hidden_guard()).await;
    for _ in 0..4 {
        // Control never sees the other server, but that the APIService was changed.
        set_registration(&fixture, GROUP, false);
        reconcile_in_vain(&mut fixture, "Pruning").await;
    }
    fixture.tenant.insert(OBJECT, hidden);
    until_deleted(&mut fixture).await;
}

#[tokio::test(start_paused = true)]
async fn an_object_whose_version_is_not_served_any_more_is_deleted_in_another() {
    let mut fixture = Box::pin(with_manifest("Keep")).await;
    serve_kind(&fixture, "platform.example/v1alpha1", "Guard", false, &["guards"]);
    let guard = GUARD.replace("/v1\n", "/v1alpha1\n");
    set_guards(&fixture, &[&guard, WRITER], &[]);
    until_applied(&mut fixture).await;
    // One change of the class: the definition serves another version, and the object is dropped.
    let earlier = OBJECT.replace("/v1/", "/v1alpha1/");
    let stored = fixture.tenant.get(&earlier).unwrap();
    fixture.tenant.remove(&earlier);
    fixture.tenant.insert(OBJECT, stored);
    fixture.tenant.serve("/apis/platform.example/v1alpha1", Value::Null);
    define(&fixture, "guards", "True");
    set_registration(&fixture, GROUP, false);
    set_documents(&fixture, &[WRITER]);
    until_deleted(&mut fixture).await;
}

#[tokio::test(start_paused = true)]
async fn an_object_is_looked_for_by_all_definitions_of_its_kind() {
    let mut fixture = Box::pin(with_manifest("Keep")).await;
    set_guards(&fixture, &[GUARD, WRITER], &["evils"]);
    until_applied(&mut fixture).await;
    assert_eq!(fixture.tenant.find("/apis/platform.example/v1/evils/").len(), 1);
    define(&fixture, "guards", "True");
    define(&fixture, "evils", "True");
    set_registration(&fixture, GROUP, false);
    set_documents(&fixture, &[WRITER]);
    until_deleted(&mut fixture).await;
}

#[tokio::test(start_paused = true)]
async fn an_object_of_a_definition_that_is_not_served_waits_until_the_definition_is_gone() {
    let (mut fixture, _) = Box::pin(with_hidden_guard()).await;
    define(&fixture, "guards", "False");
    for _ in 0..2 {
        let message = reconcile_in_vain(&mut fixture, "ApplyFailed").await;
        assert!(
            message.contains("does not serve its CustomResourceDefinition guards.platform.example"),
            "{message}"
        );
    }
    // Its objects went with it.
    fixture.tenant.remove(&definition("guards"));
    until_applied(&mut fixture).await;
}

/// Who makes a definition not established may give it another kind, and its kind back later.
#[tokio::test(start_paused = true)]
async fn an_object_whose_definition_gets_another_kind_is_not_forgotten() {
    let (mut fixture, hidden) = Box::pin(with_hidden_guard()).await;
    serve_kind(&fixture, "platform.example/v1", "Other", false, &["guards"]);
    define_kind(&fixture, "Other", "guards", "False");
    for _ in 0..3 {
        reconcile_in_vain(&mut fixture, "ApplyFailed").await;
    }
    fixture.tenant.insert(OBJECT, hidden);
    define_kind(&fixture, "Other", "guards", "True");
    until_deleted(&mut fixture).await;
}

#[tokio::test(start_paused = true)]
async fn an_object_whose_definition_changes_all_the_time_is_not_forgotten() {
    let (mut fixture, hidden) = Box::pin(with_hidden_guard()).await;
    for _ in 0..4 {
        define(&fixture, "guards", "True");
        reconcile_in_vain(&mut fixture, "Pruning").await;
    }
    fixture.tenant.insert(OBJECT, hidden);
    until_deleted(&mut fixture).await;
}

#[tokio::test(start_paused = true)]
async fn names_of_definitions_that_come_and_go_are_forgotten() {
    let (mut fixture, _) = Box::pin(with_hidden_guard()).await;
    let mut last = "guards".to_owned();
    for number in 0..12 {
        fixture.tenant.remove(&definition(&last));
        last = format!("guards{number}");
        define(&fixture, &last, "True");
        fixture.reconcile().await.unwrap();
        assert_eq!(applied(&fixture), ("False".into(), "Pruning".into()));
        sleep(RETRY).await;
    }
    let memory = fixture.context.tenants.of(UID, &fixture.host.client());
    let remembered = memory.manifests.lock().await.applied.count_registrations();
    assert!(remembered < 8, "{remembered}");
}

#[tokio::test(start_paused = true)]
async fn a_tenant_with_an_object_that_is_hidden_is_deleted() {
    let (mut fixture, _) = Box::pin(with_hidden_guard()).await;
    set_registration(&fixture, GROUP, true);
    fixture.reconcile().await.unwrap();
    assert_eq!(applied(&fixture), ("False".into(), "ApplyFailed".into()));
    assert!(Box::pin(fixture.delete()).await.is_empty());
}
