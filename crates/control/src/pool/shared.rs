//! Pools whose nodes several tenants share.

use super::{judge::judge, survey::Found};
use crate::nodes::{
    is_ready,
    shared::{Standing, standing},
};
use berth_api::{
    HostNodePool, HostNodePoolStatus, NodeCounts,
    conditions::{Finding, READY},
};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use std::sync::Arc;

/// Counts a shared pool's nodes and says which are not shared and why.
pub(super) fn shared(
    pool: &HostNodePool,
    pools: &[Arc<HostNodePool>],
    nodes: &[Arc<Node>],
    slices: impl Fn(&str) -> usize,
) -> (HostNodePoolStatus, Finding) {
    let mut counts = NodeCounts::default();
    let mut refused = Vec::new();
    let mut contested = Vec::new();
    for node in nodes.iter().filter(|node| pool.spec.selects(node.labels())) {
        let name = node.name_any();
        match standing(node, pools, slices(&name)) {
            Standing::Elsewhere => {
                contested.push(name);
                continue;
            }
            Standing::Refused(_, why) => {
                counts.unavailable += 1;
                refused.push(format!("{name} ({why})"));
            }
            Standing::Shared(_) | Standing::Joins(_) if is_ready(node) => counts.assigned += 1,
            Standing::Shared(_) | Standing::Joins(_) => counts.unavailable += 1,
        }
        counts.total += 1;
    }
    refused.sort();
    contested.sort();
    let finding = if refused.is_empty() {
        let found = Found {
            counts,
            contested,
            ..Found::default()
        };
        match judge(pool, &found) {
            finding if finding.is_true() => Finding::yes(
                READY,
                "Ready",
                format!("tenants share {} of {} nodes", counts.assigned, counts.total),
            ),
            finding => finding,
        }
    } else {
        Finding::no(
            READY,
            "NodesRefused",
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
    (status, finding)
}
