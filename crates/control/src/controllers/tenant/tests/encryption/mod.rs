//! What a tenant stores is encrypted. What decides is tested in `control_plane/encryption`.

mod looks;
mod pages;

use super::{
    super::memory::Tenants,
    fixture::{CLASS, Fixture},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

const REQUEST: &str = "berth.dev/encryption-key-rotation-requested-at";
/// Enough reconciles for each change.
const MAX_RECONCILES: usize = 30;
/// The phases of the first change in their order, as the status shows them: the one before ends in the reconcile in which it begins.
const PHASES: [&str; 3] = ["Writing", "Rewriting", "Completed"];
/// Where etcd has two Secrets of the tenant.
const STORED: [&str; 2] = ["secrets/team/a", "secrets/team/b"];

/// Gives the class of the tenant these rules of encryption.
pub(super) fn set_rules(fixture: &Fixture, encryption: &Value) {
    fixture.give_class(&json!({ "encryption": encryption }));
}

/// A tenant that has run without encryption and stores two Secrets.
async fn ready() -> Fixture {
    let mut fixture = Fixture::new();
    set_rules(&fixture, &json!(null));
    fixture.stored.keys.store(5, Ordering::SeqCst);
    for path in STORED {
        set_value(&fixture, path, "k8s\0");
        let name = path.rsplit('/').next().unwrap();
        fixture.tenant.insert(
            &format!("/api/v1/namespaces/team/secrets/{name}"),
            json!({"metadata": {"name": name, "namespace": "team"}}),
        );
    }
    fixture.reconcile_until_ready().await;
    fixture
}

fn set_value(fixture: &Fixture, path: &str, value: &str) {
    let mut values = fixture.stored.values.lock().unwrap();
    values.insert(path.into(), value.as_bytes().to_vec());
}

fn values(fixture: &Fixture) -> Vec<String> {
    let values = fixture.stored.values.lock().unwrap();
    let of_secrets = values.iter().filter(|(path, _)| STORED.contains(&path.as_str()));
    of_secrets
        .map(|(_, value)| String::from_utf8_lossy(value).into_owned())
        .collect()
}

/// Where the host has the Secret with the keys.
pub(super) fn pki_path(fixture: &Fixture) -> String {
    let namespace = fixture.id.control_plane_namespace();
    format!("/api/v1/namespaces/{namespace}/secrets/pki")
}

/// The data of the Secret with the keys.
pub(super) fn pki(fixture: &Fixture) -> Value {
    fixture.host.get(&pki_path(fixture)).unwrap()["data"].clone()
}

/// Names of the keys that are stored.
fn keys(fixture: &Fixture) -> Vec<String> {
    let pki = pki(fixture);
    let names = pki.as_object().unwrap().keys();
    names
        .filter(|name| name.starts_with("encryption-key-"))
        .cloned()
        .collect()
}

/// What an API server of now writes before an object.
fn head(fixture: &Fixture) -> String {
    let text = STANDARD
        .decode(pki(fixture)["encryption.json"].as_str().unwrap())
        .unwrap();
    let state: Value = serde_json::from_slice(&text).unwrap();
    match state["target"]["key"].as_str() {
        Some(key) => format!("k8s:enc:secretbox:v1:{key}:"),
        None => "k8s\0".into(),
    }
}

/// Stores the Secrets again that were patched since the call with this number, as an API server would.
fn store_patched(fixture: &Fixture, since: usize) {
    let calls = fixture.script.calls().split_off(since);
    for path in STORED {
        let name = path.rsplit('/').next().unwrap();
        let object = format!("/api/v1/namespaces/team/secrets/{name}");
        let patch = format!("tenant PATCH {object}");
        if !fixture.tenant.refuses_writes_to(&object) && calls.iter().any(|call| !call.failed && call.text == patch) {
            set_value(fixture, path, &head(fixture));
        }
    }
}

fn reason(fixture: &Fixture) -> Option<String> {
    let condition = fixture.condition("EncryptedAtRest")?;
    Some(condition["reason"].as_str().unwrap_or_default().to_owned())
}

/// Reconciles some times, and returns the phases on the way. `between` happens before each reconcile.
pub(super) async fn reconcile_some(fixture: &mut Fixture, between: impl Fn(&mut Fixture, usize)) -> Vec<String> {
    let mut phases: Vec<String> = Vec::new();
    for number in 0..MAX_RECONCILES {
        between(fixture, number);
        let since = fixture.count_calls();
        // A call that fails is an error of the reconcile, or in the condition.
        drop(Box::pin(fixture.reconcile()).await);
        store_patched(fixture, since);
        let phase = fixture.status()["encryption"]["phase"].clone();
        if let Some(phase) = phase.as_str()
            && phases.last().is_none_or(|last| last != phase)
        {
            phases.push(phase.to_owned());
        }
    }
    phases
}

#[tokio::test]
async fn without_rules_nothing_is_read_made_or_said() {
    let mut fixture = ready().await;
    let before = fixture.count_calls();
    assert!(reconcile_some(&mut fixture, |_, _| {}).await.is_empty());
    let calls = fixture.script.calls().split_off(before);
    assert!(!calls.iter().any(|call| call.text.contains("datastore read secrets")));
    assert_eq!((keys(&fixture), reason(&fixture)), (Vec::new(), None));
}

#[tokio::test]
async fn what_a_tenant_has_stored_is_rewritten_in_all_phases() {
    let mut fixture = ready().await;
    set_rules(&fixture, &json!({}));
    let phases = reconcile_some(&mut fixture, |_, _| {}).await;
    assert_eq!(phases, PHASES);
    assert_eq!(reason(&fixture).as_deref(), Some("Encrypted"));
    assert_eq!(fixture.condition("Ready").unwrap()["status"], "True");
    let key = keys(&fixture);
    assert_eq!(key.len(), 1);
    assert_eq!(values(&fixture), vec![format!("k8s:enc:secretbox:v1:{}:", key[0]); 2]);
    let status = fixture.status()["encryption"].clone();
    assert_eq!(
        (&status["keyName"], &status["resources"]),
        (&json!(key[0]), &json!(["secrets"]))
    );

    // And decrypted.
    set_rules(&fixture, &json!(null));
    reconcile_some(&mut fixture, |_, _| {}).await;
    assert_eq!(values(&fixture), ["k8s\0"; 2]);
    assert_eq!((keys(&fixture), reason(&fixture)), (Vec::new(), None));
    assert_eq!(fixture.status()["encryption"], Value::Null);
}

#[tokio::test]
async fn a_tenant_whose_class_is_gone_stays_encrypted() {
    let mut fixture = ready().await;
    set_rules(&fixture, &json!({}));
    reconcile_some(&mut fixture, |_, _| {}).await;
    let before = (keys(&fixture), values(&fixture));
    fixture.host.remove(CLASS);
    fixture.change_tenant(|cluster| cluster["spec"]["className"] = json!(null));
    reconcile_some(&mut fixture, |_, _| {}).await;
    assert_eq!((keys(&fixture), values(&fixture)), before);
    assert_eq!(reason(&fixture).as_deref(), Some("Encrypted"));
}

#[tokio::test]
async fn a_new_tenant_is_encrypted_from_its_first_start_on() {
    let mut fixture = Fixture::new();
    set_rules(&fixture, &json!({"resources": ["secrets", "configmaps"]}));
    let phases = reconcile_some(&mut fixture, |_, _| {}).await;
    assert_eq!(phases, ["Rewriting", "Completed"]);
    assert_eq!(fixture.condition("Ready").unwrap()["status"], "True");
    assert_eq!(reason(&fixture).as_deref(), Some("Encrypted"));
}

#[tokio::test]
async fn a_key_is_replaced_once_and_kept_until_nothing_needs_it() {
    let mut fixture = ready().await;
    set_rules(&fixture, &json!({}));
    reconcile_some(&mut fixture, |_, _| {}).await;
    let before = keys(&fixture);
    let at = Timestamp::now().to_string();
    fixture.change_tenant(|cluster| cluster["metadata"]["annotations"][REQUEST] = at.into());
    fixture.tenant.refuse_writes(Some((
        "/secrets/b",
        403,
        "admission webhook \"w\" denied the request: no",
    )));
    reconcile_some(&mut fixture, |_, _| {}).await;
    assert_eq!(reason(&fixture).as_deref(), Some("RewriteRefused"));
    let message = fixture.condition("EncryptedAtRest").unwrap()["message"].to_string();
    assert!(
        message.contains("secrets team/b") && message.contains("denied the request"),
        "{message}"
    );
    let events = fixture.host.find("/events/vision.");
    let is_warning = |event: &&Value| event["reason"] == "RewriteRefused" && event["type"] == "Warning";
    assert_eq!(events.iter().filter(is_warning).count(), 1, "{events:?}");
    assert_eq!(keys(&fixture).len(), 2);
    assert!(keys(&fixture).contains(&before[0]));

    fixture.tenant.refuse_writes(None);
    reconcile_some(&mut fixture, |_, _| {}).await;
    assert_eq!(reason(&fixture).as_deref(), Some("Encrypted"));
    let after = keys(&fixture);
    assert_eq!(after.len(), 1);
    assert_ne!(after, before);
    assert_eq!(values(&fixture), vec![format!("k8s:enc:secretbox:v1:{}:", after[0]); 2]);
}

/// A webhook that does not answer for one object keeps no other one from being rewritten, and people learn which it is.
#[tokio::test(start_paused = true)]
async fn an_object_that_is_not_answered_is_named_and_keeps_no_other_one_back() {
    let mut fixture = ready().await;
    set_rules(&fixture, &json!({}));
    fixture.tenant.never_answer_writes(Some("/namespaces/team/secrets/a"));
    // What is patched counts as stored in these tests.
    reconcile_some(&mut fixture, |fixture, _| set_value(fixture, STORED[0], "k8s\0")).await;
    assert_eq!(reason(&fixture).as_deref(), Some("RewriteRefused"));
    let message = fixture.condition("EncryptedAtRest").unwrap()["message"].to_string();
    assert!(message.contains("secrets team/a: no answer in time"), "{message}");
    assert!(
        values(&fixture)[1].starts_with("k8s:enc:"),
        "the other one is rewritten"
    );

    fixture.tenant.never_answer_writes(None);
    reconcile_some(&mut fixture, |_, _| {}).await;
    assert_eq!(reason(&fixture).as_deref(), Some("Encrypted"));
}

/// Gives the tenant a custom resource with an object that is not encrypted. A definition may have any schema: of it nothing is read.
fn add_custom_resource(fixture: &Fixture, plural: &str, object: &str, metadata: &Value) {
    let definition = format!("{plural}.example.com");
    let version = |name: &str, served: bool| json!({"name": name, "served": served, "schema": {"openAPIV3Schema": 5}});
    let versions = json!([version("v1alpha1", false), version("v1", true)]);
    fixture.tenant.insert(
        &format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{definition}"),
        json!({"metadata": {"name": definition}, "spec": {"group": "example.com", "versions": versions}}),
    );
    let place = match object.split_once('/') {
        Some((namespace, name)) => format!("namespaces/{namespace}/{plural}/{name}"),
        None => format!("{plural}/{object}"),
    };
    fixture
        .tenant
        .insert(&format!("/apis/example.com/v1/{place}"), json!({"metadata": metadata}));
    set_value(fixture, &format!("example.com/{plural}/{object}"), "{");
}

/// An APIService of the tenant leads to a server of its own, which answers that the object is stored.
#[tokio::test]
async fn a_server_of_the_tenants_own_that_stores_nothing_is_noticed() {
    const STORED_WIDGET: &str = "example.com/widgets/team/w";
    let mut fixture = ready().await;
    add_custom_resource(
        &fixture,
        "widgets",
        "team/w",
        &json!({"name": "w", "namespace": "team"}),
    );
    set_rules(&fixture, &json!({"resources": ["secrets", "widgets.example.com"]}));
    reconcile_some(&mut fixture, |_, _| {}).await;
    assert_eq!(reason(&fixture).as_deref(), Some("RewriteRefused"));
    let message = fixture.condition("EncryptedAtRest").unwrap()["message"].to_string();
    assert!(
        message.contains("widgets.example.com team/w") && message.contains("APIServices"),
        "{message}"
    );
    let patch = "tenant PATCH /apis/example.com/v1/namespaces/team/widgets/w";
    assert!(fixture.script.calls().iter().any(|call| call.text == patch));

    set_value(&fixture, STORED_WIDGET, &head(&fixture));
    reconcile_some(&mut fixture, |_, _| {}).await;
    assert_eq!(reason(&fixture).as_deref(), Some("Encrypted"));
}

/// Its definition is there, and was created again with another scope.
#[tokio::test]
async fn a_resource_for_which_nothing_answers_is_refused_and_not_said_to_be_answered() {
    let mut fixture = ready().await;
    let metadata = json!({"name": "w", "namespace": "team"});
    add_custom_resource(&fixture, "widgets", "team/w", &metadata);
    let refusal = ("/widgets/", 404, "404 page not found");
    fixture.tenant.refuse_writes(Some(refusal));
    set_rules(&fixture, &json!({"resources": ["secrets", "widgets.example.com"]}));
    reconcile_some(&mut fixture, |_, _| {}).await;
    assert_eq!(values(&fixture), vec![head(&fixture); 2]);
    assert_eq!(reason(&fixture).as_deref(), Some("RewriteRefused"));
    let message = fixture.condition("EncryptedAtRest").unwrap()["message"].to_string();
    assert!(
        message.contains("refused 1, the first is widgets.example.com team/w: the API server does not serve it")
            && !message.contains("APIServices"),
        "{message}"
    );
}

#[tokio::test]
async fn an_answer_that_cannot_be_read_keeps_no_other_resource_from_being_rewritten() {
    let mut fixture = ready().await;
    add_custom_resource(&fixture, "apples", "a", &json!({"name": 5}));
    add_custom_resource(&fixture, "bears", "b", &json!({"name": "b"}));
    let definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/bears.example.com";
    fixture.tenant.insert(definition, json!({"metadata": {}, "spec": 5}));
    let resources = json!(["apples.example.com", "bears.example.com", "secrets"]);
    set_rules(&fixture, &json!({"resources": resources}));
    reconcile_some(&mut fixture, |_, _| {}).await;
    assert_eq!(values(&fixture), vec![head(&fixture); 2]);
    assert_eq!(reason(&fixture).as_deref(), Some("RewriteRefused"));
    let message = fixture.condition("EncryptedAtRest").unwrap()["message"].to_string();
    assert!(message.contains("apples.example.com a"), "{message}");
}

#[tokio::test]
async fn control_that_is_killed_and_remembers_nothing_completes_a_change() {
    let mut fixture = ready().await;
    set_rules(&fixture, &json!({}));
    let phases = reconcile_some(&mut fixture, |fixture, number| {
        // The first reconcile connects to the tenant again, and the second knows that it is ready.
        if number % 3 == 0 {
            fixture.context.tenants = Arc::new(Tenants::default());
        }
    })
    .await;
    assert_eq!(phases, PHASES);
    assert_eq!(reason(&fixture).as_deref(), Some("Encrypted"));
}

#[tokio::test]
async fn nothing_goes_on_before_every_api_server_was_replaced() {
    let mut fixture = ready().await;
    let runtime = crate::testing::ScriptedRuntime::new(&fixture.script);
    runtime.has_rolled_out.store(false, Ordering::SeqCst);
    let has_rolled_out = Arc::clone(&runtime.has_rolled_out);
    fixture.context.runtime = Arc::new(runtime);
    set_rules(&fixture, &json!({}));
    assert_eq!(reconcile_some(&mut fixture, |_, _| {}).await, ["Distributing"]);
    assert_eq!(values(&fixture), ["k8s\0"; 2]);
    has_rolled_out.store(true, Ordering::SeqCst);
    reconcile_some(&mut fixture, |_, _| {}).await;
    assert_eq!(reason(&fixture).as_deref(), Some("Encrypted"));
}

#[tokio::test]
async fn a_tenant_whose_key_is_lost_is_not_started_and_gets_no_other_key() {
    let mut fixture = Fixture::new();
    fixture.stored.keys.store(5, Ordering::SeqCst);
    set_value(&fixture, STORED[0], "k8s:enc:secretbox:v1:encryption-key-lost:\u{1}");
    set_rules(&fixture, &json!({}));
    reconcile_some(&mut fixture, |_, _| {}).await;
    let condition = fixture.condition("InfrastructureReady").unwrap();
    assert_eq!(condition["reason"], "EncryptionKeyMissing");
    let message = condition["message"].as_str().unwrap();
    assert!(
        message.contains("encryption-key-lost") && message.contains("/pki"),
        "{message}"
    );
    assert_eq!(fixture.script.first("runtime run kube-apiserver"), None);
    assert_eq!(pki(&fixture)["encryption.json"], Value::Null);
    // Somebody has restored the database without it.
    set_value(&fixture, STORED[0], "k8s\0");
    fixture.reconcile_until_ready().await;
    assert_eq!(keys(&fixture).len(), 1);
}

#[tokio::test]
async fn an_older_secret_with_keys_is_noticed_although_an_api_server_runs() {
    let mut fixture = ready().await;
    set_rules(&fixture, &json!({}));
    reconcile_some(&mut fixture, |_, _| {}).await;
    let older = fixture.host.get(&pki_path(&fixture)).unwrap();
    let at = Timestamp::now().to_string();
    fixture.change_tenant(|cluster| cluster["metadata"]["annotations"][REQUEST] = at.into());
    reconcile_some(&mut fixture, |_, _| {}).await;
    let newer = fixture.host.get(&pki_path(&fixture)).unwrap();
    assert_ne!(older["data"]["encryption.json"], newer["data"]["encryption.json"]);

    // Somebody restores the Secret while control does not run.
    let runtime = crate::testing::ScriptedRuntime::new(&fixture.script);
    runtime.is_available.store(true, Ordering::SeqCst);
    fixture.context.runtime = Arc::new(runtime);
    fixture.host.insert(&pki_path(&fixture), older);
    fixture.context.tenants = Arc::new(Tenants::default());
    let before = fixture.count_calls();
    reconcile_some(&mut fixture, |_, _| {}).await;
    let condition = fixture.condition("InfrastructureReady").unwrap();
    assert_eq!(condition["reason"], "EncryptionKeyMissing");
    let calls = fixture.script.calls().split_off(before);
    assert!(
        !calls
            .iter()
            .any(|call| call.text.contains("runtime run kube-apiserver"))
    );

    // With the keys that API servers run with, nothing is read again.
    fixture.host.insert(&pki_path(&fixture), newer);
    fixture.context.tenants = Arc::new(Tenants::default());
    let before = fixture.count_calls();
    fixture.reconcile_until_ready().await;
    let calls = fixture.script.calls().split_off(before);
    assert!(!calls.iter().any(|call| call.text.contains("datastore read secrets")));
    assert_eq!(reason(&fixture).as_deref(), Some("Encrypted"));
}

#[tokio::test(start_paused = true)]
async fn a_key_that_somebody_takes_out_of_the_secret_is_stored_again() {
    let mut fixture = ready().await;
    set_rules(&fixture, &json!({}));
    reconcile_some(&mut fixture, |_, _| {}).await;
    let key = keys(&fixture);
    assert_eq!((key.len(), reason(&fixture).as_deref()), (1, Some("Encrypted")));
    let before = pki(&fixture);
    let mut edited = fixture.host.get(&pki_path(&fixture)).unwrap();
    for name in [key[0].as_str(), "encryption.json"] {
        edited["data"].as_object_mut().unwrap().remove(name);
    }
    fixture.host.insert(&pki_path(&fixture), edited);
    tokio::time::advance(Duration::from_secs(301)).await;
    reconcile_some(&mut fixture, |_, _| {}).await;
    assert_eq!(pki(&fixture), before);
    assert_eq!(reason(&fixture).as_deref(), Some("Encrypted"));
}
