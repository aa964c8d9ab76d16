//! Serving a request without a gang, one node at a time: pods are placed on nodes of its group, then the release of cordoned
//! nodes is cancelled, then free nodes are reserved; for the rest it waits for incoming nodes, or borrowed ones are reclaimed.

use crate::ActionReason;
use crate::available::{Found, Search};
use crate::load::Load;
use crate::pass::{Blocked, PlanningPass};
use crate::stage::{Outcome, Stage};

impl<'a> PlanningPass<'a> {
    /// One step for a request: it gets one node, waits for one, or comes again in a later stage. Once what may be reclaimed is listed, without a search if its
    /// tenant may have nothing in this one.
    pub fn serve_pods(&mut self, request: usize, stage: Stage) -> Outcome {
        let placement = self.place_on_held(request);
        self.apply_placement(request, placement);
        self.note_looked_at(request);
        if self.progress[request].unplaced.is_empty() {
            return Outcome::Finished;
        }
        let is_in_vain = self.victims.is_some() && !self.is_in_stage(self.view.tenant_of(request), stage, 0);
        if !is_in_vain {
            return self.search_for_node(request, stage);
        }
        if cfg!(debug_assertions) {
            let changes = self.changes;
            let outcome = self.search_for_node(request, stage);
            assert_eq!(
                (outcome, self.changes),
                (Outcome::NotNow, changes),
                "a search finds something"
            );
        }
        Outcome::NotNow
    }

    fn search_for_node(&mut self, request: usize, stage: Stage) -> Outcome {
        if let Some(outcome) = self.serve_from_cordoned(request, stage) {
            return outcome;
        }
        let not_lent = match self.serve_from_free(request, stage) {
            Ok(outcome) => return outcome,
            Err(not_lent) => not_lent,
        };
        let (group, tenant) = (self.view.requests[request].group, self.view.tenant_of(request));
        let coming = self.find_incoming_in_stage(request, stage);
        let next = match not_lent {
            // No work is stopped for a request that may not have the node once it is free.
            None => coming.or_else(|| {
                let victim = self.find_victim(request);
                victim.filter(|at| self.is_lent_later(tenant, &[], &[*at]))
            }),
            // With a node that comes, enough may be free besides for what others do not lend. Nothing is reclaimed as long as nodes are free.
            Some(_) => coming.filter(|at| self.is_lent_later(tenant, &[], &[*at])),
        };
        let is_stopped = next.is_some_and(|node| {
            let gpus = self.view.gpus(node);
            self.may_get_in_stage(tenant, stage, gpus, &[node]) && self.is_stopped_by_minimums(request, &[node], gpus)
        });
        let Some(node) = next.filter(|_| !is_stopped) else {
            if stage.quota_depth.is_some() {
                return Outcome::NotNow;
            }
            let limits = self.check_limits(group, 1, self.view.smallest_node_gpus);
            let blocked = limits.err().or(not_lent);
            return self.block(request, blocked.unwrap_or(Blocked::NoFreeNodes));
        };
        let gpus = self.view.gpus(node);
        if !self.may_get_in_stage(tenant, stage, gpus, &[node]) {
            return Outcome::NotNow;
        }
        if let Err(blocked) = self.check_limits(group, 1 + self.groups[group].earmarked, gpus) {
            return self.block(request, blocked);
        }
        let minimum = self.find_minimum_for(node);
        if self.take_from_group(node, request, gpus)
            && let Some(minimum) = minimum
        {
            self.pass_to_minimum(minimum, node);
            return Outcome::Progress;
        }
        self.wait_for_node(request, node);
        Outcome::Progress
    }

    /// Lets pods of a request wait for a node that will be free.
    pub fn wait_for_node(&mut self, request: usize, node: usize) {
        self.earmark(node, self.view.requests[request].group);
        let mut capacity = self.view.capacity(node).to_vec();
        self.progress[request].unplaced.place(&mut capacity);
        self.progress[request].earmarked.push(node);
        self.progress[request].blocked_by.get_or_insert(Blocked::NodesComing);
    }

    /// Cancels the release of a cordoned node of its group, if a pod fits there.
    fn serve_from_cordoned(&mut self, request: usize, stage: Stage) -> Option<Outcome> {
        let group = self.view.requests[request].group;
        let own = self.groups[group].cordoned.iter().copied().find(|at| {
            self.may_cancel_release(*at, &[])
                && self.matches(request, *at)
                && self.progress[request].unplaced.any_fits(&self.view.free_capacity(*at))
        })?;
        if !self.is_in_stage(self.view.tenant_of(request), stage, 0) {
            return Some(Outcome::NotNow);
        }
        let reason = ActionReason::NeededAgain {
            request: self.request_name(request),
        };
        self.cancel_release(own, reason);
        let free = self.view.free_capacity(own);
        self.add_free_capacity(group, own, free);
        Some(Outcome::Progress)
    }

    /// Reserves a free node. `Err`: there is none, or it is not lent.
    fn serve_from_free(&mut self, request: usize, stage: Stage) -> Result<Outcome, Option<Blocked<'a>>> {
        let (group, tenant) = (self.view.requests[request].group, self.view.tenant_of(request));
        let found = self.find_free(request, &self.progress[request].unplaced, false, true);
        let node = found.nodes.first().copied().ok_or(None)?;
        let gpus = self.view.gpus(node);
        if !self.is_in_stage(tenant, stage, gpus) {
            return Ok(Outcome::NotNow);
        }
        if let Err(blocked) = self.check_limits(group, 1, gpus) {
            return Ok(self.block(request, blocked));
        }
        self.check_lending(tenant, gpus).map_err(Some)?;
        let reason = self.reason_to_reserve(request);
        self.reserve(node, group, false, reason);
        let free = self.view.free_capacity(node);
        self.add_free_capacity(group, node, free);
        Ok(Outcome::Progress)
    }

    /// Finds free nodes for a load of a request.
    pub fn find_free(&self, request: usize, load: &Load, single_domain: bool, first: bool) -> Found {
        let spec = &self.view.requests[request];
        let search = Search {
            load,
            selector: spec.selector,
            preferred_domains: &self.groups[spec.group].domains,
            single_domain,
            first,
        };
        self.available.find(&search, &self.view.kinds)
    }

    /// Whether a node belongs to the group of a request. A request does not wait for a node that its own group releases: if the
    /// release cannot be cancelled, another request takes the node.
    pub fn is_own(&self, request: usize, node: usize) -> bool {
        self.view.nodes[node].group == Some(self.view.requests[request].group)
    }

    /// Why a node is reserved for a request.
    pub fn reason_to_reserve(&self, request: usize) -> ActionReason {
        let spec = &self.view.requests[request];
        ActionReason::RequestWaited {
            request: self.request_name(request),
            tenant: self.view.node_groups[spec.group].owner.name.clone(),
            waited: (self.view.now - spec.demand.waiting_since).max(0),
        }
    }

    /// Ends the turn of a request, and notes why it waits.
    pub fn block(&mut self, request: usize, blocked: Blocked<'a>) -> Outcome {
        if matches!(blocked, Blocked::NoFreeNodes | Blocked::NotLent { .. }) {
            self.lacking.push(request);
        }
        self.progress[request].blocked_by = Some(blocked);
        Outcome::Finished
    }
}
