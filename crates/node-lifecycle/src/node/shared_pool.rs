//! The shared pool that a node is in, or was in.

use berth_api::labels;
use k8s_openapi::api::core::v1::Node;
use kube_core::ResourceExt;

/// The shared pool that a node is in now.
pub fn shared_pool_of(node: &Node) -> Option<&String> {
    node.labels().get(labels::SHARED_POOL)
}

/// Whether several tenants use the node, or used it and it has not been scrubbed since. It cannot be assigned to a tenant.
pub fn is_or_was_shared(node: &Node) -> bool {
    shared_pool_of(node).is_some() || node.annotations().contains_key(labels::PREVIOUS_SHARED_POOL)
}

/// Whether several tenants used the node, and it has not been scrubbed since.
pub fn was_shared(node: &Node) -> bool {
    shared_pool_of(node).is_none() && node.annotations().contains_key(labels::PREVIOUS_SHARED_POOL)
}
