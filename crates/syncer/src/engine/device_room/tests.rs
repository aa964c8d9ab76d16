//! The room of pods with devices in a whole engine.

use super::*;
use crate::engine::{
    lock,
    test_engine::{engine_of, sync_of, tenant},
    test_requests::name,
};
use berth_api::{SyncPolicy, labels};
use berth_sync_rules::model::{KindId, UserRules, resource::Side, schedule::PodSchedule, store::Stored};
use serde_json::json;

/// An engine of a tenant with the places that one has by default.
fn engine() -> Arc<Engine> {
    engine_of(tenant(SyncPolicy::default()))
}

/// A pod in the tenant that has this claim, if any, and annotations.
fn put_pod(engine: &Engine, of: &str, claim: Option<&str>, annotations: &Value) -> Value {
    let claims = claim.map(|claim| json!({"name": "gpu", "resourceClaimName": claim}));
    let claims: Vec<Value> = claims.into_iter().collect();
    let pod = json!({
        "metadata": {"name": of, "namespace": "team", "uid": of, "resourceVersion": "1", "annotations": annotations},
        "spec": {"containers": [{"name": "main", "image": "train:1"}], "resourceClaims": claims},
    });
    let pods = engine.cache.stores.tenant(KindId::Pod);
    pods.written(name(of), Stored::new(&pod));
    pod
}

/// Whether a pod that asks for its places waits.
fn waits(engine: &Engine, of: &str, pod: &Value) -> bool {
    let name = name(of);
    let sync = sync_of(engine, &name, PodSchedule::default());
    sync.ask_for_room(pod).is_some()
}

/// Puts pods into the tenant that each have this claim, and lets them ask. Returns how many of them may come to the host.
fn count_admitted(engine: &Engine, prefix: &str, number: usize, claim: impl Fn(usize) -> String) -> usize {
    let may_come = |index: &usize| {
        let of = format!("{prefix}{index}");
        let pod = put_pod(engine, &of, Some(&claim(*index)), &json!({}));
        !waits(engine, &of, &pod)
    };
    (0..number).filter(may_come).count()
}

/// A pod on the host with this spec.
fn put_host_pod(engine: &Engine, of: &str, spec: &Value) {
    let host = json!({"metadata": {"name": "h", "resourceVersion": "1"}, "spec": spec, "status": {"phase": "Pending"}});
    let pods = engine.cache.stores.host(KindId::Pod);
    pods.written(name(of), Stored::new(&host));
}

/// Pods with places among those with devices, and those that wait for one.
fn counts(engine: &Engine) -> (usize, usize) {
    let room = lock(&engine.device_room);
    (room.placed(), room.waiting())
}

#[test]
fn the_places_of_pods_with_devices_follow_from_those_of_all_pods() {
    let places = [1, 64, 1000, 1024, 5000].map(most_with_devices);
    assert_eq!(places, [1, 64, 64, 64, 312]);
}

#[tokio::test]
async fn few_pods_whose_devices_cannot_be_allocated_are_on_the_host_and_others_come_all_the_same() {
    let engine = engine();
    let own = |index: usize| format!("claim-{index}");
    assert_eq!(count_admitted(&engine, "alike-", 200, |_| "shared".to_owned()), 32);
    assert_eq!(count_admitted(&engine, "stuck-", 200, own), 32);
    assert_eq!(counts(&engine), (64, 336));
    let plain = put_pod(&engine, "plain", None, &json!({}));
    assert!(!waits(&engine, "plain", &plain));
    let room = lock(&engine.waiting_room);
    assert_eq!(
        (room.placed(), room.waiting()),
        (65, 0),
        "those that wait take no place of all pods"
    );
}

#[tokio::test]
async fn a_place_is_free_when_its_pod_has_a_node() {
    let engine = engine();
    assert_eq!(count_admitted(&engine, "p", 33, |_| "shared".to_owned()), 32);
    put_host_pod(&engine, "p0", &json!({"nodeName": "gpu-1"}));
    engine.update_waiting_room(Side::Host, &name("p0"));
    assert_eq!(engine.queue_of(KindId::Pod).len(), 1, "the next one is reconciled");
    let pod = put_pod(&engine, "p32", Some("shared"), &json!({}));
    assert!(!waits(&engine, "p32", &pod));
    sync_of(&engine, &name("p32"), PodSchedule::default()).settle_places();
    assert_eq!(counts(&engine), (31, 0), "it was not created");
}

/// Members of a gang that each have a claim ask for places: those that exist already, once more when all do. Returns how many of them may come to the host.
fn count_admitted_of_gang(engine: &Engine, gang: &str, size: usize) -> usize {
    let annotations = json!({labels::GANG_OF_TENANT: gang, labels::GANG_SIZE_OF_TENANT: size.to_string()});
    let names: Vec<String> = (0..size).map(|index| format!("{gang}-{index}")).collect();
    let pods: Vec<Value> = names
        .iter()
        .map(|of| put_pod(engine, of, Some("shared"), &annotations))
        .collect();
    for (of, pod) in names.iter().zip(&pods) {
        waits(engine, of, pod);
    }
    let members = names.iter().zip(&pods);
    members.filter(|(of, pod)| !waits(engine, of, pod)).count()
}

#[tokio::test]
async fn a_gang_of_64_pods_starts_together_and_none_has_more_than_twice_the_places() {
    let engine = engine();
    let own = |index: usize| format!("claim-{index}");
    assert_eq!(count_admitted(&engine, "single-", 63, own), 63);
    assert_eq!(count_admitted_of_gang(&engine, "a", 64), 64);
    assert_eq!(counts(&engine).0, 127);
    assert_eq!(count_admitted_of_gang(&engine, "b", 64), 0);
    assert_eq!(count_admitted(&engine, "more-", 10, own), 0);
}

#[tokio::test]
async fn a_gang_beyond_the_places_does_not_come_together() {
    let engine = engine();
    assert!(count_admitted_of_gang(&engine, "a", 65) < 65);
    assert!(counts(&engine).0 <= 64);
}

#[tokio::test]
async fn a_user_with_limits_has_half_of_the_places_however_different_the_pods_are() {
    let mut tenant = tenant(SyncPolicy::default());
    tenant.users = UserRules {
        are_stamped: true,
        are_limited: true,
    };
    let engine = engine_of(tenant);
    let count_of = |user: &str| {
        let annotations = json!({labels::CREATED_BY: user});
        let may_come = |index: &usize| {
            let of = format!("{user}-{index}");
            let pod = put_pod(&engine, &of, Some(&of), &annotations);
            !waits(&engine, &of, &pod)
        };
        (0..100).filter(may_come).count()
    };
    assert_eq!(["alice", "bob"].map(count_of), [32, 32]);
}

#[tokio::test]
async fn a_restarted_syncer_counts_the_pods_with_devices_on_the_host() {
    let engine = engine();
    for (of, spec) in [("p0", json!({})), ("p1", json!({"nodeName": "gpu-1"}))] {
        put_pod(&engine, of, Some("shared"), &json!({}));
        put_host_pod(&engine, of, &spec);
    }
    put_pod(&engine, "plain", None, &json!({}));
    put_host_pod(&engine, "plain", &json!({}));
    engine.restore_waiting_room();
    assert_eq!(counts(&engine), (1, 0));
    assert_eq!(lock(&engine.waiting_room).placed(), 2);
}

#[tokio::test]
async fn the_message_says_which_limit_and_what_to_do() {
    let message = describe_wait(&engine().cache);
    for part in ["at most 64 pods", "spec.limits.waitingPods", "delete"] {
        assert!(message.contains(part), "{message}");
    }
}
