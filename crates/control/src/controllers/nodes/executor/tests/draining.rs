//! Nodes that pods, or claims of devices, hold up.

use super::{Fixture, NODES, NOW, SLUG, TENANT, api::Failing, finish_recycling, names, reserve, state_of};
use crate::testing::{LATE, make_unreadable, merge};
use berth_api::{HostNodePoolSpec, labels, names::TenantId};
use berth_node_lifecycle::{
    assignment::AssignmentState::{Assigned, Draining, Quarantined, Scrubbing, Validating},
    devices::{ClaimStatus, DeviceClaim},
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The workload namespace of the tenant.
pub(super) const NAMESPACE: &str = "berth-vision-abc";

/// A pod on node `a` with the labels of one that a syncer made, which asks for a day to end.
pub(super) fn stubborn_pod(namespace: &str) -> (String, Value) {
    let labels = json!({labels::MANAGED_BY: labels::MANAGED_BY_SYNCER, labels::TENANT: SLUG});
    let pod = json!({
        "metadata": {"name": "p", "namespace": namespace, "uid": "uid-p", "labels": labels},
        "spec": {"nodeName": "a", "terminationGracePeriodSeconds": 86_400, "containers": []},
    });
    (format!("/api/v1/namespaces/{namespace}/pods/p"), pod)
}

/// A node in Draining with a pod that asks for a day to end.
fn fixture_with_stubborn_pod() -> Fixture {
    let fixture = Fixture::new(&["a"]);
    fixture.put_in_state("a", Draining);
    fixture.api().objects.extend([stubborn_pod(NAMESPACE)]);
    fixture
}

#[tokio::test]
async fn budgets_and_pods_that_do_not_end_do_not_keep_a_node() {
    let fixture = fixture_with_stubborn_pod();
    let at = async |seconds: i64| {
        let (outcome, _) = fixture.execute_at(NOW + seconds, &[], Failing::Nothing).await;
        outcome.unwrap();
        let api = fixture.api();
        (api.nodes_in(Draining).len(), api.graces.clone())
    };
    assert_eq!(at(0).await, (1, vec![]));
    assert_eq!(at(1800).await, (1, vec![]), "a budget holds for an hour");
    assert_eq!(at(3600).await, (1, vec![600]));
    assert_eq!(
        at(3600 + 600 + 59).await,
        (1, vec![600]),
        "it has the time that it was given"
    );
    assert_eq!(at(3600 + 600 + 60).await, (1, vec![600, 0]));
    assert_eq!(at(3600 + 600 + 61).await, (0, vec![600, 0]));
    assert_eq!(fixture.api().nodes_in(Scrubbing), names(&["a"]));
    let events = fixture.api().events.clone();
    for reason in ["DrainBlocked", "DrainForced"] {
        let of_node = events.iter().filter(|event| *event == reason).count();
        assert_eq!(of_node, 1, "{events:?}");
    }
    let warnings = events.iter().filter(|event| *event == "NodeReclaimed").count();
    assert_eq!(warnings, 2, "{events:?}");
}

#[tokio::test]
async fn a_view_that_lags_behind_ends_no_pod_of_the_next_tenant() {
    let is_over = "the time limit of the drain is over: pods are deleted although disruption budgets may forbid it";
    for (seconds, reason) in [(0, Value::Null), (3600, is_over.into())] {
        let mut fixture = fixture_with_stubborn_pod();
        let path = format!("{NODES}/a");
        let mut draining = fixture.api().objects[&path].clone();
        merge(
            &mut draining,
            &json!({"metadata": {"annotations": {labels::REASON: reason}}}),
        );
        fixture.lagging.insert(path, draining);
        fixture.put_in_state("a", Assigned);
        let (outcome, _) = fixture.execute_at(NOW + seconds, &[], Failing::Nothing).await;
        outcome.unwrap();
        let api = fixture.api();
        assert!(api.graces.is_empty(), "{seconds}");
        let of_pod = api.log.iter().find(|call| call.contains("/pods/"));
        assert_eq!(of_pod, None, "{seconds}");
    }
}

#[tokio::test]
async fn a_pod_that_a_finalizer_holds_ends_in_quarantine() {
    let fixture = fixture_with_stubborn_pod();
    for (path, object) in &mut fixture.api().objects {
        if path.contains("/pods/") {
            object["metadata"]["finalizers"] = json!(["example.com/held"]);
        }
    }
    let at = async |seconds: i64| {
        let (outcome, _) = fixture.execute_at(NOW + seconds, &[], Failing::Nothing).await;
        outcome.unwrap();
        state_of(&fixture, "a")
    };
    for seconds in [0, 1800, 3600, 3600 + 660, 3600 + 600 + 119] {
        assert_eq!(at(seconds).await, Some(Draining), "{seconds}");
    }
    assert_eq!(fixture.api().graces, [600, 0]);
    assert_eq!(at(3600 + 600 + 120).await, Some(Quarantined));
    assert_eq!(fixture.api().graces, [600, 0]);
}

#[tokio::test]
async fn a_pod_elsewhere_with_the_labels_of_a_tenants_keeps_no_node() {
    for namespace in ["kube-system", "team"] {
        let (path, mut pod) = stubborn_pod(namespace);
        pod["metadata"]["finalizers"] = json!(["example.com/held"]);
        if namespace == "kube-system" {
            // As a kubelet whose credential was stolen makes it.
            pod["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "id-of-static-pod"});
        }
        // It does not keep one from being recycled.
        let fixture = Fixture::new(&["a"]);
        fixture.put_in_state("a", Draining);
        fixture.api().objects.extend([(path.clone(), pod.clone())]);
        fixture.execute(&[], Failing::Nothing).await.0.unwrap();
        assert_eq!(state_of(&fixture, "a"), Some(Scrubbing), "{namespace}");
        {
            let api = fixture.api();
            let scrub = api.objects.iter().find(|(path, _)| path.contains("/jobs/"));
            let scrub = scrub.map(|(_, job)| job.to_string()).unwrap_or_default();
            assert!(scrub.contains("uid-p"), "the platform's pods stay: {scrub}");
        }
        // Nor from being reserved, if it would stay there.
        pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
        let fixture = Fixture {
            pools: BTreeMap::from([("h100".to_owned(), HostNodePoolSpec::default())]),
            ..Fixture::new(&["a", "b"])
        };
        for node in ["a", "b"] {
            fixture.set_machine(node, node);
        }
        fixture.api().objects.extend([(path, pod)]);
        let reservations = ["a", "b"].map(|node| reserve(node, "group"));
        fixture.execute(&reservations, Failing::Nothing).await.0.unwrap();
        assert_eq!(fixture.api().nodes_in(Assigned), names(&["a", "b"]), "{namespace}");
        assert!(fixture.api().graces.is_empty());
    }
}

#[tokio::test]
async fn a_node_is_free_once_no_claim_of_a_tenant_has_its_devices() {
    let fixture = fixture_with_stubborn_pod();
    fixture.api().objects.retain(|path, _| !path.contains("/pods/"));
    let status = json!({"allocation": {"devices": {"results": [{"request": "r", "pool": "a"}]}}});
    let status: ClaimStatus = serde_json::from_value(status).unwrap();
    let claim = format!("{}/group", TenantId::new("vision", TENANT).workload_namespace());
    fixture
        .devices
        .put_claim(&claim, Some(DeviceClaim::read(None, Some(&status))));
    finish_recycling(&fixture).await;
    assert_eq!(state_of(&fixture, "a"), Some(Validating));
    fixture.devices.put_claim(&claim, None);
    fixture.execute(&[], Failing::Nothing).await.0.unwrap();
    assert_eq!(state_of(&fixture, "a"), None);
}

/// Puts a claim of the tenant on the host. For the watch of claims it has a device of node `a`. Returns its path, and what the watch calls it.
fn put_claim(fixture: &Fixture, name: &str, owners: &Value, status: &Value) -> (String, String) {
    let namespace = TenantId::new("vision", TENANT).workload_namespace();
    let metadata =
        json!({"name": name, "namespace": namespace, "uid": name, "resourceVersion": "7", "ownerReferences": owners});
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": {}, "status": status});
    let path = format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}");
    fixture.api().objects.insert(path.clone(), claim);
    let observed: ClaimStatus = serde_json::from_value(json!({"allocation": allocation_on("a")})).unwrap();
    let observed = DeviceClaim::read(None, Some(&observed));
    let watched = format!("{namespace}/{name}");
    fixture.devices.put_claim(&watched, Some(observed));
    (path, watched)
}

/// An allocation of a device of a node.
fn allocation_on(node: &str) -> Value {
    json!({"devices": {"results": [{"request": "r", "pool": node}]}})
}

#[tokio::test]
async fn a_claim_that_nothing_uses_keeps_no_node() {
    let fixture = fixture_with_stubborn_pod();
    fixture.api().objects.retain(|path, _| !path.contains("/pods/"));
    let (here, nobody) = (json!({"allocation": allocation_on("a")}), json!([]));
    let user = json!([{"resource": "pods", "name": "p", "uid": "uid-p"}]);
    let used = json!({"allocation": allocation_on("a"), "reservedFor": user});
    // The watch is behind.
    let elsewhere = json!({"allocation": allocation_on("b")});
    let pod = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p"}]);
    let unused = put_claim(&fixture, "unused", &nobody, &here);
    let kept = [
        put_claim(&fixture, "used", &nobody, &used),
        put_claim(&fixture, "elsewhere", &nobody, &elsewhere),
        put_claim(&fixture, "of-a-pod", &pod, &here),
    ];
    finish_recycling(&fixture).await;
    assert_eq!(state_of(&fixture, "a"), Some(Validating));
    assert!(!fixture.api().objects.contains_key(&unused.0));
    for (path, _) in &kept {
        assert!(fixture.api().objects.contains_key(path), "{path}");
    }
    for (_, watched) in kept.iter().chain([&unused]) {
        fixture.devices.put_claim(watched, None);
    }
    fixture.execute(&[], Failing::Nothing).await.0.unwrap();
    assert_eq!(state_of(&fixture, "a"), None);
}

#[tokio::test]
async fn a_view_that_lags_behind_deletes_no_claim_of_the_next_tenant() {
    let mut fixture = Fixture::new(&["a"]);
    fixture.put_in_state("a", Draining);
    let mut status =
        json!({"allocation": allocation_on("a"), "reservedFor": [{"resource": "pods", "name": "p", "uid": "uid-p"}]});
    put_claim(&fixture, "c", &json!([]), &status);
    finish_recycling(&fixture).await;
    assert_eq!(state_of(&fixture, "a"), Some(Validating));
    let node = format!("{NODES}/a");
    let validating = fixture.api().objects[&node].clone();
    fixture.lagging.insert(node.clone(), validating.clone());
    fixture.put_in_state("a", Assigned);
    status["reservedFor"] = Value::Null;
    let (path, _) = put_claim(&fixture, "c", &json!([]), &status);
    fixture.execute(&[], Failing::Nothing).await.0.unwrap();
    assert!(fixture.api().objects.contains_key(&path));
    // It is one that is deleted while the node has no tenant.
    fixture.lagging.clear();
    fixture.api().objects.insert(node, validating);
    fixture.execute(&[], Failing::Nothing).await.0.unwrap();
    assert!(!fixture.api().objects.contains_key(&path));
}

#[tokio::test]
async fn a_claim_that_cannot_be_read_keeps_a_node_no_longer_than_its_time_limit() {
    let fixture = fixture_with_stubborn_pod();
    fixture.api().objects.retain(|path, _| !path.contains("/pods/"));
    put_claim(&fixture, "c", &json!([]), &json!(7));
    let (unused, _) = put_claim(&fixture, "d", &json!([]), &json!({"allocation": allocation_on("a")}));
    finish_recycling(&fixture).await;
    assert_eq!(state_of(&fixture, "a"), Some(Validating));
    assert!(!fixture.api().objects.contains_key(&unused), "others are deleted");
    let (outcome, _) = fixture.execute_at(NOW + 3600, &[], Failing::Nothing).await;
    outcome.unwrap();
    assert_eq!(state_of(&fixture, "a"), Some(Quarantined));
}

#[tokio::test]
async fn a_pod_that_no_type_holds_does_not_keep_a_node() {
    let fixture = fixture_with_stubborn_pod();
    for (path, object) in &mut fixture.api().objects {
        if path.contains("/pods/") {
            make_unreadable(object);
            object["status"] = json!({"startTime": LATE});
        }
    }
    for seconds in [0, 3600, 3600 + 660, 3600 + 661] {
        let (outcome, _) = fixture.execute_at(NOW + seconds, &[], Failing::Nothing).await;
        outcome.unwrap();
    }
    assert_eq!(fixture.api().graces, [600, 0], "of the day that it asks for");
    assert_eq!(fixture.api().nodes_in(Scrubbing), names(&["a"]));
}

#[tokio::test]
async fn a_node_is_emptied_whichever_call_fails() {
    let times = [3600, 3601, 3602, 4300, 4301, 4302];
    let calls = {
        let fixture = fixture_with_stubborn_pod();
        let mut calls = 0;
        for seconds in times {
            calls = calls.max(fixture.execute_at(NOW + seconds, &[], Failing::Nothing).await.1);
        }
        calls
    };
    for call in 1..=calls {
        let fixture = fixture_with_stubborn_pod();
        for seconds in times {
            let _ = fixture.execute_at(NOW + seconds, &[], Failing::Call(call)).await;
        }
        for seconds in [5000, 5700, 5701] {
            let _ = fixture.execute_at(NOW + seconds, &[], Failing::Nothing).await;
        }
        assert_eq!(fixture.api().nodes_in(Draining), names(&[]), "call {call}");
        assert!(
            fixture.api().objects.keys().all(|path| !path.contains("/pods/")),
            "call {call}"
        );
    }
}
