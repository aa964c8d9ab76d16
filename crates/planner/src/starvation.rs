//! A gang that has waited long enough is no longer overtaken: free nodes are kept for it. Not for ever: where others wait as well, a node that stands idle
//! for a gang does no work. The longer the gang has waited, the longer nodes are kept, so that it has all of them at one time in the end. In between they are for
//! others for a short time, not until they are used: there may be a node that no other request can use, and for which no other would be kept then.

use crate::available::AvailableNodes;
use crate::load::Load;
use crate::pass::PlanningPass;
use crate::placement::Placement;
use crate::{Seconds, Topology};
use std::cmp::Reverse;

/// Starvation limit of a pool that does not set one.
const DEFAULT_STARVATION_LIMIT: Seconds = 600;
/// For how long free nodes are kept for a gang at least.
const LEAST_KEEPING_TIME: Seconds = 600;
/// Free nodes are kept for a gang for this part of the time that it has waited by then, if that is longer: a tenth.
const PART_OF_WAIT: Seconds = 10;
/// For how long free nodes are for others after that. Those that are still free then are kept again. Enough for a plan to be made and carried out, also if an
/// action fails once.
const TIME_FOR_OTHERS: Seconds = 60;

/// Whether free nodes are kept for a gang now.
struct Turn {
    is_of_gang: bool,
    /// When that changes.
    until: Seconds,
}

impl PlanningPass<'_> {
    /// Keeps nodes, as they become free, for a gang that is next and has reached the starvation limit, until it can have all its
    /// nodes. For one gang at a time, so that the pool does not stand still. If one of them has been kept for too long, all are for others for a while. Those
    /// that are left then, and nodes that become free later, are kept again.
    pub fn keep_nodes_for_starved_gang(&mut self, request: usize, placement: Placement) {
        if !self.is_starved(request) || self.starved_gang.is_some() || !self.is_reachable(request) {
            return;
        }
        self.starved_gang = Some(request);
        let (free, unplaced) = match self.view.requests[request].demand.topology {
            Topology::Any => (placement.free, placement.unplaced),
            Topology::SingleDomain => self.find_most_promising_domain(request),
        };
        let (free, unplaced) = self.keep_to_lent(request, free, unplaced);
        if let Some(turn) = self.find_turn(request, &free) {
            self.replan_by(turn.until);
            // No other gang has its turn instead: it would keep the same nodes.
            if !turn.is_of_gang {
                return;
            }
        }
        // Nodes that the gang's group has already are not kept for it: they are released at the idle timeout.
        self.keep_nodes(request, free, unplaced);
    }

    /// Those of the free nodes for a gang that others lend, and its pods that do not fit there. The rest stays free for those who do not lend it: if it were kept
    /// for the gang, requests would no longer find it free, and would reclaim nodes that they do not need.
    fn keep_to_lent(&self, request: usize, mut free: Vec<usize>, unplaced: Load) -> (Vec<usize>, Load) {
        let tenant = self.view.tenant_of(request);
        let gpus = free.iter().map(|at| self.view.gpus(*at)).sum();
        if self.check_lending(tenant, gpus).is_ok() {
            return (free, unplaced);
        }
        let not_lent = self.tree.gpus_not_lent_by_others(tenant);
        let mut left = self.available.gpus.saturating_sub(not_lent);
        free.retain(|at| {
            let is_lent = self.view.gpus(*at) <= left;
            if is_lent {
                left -= self.view.gpus(*at);
            }
            is_lent
        });
        let mut unplaced = self.view.requests[request].load.clone();
        for at in &free {
            unplaced.place(&mut self.view.capacity(*at).to_vec());
        }
        (free, unplaced)
    }

    /// Whether these free nodes are kept for a gang now, or are for others. None: they are kept until it starts. It is not known since when they are free, or an
    /// autoscaler may add those that it lacks: they do not come all at once, and what others could use is requested for these as well.
    fn find_turn(&self, request: usize, free: &[usize]) -> Option<Turn> {
        if self.may_be_extended_for(request) {
            return None;
        }
        let (now, waiting_since) = (self.view.now, self.view.requests[request].demand.waiting_since);
        let free_since = free.iter().filter_map(|at| self.view.nodes[*at].object.free_since);
        // While nobody waited for it, it was kept from nobody.
        let mut from = free_since.min()?.max(self.starved_from(request));
        // They become longer, by a ninth each time from an hour and a half of waiting on: a year has fewer than a hundred.
        loop {
            let until = from + LEAST_KEEPING_TIME.max((from - waiting_since) / (PART_OF_WAIT - 1));
            if now < until {
                return Some(Turn {
                    is_of_gang: true,
                    until,
                });
            }
            from = until + TIME_FOR_OTHERS;
            if now < from {
                return Some(Turn {
                    is_of_gang: false,
                    until: from,
                });
            }
        }
    }

    /// Whether a gang has reached the starvation limit. Asks for the next plan at that time otherwise.
    pub fn is_starved(&mut self, request: usize) -> bool {
        let from = self.starved_from(request);
        self.replan_by(from);
        from <= self.view.now
    }

    /// Whether an autoscaler may add nodes for a gang.
    fn may_be_extended_for(&self, request: usize) -> bool {
        let limits = self.view.pool.scale_up.as_ref();
        let has_room = |max: u32| self.view.nodes.len() < max as usize;
        let is_extended = limits.is_some_and(|limits| limits.max_nodes.is_none_or(has_room));
        is_extended && !self.view.requests[request].demand.existing_nodes_only
    }

    /// When a gang reaches the starvation limit.
    fn starved_from(&self, request: usize) -> Seconds {
        let limit = self.view.pool.starvation_limit.unwrap_or(DEFAULT_STARVATION_LIMIT);
        self.view.requests[request].demand.waiting_since + limit
    }

    /// Keeps free nodes for a gang. `unplaced`: its pods that do not fit there.
    pub fn keep_nodes(&mut self, request: usize, free: Vec<usize>, unplaced: Load) {
        let group = self.view.requests[request].group;
        for node in &free {
            self.earmark(*node, group);
        }
        self.progress[request].earmarked = free;
        self.progress[request].unplaced = unplaced;
    }

    /// Keeps no nodes for a gang any more. Returns what [`Self::keep_nodes`] needs to keep the same again.
    pub fn stop_keeping_nodes(&mut self, request: usize) -> (Vec<usize>, Load) {
        let group = self.view.requests[request].group;
        let free = std::mem::take(&mut self.progress[request].earmarked);
        for node in &free {
            self.undo_earmark(*node, group);
        }
        let load = self.view.requests[request].load.clone();
        (free, std::mem::replace(&mut self.progress[request].unplaced, load))
    }

    /// Whether the pool has enough nodes for a gang once other tenants release the nodes that they have for requests.
    fn is_reachable(&mut self, request: usize) -> bool {
        self.list_reachable();
        let reachable = self.reachable.as_ref();
        reachable.is_some_and(|reachable| reachable.fits(request, &self.view))
    }

    /// The free nodes of the domain with the most of them, among the domains that are large enough for the gang.
    fn find_most_promising_domain(&self, request: usize) -> (Vec<usize>, Load) {
        let (load, selector, kinds) = (
            &self.view.requests[request].load,
            self.view.requests[request].selector,
            &self.view.kinds,
        );
        let large = (0..self.view.domains.len()).filter(|domain| self.is_large_enough(*domain, request));
        let found = large.map(|domain| self.available.find_in_domain(domain, load, selector, kinds));
        let most = found.max_by_key(|(nodes, _)| (nodes.len(), Reverse(nodes.first().copied())));
        most.unwrap_or_else(|| (Vec::new(), load.clone()))
    }

    /// Whether a gang fits in a domain once other tenants release the nodes there that they have for requests.
    pub fn is_large_enough(&self, domain: usize, gang: usize) -> bool {
        let (load, selector) = (&self.view.requests[gang].load, self.view.requests[gang].selector);
        let reachable = self.reachable.as_ref().filter(|_| domain < self.view.domains.len());
        reachable.is_some_and(|reachable| {
            let found = reachable.find_in_domain(domain, load, selector, &self.view.kinds);
            found.1.is_empty()
        })
    }

    /// Lists the nodes that a request can count on: free ones, those being recycled, and those beyond the minimums of groups.
    fn list_reachable(&mut self) {
        if self.reachable.is_some() {
            return;
        }
        let view = &self.view;
        let mut beyond_minimum = vec![true; view.nodes.len()];
        for group in view.node_groups.iter().filter(|group| group.spec.min_nodes > 0) {
            // Those that it loses first are not its minimum: otherwise others would be, once they are gone.
            let mut last_lost = group.nodes.clone();
            last_lost.sort_by_cached_key(|at| {
                let idle_from = self.too_long_from(*at);
                (self.is_leaving(*at), idle_from.is_some(), Reverse((idle_from, *at)))
            });
            for at in last_lost.iter().take(group.spec.min_nodes as usize) {
                beyond_minimum[*at] = false;
            }
        }
        self.reachable = Some(AvailableNodes::of(view, |at| {
            let node = &view.nodes[at];
            // A node that was reserved for a minimum by this plan counts as taken.
            let is_reachable = match node.group {
                Some(_) => beyond_minimum[at],
                None => node.is_free() || node.is_recycling() && !self.is_broken(at),
            };
            is_reachable && !node.object.unusable
        }));
    }
}
