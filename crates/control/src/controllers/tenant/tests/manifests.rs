//! Manifests of a class in a tenant: applied, kept, and deleted when no manifest has them any more.

use super::fixture::Fixture;
use crate::testing::make_unreadable;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Time until what is in the tenant is compared again: a minute, and a bit. Time is paused in these tests.
const NEXT_CHECK: Duration = Duration::from_secs(61);
const CLASS: &str = "/apis/berth.dev/v1alpha1/tenantclasses/gold";
const ROLE: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/reader";
const OTHER_ROLE: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/writer";

fn map_path(name: &str) -> String {
    format!("/api/v1/namespaces/berth-system/configmaps/{name}")
}

/// A ConfigMap with ClusterRoles of these names and this verb.
fn set_roles(fixture: &Fixture, map: &str, names: &[&str], verb: &str) {
    let documents: Vec<String> = names
        .iter()
        .map(|name| {
            format!(
                "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {{name: {name}}}\n\
                 rules: [{{apiGroups: [''], resources: [pods], verbs: [{verb}]}}]\n"
            )
        })
        .collect();
    let data = documents.join("---\n");
    let map_object = json!({"metadata": {"name": map, "namespace": "berth-system"}, "data": {"roles.yaml": data}});
    fixture.host.insert(&map_path(map), map_object);
}

fn set_class(fixture: &Fixture, manifests: &Value) {
    let class = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass",
        "metadata": {"name": "gold", "uid": "gold"}, "spec": {"manifests": manifests}});
    fixture.host.insert(CLASS, class);
}

/// A tenant of a class with one manifest, whose ConfigMap has the role `reader`.
async fn with_manifest(mode: &str) -> Fixture {
    let mut fixture = Fixture::new();
    fixture.change_tenant(|cluster| cluster["spec"]["className"] = "gold".into());
    let served = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "rbac.authorization.k8s.io/v1",
        "resources": [{"name": "clusterroles", "singularName": "", "namespaced": false, "kind": "ClusterRole",
            "verbs": ["get", "list", "patch"]}]});
    fixture.tenant.serve("/apis/rbac.authorization.k8s.io/v1", served);
    set_roles(&fixture, "base", &["reader"], "get");
    set_class(&fixture, &manifest("v1", mode));
    assert!(fixture.reconcile_until_ready().await.is_empty());
    // The syncer may have become ready in the last one.
    fixture.reconcile().await.unwrap();
    fixture
}

fn manifest(version: &str, mode: &str) -> Value {
    json!([{"name": "base", "version": version, "mode": mode, "configMapRef": {"name": "base"}}])
}

fn applied(fixture: &Fixture) -> (Value, Value) {
    let condition = fixture.condition("ManifestsApplied").unwrap();
    (condition["status"].clone(), condition["reason"].clone())
}

fn writes(fixture: &Fixture, since: usize) -> usize {
    let calls = fixture.script.calls().split_off(since);
    calls
        .iter()
        .filter(|call| call.text.starts_with("tenant PATCH") && call.text.ends_with("/reader"))
        .count()
}

#[tokio::test(start_paused = true)]
async fn objects_are_the_platforms_and_are_written_again_only_if_they_changed() {
    let mut fixture = Box::pin(with_manifest("Keep")).await;
    let role = fixture.tenant.get(ROLE).unwrap();
    assert_eq!(
        role["metadata"]["labels"],
        json!({"berth.dev/managed-by": "platform", "berth.dev/manifest": "base"})
    );
    assert_eq!(applied(&fixture), ("True".into(), "Applied".into()));
    assert_eq!(
        fixture.status()["manifests"],
        json!([{"name": "base", "version": "v1", "mode": "Keep", "objects": 1}])
    );
    let before = fixture.count_calls();
    sleep(NEXT_CHECK).await;
    fixture.reconcile().await.unwrap();
    assert_eq!(writes(&fixture, before), 0);

    // Somebody changes it.
    let mut changed = role.clone();
    changed["rules"] = json!([]);
    fixture.tenant.insert(ROLE, changed);
    fixture.reconcile().await.unwrap();
    assert_eq!(
        fixture.tenant.get(ROLE).unwrap()["rules"],
        json!([]),
        "it is not looked at yet"
    );
    sleep(NEXT_CHECK).await;
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.tenant.get(ROLE).unwrap()["rules"], role["rules"]);
    assert!(fixture.status()["manifests"][0]["driftCorrectedAt"].is_string());

    // Somebody deletes it.
    fixture.tenant.remove(ROLE);
    sleep(NEXT_CHECK).await;
    fixture.reconcile().await.unwrap();
    assert!(fixture.tenant.get(ROLE).is_some());
    let events = fixture.host.find("/events/vision.");
    let drift: Vec<&Value> = events
        .iter()
        .filter(|event| event["reason"] == "DriftCorrected")
        .collect();
    assert_eq!(drift.len(), 1, "the second counts up");
    assert!(drift[0]["note"].as_str().unwrap().contains("ClusterRole reader"));
}

#[tokio::test(start_paused = true)]
async fn a_record_that_is_too_large_is_named() {
    let mut fixture = Box::pin(with_manifest("Keep")).await;
    let too_long = "ConfigMap \"manifests\" is invalid: []: Too long: may not be more than 1048576 bytes";
    fixture
        .host
        .refuse_writes(Some(("/configmaps/manifests", 422, too_long)));
    set_roles(&fixture, "base", &["writer"], "get");
    fixture.reconcile().await.unwrap();
    let condition = fixture.condition("ManifestsApplied").unwrap();
    assert_eq!(applied(&fixture), ("False".into(), "InventoryTooLarge".into()));
    assert!(
        condition["message"].as_str().unwrap().contains("no room"),
        "{condition}"
    );
    assert!(
        fixture.tenant.get(OTHER_ROLE).is_none(),
        "what is not recorded is not applied"
    );

    fixture.host.refuse_writes(None);
    fixture.reconcile().await.unwrap();
    assert!(fixture.tenant.get(OTHER_ROLE).is_some() && fixture.tenant.get(ROLE).is_none());
}

#[tokio::test(start_paused = true)]
async fn what_the_team_adds_to_a_role_is_removed() {
    let mut fixture = Box::pin(with_manifest("Keep")).await;
    let mut changed = fixture.tenant.get(ROLE).unwrap();
    // As if the team had made a role of this name before.
    changed["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {"mine": "true"}}]});
    changed["metadata"]["finalizers"] = json!(["example.com/mine"]);
    make_unreadable(&mut changed);
    fixture.tenant.insert(ROLE, changed);
    sleep(NEXT_CHECK).await;
    fixture.reconcile().await.unwrap();
    let role = fixture.tenant.get(ROLE).unwrap();
    assert!(role["aggregationRule"].is_null(), "{role}");
    assert!(role["metadata"]["finalizers"].is_null(), "{role}");
    assert_eq!(role["metadata"]["labels"]["berth.dev/managed-by"], "platform");
    assert_eq!(applied(&fixture), ("True".into(), "Applied".into()));
    // It is written no more.
    let before = fixture.count_calls();
    sleep(NEXT_CHECK).await;
    fixture.reconcile().await.unwrap();
    assert_eq!(writes(&fixture, before), 0);
}

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
        sleep(Duration::from_secs(10)).await;
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
    let map = json!({"metadata": {"name": "base", "namespace": "berth-system"}, "data": {
        "a": "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: writer}\n",
        "b": "apiVersion: rbac.authorization.k8s.io/v1\nkind: Unknown\nmetadata: {name: a}\n"}});
    fixture.host.insert(&map_path("base"), map);
    set_class(&fixture, &manifest("v1", "Once"));
    fixture.reconcile().await.unwrap();
    assert_eq!(applied(&fixture), ("False".into(), "ApplyFailed".into()));
    assert!(fixture.tenant.get(OTHER_ROLE).is_some());
    fixture.tenant.remove(OTHER_ROLE);
    for _ in 0..3 {
        sleep(Duration::from_secs(10)).await;
        fixture.reconcile().await.unwrap();
    }
    assert!(fixture.tenant.get(OTHER_ROLE).is_none());
    assert_eq!(applied(&fixture), ("False".into(), "ApplyFailed".into()));
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_cannot_be_deleted_is_released() {
    let mut fixture = Box::pin(with_manifest("Keep")).await;
    let served = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1",
        "resources": [{"name": "namespaces", "singularName": "", "namespaced": false, "kind": "Namespace",
            "verbs": ["get", "list", "patch"]}]});
    fixture.tenant.serve("/api/v1", served);
    let map = json!({"metadata": {"name": "base", "namespace": "berth-system"}, "data": {
        "a": "apiVersion: v1\nkind: Namespace\nmetadata: {name: default, labels: {pod-security.kubernetes.io/enforce: baseline}}"}});
    fixture.host.insert(&map_path("base"), map);
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

#[tokio::test(start_paused = true)]
async fn a_kind_that_the_tenant_does_not_serve_is_reported_and_tried_again() {
    let mut fixture = Box::pin(with_manifest("Keep")).await;
    let map = json!({"metadata": {"name": "base", "namespace": "berth-system"}, "data": {
        "a": "apiVersion: rbac.authorization.k8s.io/v1\nkind: Unknown\nmetadata: {name: a}"}});
    fixture.host.insert(&map_path("base"), map);
    fixture.reconcile().await.unwrap();
    assert_eq!(applied(&fixture), ("False".into(), "ApplyFailed".into()));
    let message = fixture.condition("ManifestsApplied").unwrap()["message"].clone();
    assert!(
        message
            .as_str()
            .unwrap()
            .contains("Unknown a: the tenant does not serve the kind"),
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

const GUARD: &str = "apiVersion: platform.example/v1\nkind: Guard\nmetadata: {name: g1}\n";
const DEFINITION: &str = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n\
                          metadata: {name: guards.platform.example}\n\
                          spec: {group: platform.example, names: {kind: Guard, plural: guards}}\n";

/// The manifest with these documents, in a tenant that serves the kind Guard under these plural names.
fn set_guards(fixture: &Fixture, documents: &[&str], plurals: &[&str]) {
    let serve = |group: &str, kind: &str, plurals: &[&str]| {
        let resource = |plural: &&str| {
            json!({"name": plural, "singularName": "", "namespaced": false, "kind": kind,
                "verbs": ["get", "list", "patch"]})
        };
        let resources: Vec<Value> = plurals.iter().map(resource).collect();
        let list = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{group}/v1"),
            "resources": resources});
        fixture.tenant.serve(&format!("/apis/{group}/v1"), list);
    };
    serve(
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        &["customresourcedefinitions"],
    );
    serve("platform.example", "Guard", plurals);
    let data = documents.join("---\n");
    let map = json!({"metadata": {"name": "base", "namespace": "berth-system"}, "data": {"objects.yaml": data}});
    fixture.host.insert(&map_path("base"), map);
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
async fn a_group_that_the_team_serves_itself_takes_no_time() {
    let mut fixture = Box::pin(with_manifest("Keep")).await;
    set_guards(&fixture, &[GUARD], &[]);
    // Names that continue each other, which are followed one by one: 2 to the power of 39 calls.
    let entry =
        |length: usize| json!({"name": format!("x{}", "/".repeat(length)), "kind": "Guard", "namespaced": false});
    let entries: Vec<Value> = (0..40).map(entry).collect();
    let list = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "platform.example/v1", "resources": entries});
    fixture.tenant.serve("/apis/platform.example/v1", list);
    for _ in 0..2 {
        fixture.reconcile().await.unwrap();
    }
    assert_eq!(applied(&fixture), ("True".into(), "Applied".into()));
    assert!(fixture.tenant.get("/apis/platform.example/v1/x/g1").is_some());
}

/// A role of the manifest, besides objects of the kind Guard.
const WRITER: &str = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: writer}\n";

#[tokio::test(start_paused = true)]
async fn a_server_of_the_team_that_does_not_answer_keeps_its_own_kinds_back_only() {
    for part in [
        "/apis/platform.example/v1/guards",
        "/apis/platform.example/v1/guards/g1",
        "/apis/platform.example",
    ] {
        let mut fixture = Box::pin(with_manifest("Keep")).await;
        set_guards(&fixture, &[GUARD, WRITER], &["guards"]);
        fixture.tenant.never_answer(Some(part));
        for _ in 0..2 {
            let started = Instant::now();
            fixture.reconcile().await.unwrap();
            assert!(
                started.elapsed() < Duration::from_secs(5),
                "{part}: {:?}",
                started.elapsed()
            );
            // The second corrects that somebody deleted it.
            assert!(fixture.tenant.get(OTHER_ROLE).is_some(), "{part}");
            assert!(
                fixture.tenant.get(ROLE).is_none(),
                "{part}: no manifest has it any more"
            );
            assert_eq!(applied(&fixture), ("False".into(), "ApplyFailed".into()));
            let message = fixture.condition("ManifestsApplied").unwrap()["message"].to_string();
            assert!(message.contains("Guard g1: the server of its API group"), "{message}");
            assert!(!message.contains("ClusterRole"), "{message}");
            fixture.tenant.remove(OTHER_ROLE);
        }
        fixture.tenant.never_answer(None);
        fixture.reconcile().await.unwrap();
        assert_eq!(applied(&fixture), ("True".into(), "Applied".into()), "{part}");
        // What is dropped while its server does not answer is reported, and deleted later.
        fixture.tenant.never_answer(Some(part));
        set_guards(&fixture, &[WRITER], &["guards"]);
        set_class(&fixture, &manifest("v2", "Keep"));
        fixture.reconcile().await.unwrap();
        assert_eq!(applied(&fixture), ("False".into(), "ApplyFailed".into()), "{part}");
        fixture.tenant.never_answer(None);
        for _ in 0..2 {
            fixture.reconcile().await.unwrap();
        }
        assert_eq!(applied(&fixture), ("True".into(), "Applied".into()), "{part}");
        assert!(fixture.tenant.find("/apis/platform.example/").is_empty(), "{part}");
    }
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

#[tokio::test(start_paused = true)]
async fn a_list_without_end_is_read_as_far_as_manifests_have_objects() {
    const LIST: &str = "/apis/platform.example/v1/guards";
    for (items, most) in [(json!([]), 1), (json!([{"metadata": {"name": "other"}}]), 10)] {
        let mut fixture = Box::pin(with_manifest("Keep")).await;
        set_guards(&fixture, &[GUARD], &["guards"]);
        let endless = json!({"kind": "List", "apiVersion": "v1", "metadata": {"continue": "x"}, "items": items});
        fixture.tenant.serve(LIST, endless);
        let before = fixture.count_calls();
        fixture.reconcile().await.unwrap();
        let calls = fixture.script.calls().split_off(before);
        let lists = calls.iter().filter(|call| call.text == format!("tenant GET {LIST}"));
        assert_eq!(lists.count(), most);
        assert!(fixture.tenant.get(&format!("{LIST}/g1")).is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_kind_with_two_resources_is_reported() {
    let mut fixture = Box::pin(with_manifest("Keep")).await;
    set_guards(&fixture, &[GUARD], &["evils", "guards"]);
    fixture.reconcile().await.unwrap();
    assert_eq!(applied(&fixture), ("False".into(), "ApplyFailed".into()));
    let message = fixture.condition("ManifestsApplied").unwrap()["message"].to_string();
    assert!(
        message.contains("Guard g1: the tenant serves the kind as evils"),
        "{message}"
    );
    assert!(fixture.tenant.find("/apis/platform.example/").is_empty());
}

#[tokio::test]
async fn each_call_may_fail_once_and_the_objects_are_still_applied() {
    // More than one reconcile has.
    for number in 0..60 {
        let mut fixture = Box::pin(with_manifest("Keep")).await;
        let start = fixture.count_calls();
        set_roles(&fixture, "base", &["writer"], "get");
        fixture.script.fail_call(start + number);
        for _ in 0..6 {
            let _ = fixture.reconcile().await;
        }
        assert!(fixture.tenant.get(ROLE).is_none(), "{:?}", fixture.script.failed());
        assert!(
            fixture.tenant.get(OTHER_ROLE).is_some(),
            "{:?}",
            fixture.script.failed()
        );
        assert_eq!(applied(&fixture), ("True".into(), "Applied".into()));
    }
}

#[tokio::test(start_paused = true)]
async fn manifests_are_applied_though_the_tenant_refuses_an_object() {
    const SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
    const BINDING: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/berth:access:viewers";
    let mut fixture = Box::pin(with_manifest("Keep")).await;
    let own = fixture.tenant.get(SLICE).unwrap();
    let mut foreign = own.clone();
    foreign["addressType"] = "FQDN".into();
    foreign["metadata"]["finalizers"] = json!(["example.com/mine"]);
    fixture.tenant.insert(SLICE, foreign);
    let mut binding = fixture.tenant.get(BINDING).unwrap();
    binding["roleRef"]["name"] = "cluster-admin".into();
    fixture.tenant.insert(BINDING, binding);
    set_roles(&fixture, "base", &["writer"], "get");
    // Another control has taken over, which knows no object that was applied.
    fixture.context.tenants = std::sync::Arc::default();
    for _ in 0..5 {
        let _ = fixture.reconcile().await;
    }
    // The slice cannot be replaced yet, and nothing else waits for it.
    assert_eq!(
        fixture.condition("ControlPlaneReady").unwrap()["reason"],
        "BootstrapFailed"
    );
    assert_eq!(fixture.tenant.get(BINDING).unwrap()["roleRef"]["name"], "berth:viewer");
    assert!(fixture.tenant.get(OTHER_ROLE).is_some());
    assert_eq!(applied(&fixture), ("True".into(), "Applied".into()));
    fixture.tenant.remove(SLICE);
    let mut foreign = own.clone();
    foreign["addressType"] = "FQDN".into();
    fixture.tenant.insert(SLICE, foreign);
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.tenant.get(SLICE).unwrap()["addressType"], own["addressType"]);
    assert_eq!(fixture.condition("ControlPlaneReady").unwrap()["status"], "True");
}

#[tokio::test(start_paused = true)]
async fn nobody_knows_of_manifests_that_were_not_looked_at() {
    const STEP: &str = "runtime run kube-apiserver";
    let mut fixture = Box::pin(with_manifest("Keep")).await;
    fixture.reconcile().await.unwrap();
    // Each further reconcile makes the same calls.
    let before = fixture.count_calls();
    fixture.reconcile().await.unwrap();
    let calls = fixture.script.calls().split_off(before);
    let number = calls.iter().position(|call| call.text == STEP).unwrap();
    fixture.script.fail_call(fixture.count_calls() + number);
    fixture.reconcile().await.unwrap_err();
    assert_eq!(fixture.script.failed().as_deref(), Some(STEP));
    assert_eq!(applied(&fixture), ("Unknown".into(), "NotObserved".into()));
    fixture.reconcile().await.unwrap();
    assert_eq!(applied(&fixture), ("True".into(), "Applied".into()));
}
