//! What a schedule does to the keys and objects of an engine that reaches no API server.

use super::*;
use crate::engine::{
    scripted::{Failure, Scripted},
    test_engine::{engine, sync_of, tenant},
    test_requests::name,
};
use berth_api::{SyncPolicy, TENANT_SCHEDULE};
use berth_sync_rules::model::resource::Side;
use jiff::SignedDuration;
use serde_json::json;
use std::time::Instant;

fn put_pod(engine: &Engine, side: Side, of: &str, node: Option<&str>) -> Arc<Stored> {
    let mut pod = json!({
        "metadata": {"name": of, "namespace": "team", "uid": of, "resourceVersion": "1", "annotations": {"berth.dev/origin-uid": of}},
        "spec": {"containers": [{"name": "main", "image": "train:1"}]},
    });
    if let Some(node) = node {
        pod["spec"]["nodeName"] = node.into();
    }
    let pods = engine.cache.stores.of(side, KindId::Pod);
    pods.written(name(of), Stored::new(&pod));
    pods.get(&name(of)).unwrap()
}

/// Publishes periods for the tenant as a whole: seconds from now, and the state from then on.
fn publish(engine: &Engine, version: u32, periods: &[(i64, &str)]) {
    let periods: Vec<Value> = periods
        .iter()
        .map(|(after, state)| {
            let from = Timestamp::now().checked_add(SignedDuration::from_secs(*after)).unwrap();
            json!({"from": from.to_string(), "state": state, "policyName": "nights", "windowName": "night",
                "evictionTimeoutSeconds": 3600, "warningPeriodSeconds": 60})
        })
        .collect();
    let schedule = json!({
        "metadata": {"name": TENANT_SCHEDULE, "resourceVersion": version.to_string()}, "spec": {"tenant": periods},
    });
    let store = engine.cache.stores.host(KindId::TenantSchedule);
    store.written(Name::new("", TENANT_SCHEDULE), Stored::new(&schedule));
}

fn queued(engine: &Engine) -> usize {
    engine.queue_of(KindId::Pod).len()
}

fn sync<'a>(engine: &'a Engine, name: &'a Name) -> ObjectSync<'a> {
    sync_of(engine, name, of_pod(engine, name, &json!({})))
}

#[tokio::test]
async fn all_pods_are_reconciled_when_the_schedule_changes_and_only_then() {
    let engine = engine();
    put_pod(&engine, Side::Tenant, "a", None);
    publish(&engine, 1, &[(-60, "Running"), (3600, "Stopped")]);
    let outcome = reconcile(&engine);
    assert_eq!(queued(&engine), 1);
    assert_eq!(outcome.requeue_after, Some(LONGEST));
    put_pod(&engine, Side::Tenant, "b", None);
    reconcile(&engine);
    assert_eq!(queued(&engine), 1, "nothing has changed");
    publish(&engine, 2, &[(-60, "Stopped"), (30, "Running")]);
    let pause = reconcile(&engine).requeue_after.unwrap();
    assert_eq!(queued(&engine), 2);
    assert!(
        pause > Duration::from_secs(25) && pause <= Duration::from_secs(30),
        "{pause:?}"
    );
}

#[tokio::test]
async fn pods_that_were_held_back_are_reconciled_when_the_schedule_is_gone() {
    let engine = engine();
    put_pod(&engine, Side::Tenant, "held", None);
    publish(&engine, 1, &[(-60, "Stopped")]);
    reconcile(&engine);
    let taken = engine.queue_of(KindId::Pod).take().await;
    engine.queue_of(KindId::Pod).done(&taken.key);
    let store = engine.cache.stores.host(KindId::TenantSchedule);
    store.forget(&Name::new("", TENANT_SCHEDULE));
    let outcome = reconcile(&engine);
    assert_eq!(queued(&engine), 1);
    assert_eq!(outcome.requeue_after, None);
}

#[test]
fn a_change_is_not_slept_through() {
    let now = Timestamp::from_second(1000).unwrap();
    let at = |second| Some(Timestamp::from_second(second).unwrap());
    assert_eq!(pause(now, at(1030)), Duration::from_secs(30));
    assert_eq!(pause(now, at(5000)), LONGEST);
    assert_eq!(pause(now, None), LONGEST);
    assert_eq!(pause(now, at(1000)), SHORTEST);
    assert_eq!(pause(now, at(900)), LONGEST, "a change that has passed is none");
}

#[tokio::test]
async fn host_pods_that_wait_for_a_node_are_withdrawn_and_those_that_run_stay() {
    let engine = engine();
    let waiting = put_pod(&engine, Side::Host, "waiting", None);
    let placed = put_pod(&engine, Side::Host, "placed", Some("gpu-1"));
    let free = PodSchedule::default();
    publish(&engine, 1, &[(-60, "StartsForbidden")]);
    let restricted = of_pod(&engine, &name("waiting"), &json!({}));
    for (schedule, host, expected) in [
        (&free, Some(&*waiting), DesiredState::Sync),
        (&restricted, Some(&*waiting), DesiredState::Absent),
        (&restricted, Some(&*placed), DesiredState::Sync),
        (&restricted, None, DesiredState::Sync),
    ] {
        assert_eq!(desired_state(DesiredState::Sync, schedule, host), expected);
    }
    for other in [DesiredState::Once, DesiredState::Leave, DesiredState::Absent] {
        assert_eq!(desired_state(other, &restricted, Some(&waiting)), other);
    }
}

#[tokio::test]
async fn a_pod_that_may_start_is_not_held() {
    let engine = engine();
    let stored = put_pod(&engine, Side::Tenant, "a", None);
    let name = name("a");
    let held = sync(&engine, &name).hold(&stored, &stored.object()).await;
    assert!(matches!(held, Ok(None)), "{held:?}");
    publish(&engine, 1, &[(-60, "Stopped")]);
    let held = sync(&engine, &name).hold(&stored, &stored.object()).await;
    // The tenant does not answer: the condition is written later, and the pod is not created meanwhile.
    assert!(matches!(held, Err(CallError::Unavailable(_))), "{held:?}");
}

#[tokio::test]
async fn only_pods_that_run_are_ended() {
    let engine = engine();
    let placed = put_pod(&engine, Side::Host, "a", Some("gpu-1"));
    let waiting = put_pod(&engine, Side::Host, "b", None);
    let tenant = put_pod(&engine, Side::Tenant, "a", Some("gpu-1"));
    assert!(runs(&tenant, &placed));
    assert!(!runs(&tenant, &waiting), "it is for another pod");
    let other = put_pod(&engine, Side::Tenant, "b", None);
    assert!(!runs(&other, &waiting), "it has no node");
    let finished = |pod: &Stored| {
        let mut finished = (*pod.object()).clone();
        finished["status"] = json!({"phase": "Succeeded"});
        Stored::from(finished)
    };
    assert!(!runs(&tenant, &finished(&placed)));
    assert!(
        runs(&finished(&tenant), &placed),
        "an administrator of the tenant has written that"
    );
    let ending = |pod: &Stored| {
        let mut ending = (*pod.object()).clone();
        ending["metadata"]["deletionTimestamp"] = "2026-05-05T22:00:00Z".into();
        Stored::from(ending)
    };
    assert!(!runs(&ending(&tenant), &placed));
    assert!(!runs(&tenant, &ending(&placed)));
}

#[tokio::test]
async fn a_pod_that_cannot_be_evicted_now_is_tried_again_before_its_limit() {
    let engine = engine();
    let host = put_pod(&engine, Side::Host, "a", Some("gpu-1"));
    let tenant = put_pod(&engine, Side::Tenant, "a", Some("gpu-1"));
    publish(&engine, 1, &[(-60, "Stopped")]);
    let (name, pod) = (name("a"), tenant.object());
    let sync = sync(&engine, &name);
    let outcome = sync
        .follow_schedule(Some((&tenant, &pod)), Some(&host), Ok(Outcome::new("nothing")))
        .await
        .unwrap();
    assert_eq!(outcome.requeue_after, Some(RETRY));
    assert!(outcome.compares_again);
}

#[tokio::test]
async fn a_pod_that_runs_goes_on_while_starts_are_forbidden() {
    let engine = engine();
    let host = put_pod(&engine, Side::Host, "a", Some("gpu-1"));
    let tenant = put_pod(&engine, Side::Tenant, "a", Some("gpu-1"));
    publish(&engine, 1, &[(-60, "StartsForbidden")]);
    let (name, pod) = (name("a"), tenant.object());
    let sync = sync(&engine, &name);
    let before = Outcome::new("nothing");
    let after = sync
        .follow_schedule(Some((&tenant, &pod)), Some(&host), Ok(before))
        .await;
    assert_eq!(after.unwrap(), before);
}

/// A pod that runs, and that the schedule has stopped so many seconds ago, in a tenant of which every request fails. Its status differs, so that
/// it cannot be reconciled.
fn stopped_pod(failure: Failure, seconds_ago: i64) -> (Scripted, Key) {
    let scripted = Scripted::new(tenant(SyncPolicy::default()), move |call| {
        call.starts_with("tenant").then_some(failure)
    });
    let spec = json!({"nodeName": "gpu-1", "containers": [{"name": "main", "image": "train:1"}]});
    for (side, message) in [(Side::Tenant, "of the team"), (Side::Host, "of the host")] {
        let pod = json!({"spec": spec, "status": {"phase": "Running", "message": message}});
        scripted.put(side, KindId::Pod, &name("a"), pod);
    }
    publish(&scripted.engine, 1, &[(-seconds_ago, "Stopped")]);
    (scripted, KindId::Pod.key(name("a")))
}

#[tokio::test(start_paused = true)]
async fn a_pod_ends_on_the_host_after_its_limit_whatever_the_tenant_answers() {
    let codes = [400, 403, 404, 409, 422, 429, 500];
    for failure in codes.map(Failure::Refused).into_iter().chain([Failure::Silence]) {
        let (scripted, key) = stopped_pod(failure, 7200);
        let result = scripted.engine.reconcile(&key, Instant::now(), false).await;
        assert_eq!(
            scripted.calls("host DELETE", "/pods/a").len(),
            1,
            "{failure:?}: {result:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_cannot_be_reconciled_is_evicted_and_tried_again_before_its_limit() {
    for failure in [Failure::Refused(403), Failure::Silence] {
        let (scripted, key) = stopped_pod(failure, 60);
        for _ in 0..12 {
            let result = scripted.engine.reconcile(&key, Instant::now(), false).await;
            let error = result.expect_err("the failure counts");
            let wait = scripted.engine.wait_after(&key, &error);
            assert!(wait <= RETRY, "{failure:?}: {wait:?}");
        }
        assert_eq!(
            scripted.calls("tenant POST", "/pods/a/eviction").len(),
            12,
            "{failure:?}"
        );
        assert!(scripted.calls("host DELETE", "").is_empty(), "{failure:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_eviction_of_a_pod_that_the_tenant_calls_gone_is_tried_again() {
    for code in [404, 409] {
        let (scripted, key) = stopped_pod(Failure::Refused(code), 60);
        let outcome = scripted.engine.reconcile(&key, Instant::now(), false).await.unwrap();
        assert_eq!(outcome.requeue_after, Some(RETRY), "{code}");
        assert!(scripted.calls("host DELETE", "").is_empty(), "{code}");
    }
}

#[tokio::test]
async fn only_pods_that_a_schedule_stops_are_looked_at_so_often() {
    let engine = engine();
    let wait = |of: &str| {
        let key = KindId::Pod.key(name(of));
        let error = CallError::Rejected("no".into());
        let waits: Vec<_> = (0..12).map(|_| engine.wait_after(&key, &error)).collect();
        waits[11]
    };
    put_pod(&engine, Side::Tenant, "a", Some("gpu-1"));
    put_pod(&engine, Side::Host, "a", Some("gpu-1"));
    publish(&engine, 1, &[(-60, "StartsForbidden")]);
    assert!(wait("a") > RETRY, "it may run");
    publish(&engine, 2, &[(-60, "Stopped")]);
    assert!(wait("a") <= RETRY);
    assert!(wait("b") > RETRY, "it is not there");
}

#[tokio::test(start_paused = true)]
async fn a_tenant_that_takes_long_is_not_asked_about_pods_whose_time_is_over() {
    for (seconds_ago, ended) in [(60, 0), (7200, 1)] {
        let (scripted, key) = stopped_pod(Failure::Silence, seconds_ago);
        scripted.engine.slow_keys.note_long(&key);
        let result = scripted.engine.reconcile(&key, Instant::now(), false).await;
        assert_eq!(scripted.calls("host DELETE", "/pods/a").len(), ended, "{result:?}");
        assert_eq!(scripted.calls("tenant", "").is_empty(), ended == 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_no_other_pods_of_a_tenant_that_is_silent() {
    let (scripted, key) = stopped_pod(Failure::Silence, 60);
    let denied = json!({"spec": {"hostNetwork": true, "containers": [{"name": "main", "image": "train:1"}]}});
    let working = scripted.flood(KindId::Pod, &denied).await;
    // Its status differs: it waits among the others.
    scripted.engine.add_for_status(key);
    tokio::time::sleep(RETRY).await;
    assert!(scripted.calls("host DELETE", "").is_empty(), "budgets may keep it");
    // Its time is over. Nothing else happens to it.
    publish(&scripted.engine, 2, &[(-7200, "Stopped")]);
    scripted.expect_soon("host DELETE", "/pods/a").await;
    assert!(scripted.calls("tenant", "/pods/a/eviction").is_empty());
    working.abort();
}
