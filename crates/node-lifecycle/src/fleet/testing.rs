//! Small fleets for tests.

use super::{SnapshotInput, TenantInput, WithdrawnNodes, build_snapshot};
use crate::{
    Assignment, AssignmentState, demand::Workload, devices::Devices, idle::IdleTracker, platform_pods::NodeUse,
    rejections::RejectedNodes,
};
use berth_api::{
    HostNodePool, HostNodePoolSpec, NodeGroup, ScheduleState, TenantCluster, TenantClusterSpec, labels, names::TenantId,
};
use berth_planner::Fleet;
use jiff::Timestamp;
use json_patch::merge;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

/// What GPUs are called.
pub(super) const GPU: &str = "nvidia.com/gpu";

pub(super) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// What there is at a time.
#[derive(Default)]
pub(super) struct Objects {
    pub(super) now: i64,
    pub(super) pools: Vec<Arc<HostNodePool>>,
    pub(super) nodes: Vec<Arc<Node>>,
    pub(super) tenants: Vec<TenantInput>,
    pub(super) workloads: Vec<Arc<Workload>>,
    pub(super) devices: Devices,
    /// What pods on nodes mean that no syncer made.
    pub(super) platform: BTreeMap<String, NodeUse>,
}

/// The snapshot of these objects. There are no classes and quotas, and no node was idle or rejected before.
pub(super) fn snapshot(objects: Objects) -> Fleet {
    later_snapshot(objects, &IdleTracker::default())
}

/// The same after earlier ones, which noted since when nodes are idle.
pub(super) fn later_snapshot(objects: Objects, idle: &IdleTracker) -> Fleet {
    let Objects {
        now,
        pools,
        nodes,
        tenants,
        workloads,
        devices,
        platform,
    } = objects;
    let input = SnapshotInput {
        now: at(now),
        nodes,
        pools,
        classes: Vec::new(),
        organizations: Vec::new(),
        projects: Vec::new(),
        tenants,
        workloads,
        platform: &|node| platform.get(node).cloned().unwrap_or_default(),
        devices: &devices,
        idle,
        rejected_nodes: &RejectedNodes::default(),
    };
    build_snapshot(&input).0
}

/// A pool of the nodes whose label `product` has this value.
pub(super) fn pool(name: &str, product: &str) -> HostNodePool {
    let spec = HostNodePoolSpec {
        node_selector: [("product".to_owned(), product.to_owned())].into(),
        ..HostNodePoolSpec::default()
    };
    HostNodePool::new(name, spec)
}

/// The pool `h100`, whose nodes have GPUs.
pub(super) fn gpu_pool() -> HostNodePool {
    let mut pool = pool("h100", "H100");
    pool.spec.gpu_resource_name = Some(GPU.into());
    pool
}

pub(super) fn cluster(name: &str, uid: &str, node_groups: Vec<NodeGroup>) -> TenantCluster {
    let spec = TenantClusterSpec {
        node_groups,
        ..TenantClusterSpec::default()
    };
    let mut cluster = TenantCluster::new(name, spec);
    cluster.metadata.uid = Some(uid.into());
    cluster
}

/// A tenant with the group `burst`, which may have four nodes of the pool `h100`. Its UID is its name.
pub(super) fn tenant(name: &str) -> TenantInput {
    TenantInput::accepted(cluster(name, name, vec![NodeGroup::dynamic("burst", "h100", 0, 4)]))
}

/// A node of such a pool that is Ready and has these amounts.
pub(super) fn free_node(name: &str, allocatable: &Value) -> Node {
    let node = json!({
        "metadata": {"name": name, "labels": {"product": "H100"}},
        "status": {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
    });
    serde_json::from_value(node).unwrap()
}

/// The same node in a state, which it has had since then, for the group of such a tenant.
pub(super) fn in_state(node: &Node, state: AssignmentState, tenant: &str, since: i64) -> Node {
    let reserved = Assignment::reserved(tenant, "burst", "h100", 1, at(since), "");
    let assignment = Assignment {
        slug: TenantId::new(tenant, tenant).slug().into(),
        ..reserved.with_state(state, at(since), "")
    };
    let mut object = serde_json::to_value(node).unwrap();
    merge(&mut object, &assignment.to_patch(node, &[]));
    serde_json::from_value(object).unwrap()
}

/// A pod of such a tenant that waits for one GPU, created in this second. `change` makes another one of it.
pub(super) fn waiting_pod(tenant: &str, name: &str, created: i64, change: impl FnOnce(&mut Value)) -> Arc<Workload> {
    let mut pod = json!({
        "metadata": {
            "name": name, "namespace": format!("berth-{tenant}"), "creationTimestamp": at(created).to_string(),
            "labels": {labels::TENANT: TenantId::new(tenant, tenant).slug()},
        },
        "spec": {"containers": [{"name": "c", "resources": {"requests": {GPU: "1"}}}]},
    });
    change(&mut pod);
    Arc::new(Workload::from_pod(&serde_json::from_value(pod).unwrap()).unwrap())
}

impl TenantInput {
    /// A running tenant whose spec is accepted.
    pub(super) fn accepted(cluster: TenantCluster) -> Self {
        Self {
            cluster: Arc::new(cluster),
            accepted: true,
            withdrawn: WithdrawnNodes::default(),
            gone: false,
            class: None,
            project: None,
            schedule: ScheduleState::Running,
            unused: BTreeMap::new(),
        }
    }
}
