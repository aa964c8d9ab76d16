//! The whole controller against scripted answers: every call that it makes fails once, and the tenant still becomes ready,
//! or is still deleted.

mod argo_cd;
mod expiration;
mod fixture;
mod kubeconfig;
mod manifests;
mod quota;
mod rotation;
mod schedule;
mod sleep;
mod violations;

use crate::testing::NEVER_ENDS;
use berth_api::{TenantClass, TenantClassSpec, sync_policy::SyncedKind};
use fixture::{Fixture, TENANT};
use serde_json::json;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::time::{sleep, timeout};

/// Calls until the first reconcile that had nothing left to do.
async fn calls_until_ready() -> usize {
    let mut fixture = Fixture::new();
    assert!(fixture.reconcile_until_ready().await.is_empty());
    fixture.count_calls()
}

#[tokio::test]
async fn a_tenant_becomes_ready_and_then_nothing_is_written() {
    let mut fixture = Fixture::new();
    assert!(fixture.reconcile_until_ready().await.is_empty());
    let conditions = [
        "Accepted",
        "InfrastructureReady",
        "DatastoreReady",
        "ControlPlaneReady",
        "SyncerReady",
        "NodesReady",
    ];
    for kind in conditions {
        assert_eq!(fixture.condition(kind).unwrap()["status"], "True", "{kind}");
    }
    let namespace = fixture.id.control_plane_namespace();
    assert_eq!(fixture.host.find(&format!("/{namespace}/tenantnodes/")).len(), 1);
    assert!(!fixture.tenant.find("/apiservices/").is_empty());
    fixture.reconcile().await.unwrap();
    let before = fixture.count_calls();
    fixture.reconcile().await.unwrap();
    let calls = fixture.script.calls().split_off(before);
    let policies = |text: &str| text.contains("/networkpolicies/");
    let writes = calls.iter().filter(|call| {
        let reads = [
            "GET",
            "run ",
            "stop ",
            "probe",
            "publish",
            "datastore prepare",
            "datastore count",
        ];
        !reads.iter().any(|read| call.text.contains(read)) && !policies(&call.text)
    });
    assert_eq!(writes.count(), 0, "{calls:#?}");
}

#[tokio::test]
async fn a_tenant_that_stores_as_much_as_it_may_is_ready_and_says_so() {
    let mut fixture = Fixture::new();
    let metrics = "apiserver_resource_objects{group=\"\",resource=\"configmaps\"} 600\n\
                   apiserver_resource_size_estimate_bytes{group=\"\",resource=\"configmaps\"} 5.6e+08\n";
    fixture.tenant.serve("/metrics", metrics.into());
    fixture.reconcile_until_ready().await;
    let condition = fixture.condition("DatastoreWithinLimits").unwrap();
    assert_eq!(
        (&condition["status"], &condition["reason"]),
        (&"False".into(), &"DatastoreLimitReached".into())
    );
    let usage = fixture.status()["datastore"].clone();
    assert_eq!(
        (&usage["full"], &usage["percent"]),
        (&true.into(), &104.into()),
        "{usage}"
    );
}

#[tokio::test]
async fn a_tenant_that_has_nearly_as_much_on_the_host_as_it_may_is_ready_and_says_so() {
    let mut fixture = Fixture::new();
    fixture.stored.host_bytes.store(430 << 20, Ordering::SeqCst);
    fixture.reconcile_until_ready().await;
    let condition = fixture.condition("HostWithinLimits").unwrap();
    assert_eq!(
        (&condition["status"], &condition["reason"]),
        (&"False".into(), &"HostLimitNear".into())
    );
    assert_eq!(fixture.status()["hostUsage"]["percent"], 83);
    assert_eq!(fixture.condition("Ready").unwrap()["status"], "True");
}

/// Metrics of an API server that has measured ten objects of ten bytes.
const SMALL: &str = "apiserver_resource_objects{group=\"\",resource=\"configmaps\"} 10\n\
                     apiserver_resource_size_estimate_bytes{group=\"\",resource=\"configmaps\"} 100\n";

#[tokio::test]
async fn keys_of_definitions_that_were_removed_by_force_count() {
    let mut fixture = Fixture::new();
    fixture.tenant.serve("/metrics", SMALL.into());
    fixture.stored.keys.store(240_000, Ordering::SeqCst);
    fixture.reconcile_until_ready().await;
    let usage = fixture.status()["datastore"].clone();
    assert_eq!(
        (&usage["objects"], &usage["growthDenied"]),
        (&240_000.into(), &true.into()),
        "{usage}"
    );
    let condition = fixture.condition("DatastoreWithinLimits").unwrap();
    assert_eq!(condition["reason"], "DatastoreLimitExceeded");
}

#[tokio::test]
async fn sizes_that_the_api_server_does_not_measure_are_read_in_etcd() {
    let mut fixture = Fixture::new();
    fixture.tenant.serve("/metrics", SMALL.into());
    fixture.stored.keys.store(400, Ordering::SeqCst);
    fixture.stored.bytes.store(513 << 20, Ordering::SeqCst);
    fixture.reconcile_until_ready().await;
    let usage = fixture.status()["datastore"].clone();
    assert_eq!(
        (&usage["full"], &usage["percent"]),
        (&true.into(), &100.into()),
        "{usage}"
    );
    let reads = fixture
        .script
        .calls()
        .into_iter()
        .filter(|call| call.text == "datastore read");
    assert_eq!(reads.count(), 2);
}

#[tokio::test]
async fn other_keys_are_read_if_events_do_not_explain_all() {
    let mut fixture = Fixture::new();
    fixture.tenant.serve("/metrics", SMALL.into());
    fixture.stored.keys.store(400, Ordering::SeqCst);
    fixture.stored.other_keys.store(200, Ordering::SeqCst);
    fixture.stored.other_bytes.store((513 << 20) + 100, Ordering::SeqCst);
    fixture.reconcile_until_ready().await;
    let usage = fixture.status()["datastore"].clone();
    assert_eq!(
        (&usage["full"], &usage["percent"]),
        (&true.into(), &100.into()),
        "{usage}"
    );
}

#[tokio::test(start_paused = true)]
async fn sizes_of_one_tenant_are_read_at_a_time() {
    let mut fixture = Fixture::new();
    fixture.tenant.serve("/metrics", SMALL.into());
    fixture.stored.keys.store(400, Ordering::SeqCst);
    fixture.stored.bytes.store(513 << 20, Ordering::SeqCst);
    let tenants = Arc::clone(&fixture.context.tenants);
    let another = tenants.size_reading.try_lock().unwrap();
    fixture.reconcile_until_ready().await;
    assert_eq!(fixture.script.first("datastore read"), None);
    drop(another);
    sleep(Duration::from_secs(60)).await;
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.status()["datastore"]["full"], true);
}

#[tokio::test(start_paused = true)]
async fn a_tenant_whose_metrics_fail_is_measured_in_etcd() {
    let mut fixture = Fixture::new();
    fixture.stored.keys.store(1000, Ordering::SeqCst);
    fixture.stored.other_keys.store(500, Ordering::SeqCst);
    fixture.stored.bytes.store(300 << 20, Ordering::SeqCst);
    fixture.stored.other_bytes.store(300 << 20, Ordering::SeqCst);
    fixture.reconcile_until_ready().await;
    assert_eq!(fixture.script.first("datastore read"), None);
    assert!(fixture.status()["datastore"].is_null());
    sleep(Duration::from_secs(300)).await;
    fixture.reconcile().await.unwrap();
    let usage = fixture.status()["datastore"].clone();
    assert_eq!(
        (&usage["objects"], &usage["percent"], &usage["growthDenied"]),
        (&1000.into(), &117.into(), &true.into()),
        "{usage}"
    );
    let condition = fixture.condition("DatastoreWithinLimits").unwrap();
    assert_eq!(condition["reason"], "DatastoreLimitExceeded");
}

#[tokio::test]
async fn a_few_keys_that_are_no_objects_are_not_read() {
    let mut fixture = Fixture::new();
    fixture.tenant.serve("/metrics", SMALL.into());
    fixture.stored.keys.store(20, Ordering::SeqCst);
    fixture.reconcile_until_ready().await;
    assert_eq!(fixture.status()["datastore"]["bytes"], 100);
    assert_eq!(fixture.script.first("datastore read"), None);
}

#[tokio::test]
async fn nothing_runs_before_the_network_policies_and_the_syncers_rights_exist() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    let first = |part: &str| fixture.script.first(part).unwrap_or_else(|| panic!("no call: {part}"));
    let workloads = fixture.id.workload_namespace();
    assert!(first("/networkpolicies/") < first("runtime run kube-apiserver"));
    assert!(first("/resourcequotas/") < first("runtime run kube-apiserver"));
    // The default requests that the quota needs.
    assert!(first("/limitranges/") < first("/resourcequotas/"));
    assert!(first("datastore prepare") < first("runtime run kube-apiserver"));
    assert!(first(&format!("{workloads}/rolebindings/")) < first("runtime run syncer"));
    assert!(first("runtime run syncer") < first("/apiservices/"));
    assert!(
        first("runtime run syncer") < first("GET /metrics"),
        "they take time that the team waits for"
    );
}

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
fn fixture_with_kind() -> Fixture {
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
    let path = "/apis/berth.dev/v1alpha1/tenantclasses/gold";
    fixture.host.insert(path, serde_json::to_value(class).unwrap());
    let mut cluster = fixture.host.get(TENANT).unwrap();
    cluster["spec"]["className"] = "gold".into();
    fixture.host.insert(TENANT, cluster);
    fixture
}

#[tokio::test]
async fn a_tenant_that_is_deleted_leaves_nothing() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    assert!(fixture.delete().await.is_empty());
    assert_nothing_is_left(&fixture);
    let first = |part: &str| fixture.script.first(part).unwrap_or_else(|| panic!("no call: {part}"));
    let workloads = format!("DELETE /api/v1/namespaces/{}", fixture.id.workload_namespace());
    let control_plane = format!("DELETE /api/v1/namespaces/{}", fixture.id.control_plane_namespace());
    assert!(first("runtime stop everything") < first(&workloads));
    assert!(first(&workloads) < first("datastore remove"));
    assert!(first("datastore remove") < first(&control_plane));
}

#[tokio::test]
async fn each_call_of_a_deletion_may_fail_once_and_nothing_is_left() {
    let until_ready = calls_until_ready().await;
    let until_gone = {
        let mut fixture = Fixture::new();
        fixture.reconcile_until_ready().await;
        fixture.delete().await;
        fixture.count_calls()
    };
    for number in until_ready..until_gone {
        let mut fixture = Fixture::new();
        fixture.reconcile_until_ready().await;
        fixture.script.fail_call(number);
        let errors = fixture.delete().await;
        let failed = fixture.script.failed();
        assert!(errors.len() <= 1, "{failed:?}: {errors:?}");
        assert_nothing_is_left(&fixture);
    }
}

/// A tenant that is ready, with a pod that does not end.
async fn fixture_with_stubborn_pod() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    let pod = json!({"metadata": {"name": "stubborn", "annotations": {NEVER_ENDS: "true"}}});
    let path = format!("/api/v1/namespaces/{}/pods/stubborn", fixture.id.workload_namespace());
    fixture.host.insert(&path, pod);
    fixture
}

#[tokio::test]
async fn a_pod_that_does_not_end_does_not_keep_its_tenant() {
    let mut fixture = fixture_with_stubborn_pod().await;
    assert!(fixture.delete().await.is_empty());
    assert_nothing_is_left(&fixture);
    let workloads = format!("/api/v1/namespaces/{}", fixture.id.workload_namespace());
    let calls = fixture.script.calls();
    let last = |text: &str| {
        let found = calls.iter().rposition(|call| call.text == text);
        found.unwrap_or_else(|| panic!("no call: {text}"))
    };
    // Its network policies are there as long as it is.
    let removed = last(&format!("host DELETE {workloads}/pods/stubborn"));
    assert!(removed < last(&format!("host DELETE {workloads}")));
    let events = fixture.host.find("/events/");
    let event = events.iter().find(|event| event["reason"] == "PodsOverdue");
    let event = event.unwrap_or_else(|| panic!("no Event: {events:#?}"));
    assert_eq!(event["type"], "Warning");
    assert!(event["note"].as_str().unwrap().contains("stubborn"), "{event}");
}

#[tokio::test]
async fn each_call_may_fail_once_while_a_pod_does_not_end() {
    let (from, to) = {
        let mut fixture = fixture_with_stubborn_pod().await;
        let from = fixture.count_calls();
        fixture.delete().await;
        (from, fixture.count_calls())
    };
    for number in from..to {
        let mut fixture = fixture_with_stubborn_pod().await;
        fixture.script.fail_call(number);
        let errors = fixture.delete().await;
        let failed = fixture.script.failed();
        assert!(errors.len() <= 1, "{failed:?}: {errors:?}");
        assert_nothing_is_left(&fixture);
    }
}

#[tokio::test]
async fn leftovers_of_a_vanished_tenant_are_deleted_and_each_call_may_fail_once() {
    for number in 0..30 {
        let mut fixture = Fixture::new();
        fixture.reconcile_until_ready().await;
        // The finalizer was removed by hand.
        fixture.host.remove(TENANT);
        fixture.script.fail_call(fixture.count_calls() + number);
        for _ in 0..20 {
            // Then there is nothing left to do.
            if matches!(fixture.reconcile().await, Ok(None)) {
                break;
            }
        }
        assert_nothing_is_left(&fixture);
        // There are no more calls that could fail.
        if fixture.script.failed().is_none() {
            return;
        }
    }
}

fn assert_nothing_is_left(fixture: &Fixture) {
    let slug = fixture.id.slug();
    let hash = fixture.id.hash();
    let mut left = fixture.host.paths();
    left.retain(|path| path.contains(slug) || path.contains(hash) || path == TENANT);
    assert!(left.is_empty(), "{left:#?}");
}
