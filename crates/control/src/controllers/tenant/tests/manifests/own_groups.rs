//! Groups that API servers serve themselves. Before Kubernetes 1.37, a tenant can register other servers for them.

use super::{
    Fixture, NEXT_CHECK, OTHER_ROLE, RETRY, WRITER, applied, message, registration, serve_kind, set_documents,
    set_registration, until_applied, with_manifest_in,
};
use crate::testing::VERSION;
use std::sync::Arc;
use tokio::time::{Instant, sleep};

/// A version without static admission policies.
const EARLIER: &str = "v1.36.4";
const POLICY: &str = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: deny, namespace: default}\n\
                      spec: {podSelector: {}, policyTypes: [Ingress]}\n";
/// The group of the policy.
const GROUP: &str = "networking.k8s.io";

/// A tenant of a version with a role and a NetworkPolicy of the manifest.
async fn with_policy(version: &str) -> Fixture {
    let mut fixture = Box::pin(with_manifest_in(version, "Keep")).await;
    serve_kind(
        &fixture,
        "networking.k8s.io/v1",
        "NetworkPolicy",
        true,
        &["networkpolicies"],
    );
    set_documents(&fixture, &[POLICY, WRITER]);
    until_applied(&mut fixture).await;
    fixture
}

#[tokio::test(start_paused = true)]
async fn a_kind_of_kubernetes_that_a_hanging_server_serves_keeps_no_other_back() {
    let mut fixture = Box::pin(with_policy(EARLIER)).await;
    fixture.tenant.never_answer(Some("/networkpolicies"));
    for _ in 0..2 {
        fixture.tenant.remove(OTHER_ROLE);
        sleep(NEXT_CHECK).await;
        let started = Instant::now();
        fixture.reconcile().await.unwrap();
        assert!(started.elapsed() < NEXT_CHECK / 10, "{:?}", started.elapsed());
        assert!(fixture.tenant.get(OTHER_ROLE).is_some(), "drift is corrected");
        assert_eq!(applied(&fixture), ("False".into(), "ApplyFailed".into()));
        let message = message(&fixture);
        assert!(
            message.contains("NetworkPolicy default/deny: the server of its API group in the tenant did not answer"),
            "{message}"
        );
        assert!(!message.contains("ClusterRole"), "{message}");
    }
    fixture.tenant.never_answer(None);
    until_applied(&mut fixture).await;
}

/// Whether the tenant has another server for the group of NetworkPolicies.
fn has_other_server(fixture: &Fixture) -> bool {
    let spec = fixture.tenant.get(&registration(GROUP)).unwrap()["spec"].clone();
    assert_eq!(spec["groupPriorityMinimum"], 1);
    assert_eq!(spec["service"].is_null(), spec["insecureSkipTLSVerify"].is_null());
    !spec["service"].is_null()
}

#[tokio::test(start_paused = true)]
async fn another_server_for_a_group_of_kubernetes_is_taken_out_as_drift() {
    let mut fixture = Box::pin(with_policy(EARLIER)).await;
    for _ in 0..2 {
        set_registration(&fixture, GROUP, true);
        sleep(NEXT_CHECK).await;
        fixture.reconcile().await.unwrap();
        assert!(!has_other_server(&fixture));
    }
    let events = fixture.host.find("/events/vision.");
    let drift = events.iter().filter(|event| event["reason"] == "DriftCorrected");
    let notes: Vec<&str> = drift.filter_map(|event| event["note"].as_str()).collect();
    assert!(
        notes
            .iter()
            .any(|note| note.ends_with("APIService v1.networking.k8s.io")),
        "{notes:?}"
    );
    until_applied(&mut fixture).await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_registered_before_an_upgrade_is_taken_out_once() {
    let mut fixture = Box::pin(with_policy(VERSION)).await;
    set_registration(&fixture, GROUP, true);
    // Another control, which has not looked yet.
    fixture.context.tenants = Arc::default();
    for _ in 0..5 {
        fixture.reconcile().await.unwrap();
        sleep(RETRY).await;
    }
    assert!(!has_other_server(&fixture));
    until_applied(&mut fixture).await;
    // Nobody can register another one.
    let before = fixture.count_calls();
    for _ in 0..2 {
        sleep(NEXT_CHECK).await;
        fixture.reconcile().await.unwrap();
    }
    let calls = fixture.script.calls().split_off(before);
    let asked = calls.iter().filter(|call| call.text.contains("/apiservices/v1."));
    assert_eq!(asked.count(), 0);
}
