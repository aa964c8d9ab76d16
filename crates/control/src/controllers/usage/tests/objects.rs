//! Pods on shared nodes, claims and control planes.

use super::*;
use berth_api::NodeMode;
use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, Pod},
    apimachinery::pkg::apis::meta::v1::Time,
};
use std::collections::HashSet;

/// A pod on a node, with 1.5 CPUs and 2 GiB, since a time.
fn pod(node: &str, since: i64) -> Pod {
    let requests = json!({"cpu": "1500m", "memory": "2Gi"});
    let scheduled = json!({"type": "PodScheduled", "status": "True", "lastTransitionTime": at(since).to_string()});
    let pod = json!({
        "metadata": {"name": "p", "creationTimestamp": at(-7200).to_string(),
            "labels": {labels::TENANT: slug(), labels::SHARED_NODES: labels::SHARED_NODES_ALLOWED}},
        "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"requests": requests}}]},
        "status": {"conditions": [scheduled]},
    });
    serde_json::from_value(pod).unwrap()
}

fn claim(size: &str) -> PersistentVolumeClaim {
    let namespace = TenantId::new("vision", UID).workload_namespace();
    let claim = json!({
        "metadata": {"name": "c", "namespace": namespace, "labels": {labels::TENANT: slug()},
            "creationTimestamp": at(-100).to_string()},
        "spec": {"storageClassName": "fast", "resources": {"requests": {"storage": size}}},
        "status": {"phase": "Bound"},
    });
    serde_json::from_value(claim).unwrap()
}

fn put_shared_node(fixture: &Fixture) {
    let metadata = json!({"name": "cpu-1", "labels": {labels::SHARED_POOL: "cpu", labels::POOL: "cpu"}});
    fixture
        .host
        .insert(&node_path("cpu-1"), json!({ "metadata": metadata }));
}

#[tokio::test]
async fn pods_on_shared_nodes_count_with_their_requests_also_if_they_end_between_two_passes() {
    let mut fixture = Fixture::new();
    put_shared_node(&fixture);
    fixture.pass().await.unwrap();
    let metered = fixture.context.stores.metered.clone();
    fixture.advance_to(100);
    metered.put_pod("a/stays", Some(&pod("cpu-1", 100)));
    metered.put_pod("a/short", Some(&pod("cpu-1", 100)));
    metered.put_pod("a/own", Some(&pod("gpu-1", 100)));
    fixture.advance_to(130);
    metered.put_pod("a/short", None);
    fixture.advance_to(200);
    fixture.pass().await.unwrap();
    // The node of a pod is gone when the pod is.
    fixture.advance_to(250);
    fixture.host.remove(&node_path("cpu-1"));
    metered.put_pod("a/stays", None);
    fixture.pass().await.unwrap();
    fixture.advance_to(1000);
    fixture.stop().await;
    // 150 and 30 seconds.
    assert_seconds(fixture.amount(UsageResource::Cpu), 1500, 180);
    assert_seconds(fixture.amount(UsageResource::Memory), 2048, 180);
    let record = fixture.record();
    let cpu = record
        .spec
        .lines
        .iter()
        .find(|line| line.resource == UsageResource::Cpu)
        .unwrap();
    assert_eq!(
        (cpu.pool_name.as_deref(), cpu.mode),
        (Some("cpu"), Some(NodeMode::Shared))
    );
    assert_eq!(cpu.gpu_product, None);
}

#[tokio::test]
async fn pods_of_an_earlier_control_count_once() {
    let mut fixture = Fixture::new();
    put_shared_node(&fixture);
    let put = |fixture: &Fixture| {
        fixture
            .context
            .stores
            .metered
            .put_pod("a/p", Some(&pod("cpu-1", -1000)));
    };
    put(&fixture);
    fixture.pass().await.unwrap();
    assert_seconds(fixture.amount(UsageResource::Cpu), 1500, 1000);
    fixture.restart();
    put(&fixture);
    fixture.advance_to(600);
    fixture.pass().await.unwrap();
    fixture.stop().await;
    assert_seconds(fixture.amount(UsageResource::Cpu), 1500, 1600);
}

#[tokio::test]
async fn volumes_of_claims_count_by_class() {
    let mut fixture = Fixture::new();
    let metered = fixture.context.stores.metered.clone();
    metered.put_claim("a/c", Some(&claim("10Gi")));
    fixture.pass().await.unwrap();
    fixture.advance_to(100);
    metered.put_claim("a/c", Some(&claim("20Gi")));
    fixture.advance_to(200);
    metered.put_claim("a/c", None);
    fixture.advance_to(500);
    fixture.stop().await;
    // 200 seconds with 10 GiB and 100 with 20 GiB.
    assert_seconds(fixture.amount(UsageResource::Storage), 10 * 1024, 400);
    let record = fixture.record();
    let storage = record
        .spec
        .lines
        .iter()
        .find(|line| line.resource == UsageResource::Storage);
    let storage = storage.unwrap();
    assert_eq!(storage.storage_class_name.as_deref(), Some("fast"));
    assert_eq!((storage.pool_name.as_deref(), storage.mode), (None, None));
}

#[tokio::test]
async fn snapshots_count_when_their_claim_is_gone() {
    let mut fixture = Fixture::new();
    let metered = fixture.context.stores.metered.clone();
    let namespace = TenantId::new("vision", UID).workload_namespace();
    let snapshot = json!({
        "metadata": {"name": "s", "namespace": namespace, "labels": {labels::TENANT: slug()}, "creationTimestamp": at(-50).to_string()},
        "spec": {"source": {"persistentVolumeClaimName": "c"}, "volumeSnapshotClassName": "daily"},
        "status": {"restoreSize": "10Gi"},
    });
    let snapshot = serde_json::from_value(snapshot).unwrap();
    let (claim_name, snapshot_name) = (format!("{namespace}/c"), format!("{namespace}/s"));
    metered.put_claim(&claim_name, Some(&claim("10Gi")));
    metered.retain_claims(&HashSet::from([claim_name.clone()]));
    metered.put_snapshot(&snapshot_name, Some(&snapshot));
    fixture.pass().await.unwrap();
    fixture.advance_to(100);
    metered.put_claim(&claim_name, None);
    fixture.advance_to(1100);
    fixture.pass().await.unwrap();
    metered.put_snapshot(&snapshot_name, None);
    fixture.advance_to(5000);
    fixture.stop().await;
    assert_seconds(fixture.amount(UsageResource::Storage), 10 * 1024, 1200);
    let record = fixture.record();
    let storage = record
        .spec
        .lines
        .iter()
        .filter(|line| line.resource == UsageResource::Storage);
    let classes: Vec<_> = storage.map(|line| line.storage_class_name.as_deref()).collect();
    assert_eq!(classes, [Some("daily"), Some("fast")]);
}

/// Otherwise several volumes cost as much as one after a restart of control, and snapshots of a driver that reports no sizes nothing.
#[tokio::test]
async fn which_claims_snapshots_are_of_outlives_a_restart() {
    let mut fixture = Fixture::new();
    let namespace = TenantId::new("vision", UID).workload_namespace();
    let claim_name = format!("{namespace}/c");
    let path = |name: &str| format!("/apis/snapshot.storage.k8s.io/v1/namespaces/{namespace}/volumesnapshots/{name}");
    let metered = fixture.context.stores.metered.clone();
    metered.retain_claims(&HashSet::new());
    for (name, created) in [("a", -900), ("b", -300)] {
        let mut claim = claim("10Gi");
        claim.metadata.creation_timestamp = Some(Time(at(created)));
        metered.put_claim(&claim_name, Some(&claim));
        let snapshot = json!({
            "metadata": {"name": name, "namespace": namespace, "uid": name, "labels": {labels::TENANT: slug()},
                "creationTimestamp": at(created + 60).to_string()},
            "spec": {"source": {"persistentVolumeClaimName": "c"}, "volumeSnapshotClassName": "daily"},
            "status": {"readyToUse": true},
        });
        fixture.host.insert(&path(name), snapshot.clone());
        let snapshot_name = format!("{namespace}/{name}");
        metered.put_snapshot(&snapshot_name, Some(&serde_json::from_value(snapshot).unwrap()));
        metered.put_claim(&claim_name, None);
    }
    // A host that refuses it does not keep usage from being counted.
    fixture.host.refuse_writes(Some(("/volumesnapshots/", 403, "no")));
    fixture.pass().await.unwrap();
    fixture.host.refuse_writes(None);
    fixture.pass().await.unwrap();
    let written = |name: &str| {
        let snapshot = fixture.host.get(&path(name)).unwrap();
        snapshot["metadata"]["annotations"][labels::SNAPSHOT_SOURCE].clone()
    };
    for (name, created) in [("a", -900), ("b", -300)] {
        assert_eq!(written(name), format!("{} 10240Mi", at(created)));
    }
    let found: Vec<_> = ["a", "b"].map(|name| fixture.host.get(&path(name)).unwrap()).into();
    fixture.stop().await;
    let before = fixture.amount(UsageResource::Storage);
    fixture.restart();
    let metered = fixture.context.stores.metered.clone();
    metered.retain_claims(&HashSet::new());
    for snapshot in found {
        let name = format!("{namespace}/{}", snapshot["metadata"]["name"].as_str().unwrap());
        metered.put_snapshot(&name, Some(&serde_json::from_value(snapshot).unwrap()));
    }
    fixture.advance_to(1000);
    fixture.pass().await.unwrap();
    fixture.stop().await;
    assert_seconds(fixture.amount(UsageResource::Storage) - before, 2 * 10 * 1024, 990);
}

#[tokio::test]
async fn a_control_plane_that_runs_for_its_class_while_its_tenant_sleeps_does_not_count() {
    let mut fixture = Fixture::new();
    let sleep = |state: &str, since: i64| json!({"state": state, "since": at(since).to_string()});
    fixture.put_tenant("vision", UID, &sleep("Sleeping", 0));
    fixture.pass().await.unwrap();
    fixture.put_tenant("vision", UID, &sleep("Enforcing", 0));
    for seconds in [300, 2000] {
        fixture.advance_to(seconds);
        fixture.pass().await.unwrap();
    }
    assert!(!fixture.record().spec.in_use, "it uses nothing");
    // A request wakes it at any time.
    fixture.put_tenant("vision", UID, &sleep("Waking", 2500));
    fixture.advance_to(3000);
    fixture.pass().await.unwrap();
    fixture.stop().await;
    assert_seconds(fixture.amount(UsageResource::ControlPlane), 1, 3600 + 500);
}

/// Otherwise a team that asks for sleep and wakes the tenant again and again pays little for a control plane that always runs.
#[tokio::test]
async fn a_control_plane_counts_while_its_tenant_begins_to_fall_asleep_and_is_woken() {
    let mut fixture = Fixture::new();
    let awake = |since: i64| json!({"state": "Awake", "since": at(since).to_string()});
    fixture.put_tenant("vision", UID, &awake(-600));
    fixture.pass().await.unwrap();
    for seconds in [60, 120, 180] {
        fixture.advance_to(seconds);
        fixture.put_tenant("vision", UID, &awake(seconds - 1));
        fixture.pass().await.unwrap();
    }
    fixture.stop().await;
    assert_seconds(fixture.amount(UsageResource::ControlPlane), 1, 600 + 180);
}

#[tokio::test]
async fn a_control_plane_does_not_count_while_its_tenant_sleeps() {
    let mut fixture = Fixture::new();
    let sleep = |state: &str, since: i64| json!({"state": state, "since": at(since).to_string()});
    fixture.pass().await.unwrap();
    assert_seconds(fixture.amount(UsageResource::ControlPlane), 1, 3600);
    fixture.advance_to(100);
    fixture.put_tenant("vision", UID, &sleep("FallingAsleep", 100));
    fixture.pass().await.unwrap();
    fixture.put_tenant("vision", UID, &sleep("Sleeping", 100));
    for seconds in [200, 2000, 4000] {
        fixture.advance_to(seconds);
        fixture.pass().await.unwrap();
    }
    assert_seconds(fixture.amount(UsageResource::ControlPlane), 1, 3700);
    assert!(!fixture.record().spec.in_use, "it uses nothing");
    // A control that starts meanwhile counts no more either.
    fixture.restart();
    fixture.advance_to(5000);
    fixture.pass().await.unwrap();
    fixture.put_tenant("vision", UID, &sleep("Awake", 5500));
    fixture.advance_to(6000);
    fixture.pass().await.unwrap();
    fixture.stop().await;
    assert_seconds(fixture.amount(UsageResource::ControlPlane), 1, 3700 + 500);
}
