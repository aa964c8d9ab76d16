//! Minimums of node groups: all nodes of private groups, `min_nodes` of the others. The oldest tenant goes first, and gets all
//! that it lacks of a pool or nothing.

use crate::ActionReason;
use crate::available::Search;
use crate::pass::{Blocked, Decision, PlanningPass};
use crate::view::ANY;
use std::ops::Range;

impl PlanningPass<'_> {
    /// Reserves the nodes that groups lack of their minimums. A minimum that cannot be met keeps nodes from requests, but not
    /// from other minimums.
    pub fn fill_minimums(&mut self) {
        let mut unmet = Vec::new();
        let mut from = 0;
        while from < self.view.node_groups.len() {
            let tenant = self.view.node_groups[from].tenant;
            let own = self.view.node_groups[from..].iter();
            let of_tenant = from..from + own.take_while(|group| group.tenant == tenant).count();
            from = of_tenant.end;
            for group in of_tenant.clone() {
                self.cancel_releases_for_minimum(group);
            }
            let missing = self.count_missing_of(&of_tenant);
            if missing > 0 && !self.reserve_minimums(&of_tenant, missing) {
                unmet.push(of_tenant);
            }
        }
        for of_tenant in unmet {
            self.wait_for_minimums(&of_tenant);
        }
    }

    fn count_missing(&self, group: usize) -> u32 {
        let min_nodes = self.view.node_groups[group].spec.min_nodes;
        min_nodes.saturating_sub(self.groups[group].staying)
    }

    fn count_missing_of(&self, groups: &Range<usize>) -> u32 {
        groups.clone().map(|group| self.count_missing(group)).sum()
    }

    fn cancel_releases_for_minimum(&mut self, group: usize) {
        for at in self.groups[group].cordoned.clone() {
            let (tenant, gpus) = (self.view.node_groups[group].tenant, self.view.gpus(at));
            let may_stay = self.decisions[at] == Decision::Undecided && self.tree.may_stay(tenant, gpus);
            if self.count_missing(group) > 0 && may_stay {
                let tenant = self.view.node_groups[group].owner.name.clone();
                self.cancel_release(at, ActionReason::NeededForMinimum { tenant });
                // Requests may be placed on it.
                let free = self.view.free_capacity(at);
                self.add_free_capacity(group, at, free);
            }
        }
    }

    /// Reserves all nodes that the groups of a tenant lack, if there are enough. Returns whether there are.
    fn reserve_minimums(&mut self, groups: &Range<usize>, missing: u32) -> bool {
        let tenant = self.view.node_groups[groups.start].tenant;
        let gpus = self.view.smallest_node_gpus() * u64::from(missing);
        if let Err(blocked) = self.check_quota_limits(tenant, gpus) {
            for group in groups.clone() {
                self.groups[group].minimum_blocked_by = Some(blocked.clone());
            }
            return false;
        }
        if self.available.nodes < missing as usize {
            return false;
        }
        let mut reserved = Vec::new();
        for group in groups.clone() {
            let nodes = self.find_free_nodes(group, self.count_missing(group));
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
    /// lend, if the pool can have enough once other tenants release the nodes that they have for requests.
    fn wait_for_minimums(&mut self, groups: &Range<usize>) {
        let is_blocked = groups.clone().any(|group| {
            let blocked = self.groups[group].minimum_blocked_by.as_ref();
            blocked.is_some_and(|blocked| !matches!(blocked, Blocked::NotLent { .. }))
        });
        for group in groups.clone() {
            self.cancel_incomplete_reservations(group);
            self.groups[group].missing = self.count_missing(group);
            if self.groups[group].missing > 0 {
                self.groups[group]
                    .minimum_blocked_by
                    .get_or_insert(Blocked::NoFreeNodes);
            }
        }
        if is_blocked || !self.are_within_reach(groups) {
            return;
        }
        for group in groups.clone() {
            self.earmark_for_minimum(group);
        }
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

    fn earmark_for_minimum(&mut self, group: usize) {
        let mut missing = self.count_missing(group) as usize;
        let free = self.find_free_nodes(group, self.count_missing(group));
        for at in free.into_iter().chain(self.incoming.list_all()) {
            if missing == 0 {
                break;
            }
            if self.may_be_for_minimum(at, group) {
                if self.is_idle_too_long(at) && self.decisions[at] == Decision::Undecided {
                    self.release_as_idle(at);
                }
                self.earmark(at, group);
                self.groups[group].earmarked_for_minimum.push(at);
                missing -= 1;
            }
        }
        if missing == 0 {
            self.groups[group].minimum_blocked_by = Some(Blocked::NodesComing);
        } else {
            self.unmet_minimums.push((group, missing));
        }
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

    /// The first minimum that waits and may have a node. It is an entry of `unmet_minimums`.
    pub fn find_minimum_for(&mut self, node: usize) -> Option<usize> {
        let mut unmet = 0..self.unmet_minimums.len();
        unmet.find(|minimum| self.may_be_for_minimum(node, self.unmet_minimums[*minimum].0))
    }

    /// Gives a node that is taken from a tenant to a minimum that waits, as [`Self::find_minimum_for`] found it: the next plan would serve
    /// the minimum before the request for which the node was taken.
    pub fn pass_to_minimum(&mut self, minimum: usize, node: usize) {
        let (group, missing) = &mut self.unmet_minimums[minimum];
        let group = *group;
        *missing -= 1;
        if *missing == 0 {
            self.unmet_minimums.remove(minimum);
            self.groups[group].minimum_blocked_by = Some(Blocked::NodesComing);
        }
        self.earmark(node, group);
        self.groups[group].earmarked_for_minimum.push(node);
    }

    /// Whether the pool can have enough nodes for minimums of one tenant, besides those that others do not lend.
    fn are_within_reach(&self, groups: &Range<usize>) -> bool {
        let (missing, reachable) = (self.count_missing_of(groups) as usize, self.count_reachable_nodes());
        if reachable < missing || !self.tree.has_lending_limits() {
            return reachable >= missing;
        }
        let tenant = self.view.node_groups[groups.start].tenant;
        let needed = self.view.smallest_node_gpus() * missing as u64;
        // As if all were large: nothing is given up that can be met.
        let largest = self.view.kinds.iter().map(|kind| kind.gpus).max().unwrap_or(1);
        self.tree.is_within_nominal_quota(tenant, needed)
            || needed + self.tree.gpus_not_lent_by_others(tenant) <= largest * reachable as u64
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
