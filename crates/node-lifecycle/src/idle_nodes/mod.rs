//! GPUs of tenants' nodes that no pod requests, and nodes of which no GPU is requested.
//!
//! Pods without GPUs may keep such a node, or the replicas of its group. No metrics of GPUs are needed to see that.

use crate::{
    AssignmentState,
    demand::{PoolDevices, Workload, uses_node_of},
    devices::Resolved,
    idle,
    node::{is_available, is_closed},
    own_nodes::OwnNode,
    recorded_gpus,
};
use berth_api::{HostNodePool, IdleNode};
use berth_planner::{LEAST_PATIENCE, Seconds};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_core::ResourceExt;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// Pods that are named of a node.
const MOST_PODS: usize = 3;

/// The GPUs of its nodes that a tenant does not request.
#[derive(Debug, Default, PartialEq)]
pub struct UnrequestedGpus {
    /// How many there are, by pool. Pools with nodes of the tenant are there also if it requests all.
    pub by_pool: BTreeMap<String, UnrequestedSums>,
    /// Nodes that have been idle for too long, those with the most GPUs first, then those that are idle longest.
    pub idle_nodes: Vec<IdleNode>,
}

/// GPUs that no pod requests, in one pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnrequestedSums {
    /// On nodes of which no GPU is requested.
    pub on_idle_nodes: u64,
    /// On nodes of which other GPUs are requested.
    pub on_used_nodes: u64,
}

/// The GPUs that tenants do not request of nodes that serve them, by UID of the tenant. A node on which no pod can start now does not count: no
/// pod could request its GPUs. GPUs count as quotas count them.
///
/// A node is idle for too long after `policy.idleTimeout` of its pool, and not before the scheduler may have waited for a volume.
pub fn find_unrequested_gpus(
    nodes: &[OwnNode<'_>],
    pools: &[Arc<HostNodePool>],
    resolved: &Resolved<'_>,
    now: Seconds,
) -> BTreeMap<String, UnrequestedGpus> {
    let pools: HashMap<String, &HostNodePool> = pools.iter().map(|pool| (pool.name_any(), pool.as_ref())).collect();
    let mut found: BTreeMap<String, UnrequestedGpus> = BTreeMap::new();
    for node in nodes.iter().filter(|node| can_be_used(node)) {
        let pool = pools.get(&node.assignment.pool);
        let Some((pool, resource)) = pool.and_then(|pool| Some((pool, pool.spec.gpu_resource_name.as_deref()?))) else {
            continue;
        };
        let gpus = recorded_gpus::recorded_of_any(node.object);
        if gpus == 0 {
            // They are written on it by the next plan.
            continue;
        }
        let of_tenant = found.entry(node.assignment.uid.clone()).or_default();
        let sums = of_tenant.by_pool.entry(node.assignment.pool.clone()).or_default();
        if node
            .pods
            .iter()
            .any(|pod| uses_node_of(pod, PoolDevices::Gpus(resource)))
        {
            sums.on_used_nodes += count_rest(node, gpus, resource, resolved);
            continue;
        }
        sums.on_idle_nodes += gpus;
        let patience = pool.spec.policy.idle_timeout().max(LEAST_PATIENCE);
        let since = idle_since(node).filter(|since| now.saturating_sub(*since) >= patience);
        of_tenant
            .idle_nodes
            .extend(since.and_then(|since| describe(node, gpus, since, now)));
    }
    for of_tenant in found.values_mut() {
        of_tenant.idle_nodes.sort_by(|a, b| {
            let key = |node: &IdleNode| (Reverse(node.gpus), node.idle_since.0);
            key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
        });
    }
    found
}

/// Whether a node serves its tenant, and pods can start there.
fn can_be_used(node: &OwnNode<'_>) -> bool {
    node.assignment.state == AssignmentState::Assigned && is_available(node.object) && !is_closed(node.object)
}

/// The GPUs of a node in use that no pod requests; none if pods use it by other resources than the one that counts its GPUs.
fn count_rest(node: &OwnNode<'_>, gpus: u64, resource: &str, resolved: &Resolved<'_>) -> u64 {
    let requested = node.pods.iter().map(|pod| resolved.count_devices(pod, resource));
    match requested.fold(0, u64::saturating_add) {
        0 => 0,
        requested => gpus.saturating_sub(requested),
    }
}

/// Since when a node is idle, if that is written on it. What an earlier tenant left does not count.
fn idle_since(node: &OwnNode<'_>) -> Option<Seconds> {
    let recorded = idle::recorded_idle_since(node.object)?;
    let owned = node.assignment.owned_since.map(Timestamp::as_second);
    Some(owned.map_or(recorded, |owned| recorded.max(owned)))
}

fn describe(node: &OwnNode<'_>, gpus: u64, since: Seconds, now: Seconds) -> Option<IdleNode> {
    // Pods of DaemonSets are wherever a node is. With those that run for a short time, such as those of a CronJob, the report would be another one in each
    // pass, and so would the status in which it is.
    let keeps =
        |pod: &&&Workload| !pod.rules.selects_nodes_by_name() && now.saturating_sub(pod.since) >= LEAST_PATIENCE;
    let mut pods: Vec<&Workload> = node.pods.iter().filter(keeps).copied().collect();
    pods.sort_by(|a, b| (a.since, &a.name).cmp(&(b.since, &b.name)));
    let unlisted = u32::try_from(pods.len().saturating_sub(MOST_PODS)).unwrap_or(u32::MAX);
    Some(IdleNode {
        name: node.object.name_any(),
        pool_name: node.assignment.pool.clone(),
        node_group_name: node.assignment.group.clone(),
        gpus: u32::try_from(gpus).unwrap_or(u32::MAX),
        idle_since: Time(Timestamp::from_second(since).ok()?),
        pods: pods.iter().take(MOST_PODS).map(|pod| pod.name.clone()).collect(),
        unlisted_pods: (unlisted > 0).then_some(unlisted),
    })
}

#[cfg(test)]
mod tests;
