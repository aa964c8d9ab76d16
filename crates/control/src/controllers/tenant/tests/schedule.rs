//! A SchedulePolicy stops the tenant, and lets it start again.

use super::{
    fixture::Fixture,
    sleep::{WAKE, fall_asleep, reconcile_until, request},
};
use jiff::Timestamp;
use serde_json::{Value, json};

/// A policy that stops the tenant for ever.
pub(super) fn insert_stop(fixture: &Fixture) {
    fixture.host.insert(
        "/apis/berth.dev/v1alpha1/schedulepolicies/closed",
        json!({
            "metadata": {"name": "closed", "uid": "p", "generation": 1},
            "spec": {
                "timeZone": "UTC", "targets": [{"kind": "TenantCluster", "namespace": "team", "name": "vision"}],
                "windows": [{"name": "always", "action": "Stop", "schedule": "0 0 * * *", "duration": "24h"}],
            },
        }),
    );
    // The controller of policies reads it.
    fixture.context.schedules.forget("closed");
}

/// Once the policy is gone, the controller of policies forgets it.
pub(super) fn remove_stop(fixture: &Fixture) {
    fixture.host.remove("/apis/berth.dev/v1alpha1/schedulepolicies/closed");
    fixture.context.schedules.forget("closed");
}

#[tokio::test]
async fn a_stopped_tenant_is_ready_asks_for_no_nodes_and_starts_no_pods() {
    let mut fixture = Fixture::new();
    insert_stop(&fixture);
    fixture.reconcile_until_ready().await;
    let schedule = fixture.condition("WithinSchedule").unwrap();
    assert_eq!(
        (&schedule["status"], &schedule["reason"]),
        (&json!("False"), &json!("Stopped"))
    );
    assert!(
        schedule["message"]
            .as_str()
            .unwrap()
            .contains("SchedulePolicy closed, window always"),
        "{schedule}"
    );
    assert_eq!(fixture.status()["nodeGroups"][0]["desired"], 0);
    let quotas = fixture.host.find("/resourcequotas/berth-limits");
    assert_eq!(quotas[0]["spec"]["hard"]["count/pods"], "0");
    remove_stop(&fixture);
    fixture.reconcile().await.unwrap();
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.condition("WithinSchedule").unwrap()["reason"], "NoSchedule");
    let quotas = fixture.host.find("/resourcequotas/berth-limits");
    assert_ne!(quotas[0]["spec"]["hard"]["count/pods"], "0");
}

#[tokio::test]
async fn a_stopped_tenant_that_is_settled_is_not_written_again() {
    let mut fixture = Fixture::new();
    insert_stop(&fixture);
    fixture.reconcile_until_ready().await;
    fixture.reconcile().await.unwrap();
    let before = fixture.status();
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.status(), before);
}

/// A policy that stops the pods of one namespace of the tenant for ever.
fn insert_stop_of_workloads(fixture: &Fixture) {
    fixture.host.insert(
        "/apis/berth.dev/v1alpha1/schedulepolicies/closed",
        json!({
            "metadata": {"name": "closed", "uid": "p", "generation": 1},
            "spec": {
                "timeZone": "UTC",
                "targets": [{"kind": "TenantCluster", "namespace": "team", "name": "vision", "workloads": {"namespaces": ["jobs"]}}],
                "windows": [{"name": "always", "action": "Stop", "schedule": "0 0 * * *", "duration": "24h"}],
            },
        }),
    );
}

#[tokio::test]
async fn a_policy_for_workloads_is_published_and_leaves_the_tenant_as_it_is() {
    let mut fixture = Fixture::new();
    insert_stop_of_workloads(&fixture);
    fixture.reconcile_until_ready().await;
    assert_eq!(fixture.condition("WithinSchedule"), None, "the tenant as a whole runs");
    let quotas = fixture.host.find("/resourcequotas/berth-limits");
    assert_ne!(quotas[0]["spec"]["hard"]["count/pods"], "0");
    let published = fixture.host.find("/tenantschedules/schedule");
    let [schedule] = &published[..] else {
        panic!("{published:?}")
    };
    let rule = &schedule["spec"]["workloads"][0];
    assert_eq!(
        (&rule["policyName"], &rule["workloads"]["namespaces"]),
        (&json!("closed"), &json!(["jobs"]))
    );
    assert_eq!(rule["periods"][0]["state"], "Stopped");
    assert_eq!(schedule["spec"].get("tenant"), None);
    fixture.reconcile().await.unwrap();
    assert_eq!(
        fixture.host.find("/tenantschedules/schedule"),
        published,
        "it is not written again"
    );
}

#[tokio::test]
async fn a_stop_of_the_tenant_is_published_and_gone_with_the_policy() {
    let mut fixture = Fixture::new();
    insert_stop(&fixture);
    fixture.reconcile_until_ready().await;
    let published = fixture.host.find("/tenantschedules/schedule");
    let stop = &published[0]["spec"]["tenant"][0];
    assert_eq!(
        (&stop["state"], &stop["policyName"], &stop["windowName"]),
        (&json!("Stopped"), &json!("closed"), &json!("always"))
    );
    remove_stop(&fixture);
    fixture.reconcile().await.unwrap();
    assert!(fixture.host.find("/tenantschedules/").is_empty());
}

#[tokio::test]
async fn a_stop_in_which_a_tenant_sleeps_and_wakes_began_when_it_began() {
    const BEGAN: &str = "2026-01-01T00:00:00Z";
    let mut fixture = Fixture::new();
    insert_stop(&fixture);
    fixture.reconcile_until_ready().await;
    let namespace = fixture.id.control_plane_namespace();
    let path = format!("/apis/berth.dev/v1alpha1/namespaces/{namespace}/tenantschedules/schedule");
    let mut schedule = fixture.host.get(&path).unwrap();
    schedule["spec"]["tenant"][0]["from"] = BEGAN.into();
    fixture.host.insert(&path, schedule);
    fall_asleep(&mut fixture).await;
    let asleep = fixture.host.get(&path).unwrap();
    let last = asleep["spec"]["tenant"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&last["state"], &last["policyName"]), (&json!("Stopped"), &Value::Null));
    // The time that budgets had in the stop of the policy is over.
    assert_eq!(last["evictionTimeoutSeconds"], 0);
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.host.get(&path).unwrap(), asleep, "it is not written again");
    request(&fixture, WAKE, Timestamp::now());
    reconcile_until(&mut fixture, "Awake", |_| {}).await;
    let awake = fixture.host.get(&path).unwrap();
    let period = &awake["spec"]["tenant"][0];
    assert_eq!(
        (&period["from"], &period["policyName"]),
        (&json!(BEGAN), &json!("closed"))
    );
}
