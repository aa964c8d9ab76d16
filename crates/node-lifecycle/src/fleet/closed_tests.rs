//! Nodes on which the platform lets no new pods start: they are Ready, and have a taint.

use crate::{
    demand::Workload,
    devices::Devices,
    fleet::{SnapshotInput, TenantInput, build_snapshot},
    idle::IdleTracker,
    platform_pods::NodeUse,
    rejections::RejectedNodes,
};
use berth_api::{HostNodePool, HostNodePoolSpec, NodeGroup, TenantCluster, TenantClusterSpec, labels, names::TenantId};
use berth_planner::{ActionKind, Fleet, NodeState, plan};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use std::sync::Arc;

const GPU: &str = "nvidia.com/gpu";
const PRESSURE: &str = "node.kubernetes.io/disk-pressure";
const MEMORY: &str = "node.kubernetes.io/memory-pressure";
const PROBLEM: &str = "node-problem-detector.example.com/xid";
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// A node with eight GPUs: free, or assigned to a group of the tenant.
fn node(name: &str, group: Option<&str>, taint: Option<&str>) -> Value {
    let taints: Vec<Value> = taint
        .iter()
        .map(|key| json!({"key": key, "effect": "NoSchedule"}))
        .collect();
    let mut node = json!({
        "metadata": {"name": name, "labels": {"product": "H100"}},
        "spec": {"taints": taints},
        "status": {
            "allocatable": {GPU: "8", "pods": "110"}, "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    if let Some(group) = group {
        node["metadata"]["labels"][labels::POOL] = "h100".into();
        node["metadata"]["labels"][labels::NODE_GROUP] = group.into();
        node["metadata"]["labels"][labels::NODE_STATE] = "Assigned".into();
        node["metadata"]["labels"][labels::TENANT] = TenantId::new("vision", "uid").slug().into();
        node["metadata"]["annotations"] = json!({
            labels::OWNER_UID: "uid", labels::NODE_STATE: "Assigned", labels::ASSIGNED_SINCE: at(5_000).to_string(),
        });
    }
    node
}

/// A pod, which waits or runs on a node.
fn pod(name: &str, gpus: u32, node: Option<&str>) -> Arc<Workload> {
    let pod = json!({
        "metadata": {
            "name": name, "namespace": "berth-vision", "creationTimestamp": at(9_000).to_string(),
            "labels": {labels::TENANT: TenantId::new("vision", "uid").slug()},
        },
        "spec": {
            "nodeName": node,
            "containers": [{"name": "c", "resources": {"requests": {GPU: gpus.to_string()}}}],
        },
    });
    Arc::new(Workload::from_pod(&serde_json::from_value(pod).unwrap()).unwrap())
}

fn fleet(groups: Vec<NodeGroup>, nodes: &[Value], workloads: Vec<Arc<Workload>>) -> Fleet {
    let pool = HostNodePoolSpec {
        node_selector: [("product".to_owned(), "H100".to_owned())].into(),
        gpu_resource_name: Some(GPU.into()),
        ..HostNodePoolSpec::default()
    };
    let spec = TenantClusterSpec {
        node_groups: groups,
        ..TenantClusterSpec::default()
    };
    let mut cluster = TenantCluster::new("vision", spec);
    cluster.metadata.uid = Some("uid".into());
    let nodes = nodes
        .iter()
        .map(|node| serde_json::from_value::<Node>(node.clone()).unwrap());
    let input = SnapshotInput {
        now: at(10_000),
        nodes: nodes.map(Arc::new).collect(),
        pools: vec![Arc::new(HostNodePool::new("h100", pool))],
        classes: Vec::new(),
        organizations: Vec::new(),
        projects: Vec::new(),
        tenants: vec![TenantInput::accepted(cluster)],
        workloads,
        platform: &|_| NodeUse::default(),
        devices: &Devices::default(),
        idle: &IdleTracker::default(),
        rejected_nodes: &RejectedNodes::default(),
    };
    build_snapshot(&input).0
}

/// Nodes that the plan for a fleet reserves.
fn reserved(fleet: &Fleet) -> Vec<String> {
    let actions = plan(fleet).actions.into_iter();
    let reserved = actions.filter(|action| matches!(action.kind, ActionKind::Reserve { .. }));
    reserved.map(|action| action.node).collect()
}

#[test]
fn a_pod_gets_another_node_than_a_free_one_that_is_closed() {
    let burst = || vec![NodeGroup::dynamic("burst", "h100", 0, 1)];
    for (taint, expected) in [(Some(PRESSURE), "n2"), (Some(UNSCHEDULABLE), "n1"), (None, "n1")] {
        let nodes = [node("n1", None, taint), node("n2", None, None)];
        let fleet = fleet(burst(), &nodes, vec![pod("train", 8, None)]);
        let is_closed = matches!(&fleet.nodes[0].state, NodeState::Unavailable { reason } if reason.contains(PRESSURE));
        assert_eq!(is_closed, taint == Some(PRESSURE), "{:?}", fleet.nodes[0].state);
        assert_eq!(reserved(&fleet), [expected], "{taint:?}");
    }
}

#[test]
fn a_pod_gets_another_node_than_one_in_use_that_has_a_problem() {
    for (taint, expected) in [(Some(PROBLEM), vec!["n2"]), (Some(PRESSURE), vec![]), (None, vec![])] {
        let nodes = [node("n1", Some("burst"), taint), node("n2", None, None)];
        let pods = vec![pod("runs", 4, Some("n1")), pod("waits", 4, None)];
        let fleet = fleet(vec![NodeGroup::dynamic("burst", "h100", 0, 4)], &nodes, pods);
        assert_eq!(reserved(&fleet), expected, "{taint:?}");
    }
}

#[test]
fn an_idle_node_with_little_memory_stays_for_the_pod_that_waits_for_it() {
    for (taint, is_released) in [(MEMORY, false), (PRESSURE, true)] {
        let mut held = node("n1", Some("burst"), Some(taint));
        held["metadata"]["annotations"][labels::IDLE_SINCE] = at(6_000).to_string().into();
        let burst = NodeGroup::dynamic("burst", "h100", 0, 1);
        let fleet = fleet(vec![burst], &[held], vec![pod("train", 8, None)]);
        assert!(fleet.nodes[0].closed, "{taint}: nobody else would get it");
        let actions = plan(&fleet).actions;
        let released = actions
            .iter()
            .any(|action| matches!(action.kind, ActionKind::Release { .. }));
        assert_eq!(released, is_released, "{taint}: {actions:?}");
    }
}

#[test]
fn a_pod_does_not_wait_for_an_idle_node_of_another_group_that_is_closed() {
    let groups = || {
        vec![
            NodeGroup::private("fix", "h100", 1),
            NodeGroup::dynamic("burst", "h100", 0, 4),
        ]
    };
    let has_demand = |taint: Option<&str>, workloads: Vec<Arc<Workload>>| {
        let fleet = fleet(groups(), &[node("n1", Some("fix"), taint)], workloads);
        !fleet.tenants[0].node_groups[1].demand.is_empty()
    };
    for (taint, brings_node) in [
        (Some(PRESSURE), true),
        (Some(MEMORY), false),
        (Some(UNSCHEDULABLE), false),
        (None, false),
    ] {
        assert_eq!(has_demand(taint, vec![pod("train", 8, None)]), brings_node, "{taint:?}");
    }
    let beside = || vec![pod("runs", 4, Some("n1")), pod("waits", 4, None)];
    assert!(
        has_demand(Some(PROBLEM), beside()),
        "it cannot start beside another pod"
    );
    assert!(
        !has_demand(Some(PRESSURE), beside()),
        "pods bring no node by filling their disk"
    );
}
