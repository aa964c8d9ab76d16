//! Places of users in a whole engine.

use super::*;
use crate::engine::test_engine::{engine_of, sync_of, tenant};
use berth_api::SyncPolicy;
use berth_sync_rules::model::{UserRules, schedule::PodSchedule};
use serde_json::json;

/// An engine of a tenant with limited users, each of whom has one place.
fn engine() -> Arc<Engine> {
    let mut tenant = tenant(SyncPolicy::default());
    tenant.users = UserRules {
        are_stamped: true,
        are_limited: true,
    };
    tenant.host_limits.waiting_pods_of_user = 1;
    engine_of(tenant)
}

fn name(of: &str) -> Name {
    Name::new("team", of)
}

/// A pod of a user in the tenant.
fn put_pod(engine: &Engine, user: &str, of: &str) -> Value {
    put_annotated(engine, of, &json!({(labels::CREATED_BY): user}))
}

/// The same of a member of a gang of two.
fn put_member(engine: &Engine, user: &str, of: &str) -> Value {
    let annotations =
        json!({(labels::CREATED_BY): user, (labels::GANG_OF_TENANT): "train", (labels::GANG_SIZE_OF_TENANT): "2"});
    put_annotated(engine, of, &annotations)
}

fn put_annotated(engine: &Engine, of: &str, annotations: &Value) -> Value {
    let pod = json!({
        "metadata": {"name": of, "namespace": "team", "uid": of, "resourceVersion": "1", "annotations": annotations},
        "spec": {"containers": [{"name": "main", "image": "train:1"}]},
    });
    let pods = engine.cache.stores.tenant(KindId::Pod);
    pods.written(name(of), Stored::new(&pod));
    pod
}

/// A pod on the host, as the store has it: without who created it.
fn put_host_pod(engine: &Engine, of: &str, gates: &Value) {
    put_host_pod_in(engine, of, gates, "Pending");
}

fn put_host_pod_in(engine: &Engine, of: &str, gates: &Value, phase: &str) {
    let pod = json!({
        "metadata": {"name": "h", "resourceVersion": "1"}, "spec": {"schedulingGates": gates}, "status": {"phase": phase},
    });
    let pods = engine.cache.stores.host(KindId::Pod);
    pods.written(name(of), Stored::new(&pod));
}

/// Asks for a place for a pod.
async fn ask(engine: &Engine, of: &str, pod: &Value) -> Option<Outcome> {
    let name = name(of);
    let sync = sync_of(engine, &name, PodSchedule::default());
    sync.wait_for_user(&Stored::new(pod), pod).await.unwrap()
}

fn gate() -> Value {
    json!([{"name": labels::USER_QUOTA_GATE}])
}

const WAITS: Option<Outcome> = Some(Outcome::new(NO_PLACE).comparing_again());

#[tokio::test]
async fn a_user_leaves_room_on_the_host_to_others() {
    let engine = engine();
    let first = put_pod(&engine, "alice", "a1");
    let second = put_pod(&engine, "alice", "a2");
    let other = put_pod(&engine, "bob", "b1");
    assert_eq!(ask(&engine, "a1", &first).await, None);
    assert_eq!(ask(&engine, "a2", &second).await, WAITS);
    assert_eq!(ask(&engine, "b1", &other).await, None);
    put_host_pod(&engine, "a1", &gate());
    engine.update_user_places(Side::Host, &name("a1"));
    assert_eq!(ask(&engine, "a2", &second).await, WAITS, "the other waits on the host");
    put_host_pod(&engine, "a1", &json!([]));
    engine.update_user_places(Side::Host, &name("a1"));
    assert_eq!(engine.queue_of(KindId::Pod).len(), 1, "the next one is reconciled");
    assert_eq!(ask(&engine, "a2", &second).await, None, "the other may start");
    let third = put_pod(&engine, "alice", "a3");
    assert_eq!(ask(&engine, "a3", &third).await, WAITS);
    engine.cache.stores.tenant(KindId::Pod).forget(&name("a2"));
    engine.update_user_places(Side::Tenant, &name("a2"));
    assert_eq!(
        ask(&engine, "a3", &third).await,
        None,
        "it is gone before it was created"
    );
}

#[tokio::test]
async fn a_restarted_syncer_counts_the_pods_on_the_host() {
    let engine = engine();
    put_pod(&engine, "system:serviceaccount:ci:runner", "a1");
    let pod = put_pod(&engine, "system:serviceaccount:ci:other", "a2");
    put_host_pod(&engine, "a1", &gate());
    put_pod(&engine, "alice", "b1");
    put_host_pod(&engine, "b1", &json!([]));
    engine.restore_user_places();
    assert_eq!(
        ask(&engine, "a2", &pod).await,
        WAITS,
        "accounts of a namespace wait together"
    );
    let alice = put_pod(&engine, "alice", "b2");
    assert_eq!(ask(&engine, "b2", &alice).await, None);
}

#[tokio::test]
async fn a_pod_that_came_to_the_host_without_a_place_counts() {
    let engine = engine();
    put_pod(&engine, "alice", "a1");
    put_host_pod(&engine, "a1", &gate());
    engine.update_user_places(Side::Host, &name("a1"));
    let second = put_pod(&engine, "alice", "a2");
    assert_eq!(ask(&engine, "a2", &second).await, WAITS);
    engine.cache.stores.host(KindId::Pod).forget(&name("a1"));
    engine.update_user_places(Side::Host, &name("a1"));
    assert_eq!(ask(&engine, "a2", &second).await, None);
}

#[tokio::test]
async fn a_gang_that_runs_gets_a_replacement_while_the_places_are_full() {
    let engine = engine();
    for of in ["m0", "m1"] {
        let pod = put_member(&engine, "alice", of);
        assert_eq!(ask(&engine, of, &pod).await, None);
        put_host_pod(&engine, of, &gate());
        engine.update_user_places(Side::Host, &name(of));
        put_host_pod(&engine, of, &json!([]));
        engine.update_user_places(Side::Host, &name(of));
    }
    let single = put_pod(&engine, "alice", "a1");
    assert_eq!(ask(&engine, "a1", &single).await, None);
    put_host_pod(&engine, "a1", &gate());
    engine.update_user_places(Side::Host, &name("a1"));
    let replacement = put_member(&engine, "alice", "m2");
    assert_eq!(ask(&engine, "m2", &replacement).await, WAITS, "the gang has its size");
    put_host_pod_in(&engine, "m1", &json!([]), "Failed");
    engine.update_user_places(Side::Host, &name("m1"));
    assert_eq!(engine.queue_of(KindId::Pod).len(), 1, "it is reconciled");
    assert_eq!(ask(&engine, "m2", &replacement).await, None);
    let further = put_member(&engine, "alice", "m3");
    assert_eq!(ask(&engine, "m3", &further).await, WAITS, "beyond the size of the gang");
}

#[tokio::test]
async fn a_restarted_syncer_knows_the_gangs_that_run() {
    let engine = engine();
    put_member(&engine, "alice", "m0");
    put_host_pod(&engine, "m0", &json!([]));
    put_pod(&engine, "alice", "a1");
    put_host_pod(&engine, "a1", &gate());
    engine.restore_user_places();
    let replacement = put_member(&engine, "alice", "m1");
    assert_eq!(ask(&engine, "m1", &replacement).await, None);
    let further = put_member(&engine, "alice", "m2");
    assert_eq!(ask(&engine, "m2", &further).await, WAITS);
}

#[tokio::test]
async fn without_limits_nothing_waits() {
    let engine = engine_of(tenant(SyncPolicy::default()));
    for of in ["a1", "a2"] {
        let pod = put_pod(&engine, "alice", of);
        assert_eq!(ask(&engine, of, &pod).await, None);
    }
    assert!(!lock(&engine.user_places).knows(&name("a1")));
}
