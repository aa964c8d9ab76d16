//! Pools to which an autoscaler adds nodes: how far they may grow, and what is known of nodes that do not exist yet.

use super::nodes::{HostNodes, Seen};
use crate::nodes::{
    autoscalers,
    demand::{HostNode, PoolNodes},
    is_ready, placeholders,
};
use berth_api::HostNodePool;
use berth_planner::{Amounts, ScaleUpLimits, Seconds};
use kube::ResourceExt;
use std::collections::{BTreeMap, BTreeSet};

/// How long a node that came may take until it can be used.
const START: Seconds = 15 * 60;

/// How far a pool may grow. `limits` are resources that keep pods apart, and how much of them every node has.
pub(super) fn of_pool(pool: &HostNodePool, limits: Option<&BTreeMap<String, u64>>) -> Option<ScaleUpLimits> {
    let autoscaling = pool.spec.autoscaling.as_ref()?;
    Some(ScaleUpLimits {
        max_nodes: autoscaling.max_nodes,
        max_pods: Some(placeholders::MOST),
        node_capacity: new_node(pool).map(|mut node| {
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

/// What a new node of the pool holds, as far as the pool says.
fn new_node(pool: &HostNodePool) -> Option<Amounts> {
    let gpus = pool.spec.autoscaling.as_ref()?.gpus_per_node?;
    Some([(pool.spec.gpu_resource_name.clone()?, u64::from(gpus))].into())
}

/// Gives pools that grow and have no node to look at one that stands for those that may come: it has the labels that the pool
/// selects, and others that nobody knows.
pub(super) fn imagine_nodes<'a>(
    nodes: &mut HostNodes<'a>,
    pools: &[&'a HostNodePool],
    seen: &[Seen<'_>],
    with_devices: &BTreeSet<String>,
    now: Seconds,
) {
    for pool in pools {
        let Some(name) = pool.metadata.name.as_deref() else {
            continue;
        };
        let has_nodes = seen.iter().any(|node| node.pool == name && !is_starting(node, now));
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
            capacity: new_node(pool).unwrap_or_else(unknown),
            is_imagined: true,
        };
        let like_them = PoolNodes {
            nodes: vec![imagined],
            has_devices: with_devices.contains(name),
            topology: pool.spec.topology_key.as_deref(),
        };
        nodes.insert(name, like_them);
    }
}

/// Whether a node without an owner came a short while ago and cannot be used yet.
pub(super) fn is_starting(node: &Seen<'_>, now: Seconds) -> bool {
    let unfinished = !is_ready(node.object) || autoscalers::starting(node.object).is_some() || node.lacks_devices;
    let came = node.object.creation_timestamp().map_or(0, |time| time.0.as_second());
    let leaves = node.object.metadata.deletion_timestamp.is_some() || autoscalers::leaving(node.object).is_some();
    node.record.is_none() && unfinished && !leaves && now - came < START
}

#[cfg(test)]
#[path = "growth_tests.rs"]
mod tests;
