//! Nodes of tenants of which no pod requests a GPU. They are reported, of all tenants, whatever their class says and Prometheus knows.

use super::tenants::ObservedTenant;
use crate::{
    metrics::{TenantLabels, UnrequestedGpuLabels},
    stores::Stores,
};
use berth_api::{IdleNode, IdleStatus, MOST_IDLE_NODES, UnlistedNodes};
use berth_idle_reclaim::Seconds;
use berth_node_lifecycle::{
    idle_nodes::{UnrequestedGpus, find_unrequested_gpus},
    own_nodes::list_own_nodes,
};
use std::collections::BTreeMap;

/// The GPUs that tenants do not request of their nodes, by UID of the tenant.
pub(super) type UnrequestedByTenant = BTreeMap<String, UnrequestedGpus>;

/// What watches know of it now.
pub(super) fn observe(stores: &Stores, now: Seconds) -> UnrequestedByTenant {
    let (nodes, pools, workloads) = (stores.nodes.state(), stores.pools.state(), stores.workloads.all());
    let resolved = stores.devices.resolve(&workloads);
    find_unrequested_gpus(&list_own_nodes(&nodes, &resolved), &pools, &resolved, now)
}

/// The gauges of all tenants that have nodes with GPUs.
pub(super) fn list_gauges(
    tenants: &[ObservedTenant],
    unrequested: &UnrequestedByTenant,
) -> Vec<(UnrequestedGpuLabels, i64)> {
    let mut gauges = Vec::new();
    for tenant in tenants {
        let pools = unrequested.get(&tenant.uid).into_iter().flat_map(|of| &of.by_pool);
        let TenantLabels {
            tenant_namespace,
            tenant,
        } = tenant.labels();
        for (pool, sums) in pools {
            for (node, gpus) in [("idle", sums.on_idle_nodes), ("in_use", sums.on_used_nodes)] {
                let labels = UnrequestedGpuLabels {
                    tenant_namespace: tenant_namespace.clone(),
                    tenant: tenant.clone(),
                    pool: pool.clone(),
                    node,
                };
                gauges.push((labels, i64::try_from(gpus).unwrap_or(i64::MAX)));
            }
        }
    }
    gauges
}

/// The report with the idle nodes of its tenant, and the sums of those that are too many.
pub(super) fn with_idle_nodes(report: IdleStatus, unrequested: Option<&UnrequestedGpus>) -> IdleStatus {
    let all = unrequested.map(|of| of.idle_nodes.as_slice()).unwrap_or_default();
    let (listed, rest) = all.split_at(all.len().min(MOST_IDLE_NODES));
    IdleStatus {
        nodes: listed.to_vec(),
        unlisted_nodes: sum_unlisted(rest),
        ..report
    }
}

/// The sums of nodes that are not listed; none if there are none.
fn sum_unlisted(nodes: &[IdleNode]) -> Option<UnlistedNodes> {
    let gpus = nodes.iter().map(|node| node.gpus);
    (!nodes.is_empty()).then(|| UnlistedNodes {
        nodes: u32::try_from(nodes.len()).unwrap_or(u32::MAX),
        gpus: gpus.fold(0, u32::saturating_add),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    #[test]
    fn nodes_beyond_the_most_are_summed_up() {
        let node = |number: usize| IdleNode {
            name: format!("n{number}"),
            pool_name: "h100".into(),
            node_group_name: "train".into(),
            gpus: 8,
            idle_since: Time(jiff::Timestamp::UNIX_EPOCH),
            pods: Vec::new(),
            unlisted_pods: None,
        };
        let report = |nodes: usize| {
            let unrequested = UnrequestedGpus {
                idle_nodes: (0..nodes).map(node).collect(),
                ..UnrequestedGpus::default()
            };
            with_idle_nodes(IdleStatus::default(), Some(&unrequested))
        };
        assert_eq!((report(50).nodes.len(), report(50).unlisted_nodes), (50, None));
        let many = report(53);
        assert_eq!((many.nodes.len(), many.nodes[49].name.as_str()), (50, "n49"));
        assert_eq!(many.unlisted_nodes, Some(UnlistedNodes { nodes: 3, gpus: 24 }));
        assert_eq!(with_idle_nodes(IdleStatus::default(), None), IdleStatus::default());
    }
}
