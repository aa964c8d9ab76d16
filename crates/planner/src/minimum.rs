//! Minimums of node groups: all nodes of private groups, `min_nodes` of the others. They are filled in steps: what is within a nominal
//! quota comes before requests within it, and what is borrowed after them. In each step the oldest tenant goes first, and gets all that it
//! lacks of a pool or nothing.

use crate::available::Search;
use crate::names::ANY;
use crate::pass::{Blocked, Decision, PlanningPass};
use crate::{ActionReason, Reclaim};
use std::ops::Range;

impl PlanningPass<'_> {
    /// Reserves the nodes that groups lack of their minimums, as far as they are within a nominal quota at this depth of the tree or
    /// deeper; without a depth all that are left. A minimum that cannot be met keeps nodes from requests that are served later, but not
    /// from other minimums of the step. Returns the groups of tenants, by tenant, that are not met and do not wait yet: at a depth, those that
    /// cannot be met now wait after all that is within nominal quotas.
    pub fn fill_minimums(&mut self, depth: Option<usize>) -> Vec<Range<usize>> {
        self.changes += 1;
        let mut unmet = Vec::new();
        let mut from = 0;
        while from < self.view.node_groups.len() {
            let tenant = self.view.node_groups[from].tenant;
            let own = self.view.node_groups[from..].iter();
            let of_tenant = from..from + own.take_while(|group| group.tenant == tenant).count();
            from = of_tenant.end;
            for group in of_tenant.clone() {
                self.cancel_releases_for_minimum(group, depth);
            }
            let lacking = self.list_lacking_nodes(&of_tenant, depth);
            if !lacking.is_empty() && !self.reserve_minimums(&lacking, depth) {
                unmet.push(of_tenant);
            }
        }
        // Nodes on their way go first to those that get all that they lack, as free nodes do. Otherwise one that cannot be met takes what
        // was reclaimed for another, minimum or request, for which more is reclaimed then.
        let is_in_order = depth.is_none() || self.view.pool.reclaim == Reclaim::Never;
        let (mut later, is_next) = (Vec::new(), unmet.len() == 1 && is_in_order);
        for of_tenant in unmet {
            if is_next || self.can_be_met(&of_tenant, depth) {
                self.wait_for_minimums(&of_tenant, depth);
            } else {
                later.push(of_tenant);
            }
        }
        if is_in_order {
            for of_tenant in later.drain(..) {
                self.wait_for_minimums(&of_tenant, depth);
            }
        }
        for group in 0..self.groups.len() {
            self.groups[group].missing = self.groups[group].missing.min(self.count_missing(group));
        }
        later
    }

    /// How many nodes a group lacks of its minimum.
    pub fn count_missing(&self, group: usize) -> u32 {
        let min_nodes = self.view.node_groups[group].spec.min_nodes;
        min_nodes.saturating_sub(self.groups[group].staying)
    }

    /// The groups of a tenant that lack nodes, with the number of those for which no earlier step waits. At a depth only as many as nominal
    /// quotas cover.
    pub fn list_lacking_nodes(&self, groups: &Range<usize>, depth: Option<usize>) -> Vec<(usize, u32)> {
        let missing = |group: usize| {
            let awaited = self.groups[group].awaited_for_minimum;
            self.count_missing(group).saturating_sub(awaited)
        };
        let mut lacking: Vec<(usize, u32)> = groups.clone().map(|group| (group, missing(group))).collect();
        lacking.retain(|(_, missing)| *missing > 0);
        if let Some(depth) = depth.filter(|_| !lacking.is_empty()) {
            let tenant = self.view.node_groups[groups.start].tenant;
            let covered = self.tree.nominal_quota_left_at(tenant, depth) / self.view.usual_node_gpus;
            let mut left = u32::try_from(covered).unwrap_or(u32::MAX);
            for (_, missing) in &mut lacking {
                *missing = left.min(*missing);
                left -= *missing;
            }
            lacking.retain(|(_, missing)| *missing > 0);
        }
        lacking
    }

    /// Leaves cordoned nodes to a group that needs them for its minimum, at a depth only within nominal quotas. So one that a request within
    /// its nominal quota reclaims goes to this request.
    fn cancel_releases_for_minimum(&mut self, group: usize, depth: Option<usize>) {
        for at in self.groups[group].cordoned.clone() {
            let (tenant, gpus) = (self.view.node_groups[group].tenant, self.view.gpus(at));
            let is_in_step = depth.is_none_or(|depth| self.tree.may_stay_within_nominal_quota_at(tenant, depth, gpus));
            let may_stay = self.decisions[at] == Decision::Undecided && self.tree.may_stay(tenant, gpus);
            if self.count_missing(group) > 0 && is_in_step && may_stay {
                let tenant = self.view.node_groups[group].owner.name.clone();
                self.cancel_release(at, ActionReason::NeededForMinimum { tenant });
                // Requests may be placed on it.
                let free = self.view.free_capacity(at);
                self.add_free_capacity(group, at, free);
            }
        }
    }

    /// Reserves all nodes that groups of a tenant lack, if there are enough. Returns whether there are. What larger nodes exceed of a
    /// nominal quota is left to later steps.
    fn reserve_minimums(&mut self, lacking: &[(usize, u32)], depth: Option<usize>) -> bool {
        let Some(tenant) = lacking.first().map(|(group, _)| self.view.node_groups[*group].tenant) else {
            return true;
        };
        let missing: u32 = lacking.iter().map(|(_, missing)| missing).sum();
        let gpus = self.view.smallest_node_gpus * u64::from(missing);
        if let Err(blocked) = self.check_quota_limits(tenant, gpus) {
            for (group, _) in lacking {
                self.groups[*group].minimum_blocked_by = Some(blocked.clone());
            }
            return false;
        }
        if self.available.nodes < missing as usize {
            return false;
        }
        let mut reserved = Vec::new();
        for (group, missing) in lacking.iter().copied() {
            let mut nodes = self.find_free_nodes(group, missing);
            nodes.truncate(self.count_in_step(tenant, depth, &nodes));
            let gpus = nodes.iter().map(|at| self.view.gpus(*at)).sum();
            let allowed = self.check_quota_limits(tenant, gpus);
            if let Err(blocked) = allowed.and_then(|()| self.check_lending(tenant, gpus)) {
                // Nodes that were reserved for the tenant's other groups by earlier plans stay reserved.
                for (node, group) in reserved {
                    self.undo_reserve(node, group);
                }
                self.groups[group].minimum_blocked_by = Some(blocked);
                return false;
            }
            let of = &self.view.node_groups[group];
            let reason = ActionReason::BelowMinimum {
                tenant: of.owner.name.clone(),
                min_nodes: of.spec.min_nodes,
            };
            for node in nodes {
                self.reserve(node, group, true, reason.clone());
                reserved.push((node, group));
            }
        }
        for (node, group) in reserved {
            let free = self.view.free_capacity(node);
            self.add_free_capacity(group, node, free);
        }
        true
    }

    /// Counts the first of some nodes that are together within a nominal quota of a tenant at a depth.
    fn count_in_step(&self, tenant: usize, depth: Option<usize>, nodes: &[usize]) -> usize {
        let Some(depth) = depth else { return nodes.len() };
        let mut gpus = 0;
        let within = nodes.iter().take_while(|at| {
            gpus += self.view.gpus(**at);
            self.tree.is_within_nominal_quota_at(tenant, depth, gpus)
        });
        within.count()
    }

    /// Free nodes for a group, whatever their capacity.
    fn find_free_nodes(&self, group: usize, number: u32) -> Vec<usize> {
        let search = Search {
            load: &self.view.whole_nodes(number),
            selector: ANY,
            preferred_domains: &self.groups[group].domains,
            single_domain: false,
            first: false,
        };
        self.available.find(&search, &self.view.kinds).nodes
    }

    /// Lets minimums wait that cannot be met now: cancels incomplete reservations, and keeps those free and incoming nodes that others
    /// lend, if the pool can have enough once other tenants release the nodes that they have for requests. Within a nominal quota, borrowed
    /// nodes are reclaimed.
    pub fn wait_for_minimums(&mut self, groups: &Range<usize>, depth: Option<usize>) {
        self.changes += 1;
        for group in groups.clone() {
            self.cancel_incomplete_reservations(group);
        }
        let lacking = self.list_lacking_nodes(groups, depth);
        let is_limited = |blocked: &Blocked<'_>| matches!(blocked, Blocked::QuotaLimit(_) | Blocked::MissingQuota(_));
        let mut is_blocked = false;
        for (group, missing) in lacking.iter().copied() {
            let missing_in_all = self.count_missing(group);
            let state = &mut self.groups[group];
            state.missing = missing_in_all;
            state.awaited_for_minimum += missing;
            is_blocked |= state.minimum_blocked_by.as_ref().is_some_and(is_limited);
            if matches!(state.minimum_blocked_by, None | Some(Blocked::NodesComing)) {
                state.minimum_blocked_by = Some(Blocked::NoFreeNodes);
            }
        }
        if is_blocked || !self.are_within_reach(&lacking, depth) {
            return;
        }
        for (group, missing) in lacking {
            self.earmark_for_minimum(group, missing, depth);
        }
        if depth.is_some() {
            self.reclaim_for_minimums(groups);
        }
    }

    /// Whether all nodes that groups of a tenant lack are free, on their way, or can be reclaimed.
    fn can_be_met(&mut self, groups: &Range<usize>, depth: Option<usize>) -> bool {
        let lacking = self.list_lacking_nodes(groups, depth);
        let Some((group, _)) = lacking.first().copied() else {
            return true;
        };
        let missing: u32 = lacking.iter().map(|(_, missing)| missing).sum();
        // A look at each node takes time: not if all of them are too few.
        let victims = depth.map_or(0, |_| self.count_victims());
        if self.available.nodes + self.incoming.len() + victims < missing as usize {
            return false;
        }
        let tenant = self.view.node_groups[group].tenant;
        // Nor if a limit forbids that many of the smallest ones. Nodes that others below the same limit lose count until they are gone: the next plan would
        // not keep them for the minimum.
        if self
            .check_quota_limits(tenant, self.view.smallest_node_gpus * u64::from(missing))
            .is_err()
        {
            return false;
        }
        let free = self.find_free_nodes(group, missing);
        let (mut left, mut gpus, mut assumed) = (missing as usize, 0_u64, Vec::new());
        for at in free.into_iter().chain(self.incoming.list_all()) {
            if left == 0 {
                break;
            }
            let more = gpus + self.view.gpus(at);
            let is_in_step = depth.is_none_or(|depth| self.tree.is_within_nominal_quota_at(tenant, depth, more));
            let is_allowed = is_in_step && self.check_quota_limits(tenant, more).is_ok();
            if !is_allowed || !self.may_be_for_minimum(at, group) {
                continue;
            }
            (left, gpus) = (left - 1, more);
            if self.is_idle_too_long(at) && self.decisions[at] == Decision::Undecided {
                self.assume_released(at);
                assumed.push(at);
            }
        }
        let can_be_met = left == 0 || depth.is_some() && self.find_victims_for_minimum(tenant, left, gpus).is_some();
        for node in assumed.iter().rev() {
            self.undo_assumption(*node);
        }
        can_be_met
    }

    fn cancel_incomplete_reservations(&mut self, group: usize) {
        let staying = self.groups[group].staying;
        for at in self.view.node_groups[group].nodes.clone() {
            let required = self.view.nodes[at].required_nodes();
            let is_incomplete = required.is_some_and(|required| required > staying);
            if is_incomplete && self.count_missing(group) > 0 && self.decisions[at] == Decision::Undecided {
                self.cancel_reservation(at, ActionReason::ReservationIncomplete);
                self.add_incoming(at);
            }
        }
    }

    /// Keeps nodes for the minimum of a group that lacks so many.
    fn earmark_for_minimum(&mut self, group: usize, missing: u32, depth: Option<usize>) {
        let tenant = self.view.node_groups[group].tenant;
        let free = self.find_free_nodes(group, missing);
        let mut missing = missing as usize;
        for at in free.into_iter().chain(self.incoming.list_all()) {
            if missing == 0 {
                break;
            }
            if self.count_in_step(tenant, depth, &[at]) == 1 && self.may_be_for_minimum(at, group) {
                if self.is_idle_too_long(at) && self.decisions[at] == Decision::Undecided {
                    self.release_as_idle(at);
                }
                self.earmark(at, group);
                self.groups[group].earmarked_for_minimum.push(at);
                missing -= 1;
            }
        }
        if missing > 0 {
            self.unmet_minimums.push((group, missing));
        }
        self.note_coming_minimum(group);
    }

    /// Notes that all nodes are on their way that a group lacks for its minimum, if they are.
    fn note_coming_minimum(&mut self, group: usize) {
        if !self.unmet_minimums.iter().any(|(unmet, _)| *unmet == group) {
            self.groups[group].minimum_blocked_by = Some(Blocked::NodesComing);
        }
    }

    /// Reclaims borrowed nodes for minimums of a tenant within a nominal quota, if there are enough for all that it still lacks.
    fn reclaim_for_minimums(&mut self, groups: &Range<usize>) {
        let unmet = self.unmet_minimums.iter().filter(|(group, _)| groups.contains(group));
        let missing: usize = unmet.map(|(_, missing)| missing).sum();
        let tenant = self.view.node_groups[groups.start].tenant;
        if missing == 0 {
            return;
        }
        let Some(taken) = self.find_victims_for_minimum(tenant, missing, 0) else {
            return;
        };
        // A minimum that waits before these would get them instead once they are on their way, and others would be reclaimed.
        for at in &taken {
            let first = self.find_minimum_for(*at);
            if first.is_some_and(|minimum| !groups.contains(&self.unmet_minimums[minimum].0)) {
                return;
            }
        }
        for node in taken {
            let mut unmet = self.unmet_minimums.iter();
            let Some(minimum) = unmet.position(|(group, _)| groups.contains(group)) else {
                return;
            };
            self.reclaim_for_minimum(node, self.unmet_minimums[minimum].0);
            self.pass_to_minimum(minimum, node);
        }
    }

    /// Finds borrowed nodes to reclaim for as many nodes that a tenant lacks of minimums within a nominal quota; `None`: there are not
    /// enough. `coming`: GPUs of nodes that it gets besides and that are not kept for it yet.
    fn find_victims_for_minimum(&mut self, tenant: usize, missing: usize, coming: u64) -> Option<Vec<usize>> {
        self.list_victims();
        let (mut taken, mut gpus) = (Vec::new(), coming);
        while taken.len() < missing {
            let Some(node) = self.choose_victim_for_minimum(tenant, gpus) else {
                break;
            };
            gpus += self.view.gpus(node);
            self.assume_released(node);
            taken.push(node);
        }
        // The first nodes were chosen while the tenant counted on fewer GPUs than it needs.
        let is_allowed = taken.len() == missing
            && self.check_quota_limits(tenant, gpus).is_ok()
            && taken.iter().all(|at| self.may_reclaim_as_owed(tenant, *at, gpus, 0));
        for node in taken.iter().rev() {
            self.undo_assumption(*node);
        }
        let is_allowed = is_allowed && self.is_lent_later(tenant, &[], &taken);
        is_allowed.then_some(taken)
    }

    /// Whether the minimum of a group may have a node that is free, or will be: others lend it, and no quota is in the way.
    fn may_be_for_minimum(&mut self, node: usize, group: usize) -> bool {
        let (tenant, gpus) = (self.view.node_groups[group].tenant, self.view.gpus(node));
        if !self.may_count_on(node, group) || self.check_quota_limits(tenant, gpus).is_err() {
            return false;
        }
        if self.view.nodes[node].is_free() {
            self.check_lending(tenant, gpus).is_ok()
        } else {
            self.is_lent_later(tenant, &[], &[node])
        }
    }

    /// The first minimum that waits and may have a node, other than that of the group which loses it. It is an entry of `unmet_minimums`.
    pub fn find_minimum_for(&mut self, node: usize) -> Option<usize> {
        let mut unmet = 0..self.unmet_minimums.len();
        unmet.find(|minimum| self.may_get(*minimum, node))
    }

    /// Whether a minimum that waits, an entry of `unmet_minimums`, may have a node that its own group does not lose.
    pub fn may_get(&mut self, minimum: usize, node: usize) -> bool {
        let group = self.unmet_minimums[minimum].0;
        self.view.nodes[node].group != Some(group) && self.may_be_for_minimum(node, group)
    }

    /// Gives a node that is taken from a tenant to a minimum that waits, as [`Self::find_minimum_for`] found it: the next plan would serve
    /// the minimum before the request for which the node was taken.
    pub fn pass_to_minimum(&mut self, minimum: usize, node: usize) {
        let (group, missing) = &mut self.unmet_minimums[minimum];
        let group = *group;
        *missing -= 1;
        if *missing == 0 {
            self.unmet_minimums.remove(minimum);
            self.note_coming_minimum(group);
        }
        self.earmark(node, group);
        self.groups[group].earmarked_for_minimum.push(node);
    }

    /// Whether the pool can have enough nodes for minimums of one tenant, besides those that others do not lend.
    fn are_within_reach(&self, lacking: &[(usize, u32)], depth: Option<usize>) -> bool {
        let missing: usize = lacking.iter().map(|(_, missing)| *missing as usize).sum();
        let Some(tenant) = lacking.first().map(|(group, _)| self.view.node_groups[*group].tenant) else {
            return false;
        };
        let reachable = self.count_reachable_nodes() + self.count_minimums_owed_to(tenant, depth);
        if reachable < missing || !self.tree.has_lending_limits() {
            return reachable >= missing;
        }
        let needed = self.view.smallest_node_gpus * missing as u64;
        // As if all were large: nothing is given up that can be met.
        let largest = self.view.kinds.iter().map(|kind| kind.gpus).max().unwrap_or(1);
        self.tree.is_lent_within_nominal_quota(tenant, needed, &[])
            || needed + self.tree.gpus_not_lent_by_others(tenant) <= largest * reachable as u64
    }

    /// Counts the nodes of others' minimums that a minimum within a nominal quota can count on.
    fn count_minimums_owed_to(&self, tenant: usize, depth: Option<usize>) -> usize {
        if depth.is_none() || self.view.pool.reclaim == Reclaim::Never {
            return 0;
        }
        let nodes = self.tree.minimum_gpus_owed_to(tenant) / self.view.usual_node_gpus;
        usize::try_from(nodes).unwrap_or(usize::MAX)
    }

    /// Counts the nodes that a minimum can count on: free ones, incoming ones, and those that other tenants have for requests.
    fn count_reachable_nodes(&self) -> usize {
        let groups = self.view.node_groups.iter().zip(&self.groups);
        let for_requests: u32 = groups
            .map(|(group, state)| state.staying.saturating_sub(group.spec.min_nodes))
            .sum();
        // Idle nodes of others are among those that these have for requests.
        self.available.nodes + self.incoming.count_certain() + for_requests as usize
    }
}
