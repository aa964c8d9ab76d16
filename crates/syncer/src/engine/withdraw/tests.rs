//! What ends on the host although the tenant's API server does not take the status that says so.

use super::*;
use crate::engine::{
    scripted::{Failure, Scripted},
    test_engine::tenant,
};
use berth_api::{SyncPolicy, labels, pod_labels::host_key};
use berth_sync_rules::model::{
    KindId, Tenant,
    resource::{Key, Name, Side},
};
use serde_json::json;
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

/// All that can become of a status that the tenant does not take.
const FAILURES: [Failure; 4] = [
    Failure::Refused(422),
    Failure::Refused(403),
    Failure::Refused(500),
    Failure::Silence,
];

/// API servers of which the tenant's takes no status.
fn without_statuses(tenant: Tenant, failure: Failure) -> Scripted {
    Scripted::new(tenant, move |call| {
        (call.starts_with("tenant PATCH") && call.ends_with("/status")).then_some(failure)
    })
}

fn name() -> Name {
    Name::new("team", "a")
}

/// Puts the two objects of a key into the stores.
fn put(scripted: &Scripted, id: KindId, tenant: Value, host: Value) -> Key {
    scripted.put(Side::Tenant, id, &name(), tenant);
    scripted.put(Side::Host, id, &name(), host);
    id.key(name())
}

async fn reconcile(scripted: &Scripted, key: &Key) -> Result<Outcome, CallError> {
    scripted.engine.reconcile(key, Instant::now(), true).await
}

/// A pod of the tenant, with more in its spec, and the host's, which runs on a node unless it waits.
fn pods(more: &Value, node: Option<&str>) -> (Value, Value) {
    let mut tenant =
        json!({"spec": {"containers": [{"name": "main", "image": "train:1"}]}, "status": {"phase": "Pending"}});
    let mut host = json!({"spec": {}, "status": {"phase": "Pending", "message": "of the host"}});
    for (field, value) in more.as_object().unwrap() {
        tenant["spec"][field] = value.clone();
    }
    if let Some(node) = node {
        for pod in [&mut tenant, &mut host] {
            pod["spec"]["nodeName"] = node.into();
            pod["status"]["phase"] = "Running".into();
        }
    }
    (tenant, host)
}

#[tokio::test(start_paused = true)]
async fn an_ingress_that_is_denied_leaves_the_host_before_its_status_says_so() {
    let status = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}});
    let ingress =
        json!({"spec": {"ingressClassName": "nginx", "rules": [{"host": "a.example.com"}]}, "status": status});
    for failure in FAILURES {
        let scripted = without_statuses(tenant(SyncPolicy::default()), failure);
        let key = put(&scripted, KindId::Ingress, ingress.clone(), json!({"spec": {}}));
        let result = reconcile(&scripted, &key).await;
        assert!(result.is_err(), "{failure:?}: the status is written later");
        let deleted = scripted.first("host DELETE", "/ingresses/a").unwrap();
        let reported = scripted.first("tenant PATCH", "/ingresses/a/status").unwrap();
        assert!(deleted < reported, "{failure:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_waits_and_is_denied_leaves_the_host() {
    let (pod, host) = pods(&json!({"hostNetwork": true}), None);
    for failure in FAILURES {
        let scripted = without_statuses(tenant(SyncPolicy::default()), failure);
        let key = put(&scripted, KindId::Pod, pod.clone(), host.clone());
        assert!(reconcile(&scripted, &key).await.is_err(), "{failure:?}");
        assert_eq!(scripted.calls("host DELETE", "/pods/a").len(), 1, "{failure:?}");
    }
}

/// A pod that runs with storage which was withdrawn.
fn pod_with_withdrawn_storage(failure: Failure) -> (Scripted, Key) {
    let mut tenant = tenant(SyncPolicy::default());
    tenant.withdrawn_storage = ["CSIDriver/csi.example.com".parse().unwrap()].into();
    let scripted = without_statuses(tenant, failure);
    let volumes = json!([{"name": "data", "csi": {"driver": "csi.example.com"}}]);
    let (pod, host) = pods(&json!({"volumes": volumes}), Some("gpu-1"));
    let key = put(&scripted, KindId::Pod, pod, host);
    (scripted, key)
}

#[tokio::test(start_paused = true)]
async fn a_pod_ends_although_its_status_is_refused() {
    for code in [403, 422] {
        let (scripted, key) = pod_with_withdrawn_storage(Failure::Refused(code));
        let result = reconcile(&scripted, &key).await;
        assert!(matches!(result, Err(CallError::Rejected(_))), "{code}: {result:?}");
        let reported = scripted.first("tenant PATCH", "/pods/a/status").unwrap();
        let deleted = scripted.first("host DELETE", "/pods/a").unwrap();
        assert!(reported < deleted, "{code}: with the reason, if there is a way");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_ends_after_a_few_statuses_that_nobody_answered() {
    for failure in [Failure::Refused(500), Failure::Refused(429), Failure::Silence] {
        let (scripted, key) = pod_with_withdrawn_storage(failure);
        for tries in 1..=TRIES {
            let error = reconcile(&scripted, &key).await.unwrap_err();
            assert!(error.is_unanswered(), "{failure:?}: {error}");
            scripted.engine.wait_after(&key, &error);
            assert!(scripted.calls("host DELETE", "").is_empty(), "{failure:?}, {tries}");
        }
        assert!(reconcile(&scripted, &key).await.is_err(), "{failure:?}");
        assert_eq!(scripted.calls("host DELETE", "/pods/a").len(), 1, "{failure:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_the_team_deletes_ends_on_the_host() {
    let (mut pod, host) = pods(&json!({}), Some("gpu-1"));
    pod["metadata"] = json!({"deletionTimestamp": "2026-05-05T22:00:00Z", "deletionGracePeriodSeconds": 30});
    for failure in FAILURES {
        let scripted = without_statuses(tenant(SyncPolicy::default()), failure);
        let key = put(&scripted, KindId::Pod, pod.clone(), host.clone());
        assert!(reconcile(&scripted, &key).await.is_err(), "{failure:?}");
        let deleted = scripted.first("host DELETE", "/pods/a").unwrap();
        let reported = scripted.first("tenant PATCH", "/pods/a/status").unwrap();
        assert!(deleted < reported, "{failure:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_host_comes_before_that_of_the_tenant() {
    let (mut pod, host) = pods(&json!({}), Some("gpu-1"));
    pod["metadata"] = json!({"deletionTimestamp": "2026-05-05T22:00:00Z", "deletionGracePeriodSeconds": 30});
    let scripted = Scripted::new(tenant(SyncPolicy::default()), |call| {
        if call.starts_with("host DELETE") {
            return Some(Failure::Refused(500));
        }
        call.ends_with("/status").then_some(Failure::Refused(422))
    });
    let key = put(&scripted, KindId::Pod, pod, host);
    let result = reconcile(&scripted, &key).await;
    assert!(matches!(result, Err(CallError::Unavailable(_))), "{result:?}");
    assert!(scripted.first("tenant PATCH", "/pods/a/status").is_some());
}

/// Others wait for their turns from now on.
fn use_up_turns(scripted: &Scripted) {
    let others = (0..).map(|number: u32| KindId::Pod.key(Name::new("team", &number.to_string())));
    for other in others {
        if scripted.engine.turns.ask(&other, 8 << 10) == (Turn::Later { takes_long: true }) {
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_policy_that_waits_has_lost_is_tried_again_soon_if_the_host_did_not_answer() {
    for (code, is_soon) in [(500, true), (403, false)] {
        let scripted = Scripted::new(tenant(SyncPolicy::default()), move |call| {
            call.starts_with("host GET").then_some(Failure::Refused(code))
        });
        let policy = json!({"spec": {"podSelector": {}, "policyTypes": ["Ingress"]}});
        let key = put(&scripted, KindId::NetworkPolicy, policy, json!({"spec": {}}));
        use_up_turns(&scripted);
        reconcile(&scripted, &key).await.unwrap();
        let queue = scripted.engine.queue_of(key.kind);
        let next = tokio::time::timeout(Duration::from_secs(30), queue.take()).await;
        assert_eq!(next.is_ok_and(|taken| taken.key.0 == key), is_soon, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_loses_its_ways_in_although_the_host_refuses_what_it_is_reduced_to() {
    let is_refused = AtomicBool::new(false);
    let scripted = Scripted::new(tenant(SyncPolicy::default()), move |call| {
        let is_write = call.starts_with("host PATCH") && call.ends_with("/services/a");
        (is_write && !is_refused.swap(true, Ordering::Relaxed)).then_some(Failure::Refused(422))
    });
    let service = |label: &str| {
        let ports = json!([{"port": 80, "nodePort": 30080}]);
        json!({"spec": {"type": "LoadBalancer", "clusterIP": "10.96.7.7", "selector": {label: "a"}, "ports": ports}})
    };
    let live = service("pod.berth.dev/app");
    let key = put(&scripted, KindId::Service, service("app"), live.clone());
    scripted.serve("/services/a", live);
    let result = reconcile(&scripted, &key).await;
    assert!(matches!(result, Err(CallError::Rejected(_))), "{result:?}");
    let written = scripted.sent("host PATCH", "/services/a");
    let types: Vec<&Value> = written.iter().map(|service| &service["spec"]["type"]).collect();
    assert_eq!(
        types,
        [&Value::Null, &json!("ClusterIP")],
        "what was refused is not kept here"
    );
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_waits_is_narrowed_before_the_tenant_reads_that_it_waits() {
    let scripted = Scripted::new(tenant(SyncPolicy::default()), |_| None);
    let policy = json!({"spec": {"podSelector": {}, "policyTypes": ["Ingress"]}});
    let key = put(&scripted, KindId::NetworkPolicy, policy, json!({"spec": {}}));
    use_up_turns(&scripted);
    reconcile(&scripted, &key).await.unwrap();
    let narrowed = scripted.first("host GET", "/networkpolicies/a").unwrap();
    let reported = scripted.first("tenant", "").unwrap();
    assert!(narrowed < reported, "{:?}", scripted.calls("", ""));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_waits_is_read_again_only_if_it_may_have_to_be_isolated() {
    // The store keeps the tenant's pod as it is here.
    let scripted = without_statuses(tenant(SyncPolicy::default()), Failure::Refused(403));
    let (pod, host) = pods(&json!({}), Some("gpu-1"));
    let key = put(&scripted, KindId::Pod, pod.clone(), host);
    scripted.serve("/pods/a", json!({"metadata": {"labels": {}}, "spec": {}}));
    use_up_turns(&scripted);
    // How often it was read once its label has changed.
    let reads = async |app: &str| {
        let mut changed = pod.clone();
        changed["metadata"]["labels"] = json!({"app": app});
        scripted.put(Side::Tenant, KindId::Pod, &name(), changed);
        drop(reconcile(&scripted, &key).await);
        scripted.calls("host GET", "/pods/a").len()
    };
    assert_eq!(reads("one").await, 1);
    assert_eq!(reads("two").await, 1, "the label opens nothing");
    let policy = json!({"spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}});
    scripted.put(
        Side::Tenant,
        KindId::NetworkPolicy,
        &Name::new("team", "quarantine"),
        policy,
    );
    assert_eq!(reads("two").await, 2);
    assert_eq!(reads("three").await, 2);
    assert!(scripted.calls("host PATCH", "").is_empty(), "it waits");
}

/// What leaves the host although a thousand other objects of its kind wait for the tenant.
async fn leaves_soon(scripted: Scripted, key: Key, others: Value, call: &str) {
    let working = scripted.flood(key.kind, &others).await;
    scripted.engine.add(key);
    scripted.expect_soon("host DELETE", call).await;
    working.abort();
}

#[tokio::test(start_paused = true)]
async fn a_pod_ends_before_a_thousand_others_whose_statuses_nobody_answers() {
    let (scripted, key) = pod_with_withdrawn_storage(Failure::Silence);
    let (denied, _) = pods(&json!({"hostNetwork": true}), None);
    leaves_soon(scripted, key, denied, "/pods/a").await;
}

#[tokio::test(start_paused = true)]
async fn an_ingress_is_withdrawn_before_a_thousand_others_whose_statuses_nobody_answers() {
    let ingress = json!({
        "spec": {"ingressClassName": "nginx", "rules": [{"host": "a.example.com"}]},
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}},
    });
    let scripted = without_statuses(tenant(SyncPolicy::default()), Failure::Silence);
    let key = put(&scripted, KindId::Ingress, ingress.clone(), json!({"spec": {}}));
    leaves_soon(scripted, key, ingress, "/ingresses/a").await;
}

/// Only what is denied is left out of it: the rest can be as long as an object may be, and a tenant may have any number of such pods.
#[tokio::test(start_paused = true)]
async fn a_pod_that_is_denied_is_closed_and_does_not_grow_once_the_tenant_has_no_room() {
    const NOTE: &str = "simulation.berth.dev/note";
    let [egress, ingress] = [labels::NETWORK_EGRESS, labels::NETWORK_INGRESS];
    let app = host_key("app");
    for (limit, has_room, has_room_for_labels) in [(512 << 20, true, true), (1 << 10, false, true), (1, false, false)] {
        let mut tenant = tenant(SyncPolicy::default());
        tenant.host_limits.bytes = limit;
        let scripted = Scripted::new(tenant, |_| None);
        let policy = json!({"spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}});
        let quarantine = Name::new("team", "quarantine");
        scripted.put(Side::Tenant, KindId::NetworkPolicy, &quarantine, policy);
        let (mut pod, host) = pods(&json!({"hostNetwork": true}), Some("gpu-1"));
        pod["metadata"] = json!({"labels": {"app": "db"}, "annotations": {NOTE: "a".repeat(10 << 10)}});
        let key = put(&scripted, KindId::Pod, pod, host);
        let applied = format!("labels={egress},{ingress};annotations=;gates=");
        let open = json!({egress: labels::NETWORK_OPEN, ingress: labels::NETWORK_OPEN});
        let live = json!({"metadata": {"labels": open, "annotations": {labels::APPLIED_KEYS: applied}}, "spec": {}});
        scripted.serve("/pods/a", live);
        reconcile(&scripted, &key).await.unwrap();
        let written = scripted.sent("host PATCH", "/pods/a");
        let [patch] = written.as_slice() else {
            panic!("{limit}: {written:?}")
        };
        let metadata = &patch["metadata"];
        for label in [egress, ingress] {
            assert_eq!(metadata["labels"].get(label), Some(&Value::Null), "{limit} {label}");
        }
        assert_eq!(metadata["labels"][&app].is_string(), has_room_for_labels, "{limit}");
        assert_eq!(metadata["annotations"][NOTE].is_string(), has_room, "{limit}");
    }
}
