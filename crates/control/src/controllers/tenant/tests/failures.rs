//! Calls that fail, and tenants that do not answer.

use super::{
    calls_until_ready,
    fixture::{CLASS, Fixture, TENANT},
};
use berth_api::{TenantClass, TenantClassSpec, sync_policy::SyncedKind};
use std::{sync::Arc, time::Duration};
use tokio::time::{sleep, timeout};

#[tokio::test]
async fn each_call_may_fail_once_and_the_tenant_still_becomes_ready() {
    for number in 0..calls_until_ready().await {
        let mut fixture = Fixture::new();
        fixture.script.fail_call(number);
        let errors = fixture.reconcile_until_ready().await;
        let failed = fixture.script.failed().unwrap();
        // Events and probes are tried again without an error.
        assert!(errors.len() <= 1, "{failed}: {errors:?}");
        let first = |part: &str| fixture.script.first(part).unwrap();
        assert!(
            first("/networkpolicies/") < first("runtime run kube-apiserver"),
            "{failed}"
        );
    }
}

#[tokio::test]
async fn a_failed_step_is_reported_by_its_own_condition() {
    for (part, kind, reason) in [
        (
            "host PATCH /api/v1/namespaces/",
            "InfrastructureReady",
            "NamespacesFailed",
        ),
        ("/resourcequotas/", "InfrastructureReady", "LimitsFailed"),
        ("/limitranges/", "InfrastructureReady", "LimitsFailed"),
        ("datastore prepare", "DatastoreReady", "DatastoreFailed"),
        ("runtime allocate", "InfrastructureReady", "AddressFailed"),
        ("/networkpolicies/", "InfrastructureReady", "NetworkPoliciesFailed"),
        ("runtime run kube-apiserver", "ControlPlaneReady", "APIServerFailed"),
        ("/serviceaccounts/syncer", "SyncerReady", "SyncerIdentityFailed"),
        ("/secrets/vision-kubeconfig", "ControlPlaneReady", "KubeconfigFailed"),
        ("tenant PATCH /apis/rbac", "ControlPlaneReady", "BootstrapFailed"),
        ("runtime run syncer", "ControlPlaneReady", "ComponentsFailed"),
        (
            "tenant PATCH /apis/apiregistration",
            "ControlPlaneReady",
            "MetricsAPIFailed",
        ),
        ("/tenantnodes/", "NodesReady", "PublishingFailed"),
    ] {
        let mut healthy = Fixture::new();
        healthy.reconcile_until_ready().await;
        let number = healthy.script.first(part).unwrap_or_else(|| panic!("no call: {part}"));
        let mut fixture = Fixture::new();
        fixture.script.fail_call(number);
        while fixture.script.failed().is_none() {
            let _ = fixture.reconcile().await;
        }
        let condition = fixture.condition(kind).unwrap_or_else(|| panic!("{part}: no {kind}"));
        assert_eq!(
            (&condition["status"], &condition["reason"]),
            (&"False".into(), &reason.into()),
            "{part}"
        );
        let ready = fixture.condition("Ready").unwrap();
        assert_eq!(ready["status"], "False", "{part}");
        // Nodes are published while the API server starts, which comes first.
        let is_first = kind != "NodesReady";
        assert!(!is_first || ready["reason"] == reason, "{part}: {ready}");
        if kind != "DatastoreReady" {
            let datastore = fixture.condition("DatastoreReady");
            assert!(
                datastore.is_none_or(|datastore| datastore["status"] == "True"),
                "{part}"
            );
        }
    }
}

#[tokio::test]
async fn a_node_that_is_too_large_is_named_and_keeps_no_other_back() {
    let mut fixture = Fixture::new();
    let node = fixture.host.get("/api/v1/nodes/gpu-1").unwrap();
    for other in ["gpu-0", "gpu-2"] {
        let mut node = node.clone();
        node["metadata"]["name"] = other.into();
        node["metadata"].as_object_mut().unwrap().remove("uid");
        fixture.host.insert(&format!("/api/v1/nodes/{other}"), node);
    }
    let too_large = ("/tenantnodes/gpu-1/status", 500, "etcdserver: request is too large");
    fixture.host.refuse_writes(Some(too_large));
    let is_named = |fixture: &Fixture| {
        let condition = fixture.condition("NodesReady");
        condition.filter(|condition| condition["reason"] == "NodeTooLarge")
    };
    for _ in 0..20 {
        let _ = fixture.reconcile().await;
        if is_named(&fixture).is_some() {
            break;
        }
    }
    let condition = is_named(&fixture).expect("the condition names the node");
    assert_eq!(condition["status"], "False");
    assert!(
        condition["message"].as_str().unwrap().contains("node gpu-1, because"),
        "{condition}"
    );
    let namespace = fixture.id.control_plane_namespace();
    for (name, is_published) in [("gpu-0", true), ("gpu-1", false), ("gpu-2", true)] {
        let path = format!("/apis/berth.dev/v1alpha1/namespaces/{namespace}/tenantnodes/{name}");
        let published = fixture.host.get(&path).unwrap();
        assert_eq!(published["status"].is_object(), is_published, "{published}");
    }

    fixture.host.refuse_writes(None);
    for _ in 0..20 {
        let _ = fixture.reconcile().await;
    }
    assert!(is_named(&fixture).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_tenant_whose_webhooks_never_answer_holds_no_slot_and_says_so() {
    const SECOND: Duration = Duration::from_secs(1);
    let mut fixture = Fixture::new();
    let condition = |fixture: &Fixture| fixture.condition("ControlPlaneReady").unwrap_or_default();
    fixture.tenant.never_answer_writes(Some("/apis/rbac"));
    let slots = fixture.slots.clone();
    // Another tenant, which needs the only slot once a second.
    let other = tokio::spawn(async move {
        for _ in 0..30 {
            let slot = timeout(SECOND, slots.take()).await;
            drop(slot.expect("the slot is held while a tenant does not answer"));
            sleep(SECOND).await;
        }
    });
    for _ in 0..10 {
        let _ = fixture.reconcile().await;
        if condition(&fixture)["reason"] == "APIServerSlow" {
            break;
        }
    }
    other.await.unwrap();
    let slow = condition(&fixture);
    assert_eq!(
        (&slow["status"], &slow["reason"]),
        (&"False".into(), &"APIServerSlow".into())
    );
    assert!(slow["message"].as_str().unwrap().contains("webhooks"), "{slow}");
    assert_eq!(fixture.script.first("runtime run syncer"), None);
    // Nothing of the host is written again because of that.
    let before = fixture.count_calls();
    let _ = fixture.reconcile().await;
    let calls = fixture.script.calls().split_off(before);
    let roles = |text: &str| text.starts_with("host PATCH") && text.contains("/roles/");
    assert!(!calls.iter().any(|call| roles(&call.text)), "{calls:#?}");

    fixture.tenant.never_answer_writes(None);
    assert!(fixture.reconcile_until_ready().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn components_that_have_run_are_updated_though_the_tenant_refuses_objects() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    // Another control has taken over, which knows no object that was applied.
    fixture.context.tenants = Arc::default();
    fixture.tenant.never_answer_writes(Some("/apis/rbac"));
    let before = fixture.count_calls();
    let mut error = None;
    for _ in 0..10 {
        error = error.or(fixture.reconcile().await.err());
        if error.is_some() {
            break;
        }
    }
    assert_eq!(error.map(|error| error.reason()), Some("APIServerSlow"));
    let calls = fixture.script.calls().split_off(before);
    for component in ["kube-controller-manager", "syncer"] {
        let text = format!("runtime run {component}");
        assert!(calls.iter().any(|call| call.text == text), "{text}: {calls:#?}");
    }
    let condition = fixture.condition("ControlPlaneReady").unwrap();
    assert_eq!(
        (&condition["status"], &condition["reason"]),
        (&"False".into(), &"APIServerSlow".into())
    );
}

#[tokio::test]
async fn a_host_that_does_not_say_what_a_kind_is_does_not_count_as_a_refusal_of_the_tenant() {
    const DEFINITION: &str = "host GET /apis/apiextensions.k8s.io/v1/customresourcedefinitions/";
    let number = {
        let mut healthy = fixture_with_kind();
        healthy.reconcile_until_ready().await;
        healthy.script.first(DEFINITION).unwrap()
    };
    let mut fixture = fixture_with_kind();
    fixture.script.fail_call(number);
    while fixture.script.failed().is_none() {
        let _ = fixture.reconcile().await;
    }
    assert!(fixture.script.failed().unwrap().starts_with(DEFINITION));
    assert_eq!(fixture.condition("ControlPlaneReady").unwrap()["reason"], "KindsFailed");
    assert!(fixture.reconcile_until_ready().await.is_empty());
}

/// A tenant whose class syncs a further kind.
pub(super) fn fixture_with_kind() -> Fixture {
    let fixture = Fixture::new();
    let mut spec = TenantClassSpec::default();
    spec.sync.kinds = vec![SyncedKind {
        group: "example.com".into(),
        version: "v1".into(),
        kind: "Widget".into(),
        resource: "widgets".into(),
        ..SyncedKind::default()
    }];
    let class = TenantClass::new("gold", spec);
    fixture.host.insert(CLASS, serde_json::to_value(class).unwrap());
    let mut cluster = fixture.host.get(TENANT).unwrap();
    cluster["spec"]["className"] = "gold".into();
    fixture.host.insert(TENANT, cluster);
    fixture
}
