//! What is observed of nodes: the Node object, its assignment and the pods on it.

use super::{
    SnapshotInput,
    capacity::{has_gpus, is_settled, raise_to_assigned, tenant_capacity},
};
use crate::{
    Assignment,
    demand::{self, HostNode, PoolDevices, PoolNodes, SchedulingState, Workload},
    devices::Resolved,
    node::{has_problem, is_available, is_closed},
    platform_pods::describe_use,
};
use berth_api::{HostNodePool, PoolOrder};
use berth_planner::{Amounts, pool_of};
use k8s_openapi::api::core::v1::Node as HostObject;
use kube_core::ResourceExt;
use std::collections::{BTreeMap, HashMap};

/// A node with its pods.
pub(super) struct ObservedNode<'a> {
    pub(super) object: &'a HostObject,
    pub(super) name: String,
    pub(super) assignment: Option<Assignment>,
    pub(super) pool: String,
    pub(super) overlap: Option<String>,
    /// Why the API server rejected its assignment recently.
    pub(super) rejected: Option<String>,
    /// Why it cannot be assigned as long as pods of the platform run there.
    pub(super) in_use: Option<String>,
    /// What it offers a tenant, with the GPUs that it has once it is assigned.
    pub(super) capacity: Amounts,
    /// The GPUs that it reports now, counted by the resource of its pool.
    pub(super) reported_gpus: u64,
    /// The resource that counts GPUs of its pool, if it has none of these.
    pub(super) lacks_gpus: Option<String>,
    /// Whether more `ResourceSlices` are published for it than are read.
    pub(super) has_unknown_devices: bool,
    pub(super) pods: Vec<&'a Workload>,
}

impl ObservedNode<'_> {
    /// The pods for which its tenant needs the node.
    pub(super) fn list_users(&self, devices: PoolDevices<'_>) -> Vec<&Workload> {
        let pods = self.pods.iter().copied();
        pods.filter(|pod| demand::needs_node_of(pod, devices)).collect()
    }

    /// Whether its tenant can use it now. If new pods cannot start there, it is of use only for those that it has.
    pub(super) fn is_usable(&self, is_idle: bool) -> bool {
        is_available(self.object) && !(is_idle && is_closed(self.object))
    }

    /// What is not free for new pods of its tenant, of `capacity`: all of it if there is a problem. Under pressure on its disk its pods
    /// would bring another node by what they do.
    pub(super) fn sum_used(&self, capacity: &Amounts) -> Amounts {
        if self.assignment.is_some() && has_problem(self.object) {
            return capacity.clone();
        }
        sum_used(&self.pods)
    }
}

/// Nodes that are in a pool or have an assignment, by name.
pub(super) fn observe_nodes<'a>(
    input: &'a SnapshotInput<'_>,
    pools: &[&HostNodePool],
    resolved: &'a Resolved<'_>,
) -> Vec<ObservedNode<'a>> {
    let mut on: HashMap<&str, Vec<&Workload>> = HashMap::new();
    for workload in &resolved.workloads {
        if let SchedulingState::Bound(node) = &workload.scheduling {
            on.entry(node).or_default().push(workload);
        }
    }
    let names: Vec<(String, &BTreeMap<String, String>)> = pools
        .iter()
        .map(|pool| (pool.name_any(), &pool.spec.node_selector))
        .collect();
    let mut observed: Vec<ObservedNode<'_>> = input
        .nodes
        .iter()
        .filter_map(|object| {
            let assignment = Assignment::read(object);
            let selectors = names.iter().map(|(name, selector)| (name.as_str(), *selector));
            let (by_labels, overlap) = match pool_of(selectors, object.labels()) {
                Ok(pool) => (pool.map(ToOwned::to_owned), None),
                Err(several) => (
                    several.first().map(|&name| name.to_owned()),
                    Some(format!("it matches several pools: {}", several.join(", "))),
                ),
            };
            let recorded = assignment
                .as_ref()
                .map(|assignment| assignment.pool.clone())
                .filter(|pool| !pool.is_empty());
            let name = object.name_any();
            let pool = match recorded.or(by_labels) {
                Some(pool) => pool,
                // Its labels are gone. Its tenant has it all the same, and nobody else would release it.
                None if assignment.is_some() => String::new(),
                None => return None,
            };
            let used = (input.platform)(&name);
            let mut capacity = tenant_capacity(object, &used.requests, input, resolved);
            let spec = pools.iter().find(|one| one.name_any() == pool).map(|pool| &pool.spec);
            let counted = spec.and_then(|spec| spec.gpu_resource_name.as_ref());
            let reported_gpus = counted.and_then(|counted| capacity.get(counted)).copied();
            let lacks_gpus = counted.filter(|counted| !has_gpus(&capacity, counted)).cloned();
            if let Some(spec) = spec.filter(|_| !is_settled(assignment.as_ref(), input.now)) {
                raise_to_assigned(&mut capacity, spec);
            }
            Some(ObservedNode {
                in_use: describe_use(&used.in_the_way),
                reported_gpus: reported_gpus.unwrap_or_default(),
                lacks_gpus,
                has_unknown_devices: input.devices.exceed_limits(&name),
                pool,
                overlap,
                rejected: input.rejected_nodes.reason(&name, input.now.as_second()),
                capacity,
                pods: on.get(name.as_str()).cloned().unwrap_or_default(),
                object,
                assignment,
                name,
            })
        })
        .collect();
    observed.sort_by(|a, b| a.name.cmp(&b.name));
    observed
}

/// The devices of pools that have any.
pub(super) type DevicesByPool<'a> = BTreeMap<String, PoolDevices<'a>>;

/// Which devices pools have: the GPUs that they count, or else those of any kind that their nodes have.
pub(super) fn devices_by_pool<'a>(pools: &[&'a HostNodePool], observed: &[ObservedNode<'_>]) -> DevicesByPool<'a> {
    let counted = pools.iter().filter_map(|pool| {
        let resource = pool.spec.gpu_resource_name.as_deref()?;
        Some((pool.name_any(), PoolDevices::Gpus(resource)))
    });
    let mut found: DevicesByPool<'_> = counted.collect();
    for node in observed {
        if node.capacity.keys().any(|resource| demand::is_device(resource)) {
            found.entry(node.pool.clone()).or_insert(PoolDevices::Any);
        }
    }
    found
}

/// The nodes of each pool, as far as they matter for pods.
pub(super) type NodesByPool<'a> = BTreeMap<&'a str, PoolNodes<'a>>;

pub(super) fn group_by_pool<'a>(
    observed: &'a [ObservedNode<'a>],
    pools: &[&'a HostNodePool],
    devices: &DevicesByPool<'a>,
) -> NodesByPool<'a> {
    let mut nodes = NodesByPool::new();
    for node in observed {
        let of_pool = nodes.entry(&node.pool).or_insert_with(|| {
            let pool = pools.iter().find(|pool| pool.name_any() == node.pool);
            PoolNodes {
                nodes: Vec::new(),
                devices: devices.get(&node.pool).copied().unwrap_or_default(),
                topology: pool.and_then(|pool| pool.spec.topology_key.as_deref()),
                is_fifo: pool.is_some_and(|pool| is_fifo(pool)),
            }
        });
        of_pool.nodes.push(host_node(node));
    }
    nodes
}

/// Whether the longest wait comes first in a pool.
pub(super) fn is_fifo(pool: &HostNodePool) -> bool {
    pool.spec.policy.order == PoolOrder::Fifo
}

pub(super) fn host_node<'a>(node: &'a ObservedNode<'a>) -> HostNode<'a> {
    HostNode {
        name: &node.name,
        labels: Some(node.object.labels()),
        capacity: node.capacity.clone(),
        is_expected: false,
    }
}

/// Resources that pods use on a node.
fn sum_used(pods: &[&Workload]) -> Amounts {
    let mut sum = Amounts::new();
    for pod in pods {
        for (resource, amount) in &pod.amounts {
            let of_all = sum.entry(resource.clone()).or_default();
            *of_all = of_all.saturating_add(*amount);
        }
        for resource in pod.anti_affinity_resources() {
            *sum.entry(resource).or_default() += 1;
        }
    }
    sum
}
