//! Nodes that pods keep for too long without using them go to minimums and requests of others that lack them.
//!
//! Each is placed on exactly these nodes, as the next plan places it once they are released: by the labels, the amounts and the domain
//! that it needs, and within its limits and what others lend. So no node is released that nobody else would get: the pods that keep it
//! would get it again, after it was recycled for nothing. A gang gets nodes only if it can have all that it needs then.

use crate::Topology;
use crate::first_gang::FirstGang;
use crate::incoming::{Arrival, Entry, Source};
use crate::pass::{Blocked, PlanningPass};
use crate::stage::Stage;
use std::collections::BTreeSet;

impl PlanningPass<'_> {
    /// Releases those of the nodes `due` that others lack. `due`: the first to be released first.
    pub fn give_to_others(&mut self, due: &[usize]) {
        if due.is_empty() {
            return;
        }
        self.offered = due.iter().copied().collect();
        for at in due.iter().copied() {
            self.offer(at);
        }
        self.give_to_minimums(due);
        self.give_to_requests(due);
        for at in std::mem::take(&mut self.offered) {
            self.incoming.remove(at);
        }
    }

    /// Lets requests of other tenants count on a node, after those that come in any case.
    fn offer(&mut self, node: usize) {
        self.incoming.insert(Entry {
            kind: self.view.nodes[node].kind,
            source: Source {
                group: self.view.nodes[node].group,
                is_idle: true,
            },
            arrival: Arrival {
                is_offered: true,
                time: self.too_long_from(node),
                node,
            },
        });
    }

    /// Gives nodes to minimums that keep all nodes that come until they are met. What is left then is for none that waits.
    fn give_to_minimums(&mut self, due: &[usize]) {
        for at in due.iter().copied() {
            if let Some(minimum) = self.find_minimum_for(at) {
                self.release_as_idle(at);
                self.pass_to_minimum(minimum, at);
            }
        }
    }

    /// Gives nodes to requests that lack them. Requests of a tenant in a pause do not count: of two tenants whose pods
    /// never start, each would have nodes taken from the other.
    fn give_to_requests(&mut self, due: &[usize]) {
        let mut open: Vec<usize> = due.to_vec();
        open.retain(|at| self.offered.contains(at));
        let mut kinds = self.list_kinds(&open);
        for request in self.take_lacking() {
            let before = self.offered.len();
            if self.may_get_offered(request, &kinds) {
                let demand = self.view.requests[request].demand;
                if demand.gang || demand.topology == Topology::SingleDomain {
                    self.give_to_gang(request);
                } else {
                    self.give_to_pods(request, &open);
                }
            }
            let is_first = self.starved_gang == Some(request) && self.is_lacking(request);
            if is_first {
                self.first_gang = Some(FirstGang::new(request, due, &self.view));
            }
            if is_first || self.offered.len() < before {
                open.retain(|at| self.offered.contains(at) && !self.is_kept_for_first(*at));
                kinds = self.list_kinds(&open);
            }
        }
        self.first_gang = None;
    }

    /// The requests that lack nodes, in the order in which the next plan serves them: those of tenants in a pause last, and those within a
    /// nominal quota first. This plan noted them after all quotas.
    fn take_lacking(&mut self) -> Vec<usize> {
        let mut lacking = std::mem::take(&mut self.lacking);
        let depths: Vec<usize> = self.tree.nominal_quota_depths().collect();
        let least = self.view.smallest_node_gpus;
        lacking.sort_by_cached_key(|request| {
            let nodes = if self.view.requests[*request].demand.gang {
                self.count_nodes_for(*request, &self.progress[*request].unplaced)
            } else {
                1
            };
            let (tenant, gpus) = (self.view.tenant_of(*request), least * u64::from(nodes));
            let within = |depth: &usize| self.tree.is_within_nominal_quota_at(tenant, *depth, gpus);
            let depth = depths.iter().position(within).unwrap_or(depths.len());
            (self.find_pause(tenant).is_some(), depth)
        });
        lacking
    }

    /// Whether a request waits because it lacks nodes, and some of these kinds would help.
    fn may_get_offered(&self, request: usize, kinds: &BTreeSet<usize>) -> bool {
        let spec = &self.view.requests[request];
        let mut kinds = kinds.iter().map(|kind| &self.view.kinds[*kind]);
        kinds.any(|kind| kind.matches[spec.selector] && spec.load.any_fits(&kind.capacity))
            && self.is_lacking(request)
            && self.find_pause(self.view.tenant_of(request)).is_none()
    }

    /// Whether a request waits because no node is free, or because others do not lend those that are: with one more they may.
    fn is_lacking(&self, request: usize) -> bool {
        let blocked = self.progress[request].blocked_by.as_ref();
        blocked.is_some_and(|blocked| matches!(blocked, Blocked::NoFreeNodes | Blocked::NotLent { .. }))
    }

    fn list_kinds(&self, nodes: &[usize]) -> BTreeSet<usize> {
        nodes.iter().map(|at| self.view.nodes[*at].kind).collect()
    }

    /// Gives nodes to pods. `open`: those that are not kept for a gang before them.
    fn give_to_pods(&mut self, request: usize, open: &[usize]) {
        let (group, tenant) = (self.view.requests[request].group, self.view.tenant_of(request));
        // A limit that forbids a node may allow a smaller one, or one of another tenant.
        let mut refused: BTreeSet<(u64, Option<usize>)> = BTreeSet::new();
        for at in open.iter().copied() {
            if self.progress[request].unplaced.is_empty() {
                break;
            }
            let (gpus, holder) = (self.view.gpus(at), self.view.nodes[at].group);
            let alike = (gpus, holder.map(|holder| self.view.node_groups[holder].tenant));
            let helps = !refused.contains(&alike)
                && self.matches(request, at)
                && self.progress[request].unplaced.any_fits(self.view.capacity(at))
                && self.may_count_on(at, group);
            if !helps || self.is_kept_for_first(at) {
                continue;
            }
            let limits = self.check_limits(group, 1 + self.groups[group].earmarked, gpus);
            if matches!(limits, Err(Blocked::MaxNodes { .. } | Blocked::MissingQuota(_))) {
                break;
            }
            if limits.is_err() || !self.is_lent_later(tenant, &[], &[at]) {
                refused.insert(alike);
                continue;
            }
            self.take_from_group(at, request, gpus);
            self.wait_for_node(request, at);
            self.note_given(&[at]);
        }
        if self.progress[request].unplaced.is_empty() {
            self.progress[request].blocked_by = Some(Blocked::NodesComing);
        }
    }

    /// Gives a gang all nodes that it needs, those included that are free or come in any case; or none.
    fn give_to_gang(&mut self, request: usize) {
        let stage = Stage {
            quota_depth: None,
            priority: self.view.requests[request].demand.priority,
        };
        let (kept, unplaced) = self.stop_keeping_nodes(request);
        let now = self.place_gang(request);
        let hidden = self.hide_kept_for_first(request);
        let found = self.find_gang_nodes(request, stage, &now);
        for entry in hidden {
            self.incoming.insert(entry);
        }
        if let Some((placement, later)) = found {
            // The next plan serves minimums first.
            let is_for_minimum = later.iter().any(|at| self.find_minimum_for(*at).is_some());
            if !is_for_minimum && !self.are_kept_for_first(&later) {
                self.note_given(&placement.free);
                self.note_given(&later);
                self.wait_with(request, placement, later);
                return;
            }
        }
        self.keep_nodes(request, kept, unplaced);
    }

    /// Takes out incoming nodes that would be kept for the first gang once they are free. Returns what is needed to add them again.
    fn hide_kept_for_first(&mut self, request: usize) -> Vec<Entry> {
        if self.first_gang.is_none() {
            return Vec::new();
        }
        let group = self.view.requests[request].group;
        let is_other = |source: Source| source.group != Some(group);
        let mut kept = self.incoming.list(|kind| self.is_of_kind(request, kind), is_other);
        kept.retain(|at| self.is_kept_for_first(*at));
        kept.into_iter().filter_map(|at| self.incoming.remove(at)).collect()
    }

    /// Whether a tenant may take nodes that are `free`, and those that are free `later`, and leave those that others do not lend.
    pub fn is_lent_later(&mut self, tenant: usize, free: &[usize], later: &[usize]) -> bool {
        if !self.tree.has_lending_limits() {
            return true;
        }
        let sum = |nodes: &[usize]| nodes.iter().map(|at| self.view.gpus(*at)).sum::<u64>();
        let (free, coming) = (sum(free), sum(later));
        let is_held = |at: &usize| self.view.nodes[*at].is_serving() && self.stays(*at);
        let (held, leaving): (Vec<usize>, Vec<usize>) = later.iter().copied().partition(is_held);
        // What a tenant of the same quota loses counts there until it is gone.
        let holder_of = |at: usize| Some((self.find_holder(at)?, self.view.gpus(at)));
        let moved: Vec<(usize, u64)> = leaving.into_iter().filter_map(holder_of).collect();
        for node in &held {
            self.assume_released(*node);
        }
        let is_lent = self.tree.is_lent_within_nominal_quota(tenant, free + coming, &moved)
            || free + self.tree.gpus_not_lent_by_others(tenant) <= self.available.gpus;
        for node in held.iter().rev() {
            self.undo_assumption(*node);
        }
        is_lent
    }
}
