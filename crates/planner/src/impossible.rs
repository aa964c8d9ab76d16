//! Requests that can never be served with the fleet as it is. They are rejected at once, so that they hold up no others.

use crate::available::AvailableNodes;
use crate::load::{Load, Part};
use crate::pass::{Blocked, PlanningPass};
use crate::view::View;
use crate::{Impossible, Topology};
use std::collections::BTreeMap;

/// All nodes of a pool, and which requests fit there.
#[derive(Default)]
struct AllNodes {
    /// Listed on first use.
    nodes: Option<AvailableNodes>,
    /// What is known, by the number of the selector, whether one domain is needed, and the pods. Many gangs have pods that are alike.
    known: BTreeMap<(usize, bool, Load), bool>,
}

impl AllNodes {
    /// Whether all pods of a request fit.
    fn fit(&mut self, request: usize, view: &View<'_>) -> bool {
        let spec = &view.requests[request];
        let single_domain = spec.demand.topology == Topology::SingleDomain;
        let known = self.known.entry((spec.selector, single_domain, spec.load.clone()));
        let nodes = self.nodes.get_or_insert_with(|| AvailableNodes::of(view, |_| true));
        let fit = *known.or_insert_with(|| nodes.fits(request, view));
        debug_assert_eq!(fit, nodes.fits(request, view), "pods that are alike fit on other nodes");
        fit
    }
}

impl PlanningPass<'_> {
    /// Rejects requests that cannot be served, however long they wait.
    pub fn reject_impossible_requests(&mut self) {
        let mut all_nodes = AllNodes::default();
        for request in 0..self.view.requests.len() {
            if let Some(impossible) = self.find_impossibility(request, &mut all_nodes) {
                self.progress[request].blocked_by = Some(Blocked::Impossible(impossible));
            }
        }
    }

    fn find_impossibility(&self, request: usize, all_nodes: &mut AllNodes) -> Option<Impossible> {
        let spec = &self.view.requests[request];
        let group = &self.view.node_groups[spec.group];
        if !self.knows_a_node() || spec.load.is_empty() {
            return None;
        }
        if spec.load.parts.iter().any(|part| !self.fits_some_node(request, part)) {
            return Some(Impossible::NoMatchingNode);
        }
        let single_domain = spec.demand.topology == Topology::SingleDomain;
        if !spec.demand.gang && !single_domain {
            return None;
        }
        if single_domain && self.view.domains.is_empty() {
            return Some(Impossible::NoTopologyDomains);
        }
        let needed = self.count_nodes_for(request, &spec.load);
        if needed > group.spec.max_nodes {
            return Some(Impossible::OverMaxNodes {
                needed,
                max_nodes: group.spec.max_nodes,
            });
        }
        let gpus = self.view.smallest_node_gpus * u64::from(needed);
        if let Some(limit) = self.tree.limit_below(group.tenant, gpus) {
            return Some(Impossible::OverQuota {
                gpus,
                quota: limit.quota.into(),
                limit: limit.gpus,
            });
        }
        if let Some(limits) = &self.view.pool.scale_up {
            // A pool that is too small now can grow.
            let max_nodes = limits.max_nodes.filter(|max| needed > *max)?;
            return Some(Impossible::OverPoolMaximum { needed, max_nodes });
        }
        (!all_nodes.fit(request, &self.view)).then_some(match spec.demand.topology {
            Topology::Any => Impossible::PoolTooSmall,
            Topology::SingleDomain => Impossible::DomainTooSmall,
        })
    }

    fn fits_some_node(&self, request: usize, part: &Part) -> bool {
        let selector = self.view.requests[request].selector;
        let mut matching = self.view.kinds.iter().filter(|kind| kind.matches[selector]);
        matching.any(|kind| part.fit_on(&kind.capacity) > 0)
    }
}
