//! One pool's part of the fleet with numbers in place of names, sorted, so that the order of the input does not matter.

use crate::packing::Load;
use crate::supply::{Search, Supply};
use crate::{Demand, Node, NodeGroup, NodeState, Owner, Phase, Pool, Seconds, Tenant, Topology};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// One pool: its nodes, and the groups that ask for them.
pub(crate) struct View<'a> {
    pub now: Seconds,
    pub pool: &'a Pool,
    /// By name.
    pub machines: Vec<Machine<'a>>,
    pub kinds: Vec<Kind>,
    /// Names of topology domains. A machine without one has `domains.len()`.
    pub domains: Vec<&'a str>,
    /// Groups, those of the oldest tenant first.
    pub askers: Vec<Asker<'a>>,
    /// Their demand.
    pub wants: Vec<Want<'a>>,
    /// Numbers of resources.
    pub resources: HashMap<&'a str, usize>,
}

impl View<'_> {
    /// What the pods on a machine leave free.
    pub fn room(&self, machine: usize) -> Vec<u64> {
        let machine = &self.machines[machine];
        if machine.node.unusable {
            return vec![0; self.resources.len() + 1];
        }
        let mut room = self.kinds[machine.kind].capacity.clone();
        for (name, amount) in &machine.node.used {
            if let Some(number) = self.resources.get(name.as_str()) {
                room[*number] = room[*number].saturating_sub(*amount);
            }
        }
        room
    }

    /// Nodes of each domain in all; the last entry counts those without one.
    fn domain_sizes(&self) -> Vec<u32> {
        let mut sizes = vec![0; self.domains.len() + 1];
        for machine in &self.machines {
            sizes[machine.domain] += 1;
        }
        sizes
    }

    /// Whole nodes, whatever they hold.
    pub fn whole_nodes(&self, number: u32) -> Load {
        let mut each = vec![0; self.resources.len()];
        each.push(1);
        Load::new(vec![(number, each)])
    }

    /// The nodes that count, to be searched.
    pub fn supply(&self, counts: impl Fn(usize) -> bool) -> Supply {
        let machines = self.machines.iter().enumerate().filter(|(at, _)| counts(*at));
        let nodes: Vec<(usize, usize, usize)> = machines
            .map(|(at, machine)| (at, machine.kind, machine.domain))
            .collect();
        let mut supply = Supply::new(self.domain_sizes());
        supply.fill(nodes.into_iter(), &self.kinds);
        supply
    }

    /// Whether all of a demand would have room on those nodes, if they were empty.
    pub fn fits(&self, want: usize, nodes: &Supply) -> bool {
        let wanted = &self.wants[want];
        let search = Search {
            load: &wanted.load,
            selector: wanted.selector,
            home: &BTreeSet::new(),
            one_domain: wanted.demand.topology == Topology::SingleDomain,
            first: false,
        };
        nodes.find(&search, &self.kinds).rest.is_empty()
    }

    /// GPUs of a machine.
    pub fn gpus(&self, machine: usize) -> u64 {
        self.kinds[self.machines[machine].kind].gpus
    }
}

/// Nodes that are alike to demand: same capacity, same labels as far as anybody asks for them.
pub(crate) struct Kind {
    /// By the number of the resource; the last entry is the node itself: 1.
    pub capacity: Vec<u64>,
    /// What a node of it counts in shares.
    pub gpus: u64,
    /// Whether it carries the labels of a selector, by the selector's number.
    pub matches: Vec<bool>,
}

/// A node.
pub(crate) struct Machine<'a> {
    pub node: &'a Node,
    pub kind: usize,
    pub domain: usize,
    /// The group that it belongs to; `None` for one that has no owner, or one that nobody asks for.
    pub asker: Option<usize>,
}

/// A node group.
pub(crate) struct Asker<'a> {
    /// Number of the tenant in the [`Catalog`].
    pub tenant: usize,
    pub of: &'a Tenant,
    pub group: &'a NodeGroup,
    /// Its nodes, by name.
    pub machines: Vec<usize>,
}

impl Asker<'_> {
    /// Nodes that it may have at most.
    pub fn most(&self) -> u32 {
        self.group.max_nodes.max(self.group.min_nodes)
    }
}

/// Demand of a group.
pub(crate) struct Want<'a> {
    pub asker: usize,
    pub demand: &'a Demand,
    pub selector: usize,
    pub load: Load,
}

impl Machine<'_> {
    pub fn owner(&self) -> Option<&Owner> {
        match &self.node.state {
            NodeState::Owned(owner) => Some(owner),
            _ => None,
        }
    }

    pub fn cordoned_until(&self) -> Option<Seconds> {
        match self.owner()?.phase {
            Phase::Cordoned { drain_at } => Some(drain_at),
            _ => None,
        }
    }

    pub fn reserved_of(&self) -> Option<u32> {
        match self.owner()?.phase {
            Phase::Reserved { required_nodes } => Some(required_nodes),
            _ => None,
        }
    }

    pub fn is_cordoned(&self) -> bool {
        self.cordoned_until().is_some()
    }

    pub fn is_free(&self) -> bool {
        self.node.state == NodeState::Free
    }

    pub fn is_returning(&self) -> bool {
        matches!(self.node.state, NodeState::Recycling { .. })
    }
}

/// What is looked up by name, for all pools together.
pub(crate) struct Catalog<'a> {
    /// The oldest first.
    pub tenants: Vec<&'a Tenant>,
    by_uid: HashMap<&'a str, usize>,
    groups: HashMap<&'a str, Vec<(usize, &'a NodeGroup)>>,
    nodes: HashMap<&'a str, Vec<&'a Node>>,
}

impl<'a> Catalog<'a> {
    pub fn new(tenants: &'a [Tenant], nodes: &'a [Node]) -> Self {
        let mut sorted: Vec<&Tenant> = tenants.iter().collect();
        sorted.sort_by(|a, b| (a.created, &a.uid).cmp(&(b.created, &b.uid)));
        sorted.dedup_by(|a, b| a.uid == b.uid);
        let mut groups: HashMap<&str, Vec<(usize, &NodeGroup)>> = HashMap::new();
        for (number, tenant) in sorted.iter().enumerate().filter(|(_, tenant)| !tenant.terminated) {
            for group in &tenant.node_groups {
                groups.entry(&group.pool).or_default().push((number, group));
            }
        }
        let mut by_pool: HashMap<&str, Vec<&Node>> = HashMap::new();
        for node in nodes {
            by_pool.entry(&node.pool).or_default().push(node);
        }
        Self {
            by_uid: sorted
                .iter()
                .enumerate()
                .map(|(at, tenant)| (tenant.uid.as_str(), at))
                .collect(),
            tenants: sorted,
            groups,
            nodes: by_pool,
        }
    }

    /// Pools that nodes or groups name.
    pub fn pools(&self) -> BTreeSet<&'a str> {
        self.groups.keys().chain(self.nodes.keys()).copied().collect()
    }

    /// Number of a tenant that lives.
    pub fn living(&self, uid: &str) -> Option<usize> {
        self.by_uid
            .get(uid)
            .copied()
            .filter(|number| !self.tenants[*number].terminated)
    }

    /// What concerns one pool.
    pub fn view(&self, now: Seconds, pool: &'a Pool) -> View<'a> {
        let mut nodes = self.nodes.get(pool.name.as_str()).cloned().unwrap_or_default();
        nodes.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let mut askers: Vec<Asker<'a>> = Vec::new();
        let mut by_tenant: HashMap<usize, Vec<usize>> = HashMap::new();
        let mut groups = self.groups.get(pool.name.as_str()).cloned().unwrap_or_default();
        groups.sort_by(|a, b| (a.0, &a.1.name).cmp(&(b.0, &b.1.name)));
        for (tenant, group) in &groups {
            by_tenant.entry(*tenant).or_default().push(askers.len());
            askers.push(Asker {
                tenant: *tenant,
                of: self.tenants[*tenant],
                group,
                machines: Vec::new(),
            });
        }
        let names = Names::of(pool, &askers);
        let wants = names.wants(&askers);
        let (mut kinds, mut known) = (Vec::new(), HashMap::new());
        let mut domains: Vec<&str> = nodes
            .iter()
            .filter(|_| pool.has_domains)
            .filter_map(|node| node.domain.as_deref())
            .collect();
        domains.sort_unstable();
        domains.dedup();
        let domain_numbers: HashMap<&str, usize> = domains.iter().enumerate().map(|(at, name)| (*name, at)).collect();
        let mut scratch = Vec::new();
        let mut machines = Vec::with_capacity(nodes.len());
        for node in nodes {
            let asker = match &node.state {
                NodeState::Owned(owner) => self.living(&owner.tenant).and_then(|tenant| {
                    let of_tenant = by_tenant.get(&tenant)?;
                    of_tenant
                        .iter()
                        .copied()
                        .find(|asker| askers[*asker].group.name == owner.node_group)
                }),
                _ => None,
            };
            if let Some(asker) = asker {
                askers[asker].machines.push(machines.len());
            }
            names.describe(node, &mut scratch);
            let kind = *known.entry(scratch.clone()).or_insert_with(|| {
                kinds.push(names.kind(pool, &scratch));
                kinds.len() - 1
            });
            let domain = node
                .domain
                .as_deref()
                .and_then(|name| domain_numbers.get(name).copied());
            machines.push(Machine {
                node,
                kind,
                domain: domain.unwrap_or(domains.len()),
                asker,
            });
        }
        View {
            now,
            pool,
            machines,
            kinds,
            domains,
            askers,
            wants,
            resources: names.resources,
        }
    }
}

/// The selector that every node matches.
pub(crate) const ANY: usize = 0;
static NO_SELECTOR: BTreeMap<String, String> = BTreeMap::new();

/// Numbers for the resources and labels that demand in a pool names.
struct Names<'a> {
    /// The pool's own resource is the first, if it has one.
    resources: HashMap<&'a str, usize>,
    label_keys: Vec<&'a str>,
    label_values: HashMap<(usize, &'a str), u64>,
    selectors: HashMap<&'a BTreeMap<String, String>, usize>,
}

impl<'a> Names<'a> {
    fn of(pool: &'a Pool, askers: &[Asker<'a>]) -> Self {
        let mut resources: HashMap<&str, usize> =
            pool.gpu_resource_name.iter().map(|name| (name.as_str(), 0)).collect();
        let mut label_keys: Vec<&str> = Vec::new();
        let mut label_values = HashMap::new();
        let mut selectors = HashMap::from([(&NO_SELECTOR, ANY)]);
        for demand in askers.iter().flat_map(|asker| &asker.group.demand) {
            for name in demand.pod_sets.iter().flat_map(|pods| pods.requests.keys()) {
                let next = resources.len();
                resources.entry(name).or_insert(next);
            }
            let next = selectors.len();
            if selectors.contains_key(&demand.selector) {
                continue;
            }
            selectors.insert(&demand.selector, next);
            for (key, value) in &demand.selector {
                let at = label_keys.iter().position(|known| known == key).unwrap_or_else(|| {
                    label_keys.push(key);
                    label_keys.len() - 1
                });
                let next = label_values.len() as u64 + 1;
                label_values.entry((at, value.as_str())).or_insert(next);
            }
        }
        Self {
            resources,
            label_keys,
            label_values,
            selectors,
        }
    }

    /// Capacity by resource number, then what it has of the labels that somebody asks for.
    fn describe(&self, node: &Node, into: &mut Vec<u64>) {
        into.clear();
        into.resize(self.resources.len() + 1, 0);
        into[self.resources.len()] = 1;
        for (name, amount) in &node.capacity {
            if let Some(number) = self.resources.get(name.as_str()) {
                into[*number] = *amount;
            }
        }
        for (at, key) in self.label_keys.iter().enumerate() {
            let value = node.labels.get(*key);
            into.push(
                value
                    .and_then(|value| self.label_values.get(&(at, value.as_str())).copied())
                    .unwrap_or(0),
            );
        }
    }

    fn kind(&self, pool: &Pool, described: &[u64]) -> Kind {
        let (capacity, labels) = described.split_at(self.resources.len() + 1);
        let mut matches = vec![false; self.selectors.len()];
        for (selector, number) in &self.selectors {
            matches[*number] = selector.iter().all(|(key, value)| {
                let at = self.label_keys.iter().position(|known| known == key);
                at.is_some_and(|at| self.label_values.get(&(at, value.as_str())) == Some(&labels[at]))
            });
        }
        Kind {
            // A node without GPUs still is a node: it counts as one.
            gpus: pool.gpu_resource_name.as_ref().map_or(1, |_| capacity[0].max(1)),
            capacity: capacity.to_vec(),
            matches,
        }
    }

    fn wants(&self, askers: &[Asker<'a>]) -> Vec<Want<'a>> {
        let mut wants = Vec::new();
        for (number, asker) in askers.iter().enumerate() {
            for demand in &asker.group.demand {
                let pods = demand.pod_sets.iter().map(|pods| {
                    let mut each = vec![0; self.resources.len() + 1];
                    for (name, amount) in &pods.requests {
                        each[self.resources[name.as_str()]] = *amount;
                    }
                    (pods.count, each)
                });
                wants.push(Want {
                    asker: number,
                    demand,
                    selector: self.selectors[&demand.selector],
                    load: Load::new(pods.collect()),
                });
            }
        }
        wants
    }
}
