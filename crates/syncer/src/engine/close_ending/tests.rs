//! What reaches pods that are being deleted.

use crate::engine::{
    Outcome,
    scripted::Scripted,
    test_engine::{sync_of_kind, tenant},
    to_host::ObjectSync,
    turns::Turn,
    update::{FULL_WAIT, REFUSED},
};
use berth_api::{SyncPolicy, labels, pod_labels};
use berth_sync_rules::model::{
    HostLimits, KindId, Tenant,
    resource::{Name, Side},
    store::Stored,
};
use serde_json::{Value, json};
use std::time::Instant;

const POD: KindId = KindId::Pod;

fn name() -> Name {
    Name::new("team", "a")
}

/// The metadata of a pod that has so many seconds to end.
fn ending(grace_seconds: u32, app: &str) -> Value {
    json!({"deletionTimestamp": "2026-05-05T22:00:00Z", "deletionGracePeriodSeconds": grace_seconds, "labels": {"app": app}})
}

/// The tenant's pod is like this now.
fn put_pod(scripted: &Scripted, metadata: &Value) {
    let spec = json!({"containers": [{"name": "main", "image": "train:1"}]});
    let pod = json!({"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}});
    scripted.put(Side::Tenant, POD, &name(), pod);
}

/// A pod that was open and had everything that is known of it when it began to end on the host.
fn ending_pod(grace_seconds: u32) -> Scripted {
    ending_pod_of(grace_seconds, HostLimits::default())
}

/// The same in a tenant with these limits.
fn ending_pod_of(grace_seconds: u32, host_limits: HostLimits) -> Scripted {
    let tenant = Tenant {
        host_account: "account".into(),
        host_limits,
        ..tenant(SyncPolicy::default())
    };
    let scripted = Scripted::new(tenant, |_| None);
    put_pod(&scripted, &ending(grace_seconds, "good"));
    let cache = &scripted.engine.cache;
    let pods = cache.rules_to_host(POD).unwrap();
    let pod = cache.stores.tenant(POD).get(&name()).unwrap().object();
    let live = pods.translate(cache, &name(), &pod).unwrap().object;
    let open = json!(labels::NETWORK_OPEN);
    assert_eq!(live["metadata"]["labels"][labels::NETWORK_EGRESS], open);
    let mut metadata = ending(grace_seconds, "good");
    for (field, value) in [("name", "a"), ("uid", "host-uid"), ("resourceVersion", "7")] {
        metadata[field] = value.into();
    }
    metadata["annotations"] = json!({labels::ORIGIN_NAMESPACE: "team", labels::ORIGIN_NAME: "a", labels::ORIGIN_UID: "tenant-uid",
        labels::APPLIED_HASH: cache.tenant.applied_hash(&pods.mutable_part(&live))});
    let host = json!({"metadata": metadata, "spec": {}, "status": {"phase": "Pending"}});
    cache.stores.host(POD).watched(name(), Stored::from(host));
    scripted.serve("/pods/a", live);
    scripted
}

/// The tenant has a policy that closes pods with this label in both directions.
fn put_policy(scripted: &Scripted, app: &str) {
    let spec = json!({"podSelector": {"matchLabels": {"app": app}}, "policyTypes": ["Ingress", "Egress"]});
    let name = Name::new("team", "quarantine");
    scripted.put(Side::Tenant, KindId::NetworkPolicy, &name, json!({ "spec": spec }));
}

/// Reconciles the pod, and with it its status.
async fn reconcile(scripted: &Scripted) -> Outcome {
    let key = POD.key(name());
    scripted.engine.reconcile(&key, Instant::now(), true).await.unwrap()
}

/// Closes the pod. Returns whether a part of that waits.
async fn close(scripted: &Scripted, compares: bool) -> bool {
    let (engine, name) = (&scripted.engine, name());
    let [tenant, host] = [Side::Tenant, Side::Host].map(|side| engine.cache.stores.of(side, POD).get(&name).unwrap());
    let sync = ObjectSync {
        compares,
        ..sync_of_kind(engine, POD, &name)
    };
    let wait = sync.close_ending(&tenant, &tenant.object(), &host).await;
    wait.unwrap().is_some()
}

/// The labels that were written to the host pod.
fn written(scripted: &Scripted) -> Vec<Value> {
    let patches = scripted.sent("host PATCH", "/pods/a");
    let labels = |patch: &Value| patch["metadata"]["labels"].clone();
    patches.iter().map(labels).collect()
}

fn isolated() -> Value {
    json!({(labels::NETWORK_EGRESS): null, (labels::NETWORK_INGRESS): null})
}

#[tokio::test(start_paused = true)]
async fn a_policy_closes_a_pod_that_is_being_deleted_before_its_status_is_written() {
    let scripted = ending_pod(30);
    put_policy(&scripted, "good");
    reconcile(&scripted).await;
    assert_eq!(written(&scripted), [isolated()]);
    let closed = scripted.first("host PATCH", "/pods/a");
    let reported = scripted.first("tenant PATCH", "/pods/a/status");
    assert!(reported.is_none() || closed < reported, "{closed:?} {reported:?}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_read_of_a_pod_that_ends_as_it_ran() {
    let scripted = ending_pod(30);
    close(&scripted, true).await;
    put_policy(&scripted, "good");
    close(&scripted, false).await;
    assert!(scripted.calls("host", "").is_empty(), "only its status has changed");
    close(&scripted, true).await;
    assert_eq!(written(&scripted), [isolated()]);
}

#[tokio::test(start_paused = true)]
async fn what_does_not_close_is_not_written_and_read_once() {
    let scripted = ending_pod(30);
    let mut metadata = ending(30, "good");
    metadata["annotations"] = json!({"kubernetes.io/egress-bandwidth": "1M"});
    put_pod(&scripted, &metadata);
    for _ in 0..2 {
        close(&scripted, true).await;
    }
    assert_eq!(scripted.calls("host GET", "/pods/a").len(), 1);
    assert!(written(&scripted).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_label_waits_for_its_turn_and_what_isolates_does_not() {
    for is_full in [false, true] {
        let scripted = ending_pod(30);
        put_policy(&scripted, "bad");
        put_pod(&scripted, &ending(30, "bad"));
        let others = (0..).map(|number: u32| POD.key(Name::new("team", &number.to_string())));
        for other in others.take_while(|_| is_full) {
            if scripted.engine.turns.ask(&other, 8 << 10) == (Turn::Later { takes_long: true }) {
                break;
            }
        }
        assert_eq!(close(&scripted, true).await, is_full);
        let mut closed = isolated();
        if !is_full {
            closed[pod_labels::host_key("app")] = "bad".into();
        }
        assert_eq!(written(&scripted), [closed], "{is_full}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_label_for_which_there_is_no_room_is_taken_away_and_tried_again() {
    let scripted = ending_pod_of(
        30,
        HostLimits {
            bytes: 1,
            ..HostLimits::default()
        },
    );
    put_policy(&scripted, "longer");
    put_pod(&scripted, &ending(30, "longer"));
    let outcome = reconcile(&scripted).await;
    let mut closed = isolated();
    closed[pod_labels::host_key("app")] = Value::Null;
    assert_eq!(written(&scripted), [closed]);
    assert_eq!(outcome.result, REFUSED);
    assert!(outcome.requeue_after.is_some_and(|after| after <= FULL_WAIT));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_in_the_last_step() {
    let scripted = ending_pod(0);
    put_policy(&scripted, "good");
    assert!(!close(&scripted, true).await);
    assert!(scripted.calls("host", "").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_compared_again_after_it_was_deleted() {
    let scripted = Scripted::new(tenant(SyncPolicy::default()), |_| None);
    put_pod(&scripted, &ending(30, "good"));
    scripted.put(Side::Host, POD, &name(), json!({"spec": {"nodeName": "gpu-1"}}));
    let outcome = reconcile(&scripted).await;
    assert_eq!((outcome.result, outcome.compares_again), ("deleted", true));
}
