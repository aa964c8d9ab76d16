//! A tenant gets new credentials. What decides is tested in `control_plane/client_authority`.

use super::{super::memory::Tenants, argo_cd::registered, fixture::Fixture};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::sync::Arc;

const REQUEST: &str = "berth.dev/credentials-rotation-requested-at";
/// Enough reconciles for each step.
const MAX_RECONCILES: usize = 24;
/// What API servers publish of the authorities that they trust.
const PUBLISHED: &str = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
/// All phases in their order.
const PHASES: [&str; 4] = ["Trusting", "Issuing", "Revoking", "Completed"];

fn request(fixture: &Fixture, at: Timestamp) {
    fixture.change_tenant(|cluster| cluster["metadata"]["annotations"][REQUEST] = at.to_string().into());
}

fn phase(fixture: &Fixture) -> Value {
    fixture.status()["credentials"]["phase"].clone()
}

fn reason(fixture: &Fixture) -> Option<String> {
    let condition = fixture.condition("CredentialsRotated")?;
    Some(condition["reason"].as_str().unwrap_or_default().to_owned())
}

/// The data of a Secret of the control-plane namespace.
fn stored(fixture: &Fixture, name: &str) -> Value {
    let path = format!(
        "/api/v1/namespaces/{}/secrets/{name}",
        fixture.id.control_plane_namespace()
    );
    fixture.host.get(&path).unwrap()["data"].clone()
}

/// The certificate of the authority that signs.
fn authority(fixture: &Fixture) -> String {
    let pki = stored(fixture, "pki");
    let text = STANDARD.decode(pki["client-ca.crt"].as_str().unwrap()).unwrap();
    String::from_utf8(text).unwrap()
}

/// Publishes authorities, as API servers do.
fn publish(fixture: &Fixture, authorities: &str) {
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system"},
        "data": {"client-ca-file": authorities},
    });
    fixture.tenant.insert(PUBLISHED, map);
}

/// The authorities that are published.
fn published(fixture: &Fixture) -> String {
    let map = fixture.tenant.get(PUBLISHED).unwrap();
    let text = map["data"]["client-ca-file"].as_str().unwrap();
    text.trim_end().to_owned()
}

/// The certificate in the team's kubeconfig.
fn admin(fixture: &Fixture) -> String {
    let secret = fixture
        .host
        .get("/api/v1/namespaces/team/secrets/vision-kubeconfig")
        .unwrap();
    let text = STANDARD.decode(secret["data"]["kubeconfig"].as_str().unwrap()).unwrap();
    let text = String::from_utf8(text).unwrap();
    let line = text
        .lines()
        .find(|line| line.contains("client-certificate-data"))
        .unwrap();
    line.to_owned()
}

/// Reconciles until the rotation is completed, and returns the phases on the way. `between` happens before each reconcile.
async fn reconcile_until_completed(fixture: &mut Fixture, between: impl Fn(&mut Fixture, usize)) -> Vec<Value> {
    let mut phases: Vec<Value> = Vec::new();
    for number in 0..MAX_RECONCILES {
        between(fixture, number);
        // A call that fails is an error of the reconcile, or in the condition.
        drop(Box::pin(fixture.reconcile()).await);
        if !phase(fixture).is_null() && phases.last() != Some(&phase(fixture)) {
            phases.push(phase(fixture));
        }
        if phase(fixture) == "Completed" && reason(fixture).as_deref() == Some("Rotated") {
            return phases;
        }
    }
    panic!("not completed: {:#}", fixture.status());
}

#[tokio::test]
async fn a_tenant_without_a_request_keeps_its_credentials_and_says_nothing() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    let (before, pki) = (admin(&fixture), stored(&fixture, "pki"));
    fixture.reconcile().await.unwrap();
    assert_eq!((admin(&fixture), stored(&fixture, "pki")), (before, pki));
    assert_eq!((reason(&fixture), phase(&fixture)), (None, json!(null)));
    assert_eq!(fixture.script.first("runtime check kube-apiserver"), None);
}

#[tokio::test]
async fn a_request_is_carried_out_once_in_all_phases() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    let (before, pki) = (admin(&fixture), stored(&fixture, "pki"));
    request(&fixture, Timestamp::now());
    let phases = reconcile_until_completed(&mut fixture, |_, _| {}).await;
    assert_eq!(phases, PHASES);
    assert_ne!(admin(&fixture), before);
    let after = stored(&fixture, "pki");
    assert_ne!(after["client-ca.crt"], pki["client-ca.crt"]);
    assert_eq!(after["server-ca.crt"], pki["server-ca.crt"]);
    assert_eq!(after["service-account.key"], pki["service-account.key"]);
    assert_eq!(fixture.context.rotations.get(), 1);
    assert_eq!(fixture.condition("Ready").unwrap()["status"], "True");

    let rotated = admin(&fixture);
    for _ in 0..3 {
        fixture.reconcile().await.unwrap();
    }
    assert_eq!((admin(&fixture), stored(&fixture, "pki")), (rotated, after));
    assert_eq!(fixture.context.rotations.get(), 1);
}

#[tokio::test]
async fn control_that_is_killed_and_remembers_nothing_completes_a_rotation() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    let before = admin(&fixture);
    request(&fixture, Timestamp::now());
    let phases = reconcile_until_completed(&mut fixture, |fixture, number| {
        // The first reconcile connects to the tenant again, and the second knows that it is ready.
        if number % 3 == 0 {
            fixture.context.tenants = Arc::new(Tenants::default());
        }
    })
    .await;
    assert_eq!(phases, PHASES);
    assert_ne!(admin(&fixture), before);
}

#[tokio::test]
async fn each_call_of_a_rotation_may_fail_once_and_it_is_still_completed() {
    let calls: Vec<usize> = {
        let mut fixture = Fixture::new();
        fixture.reconcile_until_ready().await;
        let first = fixture.count_calls();
        request(&fixture, Timestamp::now());
        reconcile_until_completed(&mut fixture, |_, _| {}).await;
        let calls = fixture.script.calls().into_iter().enumerate().skip(first);
        // Of what a rotation reads, writes and runs. That all others may fail is tested with a new tenant.
        let parts = ["/secrets", "/tenantclusters/", "runtime "];
        calls
            .filter(|(_, call)| parts.iter().any(|part| call.text.contains(part)))
            .map(|(number, _)| number)
            .collect()
    };
    assert!(!calls.is_empty());
    for number in calls {
        let mut fixture = Fixture::new();
        fixture.reconcile_until_ready().await;
        let before = admin(&fixture);
        request(&fixture, Timestamp::now());
        fixture.script.fail_call(number);
        let phases = reconcile_until_completed(&mut fixture, |_, _| {}).await;
        let failed = fixture.script.failed();
        // A status that could not be written leaves out a phase.
        let places = phases
            .iter()
            .filter_map(|phase| PHASES.iter().position(|known| phase == known));
        assert!(places.is_sorted(), "{failed:?}: {phases:?}");
        assert_ne!(admin(&fixture), before, "{failed:?}");
        let pki = stored(&fixture, "pki");
        for left in ["client-next-ca.crt", "client-next-ca.key", "client-previous-ca.crt"] {
            assert_eq!(pki.get(left), None, "{failed:?}");
        }
    }
}

#[tokio::test]
async fn a_request_waits_for_its_time_and_for_a_tenant_that_sleeps() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    let before = admin(&fixture);
    request(&fixture, Timestamp::now() + SignedDuration::from_hours(1));
    fixture.reconcile().await.unwrap();
    assert_eq!(reason(&fixture).as_deref(), Some("Waiting"));
    fixture.change_tenant(|cluster| cluster["metadata"]["annotations"][REQUEST] = "soon".into());
    fixture.reconcile().await.unwrap();
    assert_eq!(reason(&fixture).as_deref(), Some("InvalidRequest"));

    let sleep = Timestamp::now().to_string();
    fixture.change_tenant(|cluster| cluster["metadata"]["annotations"]["berth.dev/sleep-requested-at"] = sleep.into());
    for _ in 0..MAX_RECONCILES {
        fixture.reconcile().await.unwrap();
    }
    assert_eq!(fixture.status()["phase"], "Sleeping");
    request(&fixture, Timestamp::now());
    fixture.reconcile().await.unwrap();
    fixture.reconcile().await.unwrap();
    assert_eq!(
        (reason(&fixture).as_deref(), phase(&fixture)),
        (Some("Sleeping"), json!(null))
    );
    assert_eq!(admin(&fixture), before);
    let phases = reconcile_until_completed(&mut fixture, |fixture, _| {
        let wake = Timestamp::now().to_string();
        fixture
            .change_tenant(|cluster| cluster["metadata"]["annotations"]["berth.dev/wake-requested-at"] = wake.into());
    })
    .await;
    assert_eq!(phases, PHASES);
    assert_ne!(admin(&fixture), before);
}

#[tokio::test]
async fn nothing_is_revoked_before_argo_cd_has_its_new_certificate() {
    let mut fixture = Box::pin(registered()).await;
    let path = format!("/api/v1/namespaces/argocd/secrets/{}", fixture.id.argo_cd_secret());
    let before = fixture.host.get(&path).unwrap();
    // Another Secret is in the way.
    let mut foreign = before.clone();
    foreign["metadata"]["annotations"] = json!({});
    fixture.host.insert(&path, foreign);
    request(&fixture, Timestamp::now());
    for _ in 0..MAX_RECONCILES {
        fixture.reconcile().await.unwrap();
    }
    assert_eq!(phase(&fixture), "Issuing");
    let message = fixture.condition("CredentialsRotated").unwrap()["message"].clone();
    assert!(message.as_str().unwrap().contains("ArgoCDRegistered"), "{message}");
    fixture.host.remove(&path);
    reconcile_until_completed(&mut fixture, |_, _| {}).await;
    assert_ne!(fixture.host.get(&path).unwrap()["data"], before["data"]);
}

/// Lets the phase have begun 15 minutes ago.
fn backdate(fixture: &mut Fixture) {
    let path = format!(
        "/api/v1/namespaces/{}/secrets/pki",
        fixture.id.control_plane_namespace()
    );
    let mut secret = fixture.host.get(&path).unwrap();
    let text = secret["data"]["client-rotation.json"].as_str().unwrap();
    let mut rotation: Value = serde_json::from_slice(&STANDARD.decode(text).unwrap()).unwrap();
    let since = Timestamp::now() - SignedDuration::from_mins(15);
    rotation["since"] = since.to_string().into();
    secret["data"]["client-rotation.json"] = STANDARD.encode(rotation.to_string()).into();
    fixture.host.insert(&path, secret);
    // It is remembered otherwise.
    fixture.context.tenants = Arc::new(Tenants::default());
}

#[tokio::test]
async fn the_old_authority_is_revoked_though_the_kubeconfig_cannot_be_written() {
    const SECRET: &str = "/api/v1/namespaces/team/secrets/vision-kubeconfig";
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    let old = stored(&fixture, "pki")["client-ca.crt"].clone();
    // Somebody of the team takes the label away.
    let mut foreign = fixture.host.get(SECRET).unwrap();
    foreign["metadata"]["labels"] = json!({});
    fixture.host.insert(SECRET, foreign);
    let foreign = fixture.host.get(SECRET);
    request(&fixture, Timestamp::now());
    for _ in 0..MAX_RECONCILES {
        drop(Box::pin(fixture.reconcile()).await);
    }
    // A team that does nothing wrong gets its new kubeconfig before.
    assert_eq!(phase(&fixture), "Issuing");
    let message = fixture.condition("CredentialsRotated").unwrap()["message"].clone();
    assert!(message.as_str().unwrap().contains("kubeconfig"), "{message}");
    let condition = fixture.condition("ControlPlaneReady").unwrap();
    assert_eq!(condition["reason"], "SecretExists");
    backdate(&mut fixture);
    let phases = reconcile_until_completed(&mut fixture, |_, _| {}).await;
    assert_eq!(phases.last(), Some(&json!("Completed")));
    let pki = stored(&fixture, "pki");
    assert_ne!(pki["client-ca.crt"], old);
    assert_eq!(pki.get("client-previous-ca.crt"), None);
    assert_eq!(fixture.host.get(SECRET), foreign);
}

#[tokio::test]
async fn servers_of_the_tenant_do_not_trust_a_revoked_authority() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    let old = authority(&fixture);
    publish(&fixture, &old);
    request(&fixture, Timestamp::now());
    let phases = reconcile_until_completed(&mut fixture, |fixture, _| {
        // While an API server trusts it, it is that one's to publish.
        if phase(fixture) != "Completed" {
            assert_eq!(published(fixture), old.trim_end());
        }
    })
    .await;
    assert_eq!(phases, PHASES);
    let new = authority(&fixture);
    assert_eq!(published(&fixture), new.trim_end());
    // An earlier version has left the old one, or control was killed before it had taken that away.
    publish(&fixture, &format!("{}\n{new}", old.trim_end()));
    fixture.context.tenants = Arc::new(Tenants::default());
    for _ in 0..3 {
        drop(Box::pin(fixture.reconcile()).await);
    }
    assert_eq!(published(&fixture), new.trim_end());
}

#[tokio::test]
async fn an_authority_that_stays_published_is_reported_and_holds_no_rotation_up() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    let old = authority(&fixture);
    publish(&fixture, &old);
    let part = "/configmaps/extension-apiserver-authentication";
    fixture.tenant.refuse_writes(Some((part, 403, "hands off")));
    let mut before = old.clone();
    for _ in 0..2 {
        request(&fixture, Timestamp::now());
        for _ in 0..MAX_RECONCILES {
            drop(Box::pin(fixture.reconcile()).await);
        }
        assert_eq!(phase(&fixture), "Completed");
        assert_eq!(reason(&fixture).as_deref(), Some("RotationFailed"));
        let message = fixture.condition("CredentialsRotated").unwrap()["message"].clone();
        assert!(message.as_str().unwrap().contains("hands off"), "{message}");
        assert_ne!(authority(&fixture), before);
        before = authority(&fixture);
    }
    assert_eq!(published(&fixture), old.trim_end());
    fixture.tenant.refuse_writes(None);
    reconcile_until_completed(&mut fixture, |_, _| {}).await;
    assert_eq!(published(&fixture), before.trim_end());
}

#[tokio::test]
async fn an_immutable_kubeconfig_holds_no_rotation_up() {
    const SECRET: &str = "/api/v1/namespaces/team/secrets/vision-kubeconfig";
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    let before = admin(&fixture);
    let mut immutable = fixture.host.get(SECRET).unwrap();
    immutable["immutable"] = true.into();
    fixture.host.insert(SECRET, immutable);
    request(&fixture, Timestamp::now());
    let phases = reconcile_until_completed(&mut fixture, |_, _| {}).await;
    assert_eq!(phases, PHASES);
    assert_ne!(admin(&fixture), before);
    assert_eq!(fixture.host.get(SECRET).unwrap()["immutable"], Value::Null);
}
