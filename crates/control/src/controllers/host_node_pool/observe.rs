//! Counts of a pool's nodes and GPUs.

use super::pool_conditions::{check_health, check_risks, validate_pool};
use crate::controllers::nodes::requested::UnavailableNodes;
use berth_api::{
    HostNodePool, HostNodePoolStatus, NodeCounts, Sharing, UnavailableNode, conditions::ConditionUpdate, labels,
};
use berth_node_lifecycle::{
    Assignment, AssignmentState, PoolSelectors, devices::Slices, is_assignable, nvidia_labels::MIG_CONFIG,
};
use berth_planner::MAX_NODE_GPUS;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Labels by which GPU operators name the product of a node's GPUs.
const PRODUCT_LABELS: [&str; 3] = [
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "gpu.intel.com/product",
];

/// Products and driver versions of a pool that are named. Who is root on a node can publish more.
const MOST_NAMED: usize = 16;

/// Nodes that the status names which cannot be assigned.
const MOST_UNAVAILABLE: usize = 50;

/// The nodes of a pool, counted.
#[derive(Default)]
pub(super) struct PoolNodes {
    pub(super) counts: NodeCounts,
    pub(super) gpus: i64,
    pub(super) free_gpus: i64,
    pub(super) products: BTreeSet<String>,
    pub(super) sharing: BTreeSet<String>,
    pub(super) drivers: BTreeSet<String>,
    pub(super) contested: Vec<String>,
    pub(super) quarantined: Vec<String>,
    /// Quarantined nodes that wait there until they are Ready.
    pub(super) not_ready: Vec<String>,
    /// Nodes without a tenant that cannot be assigned.
    pub(super) unavailable: Vec<UnavailableNode>,
    /// Nodes with more `ResourceSlices` than are read.
    pub(super) with_unknown_devices: Vec<String>,
    /// Risks that the pool does not accept, by name: the nodes that have them in their set-up, and what was found there.
    pub(super) risks: BTreeMap<String, BTreeMap<String, String>>,
    /// How many nodes were never looked at for risks.
    pub(super) never_validated: u32,
    /// GPUs on free nodes and whether all nodes are free, by topology domain.
    pub(super) domains: BTreeMap<String, (i64, bool)>,
}

/// Why nodes cannot be assigned, as the status of a pool says: a new control knows it only after its first plan.
pub(super) fn recorded_unavailable(status: &HostNodePoolStatus) -> UnavailableNodes {
    let nodes = status.unavailable_nodes.iter();
    nodes.map(|node| (node.name.clone(), node.reason.clone())).collect()
}

/// Counts a pool's nodes and validates the pool. `unavailable` says why nodes cannot be assigned, as the last plan knows.
pub(super) fn observe_pool(
    pool: &HostNodePool,
    pools: &PoolSelectors,
    nodes: &[Arc<Node>],
    slices: &Slices,
    unavailable: &UnavailableNodes,
) -> (HostNodePoolStatus, [ConditionUpdate; 3]) {
    let mut found = PoolNodes::default();
    let name = pool.name_any();
    for node in nodes {
        match pools.pool_of(node.labels()) {
            Ok(Some(pool)) if pool == name => {}
            Err(claimants) if claimants.contains(&name.as_str()) => {
                found
                    .contested
                    .push(format!("{} ({})", node.name_any(), claimants.join(", ")));
                continue;
            }
            _ => continue,
        }
        found.add_node(pool, node, slices, unavailable.get(&node.name_any()));
    }
    found.contested.sort();
    found.quarantined.sort();
    found.not_ready.sort();
    found.with_unknown_devices.sort();
    found.unavailable.sort_by(|a, b| a.name.cmp(&b.name));
    found.unavailable.truncate(MOST_UNAVAILABLE);
    let unavailable_nodes = std::mem::take(&mut found.unavailable);
    let updates = [
        validate_pool(pool, &found),
        check_health(&found),
        check_risks(pool, &found),
    ];
    let joined = |all: &BTreeSet<String>| (!all.is_empty()).then(|| all.iter().cloned().collect::<Vec<_>>().join(", "));
    let has_gpus = pool.spec.gpu_resource_name.is_some();
    let status = HostNodePoolStatus {
        nodes: Some(found.counts),
        unavailable_nodes,
        gpus: has_gpus.then_some(found.gpus),
        free_gpus: has_gpus.then_some(found.free_gpus),
        fragmentation: pool.spec.topology_key.as_ref().map(|_| found.fragmentation()),
        product: joined(&found.products),
        sharing: joined(&found.sharing),
        driver: joined(&found.drivers),
        ..HostNodePoolStatus::default()
    };
    (status, updates)
}

impl PoolNodes {
    /// `unavailable`: why it cannot be assigned although it looks free.
    fn add_node(&mut self, pool: &HostNodePool, node: &Node, slices: &Slices, unavailable: Option<&String>) {
        let name = node.name_any();
        let has_unknown_devices = slices.exceed_limits(&name);
        if has_unknown_devices {
            self.with_unknown_devices.push(name.clone());
        }
        for (risk, what) in list_risks(pool, node) {
            let nodes = self.risks.entry(risk.to_owned()).or_default();
            nodes.insert(name.clone(), what.to_owned());
        }
        self.never_validated += u32::from(!node.annotations().contains_key(labels::NODE_RISKS));
        let counts = &mut self.counts;
        counts.total += 1;
        let gpus = allocatable_gpus(pool, node);
        let mut is_free = false;
        match Assignment::read(node) {
            None if is_assignable(node) && unavailable.is_none() && !has_unknown_devices => {
                counts.free += 1;
                is_free = true;
            }
            None => {
                counts.unavailable += 1;
                self.unavailable.extend(unavailable.map(|reason| UnavailableNode {
                    name: name.clone(),
                    reason: reason.clone(),
                }));
            }
            Some(assignment) => match assignment.state {
                AssignmentState::Reserved | AssignmentState::Joining => counts.joining += 1,
                AssignmentState::Assigned | AssignmentState::Cordoned => counts.assigned += 1,
                AssignmentState::Draining | AssignmentState::Scrubbing | AssignmentState::Validating => {
                    counts.recycling += 1;
                }
                AssignmentState::Quarantined => {
                    counts.quarantined += 1;
                    match assignment.not_ready_since {
                        Some(since) => self.not_ready.push(format!("{name} (since {since})")),
                        None => self.quarantined.push(format!("{name}: {}", assignment.reason)),
                    }
                }
            },
        }
        self.gpus += gpus;
        if is_free {
            self.free_gpus += gpus;
        }
        if let Some(key) = &pool.spec.topology_key {
            let domain = node.labels().get(key).cloned().unwrap_or_default();
            let (free, is_whole) = self.domains.entry(domain).or_insert((0, true));
            *free += if is_free { gpus } else { 0 };
            *is_whole &= is_free;
        }
        let label = |key: &str| node.labels().get(key).cloned();
        let slices = slices.of(&name);
        match PRODUCT_LABELS.iter().find_map(|key| label(key)) {
            Some(product) => self.products.extend([product]),
            None => name_all(&mut self.products, slices.values().flat_map(|slice| slice.products())),
        }
        match label("nvidia.com/cuda.driver-version.full") {
            Some(driver) => self.drivers.extend([driver]),
            None => name_all(
                &mut self.drivers,
                slices.values().flat_map(|slice| slice.driver_versions()),
            ),
        }
        self.sharing.extend(detect_sharing(node, !slices.is_empty(), gpus));
    }

    /// Percent of the free GPUs that are in domains which are not free as a whole.
    fn fragmentation(&self) -> i64 {
        if self.free_gpus == 0 {
            return 0;
        }
        let broken: i64 = self
            .domains
            .values()
            .filter(|(_, is_whole)| !is_whole)
            .map(|(free, _)| free)
            .sum();
        broken * 100 / self.free_gpus
    }
}

/// Adds names as long as there are few.
fn name_all<'n>(all: &mut BTreeSet<String>, names: impl Iterator<Item = &'n String>) {
    for name in names {
        if all.len() < MOST_NAMED {
            all.insert(name.clone());
        }
    }
}

/// The risks in the set-up of a node, as its last validation found them, without those that the pool accepts: their names, and what was found.
fn list_risks<'n>(pool: &HostNodePool, node: &'n Node) -> Vec<(&'n str, &'n str)> {
    let accepted = &pool.spec.validate.accepted_risks;
    let risks = node.annotations().get(labels::NODE_RISKS).map(String::as_str);
    let risks = risks.unwrap_or_default();
    risks
        .split("; ")
        .filter_map(|risk| risk.split_once(": "))
        .filter(|(name, _)| !accepted.iter().any(|accepted| accepted.name() == *name))
        .collect()
}

/// How a node's GPUs are shared, as NVIDIA's labels and the kinds of its devices say.
fn detect_sharing(node: &Node, has_slices: bool, gpus: i64) -> Option<String> {
    let label = |key: &str| node.labels().get(key).map(String::as_str);
    let found = match label("nvidia.com/gpu.sharing-strategy") {
        Some("time-slicing") => Sharing::TimeSlicing,
        Some("mps") => Sharing::Mps,
        _ if label(MIG_CONFIG).is_some_and(|layout| layout != "all-disabled")
            || label("nvidia.com/gpu.product").is_some_and(|product| product.contains("-MIG-")) =>
        {
            Sharing::Mig
        }
        _ if has_slices && gpus == 0 => Sharing::Dra,
        _ if gpus > 0 => Sharing::Exclusive,
        _ => return None,
    };
    Some(found.name().to_owned())
}

fn allocatable_gpus(pool: &HostNodePool, node: &Node) -> i64 {
    let Some(resource) = &pool.spec.gpu_resource_name else {
        return 0;
    };
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    allocatable
        .and_then(|all| all.get(resource))
        .and_then(|quantity| quantity.0.parse::<i64>().ok())
        .unwrap_or_default()
        .clamp(0, MAX_NODE_GPUS.cast_signed())
}
