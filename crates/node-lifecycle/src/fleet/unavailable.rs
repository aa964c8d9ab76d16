//! Why a node without a tenant is not assigned to one.

use super::nodes::ObservedNode;
use crate::{
    demand::DRA_PREFIX,
    node::{autoscalers, find_closing_taint, is_available, was_shared},
};
use berth_api::is_node_ready;

/// Why a node without a tenant cannot be reserved.
pub(super) fn unavailable_reason(node: &ObservedNode<'_>) -> Option<String> {
    if let Some(overlap) = &node.overlap {
        return Some(overlap.clone());
    }
    if let Some(why) = &node.rejected {
        return Some(format!("its assignment was rejected: {why}"));
    }
    let why = if !is_node_ready(node.object) {
        "it is not Ready"
    } else if node.object.metadata.deletion_timestamp.is_some() {
        "it is being deleted"
    } else if let Some(taint) = autoscalers::find_removal_taint(node.object) {
        return Some(format!("an autoscaler is about to remove it (taint {taint})"));
    } else if let Some(taint) = autoscalers::find_startup_taint(node.object) {
        return Some(format!("it is not ready for use (taint {taint})"));
    } else if node.has_unknown_devices {
        // Who was root there may have published them, and the next tenant would get what they say.
        "too many or too large ResourceSlices are published for it"
    } else if let Some(counted) = &node.lacks_gpus {
        return Some(describe_lacking(node, counted));
    } else if node.object.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true) {
        "it is cordoned"
    } else if was_shared(node.object) {
        "it was shared and has not been scrubbed yet"
    } else if !is_available(node.object) {
        "it is shared by several tenants, or has a NoExecute taint"
    } else {
        // The first pods of a tenant could not start there.
        let closed =
            find_closing_taint(node.object).map(|taint| format!("no new pods may start there (taint {taint})"));
        // The taint of the assignment would evict them.
        return closed.or_else(|| node.in_use.clone());
    };
    Some(why.into())
}

/// Why a node cannot be assigned that has none of the GPUs that its pool counts.
fn describe_lacking(node: &ObservedNode<'_>, counted: &str) -> String {
    if node.capacity.keys().any(|resource| resource.starts_with(DRA_PREFIX)) {
        return format!(
            "its devices do not count as {counted} of its pool: set extendedResourceName of their DeviceClass, or remove gpuResourceName"
        );
    }
    "it has no GPUs yet".into()
}
