//! Whether a host object is written again.

use crate::engine::{
    Outcome,
    api::CallError,
    lock,
    scripted::{Failure, Scripted},
    test_engine::{sync_of_kind, tenant},
};
use berth_api::{SyncPolicy, labels, pod_labels::host_key};
use berth_sync_rules::model::{
    KindId, Tenant, ToHost, WhenDenied,
    resource::{Name, Side, host_name},
    store::Stored,
};
use serde_json::{Value, json};
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

/// The tenant whose syncer has this account on the host.
fn with_account(account: &str) -> Tenant {
    Tenant {
        host_account: account.into(),
        ..tenant(SyncPolicy::default())
    }
}

/// How often a syncer with the account `now` writes an object which one with the account `before` has written, and the tenant has not changed since.
async fn writes(before: &str, now: &str) -> usize {
    let scripted = Scripted::new(with_account(now), |_| None);
    let (engine, id, name) = (&scripted.engine, KindId::PodDisruptionBudget, Name::new("team", "web"));
    let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 1});
    let budget = scripted.put(Side::Tenant, id, &name, json!({ "spec": spec }));
    let rules = engine.cache.rules_to_host(id).unwrap();
    let translated = rules.translate(&engine.cache, &name, &budget.object()).unwrap().object;
    let hash = with_account(before).applied_hash(&rules.mutable_part(&translated));
    // Its content is somebody else's, who has left the hash as it was.
    let annotations = json!({labels::ORIGIN_UID: "tenant-uid", labels::APPLIED_HASH: hash});
    let host = json!({"metadata": {"name": "web-x", "uid": "h", "resourceVersion": "2", "annotations": annotations}});
    engine.cache.stores.host(id).watched(name.clone(), Stored::from(host));
    engine.reconcile(&id.key(name), Instant::now(), true).await.unwrap();
    scripted.calls("host PATCH", "/poddisruptionbudgets/web-x").len()
}

#[tokio::test]
async fn a_restart_writes_nothing_and_a_new_account_writes_everything_once() {
    assert_eq!(writes("one", "one").await, 0);
    assert_eq!(writes("", "").await, 0);
    assert_eq!(writes("one", "two").await, 1);
    assert_eq!(writes("", "one").await, 1);
}

/// A NetworkPolicy of which the first patch applies, and the second one removes what somebody else has set. That fails the first time. Whether the watch shows
/// then what is left.
async fn remove_after_a_failure(is_shown: bool) {
    let patches = AtomicUsize::new(0);
    let scripted = Scripted::new(with_account("two"), move |call| {
        let is_patch = call.starts_with("host PATCH") && call.contains("/networkpolicies/");
        (is_patch && patches.fetch_add(1, Ordering::Relaxed) == 1).then_some(Failure::Refused(500))
    });
    let (engine, id, name) = (&scripted.engine, KindId::NetworkPolicy, Name::new("team", "web"));
    let spec = json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]});
    scripted.put(Side::Tenant, id, &name, json!({ "spec": spec }));
    let on_host = host_name(id, &name);
    let path = format!("/networkpolicies/{on_host}");
    let annotations = json!({labels::ORIGIN_UID: "tenant-uid"});
    let host = json!({"metadata": {"name": on_host, "uid": "h", "resourceVersion": "2", "annotations": annotations}});
    let hosts = engine.cache.stores.host(id);
    hosts.watched(name.clone(), Stored::from(host));
    scripted.add_foreign_field(&path, "egress");
    let key = id.key(name.clone());
    assert!(engine.reconcile(&key, Instant::now(), true).await.is_err());
    assert_ne!(lock(&engine.foreign_fields).get(&key), Some(&false));
    if !is_shown {
        let mut host = Value::clone(&hosts.get(&name).unwrap().object());
        host["metadata"]["resourceVersion"] = "101".into();
        host["spec"] = json!({});
        hosts.watched(name.clone(), Stored::from(host));
    }
    // What is known of it has the hash of what it should be.
    engine.reconcile(&key, Instant::now(), true).await.unwrap();
    let sent = scripted.sent("host PATCH", &path);
    assert_eq!(sent.len(), 4, "each of both twice: {sent:?}");
    assert!(sent[2]["spec"]["podSelector"].is_object() && sent[2]["spec"].get("egress").is_none());
    assert_eq!(sent[3]["spec"], json!({"egress": null}));
    assert_eq!(lock(&engine.foreign_fields).get(&key), Some(&false));
}

#[tokio::test]
async fn what_somebody_else_has_set_is_removed_after_a_write_also_if_that_fails_first() {
    remove_after_a_failure(true).await;
}

#[tokio::test]
async fn what_somebody_else_has_set_is_removed_also_if_the_store_does_not_have_it() {
    remove_after_a_failure(false).await;
}

/// A NetworkPolicy that the host has as the syncer has written it last, and in which somebody else has set egress rules: a syncer has ended before it removed
/// these. `write` makes what was written of the tenant's.
fn put_opened(scripted: &Scripted, version: &str, write: impl FnOnce(&dyn ToHost, &Value) -> Value) -> (Name, String) {
    let (engine, id, name) = (&scripted.engine, KindId::NetworkPolicy, Name::new("team", "web"));
    let spec = json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [{"ports": [{"port": 80}]}]});
    let policy = scripted.put(Side::Tenant, id, &name, json!({ "spec": spec }));
    let rules = engine.cache.rules_to_host(id).unwrap();
    let written = write(rules, &policy.object());
    let hash = engine.cache.tenant.applied_hash(&rules.mutable_part(&written));
    let on_host = host_name(id, &name);
    let annotations = json!({labels::ORIGIN_UID: "tenant-uid", labels::APPLIED_HASH: hash});
    let metadata = json!({"name": on_host, "uid": "h", "resourceVersion": version, "annotations": annotations});
    let mut host = json!({"metadata": metadata, "spec": written["spec"]});
    host["spec"]["egress"] = json!([{}]);
    let (_, watched) = engine.cache.kind(id).host.unwrap();
    (watched.trim)(&mut host);
    engine.cache.stores.host(id).watched(name.clone(), Stored::from(host));
    (name, format!("/networkpolicies/{on_host}"))
}

#[tokio::test]
async fn what_somebody_else_has_set_is_removed_once_after_a_start() {
    let scripted = Scripted::new(with_account("two"), |_| None);
    let engine = &scripted.engine;
    let translate = |rules: &dyn ToHost, policy: &Value| {
        let name = Name::new("team", "web");
        rules.translate(&engine.cache, &name, policy).unwrap().object
    };
    let (name, path) = put_opened(&scripted, "2", translate);
    scripted.add_foreign_field(&path, "egress");
    let key = KindId::NetworkPolicy.key(name);
    engine.reconcile(&key, Instant::now(), true).await.unwrap();
    let sent = scripted.sent("host PATCH", &path);
    assert_eq!(sent.len(), 2, "{sent:?}");
    assert_eq!(sent[1]["spec"], json!({"egress": null}));
    // A webhook of the host may set it again and again.
    put_opened(&scripted, "101", translate);
    engine.reconcile(&key, Instant::now(), true).await.unwrap();
    assert_eq!(scripted.sent("host PATCH", &path).len(), 2);
}

#[tokio::test]
async fn what_somebody_else_has_set_is_removed_from_what_is_reduced() {
    let scripted = Scripted::new(with_account("two"), |_| None);
    let engine = &scripted.engine;
    let (name, path) = put_opened(&scripted, "2", |rules, policy| {
        let name = Name::new("team", "web");
        match rules.when_refused(&engine.cache, &name, policy, &json!({})) {
            WhenDenied::Reduce(reduced) => reduced,
            other => panic!("{other:?}"),
        }
    });
    scripted.add_foreign_field(&path, "egress");
    let stores = &engine.cache.stores;
    let tenant = stores.tenant(KindId::NetworkPolicy).get(&name).unwrap();
    let host = stores.host(KindId::NetworkPolicy).get(&name).unwrap();
    let (sync, object) = (sync_of_kind(engine, KindId::NetworkPolicy, &name), tenant.object());
    for _ in ["the first time", "again"] {
        sync.withdraw(&tenant, (&*object, &*object), &host, &[]).await.unwrap();
        let sent = scripted.sent("host PATCH", &path);
        assert_eq!(sent.len(), 2, "{sent:?}");
        assert_eq!(sent[1]["spec"], json!({"egress": null}));
    }
}

#[tokio::test]
async fn a_service_without_a_selector_is_written_again_only_if_it_may_have_had_one() {
    let scripted = Scripted::new(tenant(SyncPolicy::default()), |_| None);
    let (engine, id, name) = (&scripted.engine, KindId::Service, Name::new("team", "web"));
    let store = engine.cache.stores.host(id);
    store.set_listed();
    let spec = json!({"clusterIP": "10.96.7.7", "ports": [{"port": 80}]});
    scripted.put(Side::Tenant, id, &name, json!({ "spec": spec }));
    let path = format!("/services/{}", host_name(id, &name));
    let reconcile = async || {
        let outcome = engine.reconcile(&id.key(name.clone()), Instant::now(), true).await;
        outcome.unwrap();
        scripted.sent("host PATCH", &path)
    };
    let sent = reconcile().await;
    assert_eq!(
        sent[0]["metadata"]["annotations"][labels::ENDPOINTS],
        labels::ENDPOINTS_OWN
    );
    assert!(sent[0]["spec"].get("selector").is_none());
    assert_eq!(reconcile().await.len(), 1);
    // As an earlier release has left it.
    let mut host = Value::clone(&store.get(&name).unwrap().object());
    host["metadata"]["resourceVersion"] = "101".into();
    let annotations = host["metadata"]["annotations"].as_object_mut().unwrap();
    annotations.remove(labels::ENDPOINTS);
    store.watched(name.clone(), Stored::from(host));
    let sent = reconcile().await;
    assert_eq!(sent.len(), 2, "{sent:?}");
    assert_eq!(sent[1]["spec"]["selector"][labels::ENDPOINTS], labels::ENDPOINTS_OWN);
}

const LISTED: &str = "registry.example.com/app:1";
const UNLISTED: &str = "docker.io/library/nginx:1";

/// API servers of a tenant whose class lists images, with a pod that runs. The host pod has containers with these images.
fn run_pod(
    spec: &Value,
    images_on_host: &[&str],
    script: impl Fn(&str) -> Option<Failure> + Send + Sync + 'static,
) -> Scripted {
    let mut policy = SyncPolicy::default();
    policy.pods.images = Some(vec!["registry.example.com/*".into()]);
    let scripted = Scripted::new(tenant(policy), script);
    let status = json!({"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]});
    let mut pod = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"nodeName": "gpu-1"}, "status": status});
    for (field, value) in spec.as_object().unwrap() {
        pod["spec"][field] = value.clone();
    }
    scripted.put(Side::Tenant, KindId::Pod, &name(), pod);
    scripted.put(
        Side::Host,
        KindId::Pod,
        &name(),
        json!({"spec": {"nodeName": "gpu-1"}, "status": status}),
    );
    let containers: Vec<Value> = { images_on_host.iter().enumerate() }
        .map(|(number, image)| json!({"name": format!("c{number}"), "image": image, "resources": {"requests": {"cpu": "1"}}}))
        .collect();
    let metadata = json!({"name": "a", "resourceVersion": "7"});
    scripted.serve(
        "/pods/a",
        json!({"metadata": metadata, "spec": {"containers": containers}}),
    );
    scripted
}

fn name() -> Name {
    Name::new("team", "a")
}

fn containers(images: &[&str]) -> Value {
    let containers: Vec<Value> = { images.iter().enumerate() }
        .map(|(number, image)| json!({"name": format!("c{number}"), "image": image}))
        .collect();
    json!({ "containers": containers })
}

async fn reconcile(scripted: &Scripted) -> Result<Outcome, CallError> {
    let key = KindId::Pod.key(name());
    scripted.engine.reconcile(&key, Instant::now(), true).await
}

/// The reasons of Events in the tenant.
fn reasons(scripted: &Scripted) -> Vec<String> {
    let events = scripted.sent("tenant PATCH /api/v1/namespaces/team/events/", "");
    let reasons = events.iter().map(|event| event["reason"].as_str().unwrap_or_default());
    reasons.map(ToOwned::to_owned).collect()
}

/// Whether the label of the pod was written to the host.
fn is_labelled(scripted: &Scripted) -> bool {
    let written = scripted.sent("host PATCH", "/pods/a");
    let key = host_key("app");
    written.iter().any(|patch| patch["metadata"]["labels"][&key] == "web")
}

/// Makes the store say that this was written to the host pod at last.
fn note_applied(scripted: &Scripted, object: &Value, version: &str) {
    let engine = &scripted.engine;
    let rules = engine.cache.rules_to_host(KindId::Pod).unwrap();
    let hash = engine.cache.tenant.applied_hash(&rules.mutable_part(object));
    let annotations = json!({labels::ORIGIN_UID: "tenant-uid", labels::APPLIED_HASH: hash});
    let host = json!({"metadata": {"name": "a", "uid": "host-uid", "resourceVersion": version, "annotations": annotations},
        "spec": {"nodeName": "gpu-1"}, "status": {"phase": "Running"}});
    let pods = engine.cache.stores.host(KindId::Pod);
    pods.watched(name(), Stored::from(host));
}

#[tokio::test]
async fn a_pod_with_a_denied_ephemeral_container_is_synced_without_it() {
    let mut spec = containers(&[LISTED]);
    spec["ephemeralContainers"] = json!([{"name": "x", "image": UNLISTED}, {"name": "y", "image": LISTED}]);
    let scripted = run_pod(&spec, &[LISTED], |_| None);
    // The answers here do not have what was written, so that it is tried again and again.
    let ended = json!({"spec": {"nodeName": "gpu-1"}, "status": {"phase": "Succeeded"}});
    scripted.put(Side::Host, KindId::Pod, &name(), ended);
    reconcile(&scripted).await.unwrap_err();
    assert_eq!(
        scripted.calls("tenant PATCH", "/pods/a/status").len(),
        1,
        "its end is reported"
    );
    assert!(is_labelled(&scripted));
    let added = scripted.sent("host PATCH", "/pods/a/ephemeralcontainers");
    let containers = added[0]["spec"]["ephemeralContainers"].as_array().unwrap();
    assert_eq!(containers.len(), 1, "{added:?}");
    assert_eq!(containers[0]["name"], "y");
}

#[tokio::test]
async fn a_denied_ephemeral_container_alone_changes_nothing_and_an_event_says_so() {
    let mut spec = containers(&[LISTED]);
    spec["ephemeralContainers"] = json!([{"name": "x", "image": UNLISTED}]);
    let scripted = run_pod(&spec, &[LISTED], |_| None);
    assert_eq!(reconcile(&scripted).await.unwrap().result, "updated");
    assert_eq!(reasons(&scripted), ["FieldDenied"]);
    let pod = scripted.engine.cache.stores.tenant(KindId::Pod).get(&name()).unwrap();
    let rules = scripted.engine.cache.rules_to_host(KindId::Pod).unwrap();
    let translated = rules.translate(&scripted.engine.cache, &name(), &pod.object()).unwrap();
    note_applied(&scripted, &translated.object, "200");
    let written = scripted.calls("host PATCH", "").len();
    assert_eq!(reconcile(&scripted).await.unwrap().result, "reported", "it waits");
    assert_eq!(scripted.calls("host PATCH", "").len(), written);
    let statuses = scripted.sent("tenant PATCH", "/pods/a/status");
    let status = &statuses.last().unwrap()["status"];
    assert_eq!(
        status["ephemeralContainerStatuses"][0]["state"]["waiting"]["reason"],
        "FieldDenied"
    );
    assert!(
        !status["conditions"].to_string().contains("berth.dev/Synced"),
        "{status}"
    );
}

#[tokio::test]
async fn a_pod_whose_image_left_the_list_stays_in_sync() {
    let scripted = run_pod(
        &containers(&[UNLISTED, LISTED]),
        &[UNLISTED, "registry.example.com/app:0"],
        |_| None,
    );
    assert_eq!(reconcile(&scripted).await.unwrap().result, "updated");
    assert!(is_labelled(&scripted));
    assert_eq!(reasons(&scripted), ["NoLongerAllowed"]);
    let written = scripted.sent("host PATCH", "/pods/a");
    let images: Vec<&Value> = written[0]["spec"]["containers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|container| &container["image"])
        .collect();
    assert_eq!(images, [UNLISTED, LISTED], "others change");
    // What was written says that the host has it.
    let pod = scripted.engine.cache.stores.tenant(KindId::Pod).get(&name()).unwrap();
    let rules = scripted.engine.cache.rules_to_host(KindId::Pod).unwrap();
    let host = json!({"metadata": {"name": "a", "resourceVersion": "200"}, "spec": {"nodeName": "gpu-1"}});
    scripted
        .engine
        .cache
        .stores
        .host(KindId::Pod)
        .watched(name(), Stored::from(host));
    let translated = rules.translate(&scripted.engine.cache, &name(), &pod.object()).unwrap();
    note_applied(&scripted, &translated.object, "201");
    let calls = scripted.calls("host", "").len();
    reconcile(&scripted).await.unwrap();
    assert_eq!(scripted.calls("host", "").len(), calls, "nothing is read or written");
}

#[tokio::test]
async fn a_change_to_an_image_that_is_not_listed_is_denied() {
    let scripted = run_pod(&containers(&[UNLISTED]), &["docker.io/library/nginx:0"], |_| None);
    reconcile(&scripted).await.unwrap();
    assert!(is_labelled(&scripted), "what closes it reaches it");
    assert_eq!(reasons(&scripted), ["FieldDenied"]);
    let written = scripted.sent("host PATCH", "/pods/a");
    assert!(written.iter().all(|patch| patch["spec"] == json!({})), "{written:?}");
    let statuses = scripted.sent("tenant PATCH", "/pods/a/status");
    let conditions = statuses.last().unwrap()["status"]["conditions"].to_string();
    assert!(conditions.contains("berth.dev/Synced"), "{conditions}");
}

#[tokio::test]
async fn an_image_that_was_found_to_be_denied_is_not_looked_at_again() {
    let scripted = run_pod(&containers(&[UNLISTED]), &["docker.io/library/nginx:0"], |_| None);
    let engine = &scripted.engine;
    let pod = engine.cache.stores.tenant(KindId::Pod).get(&name()).unwrap();
    let rules = engine.cache.rules_to_host(KindId::Pod).unwrap();
    let WhenDenied::Reduce(reduced) = rules.when_denied(&engine.cache, &name(), &pod.object(), &json!({})) else {
        panic!()
    };
    note_applied(&scripted, &reduced, "8");
    reconcile(&scripted).await.unwrap();
    assert!(
        scripted.calls("host", "").is_empty(),
        "{:?}",
        scripted.calls("host", "")
    );
    assert_eq!(reasons(&scripted), ["FieldDenied"]);
}

#[tokio::test]
async fn a_resize_that_the_host_refuses_keeps_nothing_else_from_it() {
    let mut spec = containers(&["registry.example.com/app:2"]);
    spec["containers"][0]["resources"] = json!({"requests": {"cpu": "2"}});
    spec["ephemeralContainers"] = json!([{"name": "y", "image": LISTED}]);
    let scripted = run_pod(&spec, &[LISTED], |call| {
        call.ends_with("/pods/a/resize").then_some(Failure::Refused(422))
    });
    let ended = json!({"spec": {"nodeName": "gpu-1"}, "status": {"phase": "Succeeded"}});
    scripted.put(Side::Host, KindId::Pod, &name(), ended);
    let result = reconcile(&scripted).await;
    assert!(matches!(result, Err(CallError::Rejected(_))), "{result:?}");
    assert_eq!(scripted.calls("host PATCH", "/pods/a/ephemeralcontainers").len(), 1);
    let written = scripted.sent("host PATCH", "/pods/a");
    let images = written.iter().map(|patch| &patch["spec"]["containers"][0]["image"]);
    assert!(
        images.into_iter().any(|image| image == "registry.example.com/app:2"),
        "{written:?}"
    );
    let is_whole = |patch: &Value| patch["metadata"]["annotations"].get(labels::APPLIED_HASH).is_some();
    assert!(!written.iter().any(is_whole), "it is tried again: {written:?}");
    let reported = scripted.sent("tenant PATCH", "/pods/a/status");
    let phases: Vec<&Value> = reported.iter().map(|patch| &patch["status"]["phase"]).collect();
    assert_eq!(phases, ["Succeeded"], "controllers of the tenant wait for its end");
}

#[tokio::test(start_paused = true)]
async fn ephemeral_containers_that_the_host_refuses_are_seldom_written_again() {
    let refuses = |call: &str| {
        let is_added = call.ends_with("/pods/a/ephemeralcontainers");
        is_added.then_some(Failure::Refused(422))
    };
    let scripted = run_pod(&containers(&[LISTED]), &[LISTED], refuses);
    // How often any was written once the pod has so many, and has changed.
    let writes = async |version: &str, count: usize| {
        let mut spec = containers(&[LISTED]);
        let added = (0..count).map(|number| json!({"name": format!("x{number}"), "image": LISTED}));
        spec["ephemeralContainers"] = added.collect::<Vec<Value>>().into();
        spec["nodeName"] = "gpu-1".into();
        let status = json!({"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]});
        let pod = json!({"metadata": {"name": "a", "namespace": "team", "uid": "tenant-uid", "resourceVersion": version,
            "labels": {"app": "web"}}, "spec": spec, "status": status});
        let annotations = json!({labels::ORIGIN_UID: "tenant-uid"});
        let metadata = json!({"name": "a", "uid": "host-uid", "resourceVersion": version, "annotations": annotations});
        let host = json!({"metadata": metadata, "spec": {"nodeName": "gpu-1"}, "status": status});
        let stores = &scripted.engine.cache.stores;
        stores.tenant(KindId::Pod).watched(name(), Stored::from(pod));
        stores.host(KindId::Pod).watched(name(), Stored::from(host));
        let result = reconcile(&scripted).await;
        assert!(matches!(result, Err(CallError::Rejected(_))), "{result:?}");
        scripted.calls("host PATCH", "/pods/a/ephemeralcontainers").len()
    };
    assert_eq!(writes("200", 3).await, 3);
    assert_eq!(writes("300", 3).await, 3, "a change of the pod is no reason");
    assert_eq!(writes("400", 4).await, 4, "a new one does not wait for others");
    tokio::time::advance(Duration::from_secs(6)).await;
    assert_eq!(writes("500", 4).await, 8, "the host may allow them by now");
    tokio::time::advance(Duration::from_secs(6)).await;
    assert_eq!(writes("600", 4).await, 8, "they wait longer each time");
    assert!(is_labelled(&scripted));
}

#[tokio::test]
async fn a_resize_that_the_host_refuses_keeps_no_readiness_gate_from_it() {
    const GATE: &str = "example.com/ready";
    let mut spec = containers(&[LISTED]);
    spec["containers"][0]["resources"] = json!({"requests": {"cpu": "2"}});
    spec["readinessGates"] = json!([{"conditionType": GATE}]);
    let scripted = run_pod(&spec, &[LISTED], |call| {
        call.ends_with("/pods/a/resize").then_some(Failure::Refused(422))
    });
    let stored = scripted.engine.cache.stores.tenant(KindId::Pod).get(&name()).unwrap();
    let mut pod = Value::clone(&stored.object());
    pod["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "True"}, {"type": GATE, "status": "True"}]);
    scripted.put(Side::Tenant, KindId::Pod, &name(), pod);
    let result = reconcile(&scripted).await;
    assert!(matches!(result, Err(CallError::Rejected(_))), "{result:?}");
    let written = scripted.sent("host PATCH", "/pods/a/status");
    let conditions: Vec<&Value> = written.iter().map(|patch| &patch["status"]["conditions"]).collect();
    assert_eq!(conditions, [&json!([{"type": GATE, "status": "True"}])]);
}
