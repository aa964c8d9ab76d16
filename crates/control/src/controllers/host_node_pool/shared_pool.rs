//! Pools whose nodes several tenants share.

use super::{observe::PoolNodes, pool_conditions::validate_pool};
use berth_api::{
    HostNodePool, HostNodePoolStatus, NodeCounts,
    conditions::{ConditionUpdate, READY},
    is_node_ready,
};
use berth_node_lifecycle::shared_nodes::{SharingStatus, sharing_status};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use std::sync::Arc;

/// Counts a shared pool's nodes and says which are not shared and why.
pub(super) fn observe_shared_pool(
    pool: &HostNodePool,
    pools: &[Arc<HostNodePool>],
    nodes: &[Arc<Node>],
    slices: impl Fn(&str) -> usize,
) -> (HostNodePoolStatus, ConditionUpdate) {
    let mut counts = NodeCounts::default();
    let mut refused = Vec::new();
    let mut contested = Vec::new();
    for node in nodes.iter().filter(|node| pool.spec.selects(node.labels())) {
        let name = node.name_any();
        match sharing_status(node, pools, slices(&name)) {
            SharingStatus::NotInSharedPool => {
                contested.push(name);
                continue;
            }
            SharingStatus::Rejected(_, why) => {
                counts.unavailable += 1;
                refused.push(format!("{name} ({why})"));
            }
            SharingStatus::Shared(_) | SharingStatus::Eligible(_) if is_node_ready(node) => counts.assigned += 1,
            SharingStatus::Shared(_) | SharingStatus::Eligible(_) => counts.unavailable += 1,
        }
        counts.total += 1;
    }
    refused.sort();
    contested.sort();
    let update = if refused.is_empty() {
        let found = PoolNodes {
            counts,
            contested,
            ..PoolNodes::default()
        };
        match validate_pool(pool, &found) {
            update if update.is_true() => ConditionUpdate::mark_true(
                READY,
                "Ready",
                format!("tenants share {} of {} nodes", counts.assigned, counts.total),
            ),
            update => update,
        }
    } else {
        ConditionUpdate::mark_false(
            READY,
            "NodesRejected",
            format!(
                "these nodes are not shared: {}; make the nodeSelector exclude them",
                refused.join("; ")
            ),
        )
    };
    let status = HostNodePoolStatus {
        nodes: Some(counts),
        ..HostNodePoolStatus::default()
    };
    (status, update)
}
