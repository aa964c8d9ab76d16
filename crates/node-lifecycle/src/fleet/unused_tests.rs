//! A pod that never starts, because of an affinity to pods that do not exist: plans every minute, and one node.

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
/// The minute in which a pod of another tenant is created.
const OTHER: i64 = 60;
const MINUTES: i64 = 2 * OTHER;
const STUCK: &str = "vision";
const LATE: &str = "speech";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn tenant(name: &str, unused: &BTreeMap<String, UnusedNodes>) -> TenantInput {
    let spec = TenantClusterSpec {
        node_groups: vec![NodeGroup::dynamic("burst", "h100", 0, 4)],
        ..TenantClusterSpec::default()
    };
    let mut cluster = TenantCluster::new(name, spec);
    cluster.metadata.uid = Some(name.into());
    TenantInput {
        unused: unused.clone(),
        ..TenantInput::accepted(cluster)
    }
}

/// A pod; that of [`STUCK`] has a required affinity to pods that do not exist.
fn pod(tenant: &str, created: i64) -> Arc<Workload> {
    let term = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "nowhere"}}});
    let terms = if tenant == STUCK { vec![term] } else { Vec::new() };
    let pod = json!({
        "metadata": {
            "name": format!("p-{created}"), "namespace": format!("berth-{tenant}"), "creationTimestamp": at(created).to_string(),
            "labels": {labels::TENANT: TenantId::new(tenant, tenant).slug()},
        },
        "spec": {
            "containers": [{"name": "c", "resources": {"requests": {GPU: "8"}}}],
            "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
        },
    });
    Arc::new(Workload::from_pod(&serde_json::from_value(pod).unwrap()).unwrap())
}

/// The node: free, or assigned to a tenant since then.
fn node(assigned: Option<&(String, i64)>) -> Arc<Node> {
    let mut node = json!({
        "metadata": {"name": "n1", "labels": {"product": "H100"}},
        "status": {
            "allocatable": {GPU: "8", "pods": "110"}, "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    if let Some((tenant, since)) = assigned {
        node["metadata"] = json!({
            "name": "n1",
            "labels": {
                "product": "H100", labels::POOL: "h100", labels::NODE_GROUP: "burst", labels::NODE_STATE: "Assigned",
                labels::TENANT: TenantId::new(tenant, tenant).slug(),
            },
            "annotations": {
                labels::OWNER_UID: tenant, labels::NODE_STATE: "Assigned", labels::ASSIGNED_SINCE: at(*since).to_string(),
            },
        });
    }
    Arc::new(serde_json::from_value(node).unwrap())
}

/// Which tenant gets the node in which minute, until the other one has it, and whether there is a pause for [`STUCK`] then.
/// `created`: when its pod was created that waits at a time.
fn simulate(created: impl Fn(i64) -> i64) -> (Vec<(String, i64)>, bool) {
    let pool = HostNodePoolSpec {
        node_selector: [("product".to_owned(), "H100".to_owned())].into(),
        gpu_resource_name: Some(GPU.into()),
        ..HostNodePoolSpec::default()
    };
    let pool = Arc::new(HostNodePool::new("h100", pool));
    let (idle, mut unused, mut assigned) = (IdleTracker::default(), BTreeMap::new(), None);
    let mut all = Vec::new();
    for minute in 0..MINUTES {
        let now = BEGIN + 60 * minute;
        let mut workloads = vec![pod(STUCK, created(now))];
        if minute >= OTHER {
            workloads.push(pod(LATE, BEGIN + 60 * OTHER));
        }
        let input = SnapshotInput {
            now: at(now),
            nodes: vec![node(assigned.as_ref())],
            pools: vec![Arc::clone(&pool)],
            classes: Vec::new(),
            organizations: Vec::new(),
            projects: Vec::new(),
            tenants: vec![tenant(STUCK, &unused), tenant(LATE, &BTreeMap::new())],
            workloads,
            platform: &|_| Requests::new(),
            devices: &Devices::default(),
            idle: &idle,
            rejected_nodes: &RejectedNodes::default(),
        };
        let Plan {
            actions, unused_nodes, ..
        } = plan(&build_snapshot(&input).0);
        unused = unused_nodes.get(STUCK).cloned().unwrap_or_default();
        match actions.first().map(|action| &action.kind) {
            Some(ActionKind::Reserve { tenant, .. }) => {
                assigned = Some((tenant.clone(), now));
                all.push((tenant.clone(), minute));
                if tenant == LATE {
                    let until = unused.get("h100").and_then(UnusedNodes::paused_until);
                    return (all, until.is_some_and(|until| now < until));
                }
            }
            Some(ActionKind::Release { .. }) => assigned = None,
            _ => {}
        }
    }
    (all, false)
}

#[test]
fn a_pod_that_never_starts_keeps_its_node_until_somebody_lacks_it() {
    let expected = [(STUCK.to_owned(), 0), (LATE.to_owned(), OTHER + 1)];
    assert_eq!(simulate(|_| BEGIN), (expected.to_vec(), true), "the same pod");
    assert_eq!(
        simulate(|now| now),
        (expected.to_vec(), true),
        "created again each minute"
    );
}
