//! What a Node object shows besides its assignment: readiness, taints, autoscalers, shared pools.

pub mod autoscalers;
mod shared_pool;

pub use shared_pool::{is_or_was_shared, shared_pool_of, was_shared};

use berth_api::labels;
use k8s_openapi::api::core::v1::{Node, Taint};

pub(crate) fn taints(node: &Node) -> &[Taint] {
    node.spec
        .as_ref()
        .and_then(|spec| spec.taints.as_deref())
        .unwrap_or_default()
}

pub(crate) fn other_taints(node: &Node) -> Vec<Taint> {
    taints(node)
        .iter()
        .filter(|taint| taint.key != labels::TENANT)
        .cloned()
        .collect()
}

pub(crate) fn is_unschedulable(node: &Node) -> bool {
    node.spec
        .as_ref()
        .and_then(|spec| spec.unschedulable)
        .unwrap_or_default()
}

/// Whether the platform keeps new pods from a node that may be Ready: it is under pressure, cordoned, or the node problem detector found
/// something. Other taints are tolerated by pods for such nodes.
pub(crate) fn refuses_new_pods(node: &Node) -> bool {
    taints(node).iter().any(|taint| {
        let is_of_platform =
            taint.key.starts_with("node.kubernetes.io/") || taint.key.contains("node-problem-detector");
        is_of_platform && taint.effect == "NoSchedule"
    })
}

/// Whether the node has the condition Ready.
pub fn is_ready(node: &Node) -> bool {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    conditions
        .iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Whether a node could serve a tenant now: it is Ready, without startup taints, not cordoned, not about to be removed, without a
/// NoExecute taint, and has not been shared since it was scrubbed last.
pub fn is_available(node: &Node) -> bool {
    is_ready(node)
        && !is_or_was_shared(node)
        && node.metadata.deletion_timestamp.is_none()
        && !is_unschedulable(node)
        && autoscalers::find_removal_taint(node).is_none()
        && autoscalers::find_startup_taint(node).is_none()
        && !other_taints(node).iter().any(|taint| taint.effect == "NoExecute")
}
