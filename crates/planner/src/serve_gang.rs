//! Serving a gang: it gets all the nodes that it needs, or none.

use crate::load::Load;
use crate::pass::{Blocked, PlanningPass};
use crate::placement::Placement;
use crate::stage::{Outcome, Stage};
use crate::{ActionReason, Topology};

impl<'a> PlanningPass<'a> {
    /// Gives a gang all its nodes if the stage and the limits allow it. Otherwise it waits for nodes, or comes again in a later stage: without a search if
    /// its tenant may have nothing in this one.
    pub fn serve_gang(&mut self, request: usize, stage: Stage) -> Outcome {
        if self.is_in_stage(self.view.tenant_of(request), stage, 0) {
            return self.search_for_gang(request, stage);
        }
        if cfg!(debug_assertions) {
            let changes = self.changes;
            let outcome = self.search_for_gang(request, stage);
            assert_eq!(
                (outcome, self.changes),
                (Outcome::NotNow, changes),
                "a search finds something"
            );
        }
        Outcome::NotNow
    }

    fn search_for_gang(&mut self, request: usize, stage: Stage) -> Outcome {
        let (group, tenant) = (self.view.requests[request].group, self.view.tenant_of(request));
        let placement = self.place_gang(request);
        let blocked = if placement.unplaced.is_empty() {
            let gpus: u64 = placement.free.iter().map(|at| self.view.gpus(*at)).sum();
            if !self.is_in_stage(tenant, stage, gpus) {
                return Outcome::NotNow;
            }
            let allowed = self.check_limits(group, placement.free.len(), gpus);
            match allowed.and_then(|()| self.check_lending(tenant, gpus)) {
                Ok(()) => {
                    self.reserve_for_gang(request, placement);
                    return Outcome::Finished;
                }
                Err(blocked) => blocked,
            }
        } else {
            self.check_limits_of_rest(request, &placement)
        };
        if matches!(blocked, Blocked::NoFreeNodes | Blocked::NotLent { .. }) {
            if let Some(outcome) = self.wait_for_gang_nodes(request, stage, &placement) {
                return outcome;
            }
            if stage.quota_depth.is_none() && blocked == Blocked::NoFreeNodes {
                self.keep_nodes_for_starved_gang(request, placement);
            }
        }
        if stage.quota_depth.is_some() {
            Outcome::NotNow
        } else {
            self.block(request, blocked)
        }
    }

    /// Why a gang whose placement is incomplete waits: a limit would forbid the rest, or there is no node for it.
    fn check_limits_of_rest(&self, request: usize, placement: &Placement) -> Blocked<'a> {
        let missing = self.count_nodes_for(request, &placement.unplaced);
        let found: u64 = placement.free.iter().map(|at| self.view.gpus(*at)).sum();
        let gpus = found + self.view.smallest_node_gpus * u64::from(missing);
        let number = placement.free.len() + missing as usize;
        let limits = self.check_limits(self.view.requests[request].group, number, gpus);
        limits.err().unwrap_or(Blocked::NoFreeNodes)
    }

    /// Finds held, cordoned and free nodes for a gang, as its topology requires.
    pub fn place_gang(&self, request: usize) -> Placement {
        match self.view.requests[request].demand.topology {
            Topology::Any => self.place_gang_anywhere(request),
            Topology::SingleDomain => self.place_gang_in_one_domain(request),
        }
    }

    /// Finds held, cordoned and free nodes for a gang, in any domains.
    fn place_gang_anywhere(&self, request: usize) -> Placement {
        let group = self.view.requests[request].group;
        let mut placement = self.pack(request, self.groups[group].free_capacity.iter());
        self.add_cordoned(request, &mut placement, |_| true);
        let found = self.find_free(request, &placement.unplaced, false, false);
        placement.free = found.nodes;
        placement.unplaced = found.unplaced;
        placement
    }

    /// The same in one domain: one in which the group has nodes, with the fewest new ones, else the tightest.
    fn place_gang_in_one_domain(&self, request: usize) -> Placement {
        let spec = &self.view.requests[request];
        let state = &self.groups[spec.group];
        let mut best: Option<Placement> = None;
        for domain in &state.domains {
            let here = |at: usize| self.view.nodes[at].domain == *domain;
            let mut placement = self.pack(request, state.free_capacity.iter().filter(|(at, _)| here(*at)));
            self.add_cordoned(request, &mut placement, here);
            let load = &placement.unplaced;
            let found = self
                .available
                .find_in_domain(*domain, load, spec.selector, &self.view.kinds);
            (placement.free, placement.unplaced) = found;
            let fewer = best
                .as_ref()
                .is_none_or(|other| placement.free.len() < other.free.len());
            if placement.unplaced.is_empty() && fewer {
                best = Some(placement);
            }
        }
        best.unwrap_or_else(|| {
            let mut placement = self.pack(request, [].iter());
            let found = self.find_free(request, &placement.unplaced, true, false);
            placement.free = found.nodes;
            placement.unplaced = found.unplaced;
            placement
        })
    }

    /// Gives a gang all its nodes.
    fn reserve_for_gang(&mut self, request: usize, mut placement: Placement) {
        let group = self.view.requests[request].group;
        let (free, cordoned) = (
            std::mem::take(&mut placement.free),
            std::mem::take(&mut placement.cordoned),
        );
        let mut load: Load = self.progress[request].unplaced.clone();
        // Both are in the same order.
        let mut before = self.groups[group].free_capacity.iter();
        for (node, _) in &placement.on_held {
            if let Some((_, before)) = before.find(|(other, _)| other == node) {
                load.place(&mut before.clone());
            }
        }
        self.apply_placement(request, placement);
        for own in cordoned {
            let reason = ActionReason::NeededAgain {
                request: self.request_name(request),
            };
            self.cancel_release(own, reason);
            let mut free = self.view.free_capacity(own);
            load.place(&mut free);
            self.add_free_capacity(group, own, free);
        }
        let reason = self.reason_to_reserve(request);
        for node in free {
            self.reserve(node, group, true, reason.clone());
            let mut free = self.view.free_capacity(node);
            load.place(&mut free);
            self.add_free_capacity(group, node, free);
        }
    }
}
