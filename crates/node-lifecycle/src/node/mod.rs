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

/// Taint of a node that is cordoned.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// The taint with which the platform keeps new pods from a node that may be Ready: it is under pressure, cordoned, or the node problem
/// detector found something. Other taints are tolerated by pods for such nodes. That of a cordon stays a moment longer than the cordon.
pub(crate) fn find_closing_taint(node: &Node) -> Option<&str> {
    let mut keys = taints(node)
        .iter()
        .filter(|taint| taint.effect == "NoSchedule")
        .map(|taint| taint.key.as_str());
    keys.find(|key| match *key {
        UNSCHEDULABLE => is_unschedulable(node),
        key => key.starts_with("node.kubernetes.io/") || key.contains("node-problem-detector"),
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

/// Whether a node without a tenant could be assigned to one: it is available, and new pods can start there.
pub fn is_assignable(node: &Node) -> bool {
    is_available(node) && find_closing_taint(node).is_none()
}
