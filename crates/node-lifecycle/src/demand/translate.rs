//! The demand of one tenant.

use super::{
    autoscaling,
    node_rules::NodeRules,
    placement::{PlacementSimulation, fits},
    pod_affinity,
    share::{Constraints, Share, UsedShare},
    topology_spread::SpreadLimits,
    workload::{ANTI_AFFINITY_PREFIX, SchedulingState, Workload, is_device, shorten},
};
use berth_api::labels;
use berth_planner::{Amounts, Demand, PodSet, Seconds, Topology, Unplanned};
use std::{
    cmp::Reverse,
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
    /// Whether any of them has devices.
    pub has_devices: bool,
    /// Label whose values are its topology domains.
    pub topology: Option<&'a str>,
}

/// A tenant whose demand is translated.
#[derive(Debug, Default)]
pub struct Tenant<'a> {
    /// Its groups, in the order of the spec.
    pub groups: Vec<NodeGroupDemand<'a>>,
    /// Its pods in any state.
    pub workloads: Vec<&'a Workload>,
    /// Nodes that serve it now: the group, the node, and the amounts that its pods use.
    pub own: Vec<(&'a str, &'a HostNode<'a>, Amounts)>,
    /// Nodes that will serve it soon.
    pub coming: Vec<(&'a str, &'a HostNode<'a>)>,
    /// What each of its groups may cause.
    pub share: Share,
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

/// One pod, or a gang.
pub(super) struct SchedulingUnit<'a> {
    name: String,
    priority: i32,
    since: Seconds,
    pub(super) pods: Vec<&'a Workload>,
    /// Pods of the gang that are not created yet.
    missing: u32,
    is_gang: bool,
    one_domain: DomainRule<'a>,
}

/// Whether nodes must be of one topology domain.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DomainRule<'a> {
    No,
    /// Of the pool's topology key.
    Yes,
    /// Of this label.
    By(&'a str),
}

/// Whether a pod needs a node of a pool. In a pool with devices, only pods that request a device, or select the pool or the group,
/// need one.
pub fn needs_node_of(workload: &Workload, pool_has_devices: bool) -> bool {
    !workload.rules.selects_nodes_by_name()
        && (!pool_has_devices
            || workload.requests_devices()
            || workload.rules.mentions(labels::POOL)
            || workload.rules.mentions(labels::NODE_GROUP))
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
    for unit in group_into_units(workloads.iter().map(AsRef::as_ref)) {
        let mut could = dynamic.iter().filter_map(|group| {
            let pool = pools.get(group.pool)?;
            let mut pods = unit.pods.iter();
            let serves =
                pods.all(|pod| needs_node_of(pod, pool.has_devices) && eligibility.can_serve(pod, group, &pool.nodes));
            serves.then_some((*group, pool))
        });
        let Some((first, first_pool)) = could.next() else {
            if let Some(group) = group_of_large_rules(&unit, &dynamic, pools) {
                demand.leave_out(group, Unplanned::LargeRules);
            }
            continue;
        };
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
        if demand.add(group, pool, &unit, &mut spread) {
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
        pool.is_some_and(|pool| needs_node_of(pod, pool.has_devices))
    };
    groups.iter().find(waits_for).copied()
}

/// Pending pods one by one, those with an affinity to each other, and gangs: higher priority first, then by age.
fn group_into_units<'a>(workloads: impl Iterator<Item = &'a Workload>) -> Vec<SchedulingUnit<'a>> {
    let mut units = Vec::new();
    let mut gangs: BTreeMap<&str, Vec<&'a Workload>> = BTreeMap::new();
    let mut companions: BTreeMap<_, SchedulingUnit<'a>> = BTreeMap::new();
    for workload in workloads {
        match (&workload.gang, &workload.affinity) {
            (Some(gang), _) if gang.size > 1 => gangs.entry(&gang.name).or_default().push(workload),
            _ if workload.scheduling != SchedulingState::Pending => {}
            (_, Some(affinity)) => {
                if let Some(unit) = companions.get_mut(affinity) {
                    unit.priority = unit.priority.max(workload.priority);
                    unit.pods.push(workload);
                } else {
                    let mut unit = single_pod(workload);
                    unit.one_domain = DomainRule::By(&affinity.topology);
                    companions.insert(affinity, unit);
                }
            }
            (_, None) => units.push(single_pod(workload)),
        }
    }
    units.extend(companions.into_values());
    for (name, mut members) in gangs {
        members.sort_by_key(|pod| (pod.since, pod.name.clone()));
        let Some(gang) = members.iter().find_map(|pod| pod.gang.as_ref()) else {
            continue;
        };
        let has_started = members
            .iter()
            .any(|pod| matches!(pod.scheduling, SchedulingState::Bound(_) | SchedulingState::Finished));
        let running = members
            .iter()
            .filter(|pod| matches!(pod.scheduling, SchedulingState::Bound(_)))
            .count();
        let still = usize::try_from(gang.size).unwrap_or(usize::MAX).saturating_sub(running);
        let mut waiting: Vec<&Workload> = members
            .into_iter()
            .filter(|pod| pod.scheduling == SchedulingState::Pending)
            .collect();
        // Pods beyond the gang's size are served one by one.
        let more = waiting.split_off(still.min(waiting.len()));
        units.extend(more.into_iter().map(single_pod));
        let Some(first) = waiting.first() else { continue };
        // Before the gang starts, pods that are not created yet are taken to be like the others. Afterwards the missing pods
        // have finished.
        let missing = if has_started { 0 } else { still - waiting.len() };
        units.push(SchedulingUnit {
            name: name.to_owned(),
            priority: waiting.iter().map(|pod| pod.priority).max().unwrap_or_default(),
            since: first.since,
            missing: u32::try_from(missing).unwrap_or(u32::MAX),
            is_gang: true,
            one_domain: if gang.one_domain {
                DomainRule::Yes
            } else {
                DomainRule::No
            },
            pods: waiting,
        });
    }
    let rank = |unit: &SchedulingUnit<'_>| (Reverse(unit.priority), unit.since, unit.name.clone());
    units.sort_by_cached_key(rank);
    units
}

fn single_pod(workload: &Workload) -> SchedulingUnit<'_> {
    SchedulingUnit {
        name: workload.name.clone(),
        priority: workload.priority,
        since: workload.since,
        pods: vec![workload],
        missing: 0,
        is_gang: false,
        one_domain: DomainRule::No,
    }
}

impl<'a> SchedulingUnit<'a> {
    /// Its pods, those that are not created yet included.
    fn all(&self) -> Vec<&'a Workload> {
        let missing = usize::try_from(self.missing).unwrap_or_default();
        let more = self.pods.last().into_iter().cycle().take(missing);
        self.pods.iter().chain(more).copied().collect()
    }
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
            Some(last) if can_merge(last, &demand) => {
                last.pod_sets[0].count += 1;
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

/// Whether two demands can be one with a higher count.
fn can_merge(a: &Demand, b: &Demand) -> bool {
    !a.gang
        && !b.gang
        && a.priority == b.priority
        && a.selector == b.selector
        && a.existing_nodes_only == b.existing_nodes_only
        && a.topology == Topology::Any
        && b.topology == Topology::Any
        && a.pod_sets.len() == 1
        && b.pod_sets.len() == 1
        && a.pod_sets[0].requests == b.pod_sets[0].requests
}
