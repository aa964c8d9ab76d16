//! What a tenant stores and has on the host is measured, and compared with its limits.

use super::fixture::{Fixture, UID};
use crate::syncer_report::SyncerReport;
use serde_json::json;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tokio::time::sleep;

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

#[tokio::test]
async fn what_the_syncer_says_is_known_for_alerts() {
    let mut fixture = Fixture::new();
    fixture.stored.unlisted_kinds.store(1, Ordering::SeqCst);
    let _ = fixture.reconcile().await;
    let report = |fixture: &Fixture| fixture.context.tenants.syncer(UID).unwrap_or_default();
    assert!(!report(&fixture).is_ready, "nothing has been started");
    fixture.reconcile_until_ready().await;
    let expected = SyncerReport {
        is_ready: true,
        unlisted_kinds: 1,
        failing_keys: 0,
        host_silent_seconds: 0,
    };
    assert_eq!(report(&fixture), expected);
}

#[tokio::test]
async fn a_syncer_that_was_not_asked_in_the_last_reconcile_is_not_known_to_be_ready() {
    // Steps before the control plane, and one before the spec is looked at.
    let namespaces: fn(&Fixture) = |fixture| {
        let memory = fixture.context.tenants.of(UID, &fixture.host.client());
        memory.host.forget();
        fixture
            .host
            .refuse_writes(Some(("/api/v1/namespaces/", 500, "the host fails")));
    };
    let settings: fn(&Fixture) = |fixture| {
        let namespace = fixture.id.control_plane_namespace();
        let path = format!("/api/v1/namespaces/{namespace}/configmaps/settings");
        let mut map = fixture.host.get(&path).unwrap();
        map["data"] = serde_json::json!({"settings.json": "?"});
        fixture.host.insert(&path, map);
        fixture.change_tenant(|cluster| cluster["spec"]["version"] = "v1.99.0".into());
    };
    for (number, fail) in [namespaces, settings].into_iter().enumerate() {
        let mut fixture = Fixture::new();
        fixture.reconcile_until_ready().await;
        let is_ready = |fixture: &Fixture| {
            fixture
                .context
                .tenants
                .syncer(UID)
                .is_some_and(|report| report.is_ready)
        };
        assert!(is_ready(&fixture), "{number}");
        fail(&fixture);
        fixture.reconcile().await.unwrap_err();
        assert_eq!(fixture.condition("SyncerReady").unwrap()["status"], "True", "{number}");
        assert!(
            !is_ready(&fixture),
            "{number}: the condition stays, and nobody has asked"
        );
    }
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

/// The first count may be old. Later ones are errors that nobody knows yet.
#[tokio::test(start_paused = true)]
async fn events_that_are_not_in_the_audit_log_are_counted_if_there_is_one() {
    let metrics = |errors: u64| {
        format!(
            "apiserver_resource_objects{{group=\"\",resource=\"configmaps\"}} 6\n\
             apiserver_audit_error_total{{plugin=\"buffered\"}} {errors}\n\
             process_start_time_seconds 1.7e+09\n"
        )
    };
    let take = |fixture: &Fixture| fixture.context.tenants.take_audit_errors(UID);
    for (audit, first, second) in [
        (json!({"preset": "Writes"}), Some(0), Some(2)),
        (json!(null), None, None),
    ] {
        let mut fixture = Fixture::new();
        fixture.give_class(&json!({ "audit": audit }));
        fixture.tenant.serve("/metrics", metrics(5).into());
        fixture.reconcile_until_ready().await;
        fixture.reconcile().await.unwrap();
        assert_eq!(take(&fixture), first);
        fixture.tenant.serve("/metrics", metrics(7).into());
        sleep(Duration::from_secs(60)).await;
        fixture.reconcile().await.unwrap();
        assert_eq!(take(&fixture), second);
    }
}
