//! What several commands read of host nodes.

use std::collections::BTreeMap;

use berth_api::{HostNodePool, TenantCluster, labels};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};

/// Whether a node is assigned to this TenantCluster, by UID: names are used again.
pub(crate) fn is_of(node: &Node, tenant: &TenantCluster) -> bool {
    let owner = node.annotations().get(labels::OWNER_UID);
    owner.is_some() && owner == tenant.metadata.uid.as_ref()
}

/// Whether the selector of a HostNodePool selects a node.
pub(crate) fn is_selected_by(node: &Node, pool: &HostNodePool) -> bool {
    let mut selector = pool.spec.node_selector.iter();
    selector.all(|(key, value)| node.labels().get(key) == Some(value))
}

/// Why nodes without a tenant cannot be assigned, as the pools say.
pub(crate) fn unavailable_nodes(pools: &[HostNodePool]) -> BTreeMap<&str, &str> {
    let statuses = pools.iter().filter_map(|pool| pool.status.as_ref());
    let nodes = statuses.flat_map(|status| &status.unavailable_nodes);
    nodes.map(|node| (node.name.as_str(), node.reason.as_str())).collect()
}

/// The extended resource that counts GPUs, by name of the HostNodePool. Pools without GPUs have none.
pub(crate) type GpuResources = BTreeMap<String, String>;

/// The GPU resources of pools.
pub(crate) fn gpu_resources(pools: &[HostNodePool]) -> GpuResources {
    let pairs = pools
        .iter()
        .filter_map(|pool| Some((pool.name_any(), pool.spec.gpu_resource_name.clone()?)));
    pairs.collect()
}

/// The GPUs of an assigned node that pods may use; 0 outside pools with GPUs.
pub(crate) fn count_assigned_gpus(node: &Node, resources: &GpuResources) -> u64 {
    let resource = node.labels().get(labels::POOL).and_then(|pool| resources.get(pool));
    resource.map_or(0, |resource| count_gpus(node, resource))
}

/// The GPUs of a node that pods may use, which this extended resource counts.
pub(crate) fn count_gpus(node: &Node, resource: &str) -> u64 {
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    let quantity = allocatable.and_then(|all| all.get(resource));
    quantity
        .and_then(|quantity| quantity.0.parse().ok())
        .unwrap_or_default()
}

/// The nodes of the host with what is needed to count their GPUs; none if the user may not list them, as teams usually may not.
pub(crate) async fn list_if_allowed(client: &Client) -> Option<(Vec<Node>, GpuResources)> {
    let parameters = ListParams::default();
    let (all_nodes, all_pools) = (
        Api::<Node>::all(client.clone()),
        Api::<HostNodePool>::all(client.clone()),
    );
    let (nodes, pools) = tokio::join!(all_nodes.list(&parameters), all_pools.list(&parameters));
    Some((nodes.ok()?.items, gpu_resources(&pools.ok()?.items)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn gpus_are_counted_by_the_resource_of_the_pool() {
        let pool: HostNodePool = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "HostNodePool", "metadata": {"name": "amd"},
            "spec": {"nodeSelector": {"a": "b"}, "gpuResourceName": "amd.com/gpu"},
        }))
        .unwrap();
        let resources = gpu_resources(&[pool]);
        let node = |pool: &str| -> Node {
            serde_json::from_value(json!({
                "metadata": {"name": "n", "labels": {"berth.dev/pool": pool}, "annotations": {"berth.dev/owner-uid": "u"}},
                "status": {"allocatable": {"amd.com/gpu": "8", "nvidia.com/gpu": "4"}},
            }))
            .unwrap()
        };
        assert_eq!(count_assigned_gpus(&node("amd"), &resources), 8);
        assert_eq!(count_assigned_gpus(&node("cpu"), &resources), 0);
        let mut tenant = TenantCluster::new("a", berth_api::TenantClusterSpec::default());
        assert!(!is_of(&node("amd"), &tenant));
        tenant.metadata.uid = Some("u".into());
        assert!(is_of(&node("amd"), &tenant));
    }
}
