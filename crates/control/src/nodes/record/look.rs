//! What a node says of itself besides its record.

use crate::nodes::{autoscalers, shared::is_kept};
use berth_api::labels;
use k8s_openapi::api::core::v1::{Node, Taint};

pub(super) fn taints(node: &Node) -> &[Taint] {
    node.spec
        .as_ref()
        .and_then(|spec| spec.taints.as_deref())
        .unwrap_or_default()
}

pub(super) fn other_taints(node: &Node) -> Vec<Taint> {
    taints(node)
        .iter()
        .filter(|taint| taint.key != labels::TENANT)
        .cloned()
        .collect()
}

pub(super) fn is_unschedulable(node: &Node) -> bool {
    node.spec
        .as_ref()
        .and_then(|spec| spec.unschedulable)
        .unwrap_or_default()
}

/// Whether the kubelet says that the node is Ready.
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

/// Whether a node could serve a tenant now: Ready and past its start, not cordoned, not about to be removed, nothing evicts
/// from it, and not shared with others, now or since it was cleaned last.
pub fn is_available(node: &Node) -> bool {
    is_ready(node)
        && !is_kept(node)
        && node.metadata.deletion_timestamp.is_none()
        && !is_unschedulable(node)
        && autoscalers::leaving(node).is_none()
        && autoscalers::starting(node).is_none()
        && !other_taints(node).iter().any(|taint| taint.effect == "NoExecute")
}
