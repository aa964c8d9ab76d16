//! Groups that API servers serve themselves, in tenants that can register other servers for them: before Kubernetes 1.37.

use super::{
    Fixture, NEXT_CHECK, OTHER_ROLE, WRITER, applied, message, serve_kind, set_documents, until_applied,
    with_manifest_in,
};
use tokio::time::{Instant, sleep};

/// A version without static admission policies.
const EARLIER: &str = "v1.36.4";
const POLICY: &str = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: deny, namespace: default}\n\
                      spec: {podSelector: {}, policyTypes: [Ingress]}\n";

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
