//! Nodes as the planner sees them, from the Node object, its record and the pods on it.

use super::{Asked, Input, growth::is_starting};
use crate::nodes::{
    NodeRecord, State, autoscalers,
    demand::{self, HostNode, Place, PoolNodes, Workload},
    devices::Resolved,
    is_available, is_ready, requests,
    shared::was_shared,
};
use berth_api::HostNodePool;
use berth_planner::{Amounts, Node, NodeState, Owner, Phase, Seconds, pool_of};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node as HostObject;
use kube::ResourceExt;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A node with what is on it.
pub(super) struct Seen<'a> {
    pub(super) object: &'a HostObject,
    pub(super) name: String,
    pub(super) record: Option<NodeRecord>,
    pub(super) pool: String,
    pub(super) overlap: Option<String>,
    /// Why its record could not be written a while ago.
    pub(super) refused: Option<String>,
    pub(super) capacity: Amounts,
    /// Its pool counts GPUs, and it has no device of any kind.
    pub(super) lacks_devices: bool,
    pub(super) pods: Vec<&'a Workload>,
}

/// Nodes of pools, and nodes that somebody owns or owned, in the order of their names.
pub(super) fn look<'a>(input: &'a Input<'_>, pools: &[&HostNodePool], resolved: &'a Resolved<'_>) -> Vec<Seen<'a>> {
    let mut on: HashMap<&str, Vec<&Workload>> = HashMap::new();
    for workload in &resolved.workloads {
        if let Place::On(node) = &workload.place {
            on.entry(node).or_default().push(workload);
        }
    }
    let names: Vec<(String, &BTreeMap<String, String>)> = pools
        .iter()
        .map(|pool| (pool.name_any(), &pool.spec.node_selector))
        .collect();
    let mut seen: Vec<Seen<'_>> = input
        .nodes
        .iter()
        .filter_map(|object| {
            let record = NodeRecord::read(object);
            let selectors = names.iter().map(|(name, selector)| (name.as_str(), *selector));
            let (by_labels, overlap) = match pool_of(selectors, object.labels()) {
                Ok(pool) => (pool.map(ToOwned::to_owned), None),
                Err(several) => (
                    several.first().map(|&name| name.to_owned()),
                    Some(format!("it matches several pools: {}", several.join(", "))),
                ),
            };
            let recorded = record
                .as_ref()
                .map(|record| record.pool.clone())
                .filter(|pool| !pool.is_empty());
            let name = object.name_any();
            let pool = recorded.or(by_labels)?;
            let capacity = capacity(object, input, resolved);
            let counts_gpus = pools
                .iter()
                .any(|one| one.name_any() == pool && one.spec.gpu_resource_name.is_some());
            Some(Seen {
                lacks_devices: counts_gpus && !capacity.keys().any(|resource| demand::is_device(resource)),
                pool,
                overlap,
                refused: input.refusals.of(&name, input.now.as_second()),
                capacity,
                pods: on.get(name.as_str()).cloned().unwrap_or_default(),
                object,
                record,
                name,
            })
        })
        .collect();
    seen.sort_by(|a, b| a.name.cmp(&b.name));
    seen
}

/// What the node holds for its tenant when the platform's own pods have had theirs.
fn capacity(node: &HostObject, input: &Input<'_>, resolved: &Resolved<'_>) -> Amounts {
    let status = node.status.as_ref();
    let mut all = requests::amounts(status.and_then(|status| status.allocatable.as_ref()));
    for (resource, used) in (input.platform)(&node.name_any()) {
        if let Some(amount) = all.get_mut(&resource) {
            *amount -= used;
        }
    }
    let mut capacity = demand::available(&all);
    for (resource, count) in input.devices.of_node(&node.name_any(), resolved) {
        // What a device plugin says of an extended resource holds, for the scheduler as well.
        capacity.entry(resource).or_insert(count);
    }
    capacity
}

/// Pools whose nodes have devices of any kind.
pub(super) fn pools_with_devices(pools: &[&HostNodePool], seen: &[Seen<'_>]) -> BTreeSet<String> {
    let declared = pools.iter().filter(|pool| pool.spec.gpu_resource_name.is_some());
    let mut found: BTreeSet<String> = declared.map(|pool| pool.name_any()).collect();
    for node in seen {
        if node.capacity.keys().any(|resource| demand::is_device(resource)) {
            found.insert(node.pool.clone());
        }
    }
    found
}

/// The nodes of each pool as pods look at them.
pub(super) type HostNodes<'a> = BTreeMap<&'a str, PoolNodes<'a>>;

pub(super) fn host_nodes<'a>(
    seen: &'a [Seen<'a>],
    pools: &[&'a HostNodePool],
    with_devices: &BTreeSet<String>,
) -> HostNodes<'a> {
    let mut nodes = HostNodes::new();
    for node in seen {
        let of_pool = nodes.entry(&node.pool).or_insert_with(|| {
            let pool = pools.iter().find(|pool| pool.name_any() == node.pool);
            PoolNodes {
                nodes: Vec::new(),
                has_devices: with_devices.contains(&node.pool),
                topology: pool.and_then(|pool| pool.spec.topology_key.as_deref()),
            }
        });
        of_pool.nodes.push(host_node(node));
    }
    nodes
}

pub(super) fn host_node<'a>(node: &'a Seen<'a>) -> HostNode<'a> {
    HostNode {
        name: &node.name,
        labels: Some(node.object.labels()),
        capacity: node.capacity.clone(),
        is_imagined: false,
    }
}

/// What pods hold of a node.
pub(super) fn used(pods: &[&Workload]) -> Amounts {
    let mut sum = Amounts::new();
    for pod in pods {
        for (resource, amount) in &pod.amounts {
            *sum.entry(resource.clone()).or_default() += amount;
        }
        for resource in pod.apart() {
            *sum.entry(resource).or_default() += 1;
        }
    }
    sum
}

pub(super) fn planned(
    node: &Seen<'_>,
    input: &Input<'_>,
    now: Seconds,
    pools: &[&HostNodePool],
    with_devices: &BTreeSet<String>,
    asked: &Asked,
) -> Node {
    let key = pools
        .iter()
        .find(|pool| pool.name_any() == node.pool)
        .and_then(|pool| pool.spec.topology_key.as_ref());
    let state = state(node, now);
    let has_devices = with_devices.contains(&node.pool);
    let using: Vec<&&Workload> = node.pods.iter().filter(|pod| demand::uses(pod, has_devices)).collect();
    let idle_since = if let NodeState::Owned(owner) = &state {
        input.idle.note(node.object, !using.is_empty(), owner.since, now)
    } else {
        input.idle.forget(&node.name);
        None
    };
    let mut capacity = node.capacity.clone();
    for (resource, limit) in asked.limits.get(&node.pool).into_iter().flatten() {
        capacity.insert(resource.clone(), *limit);
    }
    Node {
        pool: node.pool.clone(),
        domain: key.and_then(|key| node.object.labels().get(key).cloned()),
        labels: asked.labels(node),
        capacity,
        used: used(&node.pods),
        pods: u32::try_from(node.pods.len()).unwrap_or(u32::MAX),
        idle_since,
        gangs: gangs(&node.pods),
        priority: using.iter().map(|pod| pod.priority).max().unwrap_or_default(),
        starting: matches!(state, NodeState::Unavailable { .. }) && is_starting(node, now),
        unusable: matches!(state, NodeState::Owned(_)) && is_broken(node),
        state,
        name: node.name.clone(),
    }
}

/// The gangs that pods are of.
fn gangs(pods: &[&Workload]) -> BTreeSet<String> {
    let gangs = pods.iter().filter_map(|pod| pod.gang.as_ref());
    gangs
        .filter(|gang| gang.size > 1)
        .map(|gang| gang.name.clone())
        .collect()
}

/// Whether a node with an owner is of no use now. Berth's own cordon is part of its state.
fn is_broken(node: &Seen<'_>) -> bool {
    let cordoned_by_berth = node
        .record
        .as_ref()
        .is_some_and(|record| record.state == State::Cordoned);
    if cordoned_by_berth {
        !is_ready(node.object)
    } else {
        !is_available(node.object)
    }
}

fn state(node: &Seen<'_>, now: Seconds) -> NodeState {
    let second = |time: Option<Timestamp>| time.map_or(now, Timestamp::as_second);
    let Some(record) = &node.record else {
        return match unavailable(node) {
            None => NodeState::Free,
            Some(why) => NodeState::Unavailable { reason: why },
        };
    };
    let phase = match record.state {
        State::Reserved => Phase::Reserved {
            required_nodes: record.reserved_with,
        },
        State::Joining => Phase::Joining,
        State::Assigned => Phase::Assigned,
        State::Cordoned => Phase::Cordoned {
            drain_at: second(record.cordoned_until),
        },
        State::Draining | State::Scrubbing | State::Validating => {
            return NodeState::Recycling {
                previous_tenant: record.slug.clone(),
                since: second(record.since),
            };
        }
        State::Quarantined => {
            return NodeState::Unavailable {
                reason: format!("quarantined: {}", record.reason),
            };
        }
    };
    NodeState::Owned(Owner {
        tenant: record.uid.clone(),
        node_group: record.group.clone(),
        since: second(record.owned_since.or(record.since)),
        phase,
    })
}

/// Why a node without an owner cannot be given to anybody.
fn unavailable(node: &Seen<'_>) -> Option<String> {
    if let Some(overlap) = &node.overlap {
        return Some(overlap.clone());
    }
    if let Some(why) = &node.refused {
        return Some(format!("its record is not accepted: {why}"));
    }
    let why = if !is_ready(node.object) {
        "it is not Ready"
    } else if node.object.metadata.deletion_timestamp.is_some() {
        "it is being deleted"
    } else if let Some(taint) = autoscalers::leaving(node.object) {
        return Some(format!("an autoscaler is about to remove it (taint {taint})"));
    } else if let Some(taint) = autoscalers::starting(node.object) {
        return Some(format!("it is not ready for use (taint {taint})"));
    } else if node.lacks_devices {
        "it has no GPUs yet"
    } else if node.object.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true) {
        "it is cordoned"
    } else if was_shared(node.object) {
        "several tenants shared it, and it is cleaned first"
    } else if !is_available(node.object) {
        "it is shared by several tenants, or has a NoExecute taint"
    } else {
        return None;
    };
    Some(why.into())
}
