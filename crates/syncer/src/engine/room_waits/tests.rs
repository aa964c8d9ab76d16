//! The waiting room in a whole engine.

use super::*;
use crate::engine::test_engine::{engine_of, sync_of, tenant};
use berth_api::SyncPolicy;
use berth_sync_rules::model::schedule::PodSchedule;
use serde_json::json;
use std::sync::Arc;

const MOST: usize = 1000;

/// An engine of a tenant that may have [`MOST`] pods without a node on the host.
fn engine() -> Arc<Engine> {
    engine_with_places(MOST)
}

fn engine_with_places(most: usize) -> Arc<Engine> {
    let mut tenant = tenant(SyncPolicy::default());
    tenant.host_limits.waiting_pods = u32::try_from(most).unwrap();
    engine_of(tenant)
}

fn name(of: &str) -> Name {
    Name::new("team", of)
}

/// A pod in the tenant that requests so many GPUs.
fn put_pod(engine: &Engine, of: &str, gpus: usize) -> Value {
    let resources = json!({"limits": {"nvidia.com/gpu": gpus.to_string()}});
    let pod = json!({
        "metadata": {"name": of, "namespace": "team", "uid": of, "resourceVersion": "1"},
        "spec": {"containers": [{"name": "main", "image": "train:1", "resources": resources}]},
    });
    let pods = engine.cache.stores.tenant(KindId::Pod);
    pods.written(name(of), Stored::new(&pod));
    pod
}

/// A pod on the host with this spec, for which the scheduler has found no node.
fn put_host_pod(engine: &Engine, of: &str, spec: &Value) {
    let unschedulable = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
    let pod = json!({
        "metadata": {"name": "h", "resourceVersion": "1"}, "spec": spec,
        "status": {"phase": "Pending", "conditions": unschedulable},
    });
    let pods = engine.cache.stores.host(KindId::Pod);
    pods.written(name(of), Stored::new(&pod));
    engine.update_waiting_room(Side::Host, &name(of));
}

/// Whether a pod that asks for a place waits.
async fn waits(engine: &Engine, of: &str, pod: &Value) -> bool {
    let name = name(of);
    let sync = sync_of(engine, &name, PodSchedule::default());
    let outcome = sync.wait_for_room(&Stored::new(pod), pod).await.unwrap();
    let expected = Outcome::new(NO_PLACE).comparing_again();
    assert!(outcome.is_none_or(|outcome| outcome == expected && outcome.waits_for_turn()));
    outcome.is_some()
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
    engine.cache.stores.host(KindId::Pod).forget(&name("p1"));
    engine.update_waiting_room(Side::Host, &name("p1"));
    let pod = put_pod(&engine, "p2", 8);
    assert!(!waits(&engine, "p2", &pod).await);
    // It was denied, or refused by the host.
    let name = name("p2");
    sync_of(&engine, &name, PodSchedule::default()).settle_room();
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
    *lock(&engine.waiting_room) = WaitingRoom::new(4);
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
    let host = json!({"metadata": {"name": "h", "resourceVersion": "1"}, "spec": {}});
    let pods = engine.cache.stores.host(KindId::Pod);
    pods.written(name("created"), Stored::new(&host));
    assert!(waits(&engine, "created", &pod).await, "it is not created again");
    let room = lock(&engine.waiting_room);
    assert_eq!((room.placed(), room.waiting()), (2, 0));
}

#[test]
fn the_message_says_which_limit_and_what_to_do() {
    let message = describe_wait(1000, 500);
    for part in ["1000", "500", "spec.limits.waitingPods", "delete"] {
        assert!(message.contains(part), "{message}");
    }
}
