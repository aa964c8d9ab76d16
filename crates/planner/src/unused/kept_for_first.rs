//! Nodes that are due and that nobody else gets: they would be kept for a gang that waits first, as soon as they are free.

use crate::Topology;
use crate::pass::PlanningPass;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

impl PlanningPass<'_> {
    /// Whether a node would be kept for the first gang once it is free. Of nodes that are alike one is tried.
    pub fn is_kept_for_first(&mut self, node: usize) -> bool {
        let Some(first) = &self.first_gang else { return false };
        let (domain, kind) = (self.view.nodes[node].domain, self.view.nodes[node].kind);
        let kept = self.progress[first.gang].earmarked.first();
        let alike = (kind, kept.is_none_or(|kept| node < *kept));
        let known = first.known.get(&domain).and_then(|known| known.get(&alike));
        if let Some(known) = known {
            return *known;
        }
        let is_kept = self.are_kept_for_first(&[node]);
        if let Some(first) = &mut self.first_gang {
            first.known.entry(domain).or_default().insert(alike, is_kept);
        }
        is_kept
    }

    /// Whether one of `nodes` would be kept for the first gang once they are free, together with those of their domains that others get.
    pub fn are_kept_for_first(&mut self, nodes: &[usize]) -> bool {
        let Some(first) = &self.first_gang else { return false };
        let gang = first.gang;
        if self.view.requests[gang].demand.topology == Topology::Any {
            // Others that come change nothing.
            let unplaced = &self.progress[gang].unplaced;
            let is_kept = |at: &usize| self.matches(gang, *at) && unplaced.any_fits(self.view.capacity(*at));
            return nodes.iter().any(is_kept);
        }
        let domains: BTreeSet<usize> = nodes.iter().map(|at| self.view.nodes[*at].domain).collect();
        let due = domains.iter().filter_map(|domain| first.due.get(domain)).flatten();
        let given = due.filter(|at| !self.offered.contains(at));
        let coming: BTreeSet<usize> = nodes.iter().chain(given).copied().collect();
        let mut by_domain: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for at in coming {
            by_domain.entry(self.view.nodes[at].domain).or_default().push(at);
        }
        let mut by_domain = by_domain.into_iter();
        by_domain.any(|(domain, nodes)| self.would_keep_any(domain, gang, &nodes))
    }

    /// Notes that others get nodes in the domains of these.
    pub fn note_given(&mut self, nodes: &[usize]) {
        if let Some(first) = &mut self.first_gang {
            for at in nodes {
                first.known.remove(&self.view.nodes[*at].domain);
            }
        }
    }

    /// Whether one of `nodes`, which are in one domain, would be kept for a gang for which nodes are kept already, if they were free.
    fn would_keep_any(&mut self, domain: usize, gang: usize, nodes: &[usize]) -> bool {
        if !self.is_large_enough(domain, gang) {
            return false;
        }
        let kept = self.progress[gang].earmarked.clone();
        let is_here = kept
            .first()
            .is_some_and(|first| self.view.nodes[*first].domain == domain);
        // Those that are kept in another domain change nothing here.
        let unplaced = is_here.then(|| self.stop_keeping_nodes(gang).1);
        for at in nodes {
            let node = &self.view.nodes[*at];
            self.available.put_back(*at, node.kind, node.domain, node.gpus);
        }
        let (load, selector) = (&self.view.requests[gang].load, self.view.requests[gang].selector);
        let (free, _) = self.available.find_in_domain(domain, load, selector, &self.view.kinds);
        for at in nodes {
            let node = &self.view.nodes[*at];
            self.available.remove(*at, node.kind, node.domain, node.gpus);
        }
        let is_promising =
            kept.is_empty() || is_here || (free.len(), Reverse(free.first())) > (kept.len(), Reverse(kept.first()));
        if let Some(unplaced) = unplaced {
            self.keep_nodes(gang, kept, unplaced);
        }
        is_promising && nodes.iter().any(|at| free.contains(at))
    }
}
