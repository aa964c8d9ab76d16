//! The waiting room in a whole engine.

mod claims;

use super::*;
use crate::engine::{
    api::CallError,
    scripted::{Failure, Scripted},
    test_engine::{engine_of, exceeded, sync_of, tenant},
    test_pods::{self, annotations_of_member, change_pod, own_claims},
    test_requests::name,
    to_host,
    turns::{self, LineKind},
};
use berth_api::SyncPolicy;
use berth_sync_rules::{
    model::{Tenant, schedule::PodSchedule},
    translation::quota::QuotaExceeded,
};
use serde_json::json;
use std::{sync::Arc, time::Duration};

const MOST: usize = 1000;

/// A tenant that may have so many pods without a node on the host.
fn tenant_with_places(most: usize) -> Tenant {
    let mut tenant = tenant(SyncPolicy::default());
    tenant.host_limits.waiting_pods = u32::try_from(most).unwrap();
    tenant
}

/// The same, of whose users each may have so many of them.
fn tenant_with_users(most: usize, of_user: u32) -> Tenant {
    let mut tenant = tenant_with_places(most);
    tenant.users.are_limited = true;
    tenant.host_limits.waiting_pods_of_user = of_user;
    tenant
}

/// An engine of a tenant with [`MOST`] places.
fn engine() -> Arc<Engine> {
    engine_with_places(MOST)
}

fn engine_with_places(most: usize) -> Arc<Engine> {
    engine_of(tenant_with_places(most))
}

/// A pod in the tenant that requests so many GPUs.
fn put_pod(engine: &Engine, of: &str, gpus: usize) -> Value {
    put_annotated(engine, of, gpus, &json!({}))
}

/// The same of a member of a gang of so many pods.
fn put_member(engine: &Engine, of: &str, gang: &str, size: usize) -> Value {
    put_annotated(engine, of, 8, &annotations_of_member(gang, size))
}

fn put_annotated(engine: &Engine, of: &str, gpus: usize, annotations: &Value) -> Value {
    let mut pod = test_pods::put_pod(engine, of, annotations);
    pod["spec"]["containers"][0]["resources"] = json!({"limits": {"nvidia.com/gpu": gpus.to_string()}});
    change_pod(engine, of, &pod);
    pod
}

/// Puts two pods into a tenant with one place. The first one has it.
async fn put_two(engine: &Engine, gpus: [usize; 2]) -> [Value; 2] {
    let (first, second) = (put_pod(engine, "p0", gpus[0]), put_pod(engine, "p1", gpus[1]));
    assert!(!waits(engine, "p0", &first).await && waits(engine, "p1", &second).await);
    [first, second]
}

/// A pod on the host with this spec, for which the scheduler has found no node.
fn put_host_pod(engine: &Engine, of: &str, spec: &Value) {
    let unschedulable = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
    let status = json!({"phase": "Pending", "conditions": unschedulable});
    test_pods::put_host_pod(engine, of, spec, &status);
    engine.update_waiting_room(Side::Host, &name(of));
}

/// Whether a pod that asks for a place waits.
async fn waits(engine: &Engine, of: &str, pod: &Value) -> bool {
    let name = name(of);
    let sync = sync_of(engine, &name, PodSchedule::default());
    let Some(waits) = sync.ask_for_room(pod) else {
        return false;
    };
    let outcome = sync.wait_for_room(&Stored::new(pod), pod, waits).await;
    assert_eq!(outcome, Outcome::new(NO_PLACE).comparing_again());
    assert!(outcome.waits_for_turn());
    true
}

/// Creates pods that request so many GPUs each and get no node. Returns how many came to the host.
async fn create(engine: &Engine, prefix: &str, number: usize, gpus: impl Fn(usize) -> usize) -> usize {
    let mut on_host = 0;
    for index in 0..number {
        let of = format!("{prefix}{index}");
        let pod = put_pod(engine, &of, gpus(index));
        if !waits(engine, &of, &pod).await {
            put_host_pod(engine, &of, &json!({}));
            on_host += 1;
        }
    }
    on_host
}

#[tokio::test]
async fn pods_that_cannot_be_scheduled_leave_room_for_others_and_none_beyond_the_limit() {
    let engine = engine();
    assert_eq!(create(&engine, "stuck-", 2000, |_| 8).await, MOST / 2);
    assert_eq!(
        create(&engine, "other-", 10, |_| 1).await,
        10,
        "they ask for something else"
    );
    assert_eq!(create(&engine, "each-", 2000, |index| index + 9).await, MOST / 2 - 10);
    let room = lock(&engine.waiting_room);
    assert_eq!((room.placed(), room.waiting()), (MOST, 4010 - MOST));
}

#[tokio::test]
async fn a_place_is_free_when_its_pod_has_a_node_has_ended_or_is_gone() {
    let engine = engine_with_places(2);
    assert_eq!(create(&engine, "p", 4, |_| 8).await, 1);
    put_host_pod(&engine, "p0", &json!({"nodeName": "gpu-1"}));
    assert_eq!(engine.queue_of(KindId::Pod).len(), 1, "the next one is reconciled");
    let pod = put_pod(&engine, "p1", 8);
    assert!(!waits(&engine, "p1", &pod).await);
    put_host_pod(&engine, "p1", &json!({}));
    engine.cache.stores.tenant(KindId::Pod).forget(&name("p1"));
    engine.cache.stores.host(KindId::Pod).forget(&name("p1"));
    engine.update_waiting_room(Side::Host, &name("p1"));
    let pod = put_pod(&engine, "p2", 8);
    assert!(!waits(&engine, "p2", &pod).await);
    // It was denied, or refused by the host.
    let name = name("p2");
    sync_of(&engine, &name, PodSchedule::default()).settle_places();
    let last = put_pod(&engine, "p3", 8);
    assert!(!waits(&engine, "p3", &last).await);
}

#[tokio::test]
async fn a_pod_that_is_deleted_in_the_tenant_while_it_waits_is_forgotten() {
    let engine = engine_with_places(1);
    assert_eq!(create(&engine, "p", 2, |_| 8).await, 1);
    engine.cache.stores.tenant(KindId::Pod).forget(&name("p1"));
    engine.update_waiting_room(Side::Tenant, &name("p1"));
    let room = lock(&engine.waiting_room);
    assert_eq!((room.placed(), room.waiting()), (1, 0));
}

#[tokio::test]
async fn a_restarted_syncer_counts_the_pods_on_the_host() {
    let engine = engine_with_places(4);
    for (of, spec) in [
        ("p0", json!({})),
        ("p1", json!({"schedulingGates": [{"name": "kueue"}]})),
    ] {
        put_pod(&engine, of, 8);
        put_host_pod(&engine, of, &spec);
    }
    put_pod(&engine, "runs", 8);
    put_host_pod(&engine, "runs", &json!({"nodeName": "gpu-1"}));
    *lock(&engine.waiting_room) = WaitingRoom::new(4, None);
    engine.restore_waiting_room();
    let pod = put_pod(&engine, "p2", 8);
    assert!(waits(&engine, "p2", &pod).await, "two of them are alike");
    let other = put_pod(&engine, "other", 1);
    assert!(!waits(&engine, "other", &other).await);
}

#[tokio::test]
async fn a_pod_that_came_to_the_host_before_it_asked_does_not_wait() {
    let engine = engine_with_places(1);
    assert_eq!(create(&engine, "p", 1, |_| 8).await, 1);
    let pod = put_pod(&engine, "created", 8);
    test_pods::put_host_pod(&engine, "created", &json!({}), &json!({}));
    assert!(waits(&engine, "created", &pod).await, "it is not created again");
    let room = lock(&engine.waiting_room);
    assert_eq!((room.placed(), room.waiting()), (2, 0));
}

#[tokio::test]
async fn pods_of_a_user_keep_no_more_places_for_others_than_the_user_may_have() {
    let engine = engine_of(tenant_with_users(1000, 100));
    for (of, size) in [("a", 100), ("b", 100), ("c", 1000)] {
        let pod = put_member(&engine, of, of, size);
        assert_eq!(waits(&engine, of, &pod).await, of == "b", "{of}");
    }
    assert_eq!(
        create(&engine, "other-", 2000, |index| index + 9).await,
        1000 - 100 - 1,
        "99 places are kept for a gang"
    );
}

#[tokio::test]
async fn a_gang_does_not_wait_for_pods_that_wait_for_places_of_their_user() {
    let engine = engine_of(tenant_with_users(8, 3));
    assert_eq!(
        create(&engine, "other-", 5, |index| index + 9).await,
        5,
        "more than half"
    );
    let single = put_pod(&engine, "single", 1);
    let pods = ["m0", "m1", "m2"].map(|of| put_member(&engine, of, "train", 3));
    let names = ["single", "m0", "m1", "m2"].map(name);
    let all = [&single, &pods[0], &pods[1], &pods[2]];
    let waits_for_user = async |index: usize| {
        let sync = sync_of(&engine, &names[index], PodSchedule::default());
        sync.wait_for_user(&Stored::new(all[index]), all[index]).await.is_some()
    };
    for index in 0..3 {
        assert!(!waits_for_user(index).await);
    }
    assert!(waits(&engine, "m0", all[1]).await, "the others may come");
    assert!(waits_for_user(3).await);
    assert_eq!(counts(&engine), (6, 0), "m0 has a place that is free");
    assert!(!waits(&engine, "m1", all[2]).await, "it does not wait for m2 either");
}

/// Pods with a place, and those that wait.
fn counts(engine: &Engine) -> (usize, usize) {
    let room = lock(&engine.waiting_room);
    (room.placed(), room.waiting())
}

#[tokio::test]
async fn a_pod_that_waits_for_requests_keeps_no_place_from_others() {
    let mut tenant = tenant_with_places(1);
    tenant.host_limits.controller_requests_per_second = 1;
    let engine = engine_of(tenant);
    engine.turns.take_requests(600);
    let mut pod = test_pods::put_pod(&engine, "claims", &json!({}));
    pod["spec"]["resourceClaims"] = own_claims(8);
    change_pod(&engine, "claims", &pod);
    let of = name("claims");
    let sync = sync_of(&engine, &of, PodSchedule::default());
    let outcome = sync.create(&Stored::new(&pod), &pod).await.unwrap();
    assert_eq!(
        (outcome.result, engine.turns.waiting(LineKind::Requests)),
        (turns::WAITS, 1)
    );
    assert_eq!(counts(&engine), (0, 0));
    let plain = put_pod(&engine, "plain", 0);
    assert!(!waits(&engine, "plain", &plain).await);
    put_host_pod(&engine, "plain", &json!({}));
    let next = put_pod(&engine, "next", 0);
    assert!(waits(&engine, "next", &next).await);
    // Nothing of this is a failure of the pod.
    sync.settle_places_after(&Err(CallError::NotFound));
    assert!(waits(&engine, "claims", &pod).await, "it has its requests now");
    put_host_pod(&engine, "plain", &json!({"nodeName": "cpu-1"}));
    assert!(!waits(&engine, "claims", &pod).await, "it lent a place before");
    assert_eq!(counts(&engine), (1, 1));
}

#[tokio::test]
async fn a_pod_of_which_the_tenant_takes_no_status_stays_in_the_line() {
    let refuses = |call: &str| call.ends_with("/status").then_some(Failure::Refused(403));
    let scripted = Scripted::new(tenant_with_places(1), refuses);
    let engine = &scripted.engine;
    assert_eq!(create(engine, "p", 1, |_| 8).await, 1);
    let pod = put_pod(engine, "late", 8);
    let since = Instant::now().checked_sub(LONG_WAIT).unwrap();
    let (_, request) = engine.request(&name("late"), &pod);
    lock(&engine.waiting_room).ask(&engine.shape(&pod), request, since);
    assert!(waits(engine, "late", &pod).await);
    assert_eq!(scripted.calls("tenant PATCH", "/pods/late/status").len(), 1);
    let of = name("late");
    sync_of(engine, &of, PodSchedule::default()).settle_places_after(&Err(CallError::NotFound));
    assert_eq!(counts(engine), (1, 1));
}

#[tokio::test]
async fn while_the_host_takes_no_pod_none_leaves_the_line() {
    let scripted = Scripted::new(tenant_with_places(1), |_| None);
    let engine = &scripted.engine;
    let [first, second] = put_two(engine, [8, 8]).await;
    let names = (name("p0"), name("p1"));
    let placed = sync_of(engine, &names.0, PodSchedule::default());
    let waiting = sync_of(engine, &names.1, PodSchedule::default());
    placed.settle_places_after(&Err(CallError::QuotaExceeded(exceeded("count/pods"))));
    assert_eq!(counts(engine), (1, 1));
    engine.refused_kinds.refuse(KindId::Pod, &exceeded("count/pods"));
    let refused = placed.create(&Stored::new(&first), &first).await;
    assert!(matches!(refused, Err(CallError::QuotaExceeded(_))));
    assert_eq!(waiting.create(&Stored::new(&second), &second).await.unwrap(), NO_ROOM);
    assert_eq!(counts(engine), (1, 1));
    // A smaller pod may fit.
    placed.settle_places_after(&Err(CallError::QuotaExceeded(exceeded("requests.cpu"))));
    assert_eq!(counts(engine), (1, 0), "the next one has the place");
}

#[tokio::test]
async fn while_the_host_does_not_answer_none_leaves_the_line() {
    let fails = |call: &str| call.starts_with("host").then_some(Failure::Refused(503));
    let scripted = Scripted::new(tenant_with_places(1), fails);
    let engine = &scripted.engine;
    let [first, second] = put_two(engine, [8, 8]).await;
    let names = (name("p0"), name("p1"));
    let placed = sync_of(engine, &names.0, PodSchedule::default());
    let waiting = sync_of(engine, &names.1, PodSchedule::default());
    for _ in 0..3 {
        let failed = placed.create(&Stored::new(&first), &first).await;
        assert!(matches!(failed, Err(CallError::Unavailable(_))), "{failed:?}");
        assert_eq!(waiting.create(&Stored::new(&second), &second).await.unwrap(), NO_ROOM);
        assert_eq!(counts(engine), (1, 1));
    }
    for error in [CallError::Busy(Duration::from_secs(1)), CallError::Deferred] {
        placed.settle_places_after(&Err(error));
        assert_eq!(counts(engine), (1, 1));
    }
    // Only the answer was lost, and the watch says so.
    put_host_pod(engine, "p0", &json!({}));
    placed.settle_places_after(&Err(CallError::Unavailable("slow".into())));
    assert_eq!(counts(engine), (1, 1));
    placed.settle_places_after(&Err(CallError::Rejected("no".into())));
    assert_eq!(counts(engine), (1, 1), "it is on the host");
}

#[tokio::test]
async fn a_pod_that_the_host_rejects_gives_its_place_to_the_next_one() {
    let engine = engine_with_places(1);
    let [_, second] = put_two(&engine, [8, 8]).await;
    let of = name("p0");
    let placed = sync_of(&engine, &of, PodSchedule::default());
    placed.settle_places_after(&Err(CallError::Rejected("no".into())));
    assert_eq!(counts(&engine), (1, 0));
    assert!(!waits(&engine, "p1", &second).await);
}

#[tokio::test]
async fn a_pod_keeps_its_place_while_bytes_are_missing_for_it_but_not_while_room_for_its_claims_is() {
    let engine = engine_with_places(1);
    let [first, _] = put_two(&engine, [8, 1]).await;
    let names = (name("p0"), name("p1"));
    let placed = sync_of(&engine, &names.0, PodSchedule::default());
    // Some hundred bytes may be left, with which a smaller pod could be created.
    let bytes = QuotaExceeded::of_host_bytes(1000);
    placed.settle_places_after(&Err(CallError::QuotaExceeded(bytes)));
    assert_eq!(counts(&engine), (1, 1));
    let claims = QuotaExceeded::of_device_claims(1);
    placed.settle_places_after(&Err(CallError::QuotaExceeded(claims)));
    assert_eq!(counts(&engine), (1, 0), "one that needs no claims has the place");
    let third = put_pod(&engine, "p2", 2);
    assert!(waits(&engine, "p2", &third).await && waits(&engine, "p0", &first).await);
    sync_of(&engine, &names.1, PodSchedule::default()).settle_places();
    assert!(!waits(&engine, "p2", &third).await && waits(&engine, "p0", &first).await);
}

#[tokio::test]
async fn a_pod_that_is_created_again_keeps_its_place_until_it_is_not_to_be_created() {
    let engine = engine_with_places(1);
    assert_eq!(create(&engine, "p", 2, |_| 8).await, 1);
    engine.cache.stores.host(KindId::Pod).forget(&name("p0"));
    engine.update_waiting_room(Side::Host, &name("p0"));
    assert_eq!(counts(&engine), (1, 1), "its node was cordoned");
    let mut pod = put_pod(&engine, "p0", 8);
    assert!(!waits(&engine, "p0", &pod).await);
    // Administrators of the tenant can write the phase.
    pod["status"]["phase"] = "Failed".into();
    change_pod(&engine, "p0", &pod);
    let kind = engine.cache.rules_to_host(KindId::Pod).unwrap();
    let (of, now) = (name("p0"), Instant::now());
    let outcome = to_host::reconcile(&engine, (KindId::Pod, kind), &of, now, true).await;
    assert!(outcome.is_ok());
    assert_eq!(counts(&engine), (1, 0), "the next one has the place");
}

#[tokio::test]
async fn what_became_of_a_pod_depends_on_both_sides() {
    let engine = engine();
    let host = |spec: Value, phase: &str| {
        Stored::new(
            &json!({"metadata": {"name": "h", "resourceVersion": "1"}, "spec": spec, "status": {"phase": phase}}),
        )
    };
    let of = |host: Option<&Stored>| engine.find_on_host(&name("p"), host);
    let on_node = || json!({"nodeName": "gpu-1"});
    assert_eq!(of(None), OnHost::Ended, "it is gone on both");
    assert_eq!(of(Some(&host(json!({}), "Pending"))), OnHost::Waiting);
    assert_eq!(of(Some(&host(on_node(), "Running"))), OnHost::Placed);
    assert_eq!(of(Some(&host(on_node(), "Succeeded"))), OnHost::Placed);
    assert_eq!(of(Some(&host(on_node(), "Failed"))), OnHost::Ended);
    let mut pod = put_pod(&engine, "p", 1);
    assert_eq!(of(None), OnHost::Gone);
    for (phase, expected) in [("Succeeded", OnHost::Placed), ("Failed", OnHost::Ended)] {
        pod["status"]["phase"] = phase.into();
        change_pod(&engine, "p", &pod);
        assert_eq!(of(None), expected, "{phase}");
    }
}

#[tokio::test]
async fn members_that_run_are_known_when_their_gang_becomes_known() {
    let engine = engine();
    let pod = put_pod(&engine, "runs", 8);
    put_host_pod(&engine, "runs", &json!({"nodeName": "gpu-1"}));
    engine.regroup_places(&name("runs"), &pod);
    assert!(!lock(&engine.waiting_room).knows(&name("runs")));
    let pod = put_member(&engine, "runs", "train", 2);
    engine.regroup_places(&name("runs"), &pod);
    assert!(lock(&engine.waiting_room).knows(&name("runs")));
}

#[test]
fn the_message_says_which_limit_and_what_to_do() {
    let message = describe_wait(1000, 500);
    for part in ["1000", "500", "spec.limits.waitingPods", "delete"] {
        assert!(message.contains(part), "{message}");
    }
}
