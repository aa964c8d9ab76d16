//! What a Node object shows besides its assignment: readiness, taints, autoscalers, shared pools.

pub mod autoscalers;
mod readiness;
mod shared_pool;

pub use readiness::not_ready_since;
pub use shared_pool::{is_or_was_shared, shared_pool_of, was_shared};

use berth_api::{is_node_ready, labels};
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
/// Taint of a node that has little memory left. Pods that request any may start there: kubelets admit them, and where pods get the
/// toleration the scheduler does.
const MEMORY_PRESSURE: &str = "node.kubernetes.io/memory-pressure";
/// Taints of nodes on which kubelets start no new pods.
const CLOSED: [&str; 3] = [
    "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/pid-pressure",
    "node.kubernetes.io/unreachable",
];
/// In the keys of taints for what the node problem detector found.
const PROBLEM: &str = "node-problem-detector";

/// The keys of taints with which the platform keeps new pods from a node that may be Ready: it is under pressure, cordoned, or the node
/// problem detector found something. Other taints are tolerated by pods for such nodes. That of a cordon stays a moment longer than the
/// cordon.
fn closing_taints(node: &Node) -> impl Iterator<Item = &str> {
    let taints = taints(node).iter().filter(|taint| taint.effect == "NoSchedule");
    let keys = taints.map(|taint| taint.key.as_str());
    keys.filter(move |key| match *key {
        UNSCHEDULABLE => is_unschedulable(node),
        key => key == MEMORY_PRESSURE || CLOSED.contains(&key) || key.contains(PROBLEM),
    })
}

/// The taint because of which a node is no place for the first pods of a tenant.
pub(crate) fn find_closing_taint(node: &Node) -> Option<&str> {
    closing_taints(node).next()
}

/// Whether a taint keeps all new pods from a node that a tenant has.
pub(crate) fn is_closed(node: &Node) -> bool {
    closing_taints(node).any(|key| key != MEMORY_PRESSURE)
}

/// The same by a taint that pods cannot cause as easily as pressure.
pub(crate) fn has_problem(node: &Node) -> bool {
    closing_taints(node).any(|key| key.contains(PROBLEM))
}

/// Whether a node could serve a tenant now: it is Ready, without startup taints, not cordoned, not about to be removed, without a
/// NoExecute taint, and has not been shared since it was scrubbed last.
pub fn is_available(node: &Node) -> bool {
    is_node_ready(node)
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
