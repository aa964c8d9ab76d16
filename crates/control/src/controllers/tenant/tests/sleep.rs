//! A tenant falls asleep, sleeps and wakes. What decides is tested in `berth-sleep`.

use super::{super::memory::Tenants, fixture::Fixture};
use crate::{
    control_plane::{COMPLETE, SERVES},
    metrics::WakeLabels,
};
use berth_node_lifecycle::demand::{SchedulingState, Workload};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

pub(super) const SLEEP: &str = "berth.dev/sleep-requested-at";
pub(super) const WAKE: &str = "berth.dev/wake-requested-at";
/// Enough reconciles for each change of the state.
pub(super) const MAX_RECONCILES: usize = 12;

pub(super) fn request(fixture: &Fixture, annotation: &str, at: Timestamp) {
    fixture.change_tenant(|cluster| cluster["metadata"]["annotations"][annotation] = at.to_string().into());
}

pub(super) fn set_mode(fixture: &Fixture, mode: &str) {
    fixture.change_tenant(|cluster| cluster["spec"]["sleep"] = json!({"mode": mode}));
}

pub(super) fn state(fixture: &Fixture) -> Value {
    fixture.status()["sleep"]["state"].clone()
}

/// Reconciles until the state is recorded and one reconcile has acted on it. `between` happens before each reconcile.
pub(super) async fn reconcile_until(fixture: &mut Fixture, expected: &str, between: impl Fn(&mut Fixture)) {
    for _ in 0..MAX_RECONCILES {
        between(fixture);
        Box::pin(fixture.reconcile()).await.unwrap();
        if state(fixture) == expected {
            between(fixture);
            Box::pin(fixture.reconcile()).await.unwrap();
            return;
        }
    }
    panic!("not {expected}: {:#}", fixture.status());
}

pub(super) async fn fall_asleep(fixture: &mut Fixture) {
    request(fixture, SLEEP, Timestamp::now());
    reconcile_until(fixture, "Sleeping", |_| {}).await;
}

pub(super) fn count_wakes(fixture: &Fixture, cause: &'static str) -> u64 {
    let wakes = &fixture.context.metrics.wakes;
    wakes.get_or_create(&WakeLabels { cause }).get()
}

/// Number of components that were run so far.
pub(super) fn count_runs(fixture: &Fixture) -> usize {
    let calls = fixture.script.calls();
    calls
        .iter()
        .filter(|call| call.text.starts_with("runtime run "))
        .count()
}

#[tokio::test]
async fn a_tenant_without_the_setting_knows_nothing_of_sleep() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    request(&fixture, WAKE, Timestamp::now());
    fixture.reconcile().await.unwrap();
    assert_eq!(state(&fixture), json!(null));
    assert_eq!(fixture.condition("Awake"), None);
    let schemas = fixture.tenant.find("/flowschemas/");
    assert!(
        schemas
            .iter()
            .all(|schema| schema["metadata"]["name"] == "berth-platform"),
        "{schemas:?}"
    );
}

#[tokio::test]
async fn a_tenant_that_may_fall_asleep_counts_its_use() {
    let mut fixture = Fixture::new();
    let metrics = "apiserver_resource_objects{group=\"\",resource=\"configmaps\"} 6\n\
                   apiserver_flowcontrol_dispatched_requests_total{flow_schema=\"global-default\"} 5\n\
                   process_start_time_seconds 1.7e+09\n";
    fixture.tenant.serve("/metrics", metrics.into());
    fixture.change_tenant(|cluster| cluster["spec"]["sleep"] = json!({"afterIdle": "30m"}));
    fixture.reconcile_until_ready().await;
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.reason("Awake"), (json!("True"), json!("InUse")));
    assert!(!fixture.status()["sleep"]["lastActivity"].is_null());
    assert_eq!(fixture.tenant.find("/flowschemas/").len(), 5);
    let before = fixture.status();
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.status(), before, "it is not written again");
}

#[tokio::test]
async fn nothing_of_a_tenant_that_sleeps_is_run_and_everything_is_kept() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    let endpoint = fixture.status()["endpoint"].clone();
    fall_asleep(&mut fixture).await;
    assert!(fixture.script.first("runtime stop everything").is_some());
    let status = fixture.status();
    assert_eq!((&status["phase"], &status["endpoint"]), (&json!("Sleeping"), &endpoint));
    assert_eq!(fixture.reason("Awake"), (json!("False"), json!("Requested")));
    for condition in ["ControlPlaneReady", "SyncerReady", "Ready"] {
        assert_eq!(
            fixture.reason(condition),
            (json!("False"), json!("Sleeping")),
            "{condition}"
        );
    }
    assert_eq!(status["nodeGroups"][0]["desired"], 0);
    let quotas = fixture.host.find("/resourcequotas/berth-limits");
    assert_eq!(quotas[0]["spec"]["hard"]["count/pods"], "0");
    let schedules = fixture.host.find("/tenantschedules/schedule");
    assert_eq!(schedules[0]["spec"]["tenant"][0]["state"], "Stopped");
    assert_eq!(fixture.host.find("/secrets/vision-kubeconfig").len(), 1);
    // It stays so, and nothing is written.
    let runs = count_runs(&fixture);
    fixture.reconcile().await.unwrap();
    assert_eq!((fixture.status(), count_runs(&fixture)), (status, runs));
}

#[tokio::test]
async fn only_the_first_start_waits_for_the_default_roles() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    assert!(fixture.tenant.take_probes().contains(COMPLETE));
    fall_asleep(&mut fixture).await;
    fixture.tenant.take_probes();
    reconcile_until(&mut fixture, "Awake", |fixture| {
        request(fixture, WAKE, Timestamp::now());
    })
    .await;
    assert_eq!(fixture.tenant.take_probes(), [SERVES.to_owned()].into());
}

#[tokio::test]
async fn what_a_tenant_has_on_the_host_is_unknown_until_it_is_awake_again() {
    let mut fixture = Fixture::new();
    fixture.stored.host_bytes.store(430 << 20, Ordering::SeqCst);
    fixture.reconcile_until_ready().await;
    let on_host = |fixture: &Fixture| fixture.reason("HostWithinLimits");
    assert_eq!(on_host(&fixture), (json!("False"), json!("HostLimitNear")));
    fall_asleep(&mut fixture).await;
    assert_eq!(on_host(&fixture), (json!("Unknown"), json!("Sleeping")));
    assert_eq!(fixture.status()["hostUsage"], json!(null));
    let events = fixture.host.find("/events/vision.");
    let sleeps = |event: &&Value| event["action"] == "HostWithinLimits" && event["reason"] == "Sleeping";
    assert_eq!(events.iter().find(sleeps).expect("an Event")["type"], "Normal");

    fixture.stored.host_bytes.store(1 << 20, Ordering::SeqCst);
    request(&fixture, WAKE, Timestamp::now());
    reconcile_until(&mut fixture, "Awake", |_| {}).await;
    assert_eq!(on_host(&fixture), (json!("True"), json!("WithinLimits")));
    assert_eq!(fixture.status()["hostUsage"]["bytes"], 1 << 20);
}

#[tokio::test]
async fn many_requests_are_one_wake() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    fall_asleep(&mut fixture).await;
    let (runs, start) = (count_runs(&fixture), Timestamp::now());
    for number in 0..100 {
        request(&fixture, WAKE, start + SignedDuration::from_millis(number));
    }
    reconcile_until(&mut fixture, "Awake", |fixture| {
        request(fixture, WAKE, Timestamp::now());
    })
    .await;
    assert!(count_runs(&fixture) > runs);
    fixture.reconcile_until_ready().await;
    assert_eq!(
        (state(&fixture), fixture.status()["phase"].clone()),
        (json!("Awake"), json!("Ready"))
    );
    assert_eq!(count_wakes(&fixture, "Requested"), 1);
    assert!(fixture.host.find("/tenantschedules/").is_empty());
    let quotas = fixture.host.find("/resourcequotas/berth-limits");
    assert_ne!(quotas[0]["spec"]["hard"]["count/pods"], "0");
}

#[tokio::test]
async fn an_api_server_that_answers_is_recorded_before_the_rest_is_started() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    fall_asleep(&mut fixture).await;
    request(&fixture, WAKE, Timestamp::now());
    let starts = |fixture: &Fixture| {
        let calls = fixture.script.calls();
        calls
            .iter()
            .filter(|call| call.text == "runtime run kube-controller-manager")
            .count()
    };
    let before = starts(&fixture);
    for _ in 0..MAX_RECONCILES {
        Box::pin(fixture.reconcile()).await.unwrap();
        if fixture.reason("Awake") == (json!("False"), json!("Serving")) {
            break;
        }
    }
    let status = fixture.status();
    assert_eq!(fixture.reason("Awake"), (json!("False"), json!("Serving")));
    assert_eq!((&status["phase"], starts(&fixture)), (&json!("Waking"), before));
    reconcile_until(&mut fixture, "Awake", |_| {}).await;
    assert!(starts(&fixture) > before);
}

#[tokio::test(start_paused = true)]
async fn a_tenant_wakes_although_its_own_webhooks_keep_every_write_waiting() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    fall_asleep(&mut fixture).await;
    // Another control: it does not remember that the components have run. The pods of the webhooks run only once they do.
    fixture.context.tenants = Arc::new(Tenants::default());
    fixture.tenant.never_answer_writes(Some("/clusterroles"));
    request(&fixture, WAKE, Timestamp::now());
    let runs = count_runs(&fixture);
    for _ in 0..MAX_RECONCILES {
        // The step that writes the objects fails.
        let _ = Box::pin(fixture.reconcile()).await;
    }
    let calls = fixture.script.calls();
    let mut later = calls
        .iter()
        .filter(|call| call.text.starts_with("runtime run "))
        .skip(runs);
    assert!(later.any(|call| call.text == "runtime run kube-controller-manager"));
    fixture.tenant.never_answer_writes(None);
    reconcile_until(&mut fixture, "Awake", |_| {}).await;
}

#[tokio::test]
async fn a_job_between_two_pods_refuses_a_request() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    let jobs = json!({"kind": "JobList", "apiVersion": "batch/v1", "metadata": {"resourceVersion": "1"}, "items": [{
        "metadata": {"name": "train", "namespace": "default"}, "spec": {"completions": 3, "template": {}}, "status": {"succeeded": 1},
    }]});
    fixture.tenant.serve("/apis/batch/v1/jobs", jobs);
    request(&fixture, SLEEP, Timestamp::now());
    fixture.reconcile().await.unwrap();
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.reason("Awake"), (json!("True"), json!("PodsRun")));
    fixture.tenant.serve("/apis/batch/v1/jobs", json!(null));
    reconcile_until(&mut fixture, "Sleeping", |_| {}).await;
}

#[tokio::test]
async fn control_that_forgets_everything_between_two_reconciles_goes_on() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    request(&fixture, SLEEP, Timestamp::now());
    let mut states = Vec::new();
    for _ in 0..2 * MAX_RECONCILES {
        fixture.context.tenants = Arc::new(Tenants::default());
        // The first reconcile connects to the tenant again, and the second knows that it is ready.
        for _ in 0..3 {
            Box::pin(fixture.reconcile()).await.unwrap();
            states.push(state(&fixture));
        }
        if state(&fixture) == "Sleeping" && fixture.script.first("runtime stop everything").is_some() {
            request(&fixture, WAKE, Timestamp::now());
        }
        if states.contains(&json!("Sleeping")) && state(&fixture) == "Awake" {
            break;
        }
    }
    states.dedup();
    let expected = ["FallingAsleep", "Sleeping", "Waking", "Awake"].map(Value::from);
    let known: Vec<Value> = states.into_iter().filter(|state| !state.is_null()).collect();
    assert!(known.ends_with(&expected), "{known:?}");
    assert_eq!(count_wakes(&fixture, "Requested"), 1);
    fixture.reconcile_until_ready().await;
}

#[tokio::test]
async fn pods_in_the_tenant_refuse_a_request() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    let pods = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": "1"},
        "items": [{"metadata": {"name": "web", "namespace": "default"}}]});
    fixture.tenant.serve("/api/v1/pods", pods);
    request(&fixture, SLEEP, Timestamp::now());
    fixture.reconcile().await.unwrap();
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.reason("Awake"), (json!("True"), json!("PodsRun")));
    let message = fixture.condition("Awake").unwrap()["message"].to_string();
    assert!(
        message.contains("asked to sleep") && message.contains("stopsPods"),
        "{message}"
    );
    assert_eq!(fixture.status()["phase"], "Ready");
}

/// Gives the tenant a class that lets its pods be stopped.
pub(super) fn let_pods_be_stopped(fixture: &Fixture) {
    fixture
        .give_class(&json!({"sleep": {"stopsPods": true}, "sync": {"pods": {"maxTerminationGracePeriodSeconds": 60}}}));
}

/// A tenant whose class lets its pods be stopped. It falls asleep, has a pod that does not end, and has fallen asleep for so long.
async fn with_a_pod_that_does_not_end(since: SignedDuration) -> Fixture {
    let mut fixture = Fixture::new();
    let_pods_be_stopped(&fixture);
    fixture.reconcile_until_ready().await;
    let pod = Workload {
        tenant: fixture.id.slug().into(),
        scheduling: SchedulingState::Bound("gpu-1".into()),
        ..Workload::default()
    };
    fixture.context.stores.workloads.put("pod", Some(pod));
    request(&fixture, SLEEP, Timestamp::now());
    reconcile_until(&mut fixture, "FallingAsleep", |_| {}).await;
    let since = Timestamp::now() - since;
    fixture.change_tenant(|cluster| cluster["status"]["sleep"]["since"] = since.to_string().into());
    fixture
}

#[tokio::test]
async fn a_tenant_whose_pods_do_not_end_is_awake_again_with_a_warning() {
    // Five minutes for budgets, one for the pod, and five more.
    let mut early = with_a_pod_that_does_not_end(SignedDuration::from_secs(640)).await;
    early.reconcile().await.unwrap();
    assert_eq!(state(&early), "FallingAsleep");

    let mut fixture = with_a_pod_that_does_not_end(SignedDuration::from_secs(660)).await;
    fixture.reconcile().await.unwrap();
    assert_eq!(state(&fixture), "Awake");
    assert_eq!(fixture.reason("Awake"), (json!("True"), json!("PodsOverdue")));
    let events = fixture.host.find("/events/vision.");
    let overdue = events
        .iter()
        .find(|event| event["reason"] == "PodsOverdue")
        .expect("an Event");
    assert_eq!(overdue["type"], "Warning");
    let note = overdue["note"].to_string();
    assert!(note.contains("nodes that do not answer"), "{note}");
    // Its pods may start again, and the request is void.
    reconcile_until(&mut fixture, "Awake", |_| {}).await;
    let quotas = fixture.host.find("/resourcequotas/berth-limits");
    assert_ne!(quotas[0]["spec"]["hard"]["count/pods"], "0");
}

#[tokio::test]
async fn a_tenant_that_is_to_be_asleep_waits_for_its_pods_with_a_warning() {
    let mut fixture = with_a_pod_that_does_not_end(SignedDuration::from_secs(660)).await;
    fixture.change_tenant(|cluster| {
        cluster["spec"]["sleep"] = json!({"mode": "Asleep"});
        cluster["status"]["sleep"]["cause"] = "Mode".into();
    });
    fixture.reconcile().await.unwrap();
    assert_eq!(state(&fixture), "FallingAsleep");
    assert_eq!(fixture.reason("Awake"), (json!("False"), json!("PodsOverdue")));
    fixture.context.stores.workloads.put("pod", None);
    reconcile_until(&mut fixture, "Sleeping", |_| {}).await;
    assert_eq!(fixture.reason("Awake"), (json!("False"), json!("Mode")));
}

#[tokio::test]
async fn a_request_for_later_is_looked_at_when_it_counts() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    let pause = async |fixture: &mut Fixture| {
        Box::pin(fixture.reconcile()).await.unwrap();
        let pause = Box::pin(fixture.reconcile()).await.unwrap();
        pause.expect("a time")
    };
    request(&fixture, SLEEP, Timestamp::now() + SignedDuration::from_secs(20));
    let until = pause(&mut fixture).await;
    assert!(
        (Duration::from_secs(15)..=Duration::from_secs(20)).contains(&until),
        "{until:?}"
    );
    assert_eq!(state(&fixture), "Awake");
    fall_asleep(&mut fixture).await;
    // It may be a minute early, and not more.
    request(&fixture, WAKE, Timestamp::now() + SignedDuration::from_secs(80));
    let until = pause(&mut fixture).await;
    assert!(
        (Duration::from_secs(15)..=Duration::from_secs(20)).contains(&until),
        "{until:?}"
    );
    assert_eq!(state(&fixture), "Sleeping");
}

#[tokio::test]
async fn a_cron_job_wakes_a_tenant() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    let jobs = json!({"kind": "CronJobList", "apiVersion": "batch/v1", "metadata": {"resourceVersion": "1"}, "items": [{
        "metadata": {"name": "report", "namespace": "default"},
        "spec": {"schedule": "0 0 1 1 *", "timeZone": "UTC", "jobTemplate": {}},
    }]});
    fixture.tenant.serve("/apis/batch/v1/cronjobs", jobs);
    fall_asleep(&mut fixture).await;
    let wakes_at = fixture.status()["sleep"]["wakesAt"].as_str().unwrap().to_owned();
    assert!(wakes_at.ends_with("-12-31T23:59:00Z"), "{wakes_at}");
    // As if the time had come.
    fixture.change_tenant(|cluster| cluster["status"]["sleep"]["wakesAt"] = Timestamp::now().to_string().into());
    reconcile_until(&mut fixture, "Awake", |_| {}).await;
    assert_eq!(count_wakes(&fixture, "Scheduled"), 1);
}

#[tokio::test]
async fn the_mode_keeps_a_tenant_asleep_and_wakes_it() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    set_mode(&fixture, "Asleep");
    reconcile_until(&mut fixture, "Sleeping", |_| {}).await;
    request(&fixture, WAKE, Timestamp::now());
    fixture.reconcile().await.unwrap();
    assert_eq!(state(&fixture), "Sleeping");
    set_mode(&fixture, "Awake");
    reconcile_until(&mut fixture, "Awake", |_| {}).await;
    assert_eq!(count_wakes(&fixture, "Mode"), 1);
    assert_eq!(fixture.reason("Awake"), (json!("True"), json!("Mode")));
}

#[tokio::test]
async fn a_tenant_is_deleted_while_it_sleeps_and_while_it_wakes() {
    for wakes in [false, true] {
        let mut fixture = Fixture::new();
        fixture.reconcile_until_ready().await;
        fall_asleep(&mut fixture).await;
        if wakes {
            request(&fixture, WAKE, Timestamp::now());
            fixture.reconcile().await.unwrap();
            assert_eq!(state(&fixture), "Waking");
        }
        let errors = fixture.delete().await;
        assert!(errors.is_empty(), "{errors:?}");
    }
}
