//! Nodes that will be free and that are not kept for a request: being recycled, cordoned, or idle for too long.
//!
//! Which requests may count on a node depends on its kind and on where it comes from. So requests look at these instead of single nodes:
//! a fleet may have thousands of idle nodes, and many of them are of use for none.

use crate::Seconds;
use crate::pass::{Decision, PlanningPass};
use crate::stage::Stage;
use std::collections::{BTreeMap, BTreeSet};

/// When a node comes. The smallest comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Arrival {
    /// Pods keep it that do not use it, and it comes only if other tenants lack it.
    pub is_offered: bool,
    /// When its recycling begins; `None`: it has begun. From when on it is idle for too long, if it is offered.
    pub time: Option<Seconds>,
    pub node: usize,
}

/// Where nodes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Source {
    /// The node group that has them.
    pub group: Option<usize>,
    /// Whether they are idle for too long, and released only if a request counts on them.
    pub is_idle: bool,
}

/// A node that will be free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub kind: usize,
    pub source: Source,
    pub arrival: Arrival,
}

/// Nodes that will be free and that are not kept for a request.
#[derive(Default)]
pub(crate) struct Incoming {
    by_kind: BTreeMap<usize, BTreeMap<Source, BTreeSet<Arrival>>>,
    /// By node.
    known: Vec<Option<Entry>>,
    count: usize,
}

impl Incoming {
    /// Whether no node will be free.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether a node is among them.
    pub fn contains(&self, node: usize) -> bool {
        self.known.get(node).is_some_and(Option::is_some)
    }

    /// Adds a node, or changes what is known of it.
    pub fn insert(&mut self, entry: Entry) {
        self.remove(entry.arrival.node);
        let node = entry.arrival.node;
        if node >= self.known.len() {
            self.known.resize(node + 1, None);
        }
        self.known[node] = Some(entry);
        self.count += 1;
        let of_kind = self.by_kind.entry(entry.kind).or_default();
        of_kind.entry(entry.source).or_default().insert(entry.arrival);
    }

    /// Removes a node. Returns what [`Self::insert`] needs to add it again.
    pub fn remove(&mut self, node: usize) -> Option<Entry> {
        let entry = self.known.get_mut(node)?.take()?;
        self.count -= 1;
        if let Some(of_kind) = self.by_kind.get_mut(&entry.kind) {
            if let Some(arrivals) = of_kind.get_mut(&entry.source) {
                arrivals.remove(&entry.arrival);
                if arrivals.is_empty() {
                    of_kind.remove(&entry.source);
                }
            }
            if of_kind.is_empty() {
                self.by_kind.remove(&entry.kind);
            }
        }
        Some(entry)
    }

    /// The nodes of some kinds and sources, by source.
    fn select(
        &self,
        is_kind: impl Fn(usize) -> bool,
        is_source: impl Fn(Source) -> bool,
    ) -> impl Iterator<Item = &BTreeSet<Arrival>> {
        let kinds = self.by_kind.iter().filter(move |(kind, _)| is_kind(**kind));
        let sources = kinds.flat_map(|(_, of_kind)| of_kind);
        let selected = sources.filter(move |(source, _)| is_source(**source));
        selected.map(|(_, arrivals)| arrivals)
    }

    /// The first node of some kinds and sources.
    pub fn find_first(&self, is_kind: impl Fn(usize) -> bool, is_source: impl Fn(Source) -> bool) -> Option<usize> {
        let arrivals = self.select(is_kind, is_source).filter_map(BTreeSet::first);
        arrivals.min().map(|arrival| arrival.node)
    }

    /// The nodes of some kinds and sources, in the order in which they come.
    pub fn list(&self, is_kind: impl Fn(usize) -> bool, is_source: impl Fn(Source) -> bool) -> Vec<usize> {
        let mut arrivals: Vec<&Arrival> = self.select(is_kind, is_source).flatten().collect();
        arrivals.sort_unstable();
        arrivals.into_iter().map(|arrival| arrival.node).collect()
    }

    /// All nodes, in the order in which they come.
    pub fn list_all(&self) -> Vec<usize> {
        self.list(|_| true, |_| true)
    }

    /// The number of nodes that come whether or not a request counts on them.
    pub fn count_certain(&self) -> usize {
        let certain = self.select(|_| true, |source| !source.is_idle);
        certain.map(BTreeSet::len).sum()
    }
}

impl PlanningPass<'_> {
    /// Lists the nodes that will be free, before anything is decided.
    pub fn list_incoming(&mut self) {
        for at in 0..self.view.nodes.len() {
            let node = &self.view.nodes[at];
            let is_recycling = node.is_recycling() && !self.is_broken(at);
            if is_recycling || node.is_cordoned() || self.is_idle_too_long(at) {
                self.add_incoming(at);
            }
        }
    }

    /// When the recycling of an incoming node begins; `None`: it has begun. The result is the same before and after the node is
    /// released.
    fn release_time(&self, node: usize) -> Option<Seconds> {
        match self.decisions[node] {
            Decision::Release { drain_at } => Some(drain_at),
            Decision::CancelReservation => None,
            _ => self.view.nodes[node]
                .cordoned_until()
                .or_else(|| self.is_idle_too_long(node).then_some(self.view.now)),
        }
    }

    /// Adds a node to the incoming ones, or sorts it in again after it was released.
    pub fn add_incoming(&mut self, node: usize) {
        let (kind, group) = (self.view.nodes[node].kind, self.view.nodes[node].group);
        let is_undecided = self.decisions[node] == Decision::Undecided;
        self.incoming.insert(Entry {
            kind,
            source: Source {
                group,
                is_idle: is_undecided && group.is_some() && self.is_idle_too_long(node),
            },
            arrival: Arrival {
                is_offered: false,
                time: self.release_time(node),
                node,
            },
        });
    }

    /// The first incoming node of some sources on which a pod of a request fits. A request does not wait for a node that its own group releases.
    fn find_incoming(&self, request: usize, is_source: impl Fn(Source) -> bool) -> Option<usize> {
        let group = self.view.requests[request].group;
        let unplaced = &self.progress[request].unplaced;
        let fits = |kind: usize| self.is_of_kind(request, kind) && unplaced.any_fits(&self.view.kinds[kind].capacity);
        self.incoming.find_first(fits, |source| {
            is_source(source) && self.may_count_on_source(source, group)
        })
    }

    /// The incoming node that a request waits for in a stage: the first one on which a pod fits. If that is beyond the nominal quotas that are served, one that a tenant of
    /// the same quota loses: the pods of that tenant may take it back within the quota.
    pub fn find_incoming_in_stage(&self, request: usize, stage: Stage) -> Option<usize> {
        let first = self.find_incoming(request, |_| true)?;
        let tenant = self.view.tenant_of(request);
        let is_in_stage = |at: usize| self.may_get_in_stage(tenant, stage, self.view.gpus(at), &[at]);
        let depth = stage.quota_depth.filter(|_| !is_in_stage(first));
        let Some(depth) = depth.filter(|_| self.is_in_stage(tenant, stage, 0)) else {
            return Some(first);
        };
        let least = self.view.smallest_node_gpus;
        let is_of_quota = |holder: usize| {
            let moved = [(self.view.node_groups[holder].tenant, least)];
            self.tree.is_within_nominal_quota_after(tenant, depth, least, &moved)
        };
        let other = self.find_incoming(request, |source| {
            !source.is_idle && source.group.is_some_and(is_of_quota)
        });
        other.filter(|at| is_in_stage(*at)).or(Some(first))
    }

    /// Whether a group may count on incoming nodes from there. Those of its own group are left out.
    pub fn may_count_on_source(&self, source: Source, group: usize) -> bool {
        source
            .group
            .is_none_or(|holder| holder != group && (!source.is_idle || self.has_spare_nodes(holder)))
    }

    /// Whether a group may count on an incoming node. An idle node is not released if its own group needs it for its minimum, which
    /// counts those that were taken before it in the same search. One that is offered goes to other tenants: its own has left it unused.
    pub fn may_count_on(&self, node: usize, group: usize) -> bool {
        let Some(holder) = self.view.nodes[node].group.filter(|_| self.is_idle_too_long(node)) else {
            return true;
        };
        match self.decisions[node] {
            Decision::Undecided => holder != group && self.has_spare_nodes(holder),
            Decision::Needed => {
                let tenant_of = |group: usize| self.view.node_groups[group].tenant;
                self.offered.contains(&node) && tenant_of(holder) != tenant_of(group) && self.has_spare_nodes(holder)
            }
            decision => matches!(decision, Decision::Release { .. }),
        }
    }

    /// Whether a group has nodes beyond its minimum.
    pub fn has_spare_nodes(&self, group: usize) -> bool {
        self.groups[group].staying > self.view.node_groups[group].spec.min_nodes
    }
}

#[cfg(test)]
#[path = "incoming_tests.rs"]
mod tests;
