//! The demand of one tenant.

use super::{
    affinity::NodeRules,
    asking,
    rooms::{Rooms, holds},
    spread, together,
    workload::{ALONE, Place, Workload, is_device},
};
use berth_api::labels;
use berth_planner::{Amounts, Demand, PodSet, Seconds, Topology};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
};

/// A host node, as far as pods look at it.
#[derive(Clone, Debug, Default)]
pub struct HostNode<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its labels.
    pub labels: Option<&'a BTreeMap<String, String>>,
    /// What an empty one holds.
    pub capacity: Amounts,
    /// It does not exist yet: of labels and capacity only a part is known.
    pub is_imagined: bool,
}

/// A node group of the tenant.
#[derive(Clone, Copy, Debug)]
pub struct GroupOf<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its pool.
    pub pool: &'a str,
    /// Whether its nodes follow demand.
    pub is_dynamic: bool,
    /// How many nodes it may get besides those that it has or that are on their way.
    pub left: u32,
}

/// The nodes of a pool, whoever has them.
#[derive(Debug, Default)]
pub struct PoolNodes<'a> {
    /// The nodes.
    pub nodes: Vec<HostNode<'a>>,
    /// Whether any of them has devices.
    pub has_devices: bool,
    /// Label whose values are its topology domains.
    pub topology: Option<&'a str>,
}

/// A tenant whose demand is asked for.
#[derive(Debug, Default)]
pub struct Tenant<'a> {
    /// Its groups, in the order of the spec.
    pub groups: Vec<GroupOf<'a>>,
    /// Its pods, in whatever state.
    pub workloads: Vec<&'a Workload>,
    /// Nodes that serve it now: the group, the node, and what its pods hold of it.
    pub own: Vec<(&'a str, &'a HostNode<'a>, Amounts)>,
    /// Nodes that will serve it soon.
    pub coming: Vec<(&'a str, &'a HostNode<'a>)>,
}

/// What tenants need, and what the planner has to know of nodes to understand it.
#[derive(Debug, Default)]
pub struct Needs {
    /// By group.
    pub demand: BTreeMap<String, Vec<Demand>>,
    /// Required affinities by the label that stands for them, with the group that they are asked for in.
    pub affinities: BTreeMap<String, (NodeRules, String)>,
    /// Resources that keep pods apart, and how much of it every node has.
    pub limits: BTreeMap<String, u64>,
}

/// Label that names one node.
pub(super) const HOST_NAME: &str = "kubernetes.io/hostname";

/// Label and resource look-ups that are the same for all pods of a pool.
#[derive(Default)]
struct Asked(HashMap<String, bool>);

/// One pod, or a gang.
struct Unit<'a> {
    name: String,
    priority: i32,
    since: Seconds,
    pods: Vec<&'a Workload>,
    /// Pods of the gang that are not there yet.
    missing: u32,
    is_gang: bool,
    one_domain: OneDomain<'a>,
}

/// Whether nodes must be of one topology domain.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OneDomain<'a> {
    No,
    /// Of the pool's.
    Yes,
    /// Of this label's.
    By(&'a str),
}

/// Whether a pod is a reason to have a node of a pool: in one with devices, only what asks for one, or for the pool or group
/// by name.
pub fn uses(workload: &Workload, pool_has_devices: bool) -> bool {
    !workload.rules.names_its_nodes()
        && (!pool_has_devices
            || workload.wants_devices()
            || workload.rules.mentions(labels::POOL)
            || workload.rules.mentions(labels::NODE_GROUP))
}

/// What a tenant needs beyond the room that its nodes of other groups have.
pub fn translate(tenant: &Tenant<'_>, pools: &BTreeMap<&str, PoolNodes<'_>>) -> Needs {
    let groups = &tenant.groups;
    let mut needs = Needs {
        limits: spread::limits(tenant),
        ..Needs::default()
    };
    let mut asked = Asked::default();
    let mut rooms = Rooms::new(groups);
    for (group, node, used) in &tenant.own {
        rooms.add(group, node, used, true);
    }
    for (group, node) in &tenant.coming {
        rooms.add(group, node, &Amounts::new(), false);
    }
    let dynamic: Vec<&GroupOf<'_>> = groups.iter().filter(|group| group.is_dynamic).collect();
    let nodes: Vec<&HostNode<'_>> = pools.values().flat_map(|pool| &pool.nodes).collect();
    let workloads = together::settle(&tenant.workloads, &tenant.own, &nodes);
    for unit in units(workloads.iter().map(AsRef::as_ref)) {
        let mut could = dynamic.iter().filter_map(|group| {
            let pool = pools.get(group.pool)?;
            let mut pods = unit.pods.iter();
            let serves = pods.all(|pod| uses(pod, pool.has_devices) && asked.can_serve(pod, group, &pool.nodes));
            serves.then_some((*group, pool))
        });
        let Some((first, first_pool)) = could.next() else {
            continue;
        };
        let others: Vec<_> = could.collect();
        if unit.missing == 0 && rooms.take_elsewhere(&unit.pods, first.name, groups) {
            continue;
        }
        // What a group that is full has no room for goes to the next; if none has any, it waits where it would be first.
        let mut choices = [(first, first_pool)].into_iter().chain(others);
        let (group, pool) = if dynamic.len() > 1 {
            let all = unit.all();
            let found = choices.find(|(group, pool)| rooms.take_in(&all, group, &pool.nodes));
            found.unwrap_or((first, first_pool))
        } else {
            (first, first_pool)
        };
        needs.add(group, pool, &unit);
    }
    needs
}

/// Waiting pods one by one, those that must be together, and gangs: higher priority first, then in the order in which they
/// began to wait.
fn units<'a>(workloads: impl Iterator<Item = &'a Workload>) -> Vec<Unit<'a>> {
    let mut units = Vec::new();
    let mut gangs: BTreeMap<&str, Vec<&'a Workload>> = BTreeMap::new();
    let mut companions: BTreeMap<_, Unit<'a>> = BTreeMap::new();
    for workload in workloads {
        match (&workload.gang, &workload.together) {
            (Some(gang), _) if gang.size > 1 => gangs.entry(&gang.name).or_default().push(workload),
            _ if workload.place != Place::Waiting => {}
            (_, Some(together)) => {
                if let Some(unit) = companions.get_mut(together) {
                    unit.priority = unit.priority.max(workload.priority);
                    unit.pods.push(workload);
                } else {
                    let mut unit = single(workload);
                    unit.one_domain = OneDomain::By(&together.topology);
                    companions.insert(together, unit);
                }
            }
            (_, None) => units.push(single(workload)),
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
            .any(|pod| matches!(pod.place, Place::On(_) | Place::Done));
        let running = members.iter().filter(|pod| matches!(pod.place, Place::On(_))).count();
        let still = usize::try_from(gang.size).unwrap_or(usize::MAX).saturating_sub(running);
        let mut waiting: Vec<&Workload> = members.into_iter().filter(|pod| pod.place == Place::Waiting).collect();
        // What is beyond the gang's size may come later, one by one.
        let more = waiting.split_off(still.min(waiting.len()));
        units.extend(more.into_iter().map(single));
        let Some(first) = waiting.first() else { continue };
        // Before its start, the pods that are not made yet will be like those that are. Afterwards what is missing has run.
        let missing = if has_started { 0 } else { still - waiting.len() };
        units.push(Unit {
            name: name.to_owned(),
            priority: waiting.iter().map(|pod| pod.priority).max().unwrap_or_default(),
            since: first.since,
            missing: u32::try_from(missing).unwrap_or(u32::MAX),
            is_gang: true,
            one_domain: if gang.one_domain { OneDomain::Yes } else { OneDomain::No },
            pods: waiting,
        });
    }
    let rank = |unit: &Unit<'_>| (Reverse(unit.priority), unit.since, unit.name.clone());
    units.sort_by_cached_key(rank);
    units
}

fn single(workload: &Workload) -> Unit<'_> {
    Unit {
        name: workload.name.clone(),
        priority: workload.priority,
        since: workload.since,
        pods: vec![workload],
        missing: 0,
        is_gang: false,
        one_domain: OneDomain::No,
    }
}

impl<'a> Unit<'a> {
    /// Its pods, those that are not there yet included.
    fn all(&self) -> Vec<&'a Workload> {
        let missing = usize::try_from(self.missing).unwrap_or_default();
        let more = self.pods.last().into_iter().cycle().take(missing);
        self.pods.iter().chain(more).copied().collect()
    }
}

impl Asked {
    /// Whether any node of the group's pool could serve the pod if it were the tenant's and empty.
    fn can_serve(&mut self, pod: &Workload, group: &GroupOf<'_>, nodes: &[HostNode<'_>]) -> bool {
        let key = format!("{}/{} {:?} {:?}", group.pool, group.name, pod.amounts, pod.rules);
        *self.0.entry(key).or_insert_with(|| {
            nodes
                .iter()
                .any(|node| allows(&pod.rules, group, node) && node.could_hold(&pod.amounts))
        })
    }
}

impl HostNode<'_> {
    /// Whether an empty one holds these amounts. Of one that does not exist yet only the pool's own GPUs are known, and that
    /// is what must be asked for if any device is.
    fn could_hold(&self, asked: &Amounts) -> bool {
        self.has_room(&self.capacity, asked)
    }

    /// The same, as long as only `free` of it is left.
    pub(super) fn has_room(&self, free: &Amounts, asked: &Amounts) -> bool {
        if !self.is_imagined {
            return holds(free, asked);
        }
        let known: Vec<bool> = asked
            .iter()
            .filter_map(|(resource, amount)| Some(free.get(resource)? >= amount))
            .collect();
        let is_the_pools = !known.is_empty() || !asked.keys().any(|resource| is_device(resource));
        known.iter().all(|fits| *fits) && is_the_pools
    }
}

/// Whether the pod's rules allow a node of the group. Of a node that does not exist yet, labels that nobody knows may be
/// whatever a node selector asks for.
pub(super) fn allows(rules: &NodeRules, group: &GroupOf<'_>, node: &HostNode<'_>) -> bool {
    if node.is_imagined {
        let known = |key: &str| label(key, group.name, group.pool, node);
        let fits = |(key, value): (&String, &String)| known(key).is_none_or(|known| known == value);
        return !rules.selector.contains_key(HOST_NAME)
            && rules.selector.iter().all(fits)
            && rules.terms_allow(node.name, known);
    }
    rules.allow(node.name, |key| label(key, group.name, group.pool, node))
}

/// A label as the node will have it while it serves the group.
fn label<'a>(key: &str, group: &'a str, pool: &'a str, node: &HostNode<'a>) -> Option<&'a str> {
    match key {
        labels::POOL => Some(pool),
        labels::NODE_GROUP => Some(group),
        key => node.labels.and_then(|labels| labels.get(key)).map(String::as_str),
    }
}

impl Needs {
    /// Whether a node satisfies the affinity that stands behind a label.
    pub fn satisfies(&self, affinity: &str, pool: &str, node: &HostNode<'_>) -> bool {
        self.affinities
            .get(affinity)
            .is_some_and(|(rules, group)| rules.terms_allow(node.name, |key| label(key, group, pool, node)))
    }

    fn add(&mut self, group: &GroupOf<'_>, pool: &PoolNodes<'_>, unit: &Unit<'_>) {
        let mut kinds: Vec<PodSet> = Vec::new();
        for pod in &unit.pods {
            let each = self.amounts(pod);
            match kinds.iter_mut().find(|kind| kind.requests == each) {
                Some(kind) => kind.count += 1,
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
        let existing_nodes_only = !asking::can_be_asked_for(&kinds, &selector, &self.affinities);
        let demand = Demand {
            name: unit.name.clone(),
            priority: unit.priority,
            waiting_since: unit.since,
            pod_sets: kinds,
            gang: unit.is_gang,
            topology: match unit.one_domain {
                OneDomain::Yes => Topology::SingleDomain,
                OneDomain::By(label) if pool.topology == Some(label) => Topology::SingleDomain,
                OneDomain::By(_) | OneDomain::No => Topology::Any,
            },
            selector,
            existing_nodes_only,
        };
        let list = self.demand.entry(group.name.to_owned()).or_default();
        match list.last_mut() {
            Some(last) if is_alike(last, &demand) => last.pod_sets[0].count += 1,
            _ => list.push(demand),
        }
    }

    fn amounts(&mut self, pod: &Workload) -> Amounts {
        let mut amounts = pod.amounts.clone();
        if let Some(alone) = &pod.alone {
            self.limits.insert(format!("{ALONE}{alone}"), 1);
        }
        for resource in pod.apart().filter(|resource| self.limits.contains_key(resource)) {
            amounts.insert(resource, 1);
        }
        amounts
    }

    /// Labels for the planner: what holds of every node of the group is left out.
    fn selector(&mut self, rules: &NodeRules, group: &GroupOf<'_>) -> BTreeMap<String, String> {
        let mut selector = rules.selector.clone();
        selector.retain(|key, _| key != labels::POOL && key != labels::NODE_GROUP);
        if !rules.terms.is_empty() {
            let of_group = rules.terms_mention(labels::NODE_GROUP);
            let name = if of_group { group.name } else { "" };
            let key = format!("{} {name}", rules.terms_text()).trim().to_owned();
            selector.insert(key.clone(), SATISFIED.into());
            self.affinities.insert(key, (rules.clone(), group.name.into()));
        }
        selector
    }
}

/// Value of the label that stands for an affinity.
pub const SATISFIED: &str = "true";

/// Whether two pods can be told as one demand.
fn is_alike(a: &Demand, b: &Demand) -> bool {
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
