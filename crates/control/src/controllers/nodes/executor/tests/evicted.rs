//! Pods on a node that its tenant is about to get, which do not tolerate its taint.

use super::{Fixture, NODES, NOW, api::Failing, state_of};
use crate::testing::merge;
use berth_api::{labels, system};
use berth_node_lifecycle::assignment::AssignmentState::{self, Assigned, Joining, Quarantined};
use jiff::Timestamp;
use serde_json::{Value, json};

const POD: &str = "/api/v1/namespaces/team/pods/agent-x";
/// Seconds that the pod asks for to end.
const DECADES: i64 = 1_000_000_000;

/// A node in Joining with a pod of a team's DaemonSet, changed by `more`.
fn fixture(more: &Value) -> Fixture {
    let fixture = Fixture::new(&["a"]);
    fixture.put_in_state("a", Joining);
    let owner = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "u", "controller": true});
    let mut pod = json!({
        "metadata": {
            "name": "agent-x", "namespace": "team", "uid": "uid-x", "ownerReferences": [owner],
            "creationTimestamp": time(NOW - 100), "labels": {labels::PLACEHOLDER: "x"},
        },
        "spec": {"nodeName": "a", "terminationGracePeriodSeconds": DECADES, "containers": []},
        "status": {"phase": "Running", "startTime": time(NOW - 99)},
    });
    merge(&mut pod, more);
    fixture.api().objects.insert(POD.into(), pod);
    fixture
}

fn time(second: i64) -> String {
    Timestamp::from_second(second).unwrap().to_string()
}

/// What kube-controller-manager writes when it evicts the pod.
fn evicted() -> Value {
    json!({"metadata": {"deletionTimestamp": time(NOW + DECADES), "deletionGracePeriodSeconds": DECADES}})
}

/// The state of the node after a pass, and the grace periods of all deletions so far.
async fn after(fixture: &Fixture, seconds: i64) -> (Option<AssignmentState>, Vec<u64>) {
    let (outcome, _) = fixture.execute_at(NOW + seconds, &[], Failing::Nothing).await;
    outcome.unwrap();
    (state_of(fixture, "a"), fixture.api().graces.clone())
}

#[tokio::test]
async fn a_terminating_pod_of_a_daemon_set_keeps_a_node_in_joining_for_a_bounded_time() {
    let fixture = fixture(&evicted());
    assert_eq!(after(&fixture, 0).await, (Some(Joining), vec![225]));
    assert_eq!(after(&fixture, 224).await, (Some(Joining), vec![225]));
    // Its processes may go on, so it is not removed.
    assert_eq!(after(&fixture, 600).await, (Some(Joining), vec![225]));
    fixture.api().objects.remove(POD);
    assert_eq!(after(&fixture, 601).await, (Some(Assigned), vec![225]));
}

#[tokio::test]
async fn a_pod_whose_kubelet_does_not_end_it_quarantines_the_node() {
    let fixture = fixture(&evicted());
    assert_eq!(after(&fixture, 899).await, (Some(Joining), vec![225]));
    assert_eq!(after(&fixture, 900).await, (Some(Quarantined), vec![225]));
    let node = fixture.api().objects[&format!("{NODES}/a")].clone();
    let why = node["metadata"]["annotations"][labels::QUARANTINE].as_str().unwrap();
    assert!(why.contains("did not end within 900 s: team/agent-x;"), "{why}");
    assert!(fixture.api().objects.contains_key(POD), "it is not removed");
}

#[tokio::test]
async fn a_pod_that_is_not_evicted_in_time_is_deleted() {
    for (own, expected) in [(DECADES, 225), (30, 30)] {
        let fixture = fixture(&json!({"spec": {"terminationGracePeriodSeconds": own}}));
        assert_eq!(after(&fixture, 224).await, (Some(Joining), vec![]), "{own}");
        assert_eq!(after(&fixture, 225).await, (Some(Joining), vec![expected]), "{own}");
        assert_eq!(after(&fixture, 226).await, (Some(Joining), vec![expected]), "{own}");
    }
}

#[tokio::test]
async fn a_view_that_lags_behind_takes_no_pod_from_the_tenant_that_has_the_node() {
    // Its pods do not tolerate the taint that the node had before.
    let mut fixture = fixture(&json!({}));
    let path = format!("{NODES}/a");
    let joining = fixture.api().objects[&path].clone();
    fixture.lagging.insert(path, joining);
    fixture.put_in_state("a", Assigned);
    assert_eq!(after(&fixture, 225).await, (Some(Assigned), vec![]));
}

#[tokio::test]
async fn pods_that_stay_or_do_not_run_keep_no_node() {
    let never_started = json!({"phase": "Pending", "startTime": null});
    for more in [
        json!({"spec": {"tolerations": [{"operator": "Exists"}]}}),
        json!({"spec": {"tolerations": [{"key": labels::TENANT, "operator": "Exists"}]}}),
        json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "id"}}}),
        json!({"metadata": {"namespace": system::NAMESPACE}}),
        json!({"metadata": {"finalizers": ["example.com/held"]}, "status": {"phase": "Failed"}}),
        json!({"metadata": {"creationTimestamp": time(NOW + 61)}, "status": never_started}),
    ] {
        let fixture = fixture(&more);
        assert_eq!(after(&fixture, 70).await, (Some(Assigned), vec![]), "{more}");
    }
    // As far as control knows, the kubelet did not know of the taint.
    let late = fixture(&json!({"metadata": {"creationTimestamp": time(NOW + 61)}}));
    let early = fixture(&json!({"status": never_started}));
    for fixture in [late, early] {
        assert_eq!(after(&fixture, 70).await, (Some(Joining), vec![]));
    }
}

#[tokio::test]
async fn no_failed_call_lets_a_tenant_have_the_node() {
    for call in 1..=4 {
        let fixture = fixture(&evicted());
        let _ = fixture.execute(&[], Failing::Call(call)).await;
        assert_eq!(state_of(&fixture, "a"), Some(Joining), "call {call}");
        assert_eq!(after(&fixture, 1).await, (Some(Joining), vec![225]), "call {call}");
    }
}
