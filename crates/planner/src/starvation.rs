//! A gang that has waited long enough is no longer overtaken: free nodes are kept for it.

use crate::available::AvailableNodes;
use crate::load::Load;
use crate::pass::PlanningPass;
use crate::placement::Placement;
use crate::{Seconds, Topology};
use std::cmp::Reverse;

/// Starvation limit of a pool that does not set one.
const DEFAULT_STARVATION_LIMIT: Seconds = 600;

impl PlanningPass<'_> {
    /// Keeps nodes, as they become free, for a gang that is next and has reached the starvation limit, until it can have all its
    /// nodes. For one gang at a time, so that the pool does not stand still.
    pub fn keep_nodes_for_starved_gang(&mut self, request: usize, placement: Placement) {
        let since = self.view.requests[request].demand.waiting_since;
        let from = since + self.view.pool.starvation_limit.unwrap_or(DEFAULT_STARVATION_LIMIT);
        if from > self.view.now {
            self.replan_by(from);
            return;
        }
        if self.keeps_nodes_for_gang || !self.is_reachable(request) {
            return;
        }
        self.keeps_nodes_for_gang = true;
        let group = self.view.requests[request].group;
        let (free, unplaced) = match self.view.requests[request].demand.topology {
            Topology::Any => (placement.free, placement.unplaced),
            Topology::SingleDomain => self.find_most_promising_domain(request),
        };
        self.progress[request].unplaced = unplaced;
        // Nodes that the gang's group has already are not kept for it: they are released at the idle timeout.
        for node in free {
            self.earmark(node, group);
            self.progress[request].earmarked.push(node);
        }
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
        let large = |domain: &usize| {
            let reachable = self.reachable.as_ref();
            reachable.is_some_and(|reachable| reachable.find_in_domain(*domain, load, selector, kinds).1.is_empty())
        };
        let large = (0..self.view.domains.len()).filter(large);
        let found = large.map(|domain| self.available.find_in_domain(domain, load, selector, kinds));
        let most = found.max_by_key(|(nodes, _)| (nodes.len(), Reverse(nodes.first().copied())));
        most.unwrap_or_else(|| (Vec::new(), load.clone()))
    }

    /// Lists the nodes that a request can count on: free ones, those being recycled, and those beyond the minimums of groups.
    fn list_reachable(&mut self) {
        if self.reachable.is_some() {
            return;
        }
        let view = &self.view;
        let mut beyond_minimum = vec![true; view.nodes.len()];
        for group in &view.node_groups {
            for at in group.nodes.iter().take(group.spec.min_nodes as usize) {
                beyond_minimum[*at] = false;
            }
        }
        self.reachable = Some(AvailableNodes::of(view, |at| {
            let node = &view.nodes[at];
            // A node that was reserved for a minimum by this plan counts as taken.
            let is_reachable = match node.group {
                Some(_) => beyond_minimum[at],
                None => node.is_free() || node.is_recycling(),
            };
            is_reachable && !node.object.unusable
        }));
    }
}
