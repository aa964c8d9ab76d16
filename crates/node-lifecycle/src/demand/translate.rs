//! The demand of one tenant.

use super::{
    autoscaling,
    likeness::Likeness,
    node_rules::NodeRules,
    placement::{PlacementSimulation, fits},
    pod_affinity,
    topology_spread::SpreadLimits,
    units::{DomainRule, SchedulingUnit, group_into_units},
    work_share::{Constraints, Share, UsedShare},
    workload::{ANTI_AFFINITY_PREFIX, Workload, is_device, is_of_claims, is_of_same_domain, shorten},
};
use berth_api::labels;
use berth_planner::{Amounts, Demand, PodSet, Seconds, Topology, Unplanned};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::{BuildHasher, RandomState},
};

/// A host node, as far as it matters for pods.
#[derive(Clone, Debug, Default)]
pub struct HostNode<'a> {
    pub name: &'a str,
    pub labels: Option<&'a BTreeMap<String, String>>,
    /// Capacity without pods.
    pub capacity: Amounts,
    /// It does not exist yet: labels and capacity are known only in part.
    pub is_expected: bool,
}

/// A node group of the tenant.
#[derive(Clone, Copy, Debug)]
pub struct NodeGroupDemand<'a> {
    pub name: &'a str,
    pub pool: &'a str,
    /// Whether its nodes follow demand.
    pub is_dynamic: bool,
    /// How many nodes it may get beyond those that it has or that are reserved for it.
    pub left: u32,
}

/// The nodes of a pool, of all tenants.
#[derive(Debug, Default)]
pub struct PoolNodes<'a> {
    pub nodes: Vec<HostNode<'a>>,
    /// Which devices pods must request to need one.
    pub devices: PoolDevices<'a>,
    /// Label whose values are its topology domains.
    pub topology: Option<&'a str>,
    /// Whether the longest wait comes first there.
    pub is_fifo: bool,
}

/// The devices of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PoolDevices<'a> {
    /// Its nodes have none.
    #[default]
    None,
    /// Of any kind.
    Any,
    /// GPUs, which this extended resource counts: resources of its domain, as MIG instances are, and devices of claims. Not network devices
    /// beside them.
    Gpus(&'a str),
}

impl PoolDevices<'_> {
    /// Whether a resource counts such devices.
    pub fn include(self, resource: &str) -> bool {
        match self {
            Self::None => false,
            Self::Any => is_device(resource),
            Self::Gpus(counted) => is_of_claims(resource) || is_of_same_domain(resource, counted),
        }
    }
}

/// A tenant whose demand is translated.
#[derive(Debug, Default)]
pub struct Tenant<'a> {
    /// Its groups, in the order of the spec.
    pub groups: Vec<NodeGroupDemand<'a>>,
    /// Its pods in any state.
    pub workloads: Vec<&'a Workload>,
    /// Nodes that serve it now: the group, the node, and the amounts that are not free for its pods.
    pub own: Vec<(&'a str, &'a HostNode<'a>, Amounts)>,
    /// Nodes that will serve it soon.
    pub coming: Vec<(&'a str, &'a HostNode<'a>)>,
    /// What each of its groups may cause.
    pub share: Share,
    pub now: Seconds,
    /// When nodes were released that none of its pods used, by pool.
    pub left_unused: BTreeMap<&'a str, Seconds>,
}

/// The demand of a tenant, and how nodes represent its constraints.
#[derive(Debug, Default)]
pub struct TenantDemand {
    /// By group.
    pub demand: BTreeMap<String, Vec<Demand>>,
    /// Required affinities by the label that represents them, with the node group of the demand.
    pub affinities: BTreeMap<String, (NodeRules, String)>,
    /// Resources that represent anti-affinity and spread, and how much of them every node has.
    pub limits: BTreeMap<String, u64>,
    /// Pods that are no part of the demand, by group.
    pub unplanned: BTreeMap<String, BTreeSet<Unplanned>>,
    /// When there is more demand although nothing changes.
    pub again_at: Option<Seconds>,
    /// UIDs of tenants whose claims have selectors of which none was evaluated: their pods may not be able to use the nodes that they get.
    pub without_turn: BTreeSet<String>,
}

/// Label that names one node.
pub(super) const HOST_NAME: &str = "kubernetes.io/hostname";

/// Whether a group can serve a pod, cached because many pods are alike.
struct EligibilityCache<'a> {
    /// By group, and by what a pod requests and selects: texts of pods can be long, and only their hashes are kept.
    known: HashMap<(&'a str, u64), bool>,
    hashes: RandomState,
    /// The hashes of pods: each is compared with one group after the other.
    of_pods: HashMap<*const Workload, u64>,
    /// Comparisons that are left for this tenant.
    left: usize,
}

/// Comparisons of pods of one tenant with nodes: some tenths of a second. What is left then waits until pods before it have their nodes.
const MAX_COMPARISONS: usize = 5_000_000;

/// Whether a pod needs a node of a pool. In a pool with devices, only pods that request one of them, or select the pool or the group,
/// need one.
pub fn needs_node_of(workload: &Workload, devices: PoolDevices<'_>) -> bool {
    !workload.rules.selects_nodes_by_name()
        && (uses_node_of(workload, devices)
            || workload.rules.mentions(labels::POOL)
            || workload.rules.mentions(labels::NODE_GROUP))
}

/// Whether a pod uses a node of a pool for what the pool offers: its devices, if it has any.
pub fn uses_node_of(workload: &Workload, devices: PoolDevices<'_>) -> bool {
    devices == PoolDevices::None || workload.amounts.keys().any(|resource| devices.include(resource))
}

/// The demand of a tenant beyond the capacity that is left on its nodes of other groups.
pub fn translate_demand(tenant: &Tenant<'_>, pools: &BTreeMap<&str, PoolNodes<'_>>) -> TenantDemand {
    let groups = &tenant.groups;
    let mut demand = TenantDemand::default();
    let mut spread = SpreadLimits::new(tenant);
    let constraints = Constraints::default();
    let mut used: HashMap<&str, UsedShare> = HashMap::new();
    let mut eligibility = EligibilityCache::default();
    let mut simulation = PlacementSimulation::new(groups);
    for (group, node, used) in &tenant.own {
        simulation.add(group, node, used, true);
    }
    for (group, node) in &tenant.coming {
        simulation.add(group, node, &Amounts::new(), false);
    }
    let dynamic: Vec<&NodeGroupDemand<'_>> = groups.iter().filter(|group| group.is_dynamic).collect();
    let nodes: Vec<&HostNode<'_>> = pools.values().flat_map(|pool| &pool.nodes).collect();
    let workloads = pod_affinity::resolve_affinity(&tenant.workloads, &tenant.own, &nodes);
    for unit in group_into_units(workloads.iter().map(AsRef::as_ref), tenant.now) {
        let mut could = dynamic.iter().filter_map(|group| {
            let pool = pools.get(group.pool)?;
            let mut pods = unit.pods.iter();
            let serves =
                pods.all(|pod| needs_node_of(pod, pool.devices) && eligibility.can_serve(pod, group, &pool.nodes));
            serves.then_some((*group, pool))
        });
        let Some((first, first_pool)) = could.next() else {
            if let Some(group) = group_of_large_rules(&unit, &dynamic, pools) {
                demand.leave_out(group, Unplanned::LargeRules);
            }
            continue;
        };
        if let Some(until) = unit.is_created_until {
            demand.again_at = [demand.again_at, Some(until)].into_iter().flatten().min();
            continue;
        }
        let others: Vec<_> = could.collect();
        if unit.missing == 0 && simulation.place_in_other_groups(&unit.pods, first.name, groups) {
            continue;
        }
        // Demand beyond the maximum of a group goes to the next group; if all are full, it waits in the first.
        let mut choices = [(first, first_pool)].into_iter().chain(others);
        let (group, pool) = if dynamic.len() > 1 {
            let all = unit.all();
            let found = choices.find(|(group, pool)| simulation.place_in_group(&all, group, &pool.nodes));
            found.unwrap_or((first, first_pool))
        } else {
            (first, first_pool)
        };
        let used = used.entry(group.name).or_default();
        if let Err(why) = used.admit(tenant.share, &constraints.of(&unit)) {
            demand.leave_out(group, why);
            continue;
        }
        let likeness = Likeness {
            left_unused: tenant.left_unused.get(group.pool).copied(),
            by_wait_until: pool.is_fifo.then_some(tenant.now),
        };
        if demand.add(group, pool, &unit, &mut spread, likeness) {
            used.add_request();
        }
    }
    demand
}

/// The first group whose nodes pods wait for that have too large rules, if they have any.
fn group_of_large_rules<'a>(
    unit: &SchedulingUnit<'_>,
    groups: &[&'a NodeGroupDemand<'a>],
    pools: &BTreeMap<&str, PoolNodes<'_>>,
) -> Option<&'a NodeGroupDemand<'a>> {
    let pod = unit.pods.iter().find(|pod| pod.rules.too_large.is_some())?;
    let waits_for = |group: &&&NodeGroupDemand<'_>| {
        let pool = pools.get(group.pool);
        pool.is_some_and(|pool| needs_node_of(pod, pool.devices))
    };
    groups.iter().find(waits_for).copied()
}

impl Default for EligibilityCache<'_> {
    fn default() -> Self {
        Self {
            known: HashMap::new(),
            hashes: RandomState::new(),
            of_pods: HashMap::new(),
            left: MAX_COMPARISONS,
        }
    }
}

impl<'a> EligibilityCache<'a> {
    fn hash(&mut self, pod: &Workload) -> u64 {
        let hashes = &self.hashes;
        let of_pod = self.of_pods.entry(std::ptr::from_ref(pod));
        *of_pod.or_insert_with(|| hashes.hash_one(format!("{:?} {:?}", pod.amounts, pod.rules)))
    }

    /// Whether any node of the group's pool could serve the pod if it were empty and assigned to the tenant.
    fn can_serve(&mut self, pod: &Workload, group: &NodeGroupDemand<'a>, nodes: &[HostNode<'_>]) -> bool {
        let key = (group.name, self.hash(pod));
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let of_each_node = 1 + pod.rules.count_values() / 8;
        let mut nodes = nodes.iter().take_while(|_| {
            self.left = self.left.saturating_sub(of_each_node);
            self.left > 0
        });
        let serves = nodes.any(|node| allows(&pod.rules, group, node) && node.could_hold(&pod.amounts));
        self.known.insert(key, serves);
        serves
    }
}

impl HostNode<'_> {
    /// Whether it has the capacity without other pods. Only the pool's GPUs are known of a node that does not exist yet, so a
    /// request for devices must be for these GPUs.
    fn could_hold(&self, asked: &Amounts) -> bool {
        self.has_capacity(&self.capacity, asked)
    }

    /// Whether it has the capacity when `free` of it is left.
    pub(super) fn has_capacity(&self, free: &Amounts, asked: &Amounts) -> bool {
        if !self.is_expected {
            return fits(free, asked);
        }
        let known: Vec<bool> = asked
            .iter()
            .filter_map(|(resource, amount)| Some(free.get(resource)? >= amount))
            .collect();
        let is_the_pools = !known.is_empty() || !asked.keys().any(|resource| is_device(resource));
        known.iter().all(|fits| *fits) && is_the_pools
    }
}

/// Whether the pod's rules allow a node of the group. Unknown labels of a node that does not exist yet satisfy any node selector.
pub(super) fn allows(rules: &NodeRules, group: &NodeGroupDemand<'_>, node: &HostNode<'_>) -> bool {
    if node.is_expected {
        let known = |key: &str| label(key, group.name, group.pool, node);
        let fits = |(key, value): (&String, &String)| known(key).is_none_or(|known| known == value);
        return !rules.selector.contains_key(HOST_NAME)
            && rules.selector.iter().all(fits)
            && rules.terms_allow(node.name, known);
    }
    rules.allow(node.name, |key| label(key, group.name, group.pool, node))
}

/// The value of a label while the node serves the group.
fn label<'a>(key: &str, group: &'a str, pool: &'a str, node: &HostNode<'a>) -> Option<&'a str> {
    match key {
        labels::POOL => Some(pool),
        labels::NODE_GROUP => Some(group),
        key => node.labels.and_then(|labels| labels.get(key)).map(String::as_str),
    }
}

impl TenantDemand {
    /// Whether a node satisfies the affinity that a label represents.
    pub fn satisfies(&self, affinity: &str, pool: &str, node: &HostNode<'_>) -> bool {
        self.affinities
            .get(affinity)
            .is_some_and(|(rules, group)| rules.terms_allow(node.name, |key| label(key, group, pool, node)))
    }

    /// Records why pods of a group are no part of the demand.
    fn leave_out(&mut self, group: &NodeGroupDemand<'_>, why: Unplanned) {
        self.unplanned.entry(group.name.to_owned()).or_default().insert(why);
    }

    /// Adds a demand. Returns whether it is one of its own: it may be like the last.
    fn add(
        &mut self,
        group: &NodeGroupDemand<'_>,
        pool: &PoolNodes<'_>,
        unit: &SchedulingUnit<'_>,
        spread: &mut SpreadLimits<'_>,
        likeness: Likeness,
    ) -> bool {
        let mut kinds: Vec<PodSet> = Vec::new();
        for pod in &unit.pods {
            let each = self.amounts(pod, spread);
            let has_most = kinds.len() == MAX_POD_SETS;
            match kinds.iter_mut().find(|kind| kind.requests == each) {
                Some(kind) => kind.count += 1,
                None if has_most => raise_last(&mut kinds, &each),
                None => kinds.push(PodSet {
                    count: 1,
                    requests: each,
                }),
            }
        }
        if let Some(last) = kinds.last_mut() {
            last.count = last.count.saturating_add(unit.missing);
        }
        let mut selector = BTreeMap::new();
        for pod in &unit.pods {
            selector.extend(self.selector(&pod.rules, group));
        }
        let existing_nodes_only = !autoscaling::can_scale_up_for(&kinds, &selector, &self.affinities);
        let demand = Demand {
            name: unit.name.clone(),
            priority: unit.priority,
            waiting_since: unit.since,
            pod_sets: kinds,
            gang: unit.is_gang,
            topology: match unit.one_domain {
                DomainRule::Yes => Topology::SingleDomain,
                DomainRule::By(label) if pool.topology == Some(label) => Topology::SingleDomain,
                DomainRule::By(_) | DomainRule::No => Topology::Any,
            },
            selector,
            existing_nodes_only,
        };
        let list = self.demand.entry(group.name.to_owned()).or_default();
        match list.last_mut() {
            Some(last) if likeness.can_merge(last, &demand) => {
                // Pods with an affinity to each other are several.
                let more = demand.pod_sets[0].count;
                last.pod_sets[0].count = last.pod_sets[0].count.saturating_add(more);
                false
            }
            _ => {
                list.push(demand);
                true
            }
        }
    }

    fn amounts(&mut self, pod: &Workload, spread: &mut SpreadLimits<'_>) -> Amounts {
        let mut amounts = pod.amounts.clone();
        self.limits.extend(spread.compute(pod));
        if let Some(selector) = &pod.anti_affinity {
            self.limits.insert(format!("{ANTI_AFFINITY_PREFIX}{selector}"), 1);
        }
        for resource in pod
            .anti_affinity_resources()
            .filter(|resource| self.limits.contains_key(resource))
        {
            amounts.insert(resource, 1);
        }
        amounts
    }

    /// Labels for the planner, without those that every node of the group has.
    fn selector(&mut self, rules: &NodeRules, group: &NodeGroupDemand<'_>) -> BTreeMap<String, String> {
        let mut selector = rules.selector.clone();
        selector.retain(|key, _| key != labels::POOL && key != labels::NODE_GROUP);
        if !rules.terms.is_empty() {
            let of_group = rules.terms_mention(labels::NODE_GROUP);
            let name = if of_group { group.name } else { "" };
            let key = shorten(format!("{} {name}", rules.describe_terms()).trim());
            selector.insert(key.clone(), SATISFIED.into());
            self.affinities.insert(key, (rules.clone(), group.name.into()));
        }
        selector
    }
}

/// Pods of one gang that differ in what they request. Of further ones, each counts as the largest of all.
const MAX_POD_SETS: usize = 100;

/// Counts another pod among the last ones, which then all request as much as the largest of them.
fn raise_last(kinds: &mut [PodSet], requests: &Amounts) {
    let Some(last) = kinds.last_mut() else { return };
    last.count = last.count.saturating_add(1);
    for (resource, amount) in requests {
        let of_last = last.requests.entry(resource.clone()).or_default();
        *of_last = (*of_last).max(*amount);
    }
}

/// Value of a label that represents an affinity.
pub const SATISFIED: &str = "true";
