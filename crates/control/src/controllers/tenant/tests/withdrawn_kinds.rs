//! Objects of a kind that the class does not list any more leave the host.

use super::{
    super::memory::KIND_DELETIONS,
    failures::fixture_with_kind,
    fixture::{CLASS, Fixture},
};
use berth_api::{TenantClass, TenantClassSpec, sync_policy::SyncedKind};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

const NOTE: &str = "withdrawn-kinds.json";

fn path(fixture: &Fixture, name: &str) -> String {
    let namespace = fixture.id.workload_namespace();
    format!("/apis/example.com/v1/namespaces/{namespace}/widgets/{name}")
}

fn insert(fixture: &Fixture, name: &str, manager: &str) {
    let metadata = json!({"name": name, "namespace": fixture.id.workload_namespace(), "uid": name,
        "labels": {"berth.dev/managed-by": manager}});
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": metadata});
    fixture.host.insert(&path(fixture, name), widget);
}

/// Names of the objects of the kind.
fn names(fixture: &Fixture) -> Vec<Value> {
    let widgets = fixture.host.find(&path(fixture, ""));
    widgets
        .iter()
        .map(|widget| widget["metadata"]["name"].clone())
        .collect()
}

/// What the record says of withdrawn kinds.
fn note(fixture: &Fixture) -> Value {
    let path = format!(
        "/api/v1/namespaces/{}/configmaps/settings",
        fixture.id.control_plane_namespace()
    );
    fixture.host.get(&path).unwrap()["data"][NOTE].clone()
}

/// A tenant that is ready, and has an object of the kind. Another one with this kind is the platform's.
async fn ready_with_widget() -> Fixture {
    let mut fixture = fixture_with_kind();
    // Control has the rights on the kind, and gives them.
    let allowed = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "metadata": {}, "spec": {},
        "status": {"allowed": true}});
    fixture
        .host
        .serve("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", allowed);
    fixture.reconcile_until_ready().await;
    insert(&fixture, "route", "syncer");
    insert(&fixture, "platform", "helm");
    fixture.reconcile().await.unwrap();
    assert_eq!(names(&fixture), ["platform", "route"], "the class lists the kind");
    fixture
}

/// The host serves the kind in these versions.
fn serve(fixture: &Fixture, versions: &[&str]) {
    let listed: Vec<Value> = versions
        .iter()
        .map(|version| json!({"groupVersion": format!("example.com/{version}"), "version": version}))
        .collect();
    let groups = json!([{"name": "example.com", "versions": listed}]);
    fixture
        .host
        .serve("/apis", json!({"kind": "APIGroupList", "groups": groups}));
    for version in versions {
        let resources = json!([
            {"name": "widgets", "kind": "Widget", "namespaced": true, "singularName": "widget", "verbs": []},
            {"name": "gadgets", "kind": "Gadget", "namespaced": true, "singularName": "gadget", "verbs": []},
        ]);
        let list = json!({"kind": "APIResourceList", "groupVersion": format!("example.com/{version}"), "resources": resources});
        fixture.host.serve(&format!("/apis/example.com/{version}"), list);
    }
}

/// Takes the kind off the class.
fn withdraw(fixture: &Fixture) {
    serve(fixture, &["v1"]);
    let class = TenantClass::new("gold", TenantClassSpec::default());
    fixture.host.insert(CLASS, serde_json::to_value(class).unwrap());
}

/// The number of the first call after `from` that contains this.
fn position(fixture: &Fixture, from: usize, text: &str) -> usize {
    let calls = fixture.script.calls();
    let found = calls
        .iter()
        .skip(from)
        .position(|call| call.text.contains(text) && !call.failed);
    found.unwrap_or_else(|| panic!("no call: {text}"))
}

#[tokio::test]
async fn objects_of_a_withdrawn_kind_go_after_the_syncers_rights_on_it() {
    let mut fixture = Box::pin(ready_with_widget()).await;
    let from = fixture.count_calls();
    withdraw(&fixture);
    Box::pin(fixture.reconcile()).await.unwrap();
    assert_eq!(names(&fixture), ["platform"]);
    let namespace = fixture.id.workload_namespace();
    let role = format!("host PATCH /apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles/syncer");
    let delete = format!("host DELETE {}", path(&fixture, "route"));
    let order = ["/configmaps/settings", &role, &delete].map(|text| position(&fixture, from, text));
    assert!(order.is_sorted(), "{order:?}");
    assert!(
        note(&fixture).as_str().unwrap().contains("widgets"),
        "a last write may be under way"
    );
    // The last write of a syncer that still had the right.
    insert(&fixture, "late", "syncer");
    Box::pin(fixture.reconcile()).await.unwrap();
    assert_eq!(names(&fixture), ["platform"]);
    Box::pin(fixture.reconcile()).await.unwrap();
    assert_eq!(note(&fixture), "[]");
    // The kind is no business of control from now on.
    insert(&fixture, "other", "syncer");
    Box::pin(fixture.reconcile()).await.unwrap();
    assert_eq!(names(&fixture), ["other", "platform"]);
}

#[tokio::test]
async fn each_call_may_fail_once_and_the_objects_go() {
    let (from, to) = {
        let mut fixture = Box::pin(ready_with_widget()).await;
        let from = fixture.count_calls();
        withdraw(&fixture);
        Box::pin(fixture.reconcile()).await.unwrap();
        Box::pin(fixture.reconcile()).await.unwrap();
        (from, fixture.count_calls())
    };
    for number in from..to {
        let mut fixture = Box::pin(ready_with_widget()).await;
        withdraw(&fixture);
        fixture.script.fail_call(number);
        for _ in 0..5 {
            let _ = Box::pin(fixture.reconcile()).await;
        }
        let failed = fixture.script.failed();
        assert_eq!(names(&fixture), ["platform"], "{failed:?}");
        assert_eq!(note(&fixture), "[]", "{failed:?}");
    }
}

/// Another control takes over between the note and the deletion.
#[tokio::test]
async fn a_control_that_starts_goes_on() {
    let mut fixture = Box::pin(ready_with_widget()).await;
    let from = fixture.count_calls();
    withdraw(&fixture);
    let listed = {
        let mut other = Box::pin(ready_with_widget()).await;
        withdraw(&other);
        Box::pin(other.reconcile()).await.unwrap();
        from + position(
            &other,
            from,
            &format!("host GET {}", path(&other, "").trim_end_matches('/')),
        )
    };
    fixture.script.fail_call(listed);
    assert!(Box::pin(fixture.reconcile()).await.is_err());
    assert_eq!(names(&fixture), ["platform", "route"]);
    let reason = fixture.condition("InfrastructureReady").unwrap()["reason"].clone();
    assert_eq!(reason, "WithdrawnKindsFailed");
    fixture.context.tenants.forget(super::fixture::UID);
    let _ = Box::pin(fixture.reconcile()).await;
    assert_eq!(names(&fixture), ["platform"]);
}

#[tokio::test]
async fn a_kind_that_is_removed_from_the_host_needs_no_rights() {
    let mut fixture = Box::pin(ready_with_widget()).await;
    let from = fixture.count_calls();
    withdraw(&fixture);
    // The rights are gone with it: a list is forbidden, whatever there is.
    fixture
        .host
        .serve("/apis", json!({"kind": "APIGroupList", "groups": []}));
    fixture.host.serve("/apis/example.com/v1", Value::Null);
    for _ in 0..2 {
        Box::pin(fixture.reconcile()).await.unwrap();
    }
    let calls = fixture.script.calls().split_off(from);
    assert!(calls.iter().all(|call| !call.text.contains("/widgets")), "{calls:#?}");
    assert_eq!(note(&fixture), "[]");
}

#[tokio::test]
async fn objects_go_although_the_host_serves_another_version_than_the_class_has_listed() {
    let mut fixture = Box::pin(ready_with_widget()).await;
    withdraw(&fixture);
    fixture.host.serve("/apis/example.com/v1", Value::Null);
    serve(&fixture, &["v2"]);
    let of_v2 = path(&fixture, "route").replace("/v1/", "/v2/");
    fixture
        .host
        .insert(&of_v2, fixture.host.get(&path(&fixture, "route")).unwrap());
    Box::pin(fixture.reconcile()).await.unwrap();
    assert!(fixture.host.get(&of_v2).is_none());
}

#[tokio::test]
async fn objects_that_cannot_be_deleted_cost_no_other_writes() {
    let mut fixture = Box::pin(ready_with_widget()).await;
    withdraw(&fixture);
    fixture.host.refuse_writes(Some(("/widgets/", 403, "no")));
    for _ in 0..2 {
        assert!(Box::pin(fixture.reconcile()).await.is_err());
    }
    let from = fixture.count_calls();
    assert!(Box::pin(fixture.reconcile()).await.is_err());
    let reason = fixture.condition("InfrastructureReady").unwrap()["reason"].clone();
    assert_eq!(reason, "WithdrawnKindsNotPermitted");
    let namespace = format!("host PATCH /api/v1/namespaces/{}", fixture.id.workload_namespace());
    let calls = fixture.script.calls().split_off(from);
    assert!(calls.iter().all(|call| call.text != namespace), "{calls:#?}");
}

/// What converts the objects of the kind is gone from the host, and API servers wait for it.
#[tokio::test(start_paused = true)]
async fn a_kind_that_never_answers_keeps_nothing_else_of_the_tenant_waiting() {
    let mut fixture = Box::pin(ready_with_widget()).await;
    withdraw(&fixture);
    fixture.host.never_answer(Some("/widgets"));
    let reconcile = tokio::time::timeout(Duration::from_secs(60), Box::pin(fixture.reconcile()));
    assert!(reconcile.await.expect("it ends").is_err());
    let reason = |kind| fixture.condition(kind).unwrap()["reason"].clone();
    assert_eq!(reason("InfrastructureReady"), "WithdrawnKindsSlow");
    assert_eq!(reason("ControlPlaneReady"), "Running");
    assert!(note(&fixture).as_str().unwrap().contains("widgets"));
    fixture.host.never_answer(None);
    // As many others as have a turn at the same time wait for such kinds.
    let tenants = Arc::clone(&fixture.context.tenants);
    let turns = tenants.kind_deletions.0.acquire_many(KIND_DELETIONS).await.unwrap();
    assert!(Box::pin(fixture.reconcile()).await.is_err());
    let reason = fixture.condition("InfrastructureReady").unwrap()["reason"].clone();
    assert_eq!(reason, "WithdrawnKindsSlow");
    drop(turns);
    Box::pin(fixture.reconcile()).await.unwrap();
    assert_eq!(names(&fixture), ["platform"]);
}

/// The record has it before the other one.
#[tokio::test(start_paused = true)]
async fn a_kind_that_never_answers_keeps_no_other_kind_on_the_host() {
    let mut fixture = Box::pin(ready_with_widget()).await;
    let mut spec = TenantClassSpec::default();
    let kind = |kind: &str, resource: &str| SyncedKind {
        group: "example.com".into(),
        version: "v1".into(),
        kind: kind.into(),
        resource: resource.into(),
        ..SyncedKind::default()
    };
    spec.sync.kinds = vec![kind("Gadget", "gadgets"), kind("Widget", "widgets")];
    serve(&fixture, &["v1"]);
    let class = TenantClass::new("gold", spec);
    fixture.host.insert(CLASS, serde_json::to_value(class).unwrap());
    let _ = Box::pin(fixture.reconcile()).await;
    assert_eq!(names(&fixture), ["platform", "route"], "the class lists the kind");
    withdraw(&fixture);
    fixture.host.never_answer(Some("/gadgets"));
    assert!(Box::pin(fixture.reconcile()).await.is_err());
    assert_eq!(names(&fixture), ["platform"]);
    let condition = fixture.condition("InfrastructureReady").unwrap();
    assert_eq!(condition["reason"], "WithdrawnKindsSlow");
    let message = condition["message"].as_str().unwrap();
    assert!(
        message.contains("gadgets.example.com") && !message.contains("widgets"),
        "{message}"
    );
    // Once no late write of the syncer is left, only the kind that does not answer is noted.
    for _ in 0..2 {
        let _ = Box::pin(fixture.reconcile()).await;
    }
    let noted = note(&fixture);
    let noted = noted.as_str().unwrap();
    assert!(noted.contains("gadgets") && !noted.contains("widgets"), "{noted}");
}

#[tokio::test]
async fn another_control_looks_twice() {
    let mut fixture = Box::pin(ready_with_widget()).await;
    withdraw(&fixture);
    Box::pin(fixture.reconcile()).await.unwrap();
    assert_eq!(names(&fixture), ["platform"]);
    // It may have ended before it took the syncer's rights away.
    fixture.context.tenants.forget(super::fixture::UID);
    let _ = Box::pin(fixture.reconcile()).await;
    assert!(note(&fixture).as_str().unwrap().contains("widgets"));
    insert(&fixture, "late", "syncer");
    let _ = Box::pin(fixture.reconcile()).await;
    assert_eq!(names(&fixture), ["platform"]);
}
