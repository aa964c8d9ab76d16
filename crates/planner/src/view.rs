//! The part of the fleet that belongs to one pool. Numbers replace names; it is sorted, so that the order of the input does
//! not matter.

use crate::load::Load;
use crate::names::Names;
use crate::{Demand, Node, NodeGroup, NodeState, Owner, Phase, Pool, Seconds, Tenant};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// One pool: its nodes, and the node groups that request them.
pub(crate) struct View<'a> {
    pub now: Seconds,
    pub pool: &'a Pool,
    /// Sorted by name.
    pub nodes: Vec<PoolNode<'a>>,
    pub kinds: Vec<Kind>,
    /// Names of topology domains. A node without one has `domains.len()`.
    pub domains: Vec<&'a str>,
    /// The groups of the oldest tenant first.
    pub node_groups: Vec<PoolNodeGroup<'a>>,
    /// In the order of their groups.
    pub requests: Vec<Request<'a>>,
    /// The same group by group: higher priority first, then those that have waited longer.
    pub requests_by_group: Vec<usize>,
    /// The place of each request among all of them: the one that waits longest first; the age of the tenant breaks ties.
    pub wait_ranks: Vec<usize>,
    /// Numbers of resources. There are few, so that comparing their names takes less time than hashing one.
    pub resources: BTreeMap<&'a str, usize>,
    /// GPUs that most nodes count for in quotas. A single node cannot change it by what it reports.
    pub usual_node_gpus: u64,
    /// GPUs for which the smallest node of the pool counts; 1 without nodes.
    pub smallest_node_gpus: u64,
}

impl View<'_> {
    /// Capacity that the pods on a node leave free.
    pub fn free_capacity(&self, node: usize) -> Vec<u64> {
        let node = &self.nodes[node];
        if node.object.unusable {
            return vec![0; self.resources.len() + 1];
        }
        let mut free = self.kinds[node.kind].capacity.clone();
        for (name, amount) in &node.object.used {
            if let Some(number) = self.resources.get(name.as_str()) {
                free[*number] = free[*number].saturating_sub(*amount);
            }
        }
        free
    }

    /// Number of nodes of each domain; the last entry counts the nodes without a domain.
    pub fn count_nodes_by_domain(&self) -> Vec<u32> {
        let mut sizes = vec![0; self.domains.len() + 1];
        for node in &self.nodes {
            sizes[node.domain] += 1;
        }
        sizes
    }

    /// A load of whole nodes, whatever their capacity.
    pub fn whole_nodes(&self, number: u32) -> Load {
        let mut each = vec![0; self.resources.len()];
        each.push(1);
        Load::new(vec![(number, each)])
    }

    /// GPUs that a node counts for in quotas.
    pub fn gpus(&self, node: usize) -> u64 {
        self.nodes[node].gpus
    }

    /// Capacity of a node when it is empty.
    pub fn capacity(&self, node: usize) -> &[u64] {
        &self.kinds[self.nodes[node].kind].capacity
    }

    /// The tenant of a request.
    pub fn tenant_of(&self, request: usize) -> usize {
        self.node_groups[self.requests[request].group].tenant
    }
}

/// Nodes that are equal to all requests: same capacity, and same values of the labels that selectors name.
pub(crate) struct Kind {
    /// By the number of the resource; the last entry is the node itself: 1.
    pub capacity: Vec<u64>,
    /// GPUs that a node of this kind counts for in quotas if it has no tenant.
    pub gpus: u64,
    /// Whether it carries the labels of a selector, by the selector's number.
    pub matches: Vec<bool>,
}

/// A node of the pool.
pub(crate) struct PoolNode<'a> {
    pub object: &'a Node,
    pub kind: usize,
    /// GPUs that it counts for in quotas.
    pub gpus: u64,
    pub domain: usize,
    /// The group that it belongs to; `None` without an owner, or if the group no longer exists.
    pub group: Option<usize>,
    /// The tenant that loses the node, which belongs to none of its groups: the group no longer exists, or the node is being drained.
    /// Pods of the tenant may still run there.
    pub former_tenant: Option<usize>,
}

/// A node group with nodes of the pool.
pub(crate) struct PoolNodeGroup<'a> {
    /// Number of the tenant in the [`Catalog`].
    pub tenant: usize,
    pub owner: &'a Tenant,
    pub spec: &'a NodeGroup,
    /// Its nodes, by name.
    pub nodes: Vec<usize>,
}

impl PoolNodeGroup<'_> {
    /// The most nodes that it may have.
    pub fn max_nodes(&self) -> u32 {
        self.spec.max_nodes.max(self.spec.min_nodes)
    }
}

/// A request of a group, with resources and selector by number.
pub(crate) struct Request<'a> {
    pub group: usize,
    pub demand: &'a Demand,
    pub selector: usize,
    pub load: Load,
}

impl PoolNode<'_> {
    /// The tenant and the group that have it, whether they still exist or not.
    pub fn owner(&self) -> Option<&Owner> {
        self.object.owner()
    }

    /// When its drain begins, if it is cordoned.
    pub fn cordoned_until(&self) -> Option<Seconds> {
        match self.owner()?.phase {
            Phase::Cordoned { drain_at } => Some(drain_at),
            _ => None,
        }
    }

    /// How many nodes must be reserved before it joins, if it is reserved.
    pub fn required_nodes(&self) -> Option<u32> {
        match self.owner()?.phase {
            Phase::Reserved { required_nodes } => Some(required_nodes),
            _ => None,
        }
    }

    /// Whether it is to leave its tenant, and can still stay.
    pub fn is_cordoned(&self) -> bool {
        self.cordoned_until().is_some()
    }

    /// Whether it is assigned and not cordoned: pods of its tenant may start there.
    pub fn is_serving(&self) -> bool {
        self.owner().is_some_and(|owner| owner.phase == Phase::Assigned)
    }

    /// Whether pods of its tenant use it.
    pub fn is_in_use(&self) -> bool {
        self.is_serving() && self.object.idle_since.is_none()
    }

    /// Whether it can be reserved.
    pub fn is_free(&self) -> bool {
        self.object.state == NodeState::Free
    }

    /// Whether it is on its way from one tenant to the next.
    pub fn is_recycling(&self) -> bool {
        matches!(
            self.object.state,
            NodeState::Draining { .. } | NodeState::Recycling { .. }
        )
    }
}

/// Objects that are looked up by name, for all pools together.
pub(crate) struct Catalog<'a> {
    /// The oldest first.
    pub tenants: Vec<&'a Tenant>,
    by_uid: HashMap<&'a str, usize>,
    groups: HashMap<&'a str, Vec<(usize, &'a NodeGroup)>>,
    nodes: HashMap<&'a str, Vec<&'a Node>>,
}

impl<'a> Catalog<'a> {
    /// Looks up the objects of a fleet. Tenants that are terminated have no groups.
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

    /// The number of a tenant, unless it is terminated.
    pub fn find_tenant(&self, uid: &str) -> Option<usize> {
        self.by_uid
            .get(uid)
            .copied()
            .filter(|number| !self.tenants[*number].terminated)
    }

    /// The view of one pool.
    pub fn view(&self, now: Seconds, pool: &'a Pool) -> View<'a> {
        let mut objects = self.nodes.get(pool.name.as_str()).cloned().unwrap_or_default();
        objects.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let mut node_groups = self.list_node_groups(pool);
        let (names, requests) = Names::read(pool, &node_groups);
        let domains = list_domains(pool, &objects);
        let domain_numbers: HashMap<&str, usize> = domains.iter().enumerate().map(|(at, name)| (*name, at)).collect();
        let mut groups_of: Vec<Vec<usize>> = vec![Vec::new(); self.tenants.len()];
        for (number, group) in node_groups.iter().enumerate() {
            groups_of[group.tenant].push(number);
        }
        let (mut last_tenant, mut last_domain) = (LastName::default(), LastName::default());
        let (mut kinds, mut scratch) = (Vec::new(), Vec::new());
        let mut known: BTreeMap<Vec<u64>, usize> = BTreeMap::new();
        let mut nodes = Vec::with_capacity(objects.len());
        for object in objects {
            let (tenant, group) = match &object.state {
                NodeState::Owned(owner) => (Some(&owner.tenant), Some(&owner.node_group)),
                NodeState::Draining { tenant, .. } => (Some(tenant), None),
                _ => (None, None),
            };
            let tenant = tenant.and_then(|uid| last_tenant.find(uid, |uid| self.find_tenant(uid)));
            let group = group.and_then(|name| {
                let mut of_tenant = groups_of[tenant?].iter().copied();
                of_tenant.find(|group| node_groups[*group].spec.name == *name)
            });
            if let Some(group) = group {
                node_groups[group].nodes.push(nodes.len());
            }
            names.describe(object, &mut scratch);
            let kind = known.get(&scratch).copied().unwrap_or_else(|| {
                kinds.push(names.kind(pool, &scratch));
                known.insert(scratch.clone(), kinds.len() - 1);
                kinds.len() - 1
            });
            let domain = object.domain.as_deref();
            let domain = domain.and_then(|name| last_domain.find(name, |name| domain_numbers.get(name).copied()));
            nodes.push(PoolNode {
                object,
                kind,
                gpus: pool.count_gpus(object),
                domain: domain.unwrap_or(domains.len()),
                group,
                former_tenant: tenant.filter(|_| group.is_none()),
            });
        }
        View {
            now,
            pool,
            usual_node_gpus: find_usual_gpus(&nodes),
            smallest_node_gpus: kinds.iter().map(|kind| kind.gpus).min().unwrap_or(1),
            nodes,
            kinds,
            domains,
            node_groups,
            requests_by_group: list_by_group(&requests),
            wait_ranks: rank_by_wait(&requests),
            requests,
            resources: names.into_resources(),
        }
    }

    /// The groups with nodes of a pool, without their nodes.
    fn list_node_groups(&self, pool: &Pool) -> Vec<PoolNodeGroup<'a>> {
        let mut groups = self.groups.get(pool.name.as_str()).cloned().unwrap_or_default();
        groups.sort_by(|a, b| (a.0, &a.1.name).cmp(&(b.0, &b.1.name)));
        let groups = groups.into_iter().map(|(tenant, spec)| PoolNodeGroup {
            tenant,
            owner: self.tenants[tenant],
            spec,
            nodes: Vec::new(),
        });
        groups.collect()
    }
}

/// The number of the name that was looked up last. Nodes that follow each other are often of the same tenant, or of the same domain, and to compare two names
/// takes less time than a look-up.
#[derive(Default)]
struct LastName<'n> {
    known: Option<(&'n str, Option<usize>)>,
}

impl<'n> LastName<'n> {
    fn find(&mut self, name: &'n str, find: impl Fn(&str) -> Option<usize>) -> Option<usize> {
        let last = self.known.filter(|(last, _)| *last == name);
        let (_, number) = *self.known.insert(last.unwrap_or_else(|| (name, find(name))));
        number
    }
}

/// A pool may have thousands of requests, and they are looked at in each stage: they are put in order once.
fn list_by_group(requests: &[Request<'_>]) -> Vec<usize> {
    let mut sorted: Vec<usize> = (0..requests.len()).collect();
    sorted.sort_by_cached_key(|at| {
        let demand = requests[*at].demand;
        (
            requests[*at].group,
            Reverse(demand.priority),
            demand.waiting_since,
            &demand.name,
            *at,
        )
    });
    sorted
}

fn rank_by_wait(requests: &[Request<'_>]) -> Vec<usize> {
    let mut sorted: Vec<usize> = (0..requests.len()).collect();
    sorted.sort_by_cached_key(|at| {
        let demand = requests[*at].demand;
        (demand.waiting_since, requests[*at].group, &demand.name, *at)
    });
    let mut ranks = vec![0; requests.len()];
    for (rank, at) in sorted.into_iter().enumerate() {
        ranks[at] = rank;
    }
    ranks
}

/// GPUs that most nodes count for. Of sizes that are as frequent it is the smallest: a node can only count for more than it has.
fn find_usual_gpus(nodes: &[PoolNode<'_>]) -> u64 {
    let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
    for node in nodes {
        *counts.entry(node.gpus).or_default() += 1;
    }
    let usual = counts.into_iter().max_by_key(|(gpus, count)| (*count, Reverse(*gpus)));
    usual.map_or(1, |(gpus, _)| gpus)
}

fn list_domains<'a>(pool: &Pool, nodes: &[&'a Node]) -> Vec<&'a str> {
    let with_domains = nodes.iter().filter(|_| pool.has_domains);
    let mut domains: Vec<&str> = with_domains.filter_map(|node| node.domain.as_deref()).collect();
    // Nodes that follow each other are often of one domain.
    domains.dedup();
    domains.sort_unstable();
    domains.dedup();
    domains
}
