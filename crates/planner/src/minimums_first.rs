//! Nodes that a request would reclaim although a minimum waits that comes first and gets them.
//!
//! Demand that is owed nodes reclaims them in any case, also for the minimum: otherwise the tenant of the minimum alone would decide whether others get what
//! they are owed. Demand that is only more important, or has less than its fair share, stops no work of others for a minimum that still lacks nodes then.

use crate::Topology;
use crate::pass::PlanningPass;

impl PlanningPass<'_> {
    /// Whether minimums that wait would get some of the nodes that a request reclaims by its priority or for its fair share, and would still lack others, or
    /// leave the request without. Nobody would use the nodes until a minimum has all of its own.
    pub fn is_stopped_by_minimums(&mut self, request: usize, nodes: &[usize]) -> bool {
        if self.unmet_minimums.is_empty() {
            return false;
        }
        let taken: Vec<usize> = nodes
            .iter()
            .copied()
            .filter(|at| self.is_taken_unowed(request, *at))
            .collect();
        taken.iter().any(|at| self.find_minimum_for(*at).is_some()) && !self.leaves_enough(request, &taken)
    }

    /// Whether a request takes a node from another tenant, and is not owed it.
    fn is_taken_unowed(&self, request: usize, node: usize) -> bool {
        let gpus = self.view.gpus(node);
        let is_taken = self.view.nodes[node].is_serving() && self.stays(node) && !self.incoming.contains(node);
        is_taken && !self.may_reclaim_as_owed(self.view.tenant_of(request), node, gpus, gpus)
    }

    /// Whether a request may reclaim all that the minimums which wait lack, and as many nodes as these besides. For a gang in one domain they must all be
    /// there: those of other domains may be too few for it once the minimums have some of them.
    fn leaves_enough(&mut self, request: usize, nodes: &[usize]) -> bool {
        let lacking = self.unmet_minimums.iter();
        let waiting: Vec<usize> = lacking
            .flat_map(|(group, missing)| std::iter::repeat_n(self.view.node_groups[*group].tenant, *missing))
            .collect();
        let wanted = waiting.len() + nodes.len();
        let gpus = nodes.iter().map(|at| self.view.gpus(*at)).sum();
        let in_one_domain = self.view.requests[request].demand.topology == Topology::SingleDomain;
        let domain = nodes.first().map(|at| self.view.nodes[*at].domain);
        let domain = domain.filter(|_| in_one_domain);
        let listed = self.victims.iter();
        let mut listed: Vec<usize> = listed
            .flat_map(|victims| victims.of_group.iter().flatten().copied())
            .collect();
        listed.retain(|at| domain.is_none_or(|domain| self.view.nodes[*at].domain == domain));
        let mut taken: Vec<(usize, Option<usize>)> = Vec::new();
        for at in listed {
            if taken.len() == wanted {
                break;
            }
            if !self.may_take(request, at, gpus) {
                continue;
            }
            // What a minimum gets counts for its tenant, which may be of the same Project.
            let minimum = waiting.get(taken.len()).copied();
            self.assume_released(at);
            if let Some(tenant) = minimum {
                self.tree.add_used(tenant, self.view.gpus(at));
            }
            taken.push((at, minimum));
        }
        for (at, minimum) in taken.iter().rev() {
            if let Some(tenant) = minimum {
                self.tree.remove_used(*tenant, self.view.gpus(*at));
            }
            self.undo_assumption(*at);
        }
        taken.len() == wanted
    }

    /// Whether a request that gets `gpus` more GPUs may reclaim a node on which one of its pods fits.
    fn may_take(&self, request: usize, node: usize, gpus: u64) -> bool {
        let fits = self.progress[request].unplaced.any_fits(self.view.capacity(node));
        self.stays(node)
            && fits
            && self.matches(request, node)
            && self.may_reclaim(request, node, gpus, self.view.gpus(node))
    }
}
