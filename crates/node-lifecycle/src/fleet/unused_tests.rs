//! A pod that never starts, because of an affinity to pods that do not exist, for a day: plans every minute, and one node.

use crate::{
    demand::Workload,
    devices::Devices,
    fleet::{SnapshotInput, TenantInput, build_snapshot},
    idle::IdleTracker,
    pod_requests::Requests,
    rejections::RejectedNodes,
};
use berth_api::{HostNodePool, HostNodePoolSpec, NodeGroup, TenantCluster, TenantClusterSpec, labels, names::TenantId};
use berth_planner::{ActionKind, Plan, UnusedNodes, plan};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use std::{collections::BTreeMap, sync::Arc};

const GPU: &str = "nvidia.com/gpu";
const BEGIN: i64 = 100_000;
const MINUTES: i64 = 24 * 60;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn tenant(unused: &BTreeMap<String, UnusedNodes>) -> TenantInput {
    let spec = TenantClusterSpec {
        node_groups: vec![NodeGroup::dynamic("burst", "h100", 0, 4)],
        ..TenantClusterSpec::default()
    };
    let mut cluster = TenantCluster::new("vision", spec);
    cluster.metadata.uid = Some("uid".into());
    TenantInput {
        unused: unused.clone(),
        ..TenantInput::accepted(cluster)
    }
}

/// A pod with a required affinity to pods that do not exist.
fn pod(created: i64) -> Arc<Workload> {
    let term = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "nowhere"}}});
    let pod = json!({
        "metadata": {
            "name": format!("p-{created}"), "namespace": "berth-w", "creationTimestamp": at(created).to_string(),
            "labels": {labels::TENANT: TenantId::new("vision", "uid").slug()},
        },
        "spec": {
            "containers": [{"name": "c", "resources": {"requests": {GPU: "8"}}}],
            "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}},
        },
    });
    Arc::new(Workload::from_pod(&serde_json::from_value(pod).unwrap()).unwrap())
}

/// The node: free, or assigned to the tenant since then.
fn node(assigned_since: Option<i64>) -> Arc<Node> {
    let mut node = json!({
        "metadata": {"name": "n1", "labels": {"product": "H100"}},
        "status": {
            "allocatable": {GPU: "8", "pods": "110"}, "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    if let Some(since) = assigned_since {
        node["metadata"] = json!({
            "name": "n1",
            "labels": {
                "product": "H100", labels::POOL: "h100", labels::NODE_GROUP: "burst", labels::NODE_STATE: "Assigned",
                labels::TENANT: TenantId::new("vision", "uid").slug(),
            },
            "annotations": {
                labels::OWNER_UID: "uid", labels::NODE_STATE: "Assigned", labels::ASSIGNED_SINCE: at(since).to_string(),
            },
        });
    }
    Arc::new(serde_json::from_value(node).unwrap())
}

/// How often the tenant gets the node within a day, which nobody else needs, and for how many minutes others would be served first.
/// `created`: when the pod was created that waits at a time.
fn simulate(created: impl Fn(i64) -> i64) -> (u32, u32) {
    let pool = HostNodePoolSpec {
        node_selector: [("product".to_owned(), "H100".to_owned())].into(),
        gpu_resource_name: Some(GPU.into()),
        ..HostNodePoolSpec::default()
    };
    let pool = Arc::new(HostNodePool::new("h100", pool));
    let (idle, mut unused, mut assigned_since) = (IdleTracker::default(), BTreeMap::new(), None);
    let (mut times, mut minutes) = (0, 0);
    for minute in 0..MINUTES {
        let now = BEGIN + 60 * minute;
        let input = SnapshotInput {
            now: at(now),
            nodes: vec![node(assigned_since)],
            pools: vec![Arc::clone(&pool)],
            classes: Vec::new(),
            organizations: Vec::new(),
            projects: Vec::new(),
            tenants: vec![tenant(&unused)],
            workloads: vec![pod(created(now))],
            platform: &|_| Requests::new(),
            devices: &Devices::default(),
            idle: &idle,
            rejected_nodes: &RejectedNodes::default(),
        };
        let Plan {
            actions, unused_nodes, ..
        } = plan(&build_snapshot(&input).0);
        unused = unused_nodes.get("uid").cloned().unwrap_or_default();
        let until = unused.get("h100").and_then(UnusedNodes::paused_until);
        minutes += u32::from(until.is_some_and(|until| now < until));
        match actions.first().map(|action| &action.kind) {
            Some(ActionKind::Reserve { .. }) => (assigned_since, times) = (Some(now), times + 1),
            Some(ActionKind::Release { .. }) => assigned_since = None,
            _ => {}
        }
    }
    (times, minutes)
}

#[test]
fn others_are_served_before_a_pod_that_never_starts_for_nearly_all_of_the_time() {
    for (what, (times, minutes)) in [
        ("the same pod", simulate(|_| BEGIN)),
        ("created again each minute", simulate(|now| now)),
    ] {
        assert!((50..=70).contains(&times), "{what}: {times} times");
        assert!(minutes >= 1_300, "{what}: {minutes} minutes");
    }
}
