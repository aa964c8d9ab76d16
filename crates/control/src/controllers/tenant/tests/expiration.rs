//! The end of a tenant: it is warned, then deleted, unless it was changed in the last moment.

use super::{
    fixture::{Fixture, TENANT},
    quota::{decide, reservation, waiting},
    schedule::{insert_stop, remove_stop},
};
use crate::{pod_activity::PodActivity, quota_ledger::Verdict, testing::ScriptedApi};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

/// A tenant of long ago that gets a TTL of one minute, after the first reconcile with it.
pub(super) async fn warned() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    fixture.change_tenant(|cluster| {
        cluster["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
        cluster["spec"]["ttl"] = "1m".into();
    });
    let pause = fixture.reconcile().await.unwrap().unwrap();
    assert!(pause <= Duration::from_secs(30), "{pause:?}");
    fixture
}

/// Moves the end of which the team was warned into the past.
pub(super) fn let_time_pass(fixture: &Fixture) {
    fixture.change_tenant(|cluster| {
        assert!(!cluster["status"]["expiresAt"].is_null());
        cluster["status"]["expiresAt"] = "2026-01-01T00:01:00Z".into();
    });
}

pub(super) fn is_deleted(fixture: &Fixture) -> bool {
    let cluster = fixture.host.get(TENANT);
    cluster.is_none_or(|cluster| !cluster["metadata"]["deletionTimestamp"].is_null())
}

#[tokio::test]
async fn an_overdue_tenant_is_warned_and_then_deleted() {
    let mut fixture = Box::pin(warned()).await;
    let condition = fixture.condition("Expiring").unwrap();
    assert_eq!(
        (&condition["status"], &condition["reason"]),
        (&json!("True"), &json!("ExpiresSoon"))
    );
    let ends: Timestamp = fixture.status()["expiresAt"].as_str().unwrap().parse().unwrap();
    let left = ends.duration_since(Timestamp::now());
    assert!(
        left > SignedDuration::from_secs(20) && left <= SignedDuration::from_secs(30),
        "{left:?}"
    );
    assert_eq!(fixture.condition("Ready").unwrap()["status"], "True");
    fixture.reconcile().await.unwrap();
    assert!(!is_deleted(&fixture), "its time is not over");
    let_time_pass(&fixture);
    fixture.reconcile().await.unwrap();
    assert!(is_deleted(&fixture));
    let events = fixture.host.find("/events/vision.");
    let reasons: Vec<&Value> = events.iter().map(|event| &event["reason"]).collect();
    assert!(reasons.contains(&&json!("ExpiresSoon")), "{reasons:?}");
    assert!(reasons.contains(&&json!("Expired")), "{reasons:?}");
    // The clean-up goes on as with every deletion.
    assert!(fixture.delete().await.is_empty());
}

#[tokio::test]
async fn an_extension_in_the_last_moment_wins() {
    let mut fixture = Box::pin(warned()).await;
    let_time_pass(&fixture);
    let extend = |host: &ScriptedApi| {
        let mut cluster = host.get(TENANT).unwrap();
        cluster["spec"]["ttl"] = "99999h".into();
        host.insert(TENANT, cluster);
    };
    let again = fixture.reconcile_after_unseen(extend).await.unwrap();
    assert!(again.is_some_and(|pause| pause <= Duration::from_secs(1)));
    assert!(!is_deleted(&fixture));
    let is_expired = |object: &Value| object["reason"] == "Expired";
    assert!(!fixture.condition("Expiring").as_ref().is_some_and(is_expired));
    fixture.reconcile().await.unwrap();
    assert!(!fixture.host.find("/events/vision.").iter().any(is_expired));
    assert!(!is_deleted(&fixture));
    assert_eq!(fixture.condition("Expiring").unwrap()["reason"], "NotSoon");
}

/// A new tenant that was created long ago, whose class gives none more than a minute, and which asks for more.
fn of_short_class() -> Fixture {
    let fixture = Fixture::new();
    let class = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": "short", "uid": "short"},
        "spec": {"expiration": {"maxTTL": "1m"}}});
    let path = "/apis/berth.dev/v1alpha1/tenantclasses/short";
    fixture.host.insert(path, class);
    fixture.change_tenant(|cluster| {
        cluster["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
        cluster["spec"]["className"] = "short".into();
        cluster["spec"]["ttl"] = "99999h".into();
    });
    fixture
}

/// The same. It was warned, and its time is over.
async fn overdue_by_its_class() -> Fixture {
    let mut fixture = of_short_class();
    fixture.reconcile_until_ready().await;
    let_time_pass(&fixture);
    fixture
}

/// Otherwise it would get the grace period of a tenant whose limit was reduced.
#[tokio::test]
async fn the_limit_of_a_new_tenant_is_recorded_while_the_time_is_not_confirmed() {
    let mut fixture = of_short_class();
    fixture.context.clock.set_unconfirmed(1);
    fixture.reconcile_until_ready().await;
    let limits = json!({"ttl": {"limit": "1m"}});
    assert_eq!(fixture.status()["expirationLimits"], limits);
    assert!(fixture.condition("Expiring").is_none());
    fixture.context.clock.set_unconfirmed(0);
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.status()["expirationLimits"], limits);
    assert_eq!(fixture.condition("Expiring").unwrap()["reason"], "ExpiresSoon");
}

#[tokio::test]
async fn changes_that_move_no_end_keep_no_tenant() {
    let changes: [(&str, Value); 3] = [
        ("ttl", "99998h".into()),
        ("ttl", Value::Null),
        // It does not exist.
        ("className", "other".into()),
    ];
    for (field, value) in changes {
        let mut fixture = Box::pin(overdue_by_its_class()).await;
        let change = |host: &ScriptedApi| {
            let mut cluster = host.get(TENANT).unwrap();
            cluster["spec"][field] = value.clone();
            host.insert(TENANT, cluster);
        };
        fixture.reconcile_after_unseen(change).await.unwrap();
        assert!(is_deleted(&fixture), "{field}: {value}");
    }
}

#[tokio::test]
async fn a_tenant_that_changes_before_each_deletion_is_deleted() {
    let mut fixture = Box::pin(warned()).await;
    let_time_pass(&fixture);
    fixture.host.change_before_writes("/tenantclusters/vision", 1000);
    fixture.reconcile().await.unwrap();
    assert!(is_deleted(&fixture));
}

#[tokio::test]
async fn the_time_of_the_host_counts() {
    const DAYS: i64 = 24 * 3600;
    let mut fixture = Fixture::new();
    // The machine of control is a month ahead.
    fixture.context.clock.set_ahead(-30 * DAYS);
    let yesterday = fixture.context.clock.now() - SignedDuration::from_hours(24);
    fixture.change_tenant(|cluster| {
        cluster["metadata"]["creationTimestamp"] = yesterday.to_string().into();
        cluster["spec"]["ttl"] = "72h".into();
        cluster["spec"]["expireAfterIdle"] = "48h".into();
    });
    fixture.reconcile_until_ready().await;
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.condition("Expiring").unwrap()["reason"], "NotSoon");
    let since: Timestamp = fixture.status()["idleSince"].as_str().unwrap().parse().unwrap();
    assert!(since <= fixture.context.clock.now(), "{since}");
    let condition = fixture.condition("Ready").unwrap();
    let changed: Timestamp = condition["lastTransitionTime"].as_str().unwrap().parse().unwrap();
    assert!(changed <= fixture.context.clock.now(), "{changed}");
}

#[tokio::test]
async fn no_tenant_is_deleted_while_the_time_of_the_host_is_not_known() {
    let mut fixture = Box::pin(warned()).await;
    let_time_pass(&fixture);
    let known = std::mem::take(&mut fixture.context.clock);
    fixture.reconcile().await.unwrap();
    assert!(!is_deleted(&fixture));
    assert_eq!(
        fixture.condition("Expiring").unwrap()["reason"],
        "ExpiresSoon",
        "it stays"
    );
    fixture.context.clock = known;
    // The machine says another time.
    fixture.context.clock.set_unconfirmed(1);
    fixture.reconcile().await.unwrap();
    assert!(!is_deleted(&fixture));
    fixture.context.clock.set_unconfirmed(0);
    fixture.reconcile().await.unwrap();
    assert!(is_deleted(&fixture));
}

#[tokio::test]
async fn a_tenant_without_pods_is_idle_since_it_was_ready() {
    let mut fixture = Fixture::new();
    fixture.change_tenant(|cluster| cluster["spec"]["expireAfterIdle"] = "2h".into());
    fixture.reconcile_until_ready().await;
    assert!(fixture.status()["idleSince"].is_null(), "it was not ready before");
    fixture.reconcile().await.unwrap();
    let since = fixture.status()["idleSince"].clone();
    assert!(since.is_string());
    assert_eq!(fixture.condition("Expiring").unwrap()["reason"], "NotSoon");
    // Another control knows the time from the status.
    fixture.context.tenants = std::sync::Arc::default();
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.status()["idleSince"], since);
    fixture.change_tenant(|cluster| cluster["spec"]["expireAfterIdle"] = Value::Null);
    fixture.reconcile().await.unwrap();
    assert!(fixture.status()["idleSince"].is_null() && fixture.condition("Expiring").is_none());
}

#[tokio::test]
async fn a_pod_that_no_watch_has_seen_keeps_an_idle_tenant() {
    let mut fixture = Fixture::new();
    fixture.change_tenant(|cluster| cluster["spec"]["expireAfterIdle"] = "1m".into());
    fixture.reconcile_until_ready().await;
    let pod = json!({"metadata": {"name": "a", "labels":
        {"berth.dev/managed-by": "syncer", "berth.dev/tenant": fixture.id.slug()}}});
    let path = format!("/api/v1/namespaces/{}/pods/a", fixture.id.workload_namespace());
    fixture.host.insert(&path, pod.clone());
    // One of others under the tenant's labels, which stays.
    fixture.host.insert("/api/v1/namespaces/elsewhere/pods/a", pod);
    let is_over = |cluster: &mut Value| {
        cluster["status"]["idleSince"] = "2026-01-01T00:00:00Z".into();
        cluster["status"]["expiresAt"] = "2026-01-01T00:01:00Z".into();
        let conditions = cluster["status"]["conditions"].as_array_mut().unwrap();
        conditions.retain(|condition| condition["type"] != "Expiring");
        conditions.push(
            json!({"type": "Expiring", "status": "True", "reason": "ExpiresSoon", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:30Z"}),
        );
    };
    fixture.change_tenant(is_over);
    fixture.context.stores.pod_activity = Arc::new(PodActivity::watched_for(Duration::from_secs(60)));
    fixture.reconcile().await.unwrap();
    assert!(!is_deleted(&fixture));
    fixture.reconcile().await.unwrap();
    assert!(!is_deleted(&fixture));
    fixture.host.remove(&path);
    fixture.change_tenant(is_over);
    fixture.context.stores.pod_activity = Arc::new(PodActivity::watched_for(Duration::from_secs(60)));
    fixture.reconcile().await.unwrap();
    assert!(is_deleted(&fixture));
}

#[tokio::test]
async fn the_time_in_which_a_schedule_stops_a_tenant_does_not_count_as_idle() {
    let mut fixture = Fixture::new();
    fixture.change_tenant(|cluster| cluster["spec"]["expireAfterIdle"] = "2h".into());
    insert_stop(&fixture);
    fixture.reconcile_until_ready().await;
    let status = fixture.status();
    assert!(
        status["idleSince"].is_null() && status["expiresAt"].is_null(),
        "{status}"
    );
    assert_eq!(fixture.condition("Expiring").unwrap()["reason"], "NotCounted");
    remove_stop(&fixture);
    fixture.reconcile().await.unwrap();
    fixture.reconcile().await.unwrap();
    assert!(fixture.status()["idleSince"].is_string());
    assert_eq!(fixture.condition("Expiring").unwrap()["reason"], "NotSoon");
}

/// Otherwise a tenant that is stopped each night never expires.
#[tokio::test]
async fn after_a_stop_the_idle_time_goes_on() {
    let mut fixture = Fixture::new();
    fixture.change_tenant(|cluster| cluster["spec"]["expireAfterIdle"] = "4h".into());
    fixture.reconcile_until_ready().await;
    let idle_for = |fixture: &Fixture| {
        let since: Timestamp = fixture.status()["idleSince"].as_str().unwrap().parse().unwrap();
        Timestamp::now().duration_since(since)
    };
    let an_hour_ago = (Timestamp::now() - SignedDuration::from_hours(1)).to_string();
    fixture.change_tenant(|cluster| cluster["status"]["idleSince"] = an_hour_ago.into());
    // Another control, which knows the time from the status.
    fixture.context.stores.pod_activity = Arc::new(PodActivity::watched_for(Duration::from_secs(7200)));
    fixture.reconcile().await.unwrap();
    assert!(idle_for(&fixture) >= SignedDuration::from_mins(59));
    insert_stop(&fixture);
    fixture.reconcile().await.unwrap();
    fixture.reconcile().await.unwrap();
    assert!(fixture.status()["idleSince"].is_null());
    remove_stop(&fixture);
    fixture.reconcile().await.unwrap();
    fixture.reconcile().await.unwrap();
    let idle = idle_for(&fixture);
    assert!(
        idle >= SignedDuration::from_mins(55) && idle <= SignedDuration::from_mins(70),
        "{idle:?}"
    );
}

#[tokio::test]
async fn the_time_in_which_a_new_tenant_waits_for_quota_does_not_count_as_idle() {
    let mut fixture = Fixture::new();
    fixture.change_tenant(|cluster| cluster["spec"]["expireAfterIdle"] = "2h".into());
    decide(&fixture, waiting(None));
    fixture.reconcile().await.unwrap();
    assert!(fixture.status()["idleSince"].is_null());
    assert_eq!(fixture.condition("Expiring").unwrap()["reason"], "NotCounted");
    let reserved = Verdict::Reserved {
        reservation: reservation(),
        over: berth_quota::OverQuota::new(),
    };
    decide(&fixture, reserved);
    fixture.reconcile_until_ready().await;
    fixture.reconcile().await.unwrap();
    assert!(fixture.status()["idleSince"].is_string());
}

#[tokio::test]
async fn the_time_in_which_the_syncer_does_not_answer_does_not_count_as_idle() {
    let mut fixture = Fixture::new();
    fixture.change_tenant(|cluster| cluster["spec"]["expireAfterIdle"] = "2h".into());
    fixture.reconcile_until_ready().await;
    fixture.reconcile().await.unwrap();
    assert!(fixture.status()["idleSince"].is_string());
    fixture.change_tenant(|cluster| {
        for condition in cluster["status"]["conditions"].as_array_mut().unwrap() {
            if condition["type"] == "SyncerReady" {
                condition["status"] = "False".into();
            }
        }
        cluster["status"]["idleSince"] = "2026-01-01T00:00:00Z".into();
    });
    fixture.reconcile().await.unwrap();
    assert!(fixture.status()["idleSince"].is_null() && !is_deleted(&fixture));
    assert_eq!(fixture.condition("Expiring").unwrap()["reason"], "NotCounted");
    fixture.reconcile().await.unwrap();
    let since: Timestamp = fixture.status()["idleSince"].as_str().unwrap().parse().unwrap();
    assert!(
        Timestamp::now().duration_since(since) < SignedDuration::from_mins(5),
        "it counts anew"
    );
}
