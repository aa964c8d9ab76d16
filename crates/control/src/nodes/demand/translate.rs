//! The demand of one tenant.

use super::{
    affinity::NodeRules,
    workload::{ALONE, Place, Workload},
};
use berth_api::labels;
use berth_planner::{Amounts, Demand, Domain, Pods, Seconds};
use std::collections::{BTreeMap, HashMap};

/// A host node, as far as pods look at it.
#[derive(Clone, Debug, Default)]
pub struct HostNode<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its labels.
    pub labels: Option<&'a BTreeMap<String, String>>,
    /// What an empty one holds.
    pub capacity: Amounts,
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
}

/// What tenants need, and what the planner has to know of nodes to understand it.
#[derive(Debug, Default)]
pub struct Needs {
    /// By group.
    pub demand: BTreeMap<String, Vec<Demand>>,
    /// Required affinities by the label that stands for them, with the group that they are asked for in.
    pub affinities: BTreeMap<String, (NodeRules, String)>,
    /// Resources of which every node has one.
    pub alone: Vec<String>,
}

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
    one_domain: bool,
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

/// What a tenant needs beyond the room that its nodes of other groups have. `pools` are the nodes of each pool, whoever has
/// them, and whether any of them has devices.
pub fn translate(tenant: &Tenant<'_>, pools: &BTreeMap<&str, (Vec<HostNode<'_>>, bool)>) -> Needs {
    let mut needs = Needs::default();
    let mut asked = Asked::default();
    let mut room: Vec<(&str, &HostNode<'_>, Amounts)> = tenant
        .own
        .iter()
        .map(|(group, node, used)| (*group, *node, left(&node.capacity, used)))
        .collect();
    for unit in units(&tenant.workloads) {
        let place = tenant.groups.iter().find(|group| {
            group.is_dynamic
                && pools.get(group.pool).is_some_and(|(nodes, has_devices)| {
                    unit.pods
                        .iter()
                        .all(|pod| uses(pod, *has_devices) && asked.can_serve(pod, group, nodes))
                })
        });
        let Some(group) = place else { continue };
        if unit.missing == 0 && fits_elsewhere(&unit, group, &tenant.groups, &mut room) {
            continue;
        }
        needs.add(group, &unit);
    }
    needs
}

/// Waiting pods one by one, and gangs, in the order in which they began to wait.
fn units<'a>(workloads: &[&'a Workload]) -> Vec<Unit<'a>> {
    let mut units = Vec::new();
    let mut gangs: BTreeMap<&str, Vec<&'a Workload>> = BTreeMap::new();
    for workload in workloads {
        match &workload.gang {
            Some(gang) if gang.size > 1 => gangs.entry(&gang.name).or_default().push(workload),
            _ if workload.place == Place::Waiting => units.push(single(workload)),
            _ => {}
        }
    }
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
            one_domain: gang.one_domain,
            pods: waiting,
        });
    }
    units.sort_by(|a, b| (a.since, &a.name).cmp(&(b.since, &b.name)));
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
        one_domain: false,
    }
}

impl Asked {
    /// Whether any node of the group's pool could serve the pod if it were the tenant's and empty.
    fn can_serve(&mut self, pod: &Workload, group: &GroupOf<'_>, nodes: &[HostNode<'_>]) -> bool {
        let key = format!("{}/{} {:?} {:?}", group.pool, group.name, pod.amounts, pod.rules);
        *self.0.entry(key).or_insert_with(|| {
            nodes
                .iter()
                .any(|node| allows(&pod.rules, group, node) && holds(&node.capacity, &pod.amounts))
        })
    }
}

/// Whether the pod's rules allow a node of the group.
pub(super) fn allows(rules: &NodeRules, group: &GroupOf<'_>, node: &HostNode<'_>) -> bool {
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

    fn add(&mut self, group: &GroupOf<'_>, unit: &Unit<'_>) {
        let mut kinds: Vec<Pods> = Vec::new();
        for pod in &unit.pods {
            let each = self.amounts(pod);
            match kinds.iter_mut().find(|kind| kind.each == each) {
                Some(kind) => kind.count += 1,
                None => kinds.push(Pods { count: 1, each }),
            }
        }
        if let Some(last) = kinds.last_mut() {
            last.count = last.count.saturating_add(unit.missing);
        }
        let mut selector = BTreeMap::new();
        for pod in &unit.pods {
            selector.extend(self.selector(&pod.rules, group));
        }
        let demand = Demand {
            name: unit.name.clone(),
            priority: unit.priority,
            since: unit.since,
            pods: kinds,
            gang: unit.is_gang,
            one_domain: if unit.one_domain { Domain::Required } else { Domain::Any },
            selector,
        };
        let list = self.demand.entry(group.name.to_owned()).or_default();
        match list.last_mut() {
            Some(last) if is_alike(last, &demand) => last.pods[0].count += 1,
            _ => list.push(demand),
        }
    }

    fn amounts(&mut self, pod: &Workload) -> Amounts {
        let mut amounts = pod.amounts.clone();
        if let Some(alone) = &pod.alone {
            let resource = format!("{ALONE}{alone}");
            amounts.insert(resource.clone(), 1);
            if !self.alone.contains(&resource) {
                self.alone.push(resource);
            }
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
        && a.pods.len() == 1
        && b.pods.len() == 1
        && a.pods[0].each == b.pods[0].each
}

/// Whether all pods find room on the tenant's nodes of other groups; what they take is taken off it.
fn fits_elsewhere(
    unit: &Unit<'_>,
    group: &GroupOf<'_>,
    groups: &[GroupOf<'_>],
    room: &mut [(&str, &HostNode<'_>, Amounts)],
) -> bool {
    let mut taken: Vec<(usize, &Amounts)> = Vec::new();
    let found = unit.pods.iter().all(|pod| {
        let spot = room.iter_mut().enumerate().find(|(_, (of, node, free))| {
            *of != group.name
                && pod.alone.is_none()
                && groups
                    .iter()
                    .any(|other| other.name == *of && allows(&pod.rules, other, node))
                && holds(free, &pod.amounts)
        });
        let Some((index, (_, _, free))) = spot else {
            return false;
        };
        *free = left(free, &pod.amounts);
        taken.push((index, &pod.amounts));
        true
    });
    if !found {
        for (index, amounts) in taken {
            for (resource, amount) in amounts {
                *room[index].2.entry(resource.clone()).or_default() += amount;
            }
        }
    }
    found
}

fn holds(capacity: &Amounts, asked: &Amounts) -> bool {
    let has = |resource: &String| capacity.get(resource).copied().unwrap_or_default();
    asked.iter().all(|(resource, amount)| has(resource) >= *amount)
}

fn left(capacity: &Amounts, used: &Amounts) -> Amounts {
    let taken = |resource: &String| used.get(resource).copied().unwrap_or_default();
    capacity
        .iter()
        .map(|(resource, amount)| (resource.clone(), amount.saturating_sub(taken(resource))))
        .collect()
}
