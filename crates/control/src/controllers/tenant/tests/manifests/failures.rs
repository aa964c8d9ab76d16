//! Calls that fail, and other objects that the tenant rejects.

use super::{OTHER_ROLE, ROLE, applied, message, set_roles, with_manifest};
use serde_json::json;

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

#[tokio::test(start_paused = true)]
async fn a_record_that_is_too_large_is_named() {
    let mut fixture = Box::pin(with_manifest("Keep")).await;
    let too_long = "ConfigMap \"manifests\" is invalid: []: Too long: may not be more than 1048576 bytes";
    fixture
        .host
        .refuse_writes(Some(("/configmaps/manifests", 422, too_long)));
    set_roles(&fixture, "base", &["writer"], "get");
    fixture.reconcile().await.unwrap();
    assert_eq!(applied(&fixture), ("False".into(), "InventoryTooLarge".into()));
    let message = message(&fixture);
    assert!(message.contains("no room"), "{message}");
    assert!(
        fixture.tenant.get(OTHER_ROLE).is_none(),
        "what is not recorded is not applied"
    );

    fixture.host.refuse_writes(None);
    fixture.reconcile().await.unwrap();
    assert!(fixture.tenant.get(OTHER_ROLE).is_some() && fixture.tenant.get(ROLE).is_none());
}
