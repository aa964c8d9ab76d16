//! Pools to which an autoscaler adds nodes: limits of their growth, and what is known about nodes that do not exist yet.

use super::nodes::{DevicesByPool, NodesByPool, ObservedNode, is_fifo};
use crate::{
    demand::{HostNode, PoolNodes},
    node::autoscalers,
};
use berth_api::{HostNodePool, is_node_ready};
use berth_planner::{Amounts, ScaleUpLimits, Seconds};
use kube_core::ResourceExt;
use std::collections::BTreeMap;

/// Maximum number of placeholders of a pool.
pub const MAX_PLACEHOLDERS: u32 = 500;
/// How long a new node may take to become usable.
const STARTUP_LIMIT: Seconds = 15 * 60;

/// The limits of a pool's growth. `limits` are resources that represent anti-affinity and spread.
pub(super) fn growth_of(pool: &HostNodePool, limits: Option<&BTreeMap<String, u64>>) -> Option<ScaleUpLimits> {
    let autoscaling = pool.spec.autoscaling.as_ref()?;
    Some(ScaleUpLimits {
        max_nodes: autoscaling.max_nodes,
        max_pods: Some(MAX_PLACEHOLDERS),
        node_capacity: expected_capacity(pool).map(|mut node| {
            node.extend(
                limits
                    .into_iter()
                    .flatten()
                    .map(|(resource, amount)| (resource.clone(), *amount)),
            );
            node
        }),
    })
}

/// The capacity of a new node of the pool, as far as the spec says.
fn expected_capacity(pool: &HostNodePool) -> Option<Amounts> {
    let gpus = pool.spec.autoscaling.as_ref()?.gpus_per_node?;
    Some([(pool.spec.gpu_resource_name.clone()?, u64::from(gpus))].into())
}

/// Adds a node to each pool that can grow and has no usable node. It represents new nodes: it has the labels of the pool's node
/// selector; its other labels are unknown.
pub(super) fn add_expected_nodes<'a>(
    nodes: &mut NodesByPool<'a>,
    pools: &[&'a HostNodePool],
    observed: &[ObservedNode<'_>],
    devices: &DevicesByPool<'a>,
    now: Seconds,
) {
    for pool in pools {
        let Some(name) = pool.metadata.name.as_deref() else {
            continue;
        };
        let has_nodes = observed.iter().any(|node| node.pool == name && !is_starting(node, now));
        if pool.spec.autoscaling.is_none() || has_nodes {
            continue;
        }
        let unknown = || {
            let resource = pool.spec.gpu_resource_name.iter();
            resource.map(|resource| (resource.clone(), u64::MAX)).collect()
        };
        let imagined = HostNode {
            name: "",
            labels: Some(&pool.spec.node_selector),
            capacity: expected_capacity(pool).unwrap_or_else(unknown),
            is_expected: true,
        };
        let like_them = PoolNodes {
            nodes: vec![imagined],
            devices: devices.get(name).copied().unwrap_or_default(),
            topology: pool.spec.topology_key.as_deref(),
            is_fifo: is_fifo(pool),
        };
        nodes.insert(name, like_them);
    }
}

/// Whether a node without a tenant is new and cannot be used yet.
pub(super) fn is_starting(node: &ObservedNode<'_>, now: Seconds) -> bool {
    let unfinished = !is_node_ready(node.object)
        || autoscalers::find_startup_taint(node.object).is_some()
        || node.lacks_gpus.is_some();
    let came = node.object.creation_timestamp().map_or(0, |time| time.0.as_second());
    let leaves =
        node.object.metadata.deletion_timestamp.is_some() || autoscalers::find_removal_taint(node.object).is_some();
    node.assignment.is_none() && unfinished && !leaves && now - came < STARTUP_LIMIT
}

#[cfg(test)]
#[path = "growth_tests.rs"]
mod tests;
