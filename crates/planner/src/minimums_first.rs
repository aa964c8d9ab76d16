//! Nodes that a request would reclaim although a minimum waits that comes first and gets them.
//!
//! Demand that is owed nodes reclaims them in any case, also for the minimum: otherwise the tenant of the minimum alone would decide whether others get what
//! they are owed. Demand that is only more important, or has less than its fair share, stops no work of others for a minimum that still lacks nodes then.

use crate::Topology;
use crate::pass::PlanningPass;
use crate::victims::Victims;
use std::collections::BTreeMap;

/// A request that may reclaim as many nodes as the minimums before it lack, and those that it takes itself.
#[derive(Clone, Copy)]
pub(crate) struct EnoughNodes {
    pub request: usize,
    /// GPUs that it gets.
    gpus: u64,
    /// How many of them are not reclaimed yet.
    left: usize,
}

/// A request that reclaims nodes which minimums would get.
struct Claim {
    request: usize,
    /// GPUs that the request gets.
    gpus: u64,
    /// The tenants of these minimums, and how many nodes each lacks.
    minimums: Vec<(usize, usize)>,
    /// How many nodes the minimum of the request's own group lacks, if its pods run there one by one: a gang needs all of its own besides.
    own: usize,
}

impl Claim {
    /// How many nodes the minimums lack, with `besides` more, or more if the request's own minimum lacks more.
    fn count_wanted(&self, besides: usize) -> usize {
        let lacking: usize = self.minimums.iter().map(|(_, missing)| missing).sum();
        lacking + besides.max(self.own)
    }
}

impl PlanningPass<'_> {
    /// Whether minimums that wait would get some of the nodes that a request reclaims by its priority or for its fair share, and would still lack others, or
    /// leave the request without. Nobody would use the nodes until a minimum has all of its own. `gpus`: what the request gets, with these nodes.
    pub fn is_stopped_by_minimums(&mut self, request: usize, nodes: &[usize], gpus: u64) -> bool {
        if self.unmet_minimums.is_empty() {
            return false;
        }
        let mut taken = nodes.to_vec();
        taken.retain(|at| self.is_taken_unowed(request, *at, gpus));
        let claim = self.list_minimums_for(request, &taken, gpus);
        if claim.minimums.is_empty() && claim.own == 0 {
            // The node is for the request itself: there is one less for the minimums.
            self.enough = None;
            return false;
        }
        let Some(victims) = self.victims.take() else {
            return false;
        };
        let is_enough = self.leaves_enough(&claim, &taken, &victims);
        self.victims = Some(victims);
        !is_enough
    }

    /// Whether a request that gets `gpus` takes a node from another tenant, and is not owed it.
    fn is_taken_unowed(&self, request: usize, node: usize, gpus: u64) -> bool {
        let is_taken = self.view.nodes[node].is_serving() && self.stays(node) && !self.incoming.contains(node);
        is_taken && !self.may_reclaim_as_owed(self.view.tenant_of(request), node, gpus, self.view.gpus(node))
    }

    /// The minimums that wait and may have some of these nodes. Others, of a tenant to which nobody lends nodes now, take none of them.
    fn list_minimums_for(&mut self, request: usize, nodes: &[usize], gpus: u64) -> Claim {
        let spec = &self.view.requests[request];
        let (of_request, demand) = (spec.group, spec.demand);
        let is_together = demand.gang || demand.topology == Topology::SingleDomain;
        let (mut minimums, mut own) = (Vec::with_capacity(self.unmet_minimums.len()), 0);
        for minimum in 0..self.unmet_minimums.len() {
            if !nodes.iter().any(|at| self.may_get(minimum, *at)) {
                continue;
            }
            let (group, missing) = self.unmet_minimums[minimum];
            if group == of_request && !is_together {
                // The pods need none besides, and the minimums after it are not in their way.
                own = missing;
                break;
            }
            minimums.push((self.view.node_groups[group].tenant, missing));
        }
        Claim {
            request,
            gpus,
            minimums,
            own,
        }
    }

    /// Whether a request may reclaim all that the minimums lack, and as many nodes besides as it takes. For pods that need one domain they must all be there:
    /// those of several domains may be too few in each of them once the minimums have some. It may be another domain, where all of the pods find room.
    fn leaves_enough(&mut self, claim: &Claim, taken: &[usize], victims: &Victims) -> bool {
        if self.view.requests[claim.request].demand.topology == Topology::Any {
            return self.leaves_enough_anywhere(claim, taken.len(), victims);
        }
        let here = taken.first().map(|at| self.view.nodes[*at].domain);
        let of_all = self.count_nodes_for(claim.request, &self.progress[claim.request].unplaced) as usize;
        let mut by_domain: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for at in victims.of_group.iter().flatten().copied() {
            let domain = self.view.nodes[at].domain;
            if domain < self.view.domains.len() {
                by_domain.entry(domain).or_default().push(at);
            }
        }
        by_domain.into_iter().any(|(domain, listed)| {
            let is_of_one_group = |a: &usize, b: &usize| self.view.nodes[*a].group == self.view.nodes[*b].group;
            let lists: Vec<&[usize]> = listed.chunk_by(is_of_one_group).collect();
            let besides = if here == Some(domain) { taken.len() } else { of_all };
            self.may_take(claim, &lists, besides)
        })
    }

    /// The same for pods of any domains, of which each step takes one node. It is decided before the first one, as long as each of them goes to a minimum: to
    /// look at all of them again in each step would take a time that grows with the square of what minimums lack.
    fn leaves_enough_anywhere(&mut self, claim: &Claim, besides: usize, victims: &Victims) -> bool {
        let wanted = claim.count_wanted(besides);
        let known = self.enough.take();
        let is_known = known
            .is_some_and(|known| known.request == claim.request && claim.gpus <= known.gpus && wanted <= known.left);
        let is_enough = is_known || {
            let lists: Vec<&[usize]> = victims.of_group.iter().map(Vec::as_slice).collect();
            self.may_take(claim, &lists, besides)
        };
        self.enough = is_enough.then_some(EnoughNodes {
            request: claim.request,
            gpus: claim.gpus,
            left: wanted.saturating_sub(1),
        });
        is_enough
    }

    /// Whether a request may reclaim what the minimums lack, and `besides` more nodes, or more if its own minimum lacks more. `lists`: the nodes of one
    /// group each, in the order in which they are taken.
    fn may_take(&mut self, claim: &Claim, lists: &[&[usize]], besides: usize) -> bool {
        let wanted = claim.count_wanted(besides);
        if lists.iter().copied().map(<[usize]>::len).sum::<usize>() < wanted {
            return false;
        }
        let saved = self.tree.save();
        let minimums = claim.minimums.iter();
        let mut waiting = minimums.flat_map(|(tenant, missing)| std::iter::repeat_n(*tenant, *missing));
        let mut taken: Vec<usize> = Vec::new();
        for list in lists {
            // Of the nodes that requests of the group do not count on, and of those that they do, which come after them.
            let mut is_over = [false; 2];
            for at in list.iter().copied() {
                if taken.len() == wanted {
                    break;
                }
                let part = usize::from(self.is_counted_on(at));
                if is_over[part] || !self.has_room(at, claim.request) {
                    continue;
                }
                if !self.may_reclaim(claim.request, at, claim.gpus, self.view.gpus(at)) {
                    // Those after it have work that is as important.
                    is_over[part] = self.view.nodes[at].is_in_use();
                    continue;
                }
                // What a minimum gets counts for its tenant, which may be of the same Project.
                self.assume_released(at);
                if let Some(tenant) = waiting.next() {
                    self.tree.add_used(tenant, self.view.gpus(at));
                }
                taken.push(at);
            }
        }
        self.undo_assumptions(&taken, saved);
        taken.len() == wanted
    }
}
