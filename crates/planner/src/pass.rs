//! The planning of one pool: the decisions so far, and the few operations that change them.

use crate::alike::FailedRequests;
use crate::available::AvailableNodes;
use crate::first_gang::FirstGang;
use crate::incoming::Incoming;
use crate::load::Load;
use crate::minimums_first::EnoughNodes;
use crate::shared_pauses::SharedPauses;
use crate::tree::{QuotaLimit, Tree};
use crate::unused_nodes::LeftUnused;
use crate::victims::Victims;
use crate::view::View;
use crate::{ActionReason, Impossible, PoolHealth, Seconds, UnusedNodes};
use std::collections::{BTreeSet, HashMap};

/// What happens to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Undecided,
    /// Its node group needs it: it stays.
    Needed,
    /// Free, and reserved now; together with other nodes or by itself.
    Reserve {
        together: bool,
    },
    /// Reserved, and free again.
    CancelReservation,
    /// Taken from its tenant.
    Release {
        drain_at: Seconds,
    },
    /// Cordoned, and left to its tenant after all.
    CancelRelease,
    /// During a search it counts as taken from its tenant.
    AssumedReleased {
        needed: bool,
    },
    /// Free or free soon, and kept for a request or a minimum that cannot have all its nodes yet.
    Earmarked,
}

/// Why a request waits. As [`WaitReason`](crate::WaitReason), but cheap: it is decided far more often than published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Blocked<'a> {
    Impossible(Impossible),
    MaxNodes {
        max_nodes: u32,
    },
    QuotaLimit(QuotaLimit<'a>),
    /// A quota above that of the tenant does not exist.
    MissingQuota(&'a str),
    NotLent {
        gpus: u64,
    },
    NoFreeNodes,
    NodesComing,
}

/// How far a request has come.
pub(crate) struct RequestProgress<'a> {
    /// Pods for which no node is planned.
    pub unplaced: Load,
    /// Nodes that are on their way to it.
    pub earmarked: Vec<usize>,
    pub blocked_by: Option<Blocked<'a>>,
    /// On how many of the first nodes in its group's [`GroupState::free_capacity`] none of these pods fits, and the removals from that list at
    /// that time.
    pub looked_at: (usize, u32),
}

/// The nodes of a node group.
#[derive(Default)]
pub(crate) struct GroupState<'a> {
    /// Nodes that it has: Reserved, Joining, Assigned and cordoned ones, and those reserved now.
    pub held: u32,
    /// Those of them that stay.
    pub staying: u32,
    /// For how many GPUs those count, in this order, and how many of them count for that many. Most groups have nodes of one size.
    pub sizes: Vec<(u64, u32)>,
    /// GPUs of its minimum.
    pub minimum_gpus: u64,
    /// Free capacity of nodes that stay: (node, amounts), the fullest first.
    pub free_capacity: Vec<(usize, Vec<u64>)>,
    /// How often a node was taken out of `free_capacity`.
    pub removals: u32,
    pub cordoned: Vec<usize>,
    /// Topology domains in which it has nodes.
    pub domains: BTreeSet<usize>,
    /// How many nodes are on their way to it.
    pub earmarked: usize,
    /// Nodes that it lacks of its minimum.
    pub missing: u32,
    /// Those of them that are to come before what is not served yet: later steps of this plan leave them out.
    pub awaited_for_minimum: u32,
    /// Nodes that are free, or will be, and are kept for its minimum.
    pub earmarked_for_minimum: Vec<usize>,
    pub minimum_blocked_by: Option<Blocked<'a>>,
}

/// The planning pass of one pool.
pub(crate) struct PlanningPass<'a> {
    pub view: View<'a>,
    pub tree: Tree<'a>,
    /// Free nodes that are not kept for a request.
    pub available: AvailableNodes,
    pub decisions: Vec<Decision>,
    /// Reasons of the decisions.
    pub reasons: Vec<Option<ActionReason>>,
    pub groups: Vec<GroupState<'a>>,
    pub progress: Vec<RequestProgress<'a>>,
    /// Nodes that will be free and that are not kept for a request: those being recycled, cordoned ones, and those that are idle for too
    /// long and that no request of their group needs.
    pub incoming: Incoming,
    /// Node groups whose minimum lacks nodes that are not on their way either, with their number.
    pub unmet_minimums: Vec<(usize, usize)>,
    /// A request that may reclaim all that minimums before it lack, as long as no other request is served.
    pub enough: Option<EnoughNodes>,
    /// How often what requests can count on has changed.
    pub changes: u64,
    /// Requests that got nothing.
    pub failed: FailedRequests<'a>,
    /// The gang that waited too long and for which free nodes are kept.
    pub starved_gang: Option<usize>,
    pub replan_at: Option<Seconds>,
    /// How many nodes are not Ready, if the pool repairs its nodes.
    pub health: Option<PoolHealth>,
    /// Gangs for which all domains are searched.
    pub searched: BTreeSet<usize>,
    /// How many of them each tenant may have. Counted on first use.
    pub searched_share: Option<usize>,
    /// All nodes that a request can count on. Listed on first use.
    pub reachable: Option<AvailableNodes>,
    /// Listed on first use.
    pub victims: Option<Victims>,
    /// The highest priority of the pods that wait in the group of a node and fit on what is left there, by node. Listed with the victims.
    pub waiting_priorities: Vec<Option<i32>>,
    /// What is known of nodes that tenants did not use, by tenant.
    pub unused: HashMap<usize, UnusedNodes>,
    /// The quota of each tenant that shares its pauses with the others of this quota.
    pub sharing: HashMap<usize, &'a str>,
    /// The pauses of these tenants, by quota.
    pub shared_pauses: HashMap<&'a str, SharedPauses>,
    /// Idle nodes that only pods keep which use none of their devices. No request counts on them.
    pub kept_by_pods: BTreeSet<usize>,
    /// Nodes whose request also waits for a node that is not ready, or not free yet.
    pub awaited: Vec<bool>,
    /// Requests for which no node was free, or none that others lend, in the order in which they were served.
    pub lacking: Vec<usize>,
    /// Nodes that pods keep for too long without using them, while requests of other tenants may count on them.
    pub offered: BTreeSet<usize>,
    /// A gang that waits before the requests that may get offered nodes.
    pub first_gang: Option<FirstGang>,
    /// Nodes of tenants that this plan releases and that no pod used, with what was known of the tenant before.
    pub left_unused: HashMap<usize, (UnusedNodes, LeftUnused)>,
    /// Groups of tenants whose pods have counted on nodes in use for too long.
    pub waiting_for_too_long: BTreeSet<usize>,
    /// The highest priority of the requests of such groups that count on a node, by node.
    pub late_priorities: HashMap<usize, i32>,
    /// Whether tenants have more nodes that no pod ever used than nodes in use. Counted on first use.
    pub leaves_most_unused: HashMap<usize, bool>,
}

impl<'a> PlanningPass<'a> {
    /// The pass before any decision. Nodes that groups have are counted in the tree.
    pub fn new(view: View<'a>, tree: Tree<'a>) -> Self {
        let available = AvailableNodes::of(&view, |at| view.nodes[at].is_free());
        let progress = view.requests.iter().map(|request| RequestProgress {
            unplaced: request.load.clone(),
            earmarked: Vec::new(),
            blocked_by: None,
            looked_at: (0, 0),
        });
        let mut pass = Self {
            tree,
            available,
            decisions: vec![Decision::Undecided; view.nodes.len()],
            reasons: vec![None; view.nodes.len()],
            groups: Vec::with_capacity(view.node_groups.len()),
            progress: progress.collect(),
            incoming: Incoming::default(),
            unmet_minimums: Vec::new(),
            enough: None,
            changes: 0,
            failed: FailedRequests::default(),
            starved_gang: None,
            replan_at: None,
            health: None,
            searched: BTreeSet::new(),
            searched_share: None,
            reachable: None,
            victims: None,
            waiting_priorities: Vec::new(),
            unused: HashMap::new(),
            sharing: HashMap::new(),
            shared_pauses: HashMap::new(),
            kept_by_pods: BTreeSet::new(),
            awaited: vec![false; view.nodes.len()],
            lacking: Vec::new(),
            offered: BTreeSet::new(),
            first_gang: None,
            left_unused: HashMap::new(),
            waiting_for_too_long: BTreeSet::new(),
            late_priorities: HashMap::new(),
            leaves_most_unused: HashMap::new(),
            view,
        };
        pass.count_held_nodes();
        pass.recall_unused_nodes();
        pass.list_incoming();
        pass
    }

    /// When an idle node will have exceeded its idle timeout and its minimum hold duration.
    pub fn idle_until(&self, node: usize) -> Option<Seconds> {
        let node = &self.view.nodes[node];
        let (since, owner) = (node.object.idle_since?, node.owner()?);
        Some((since + self.view.pool.idle_timeout).max(owner.since + self.view.pool.min_hold_duration))
    }

    /// Whether a node has been idle for so long that it may be released.
    pub fn is_idle_too_long(&self, node: usize) -> bool {
        self.view.nodes[node].is_serving() && self.idle_until(node).is_some_and(|until| until <= self.view.now)
    }

    /// Asks for the next plan at `time` at the latest.
    pub fn replan_by(&mut self, time: Seconds) {
        if time > self.view.now {
            self.replan_at = Some(self.replan_at.map_or(time, |other| other.min(time)));
        }
    }

    /// Takes a node from the group that it belongs to.
    pub fn release(&mut self, node: usize, drain_at: Seconds, reason: ActionReason) {
        self.changes += 1;
        let gpus = self.view.gpus(node);
        if let Some(group) = self.view.nodes[node].group {
            self.remove_staying(group, gpus);
            self.remove_free_capacity(group, node);
            self.tree.add_leaving(self.view.node_groups[group].tenant, gpus);
            self.remove_victim(group, node);
        }
        self.decisions[node] = Decision::Release { drain_at };
        self.reasons[node] = Some(reason);
        if self.incoming.contains(node) {
            self.add_incoming(node);
        }
    }

    /// Frees a reserved node that has not joined yet.
    pub fn cancel_reservation(&mut self, node: usize, reason: ActionReason) {
        self.changes += 1;
        let gpus = self.view.gpus(node);
        if let Some(group) = self.view.nodes[node].group {
            self.remove_staying(group, gpus);
            self.groups[group].held -= 1;
            self.remove_free_capacity(group, node);
        }
        self.decisions[node] = Decision::CancelReservation;
        self.reasons[node] = Some(reason);
    }

    /// Leaves a cordoned node to its group.
    pub fn cancel_release(&mut self, node: usize, reason: ActionReason) {
        let Some(group) = self.view.nodes[node].group else {
            return;
        };
        let (gpus, tenant) = (self.view.gpus(node), self.view.node_groups[group].tenant);
        self.changes += 1;
        self.tree.remove_leaving(tenant, gpus);
        self.add_staying(group, gpus);
        let state = &mut self.groups[group];
        state.cordoned.retain(|other| *other != node);
        state.domains.insert(self.view.nodes[node].domain);
        self.incoming.remove(node);
        self.decisions[node] = Decision::CancelRelease;
        self.reasons[node] = Some(reason);
    }

    /// Reserves a free node for a group.
    pub fn reserve(&mut self, node: usize, group: usize, together: bool, reason: ActionReason) {
        self.changes += 1;
        let (kind, domain) = (self.view.nodes[node].kind, self.view.nodes[node].domain);
        let gpus = self.view.gpus(node);
        self.available.remove(node, kind, domain, gpus);
        self.add_staying(group, gpus);
        let state = &mut self.groups[group];
        state.held += 1;
        if domain < self.view.domains.len() {
            state.domains.insert(domain);
        }
        self.decisions[node] = Decision::Reserve { together };
        self.reasons[node] = Some(reason);
        self.view.nodes[node].group = Some(group);
        self.view.node_groups[group].nodes.push(node);
    }

    /// Undoes a reservation of this plan.
    pub fn undo_reserve(&mut self, node: usize, group: usize) {
        self.changes += 1;
        let (kind, domain) = (self.view.nodes[node].kind, self.view.nodes[node].domain);
        let gpus = self.view.gpus(node);
        self.available.put_back(node, kind, domain, gpus);
        self.remove_staying(group, gpus);
        self.groups[group].held -= 1;
        self.decisions[node] = Decision::Undecided;
        self.reasons[node] = None;
        self.view.nodes[node].group = None;
        self.view.node_groups[group].nodes.retain(|other| *other != node);
    }

    /// Keeps a node that is free, or will be, for a request or the minimum of a group.
    pub fn earmark(&mut self, node: usize, group: usize) {
        self.changes += 1;
        let gpus = self.view.gpus(node);
        if self.view.nodes[node].is_free() {
            let (kind, domain) = (self.view.nodes[node].kind, self.view.nodes[node].domain);
            self.available.remove(node, kind, domain, gpus);
        } else {
            self.incoming.remove(node);
        }
        let tenant = self.view.node_groups[group].tenant;
        self.tree.add_used(tenant, gpus);
        if let Some(holder) = self.find_holder(node) {
            self.tree.add_moving(tenant, holder, gpus);
        }
        self.groups[group].earmarked += 1;
        if self.decisions[node] == Decision::Undecided {
            self.decisions[node] = Decision::Earmarked;
        }
    }

    /// Undoes [`Self::earmark`] for a free node.
    pub fn undo_earmark(&mut self, node: usize, group: usize) {
        self.changes += 1;
        let (kind, domain) = (self.view.nodes[node].kind, self.view.nodes[node].domain);
        let gpus = self.view.gpus(node);
        self.available.put_back(node, kind, domain, gpus);
        self.tree.remove_used(self.view.node_groups[group].tenant, gpus);
        self.groups[group].earmarked -= 1;
        self.decisions[node] = Decision::Undecided;
    }

    /// Whether a group may have `nodes` more nodes with `gpus` GPUs, wherever they come from.
    pub fn check_limits(&self, group: usize, nodes: usize, gpus: u64) -> Result<(), Blocked<'a>> {
        let of_group = &self.view.node_groups[group];
        let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
        if self.groups[group].held.saturating_add(nodes) > of_group.max_nodes() {
            return Err(Blocked::MaxNodes {
                max_nodes: of_group.spec.max_nodes,
            });
        }
        self.check_quota_limits(of_group.tenant, gpus)
    }

    /// Whether a tenant may have `gpus` more GPUs.
    pub fn check_quota_limits(&self, tenant: usize, gpus: u64) -> Result<(), Blocked<'a>> {
        if !self.tree.is_limited(tenant) {
            return Ok(());
        }
        if let Some(quota) = self.tree.missing_quota(tenant) {
            return Err(Blocked::MissingQuota(quota));
        }
        match self.tree.exceeded_limit(tenant, gpus) {
            Some(limit) => Err(Blocked::QuotaLimit(limit)),
            None => Ok(()),
        }
    }

    /// Whether a tenant may take `gpus` of the free GPUs and leave those that others do not lend.
    pub fn check_lending(&self, tenant: usize, gpus: u64) -> Result<(), Blocked<'a>> {
        if !self.tree.has_lending_limits() || self.tree.is_lent_within_nominal_quota(tenant, gpus, &[]) {
            return Ok(());
        }
        let not_lent = self.tree.gpus_not_lent_by_others(tenant);
        if gpus + not_lent > self.available.gpus {
            Err(Blocked::NotLent { gpus: not_lent })
        } else {
            Ok(())
        }
    }

    /// Whether a node is about to leave its group.
    pub fn is_leaving(&self, node: usize) -> bool {
        self.view.nodes[node].is_cordoned()
            || matches!(
                self.decisions[node],
                Decision::Release { .. } | Decision::CancelReservation
            )
    }

    /// Whether a node carries the labels that a request selects.
    pub fn matches(&self, request: usize, node: usize) -> bool {
        self.is_of_kind(request, self.view.nodes[node].kind)
    }

    /// Whether nodes of a kind carry the labels that a request selects.
    pub fn is_of_kind(&self, request: usize, kind: usize) -> bool {
        self.view.kinds[kind].matches[self.view.requests[request].selector]
    }

    /// Whether a node shows the capacity of the nodes of this pool.
    pub fn knows_a_node(&self) -> bool {
        self.view.nodes.iter().any(|node| !node.object.starting)
    }

    /// The minimum number of nodes that a load takes.
    pub fn count_nodes_for(&self, request: usize, load: &Load) -> u32 {
        let selector = self.view.requests[request].selector;
        let kinds = self.view.kinds.iter().filter(|kind| kind.matches[selector]);
        kinds
            .filter_map(|kind| load.nodes_of(&kind.capacity))
            .min()
            .unwrap_or(u32::from(!load.is_empty()))
    }

    /// Counts for each of `nodes` how many of them are in its domain.
    pub fn count_neighbours(&self, nodes: &[usize]) -> impl Fn(usize) -> u32 + use<> {
        let domain_of: HashMap<usize, usize> = nodes.iter().map(|at| (*at, self.view.nodes[*at].domain)).collect();
        let mut count = vec![0; self.view.domains.len() + 1];
        for domain in domain_of.values() {
            count[*domain] += 1;
        }
        move |at| domain_of.get(&at).map_or(0, |domain| count[*domain])
    }
}
