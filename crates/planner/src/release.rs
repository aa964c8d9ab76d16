//! Nodes that return to the pool: their tenant is deleted, they are idle for too long, or no request needs their reservation.

use crate::ActionReason;
use crate::pass::{Blocked, Decision, PlanningPass};
use crate::view::Catalog;
use std::cmp::Reverse;
use std::collections::BTreeSet;

impl PlanningPass<'_> {
    /// Releases nodes whose tenant or node group does not exist any more, whatever demand there is.
    pub fn release_orphans(&mut self, catalog: &Catalog<'_>) {
        for at in 0..self.view.nodes.len() {
            let node = &self.view.nodes[at];
            let Some(owner) = node.owner().filter(|_| node.group.is_none()) else {
                continue;
            };
            let reason = match catalog.find_tenant(&owner.tenant) {
                Some(tenant) => ActionReason::NodeGroupRemoved {
                    tenant: catalog.tenants[tenant].name.clone(),
                },
                None => ActionReason::TenantDeleted,
            };
            self.release(at, self.view.now, reason);
            self.add_incoming(at);
        }
    }

    /// Releases nodes that have been idle for too long, of groups that lack no nodes, so that they are used before any node is
    /// reclaimed.
    pub fn release_idle_of_satisfied_groups(&mut self) {
        let mut lacking = vec![false; self.view.node_groups.len()];
        for (request, progress) in self.view.requests.iter().zip(&self.progress) {
            let gets_none = matches!(progress.blocked_by, Some(Blocked::Impossible(_)));
            lacking[request.group] |= !progress.unplaced.is_empty() && !gets_none;
        }
        for (group, _) in lacking.iter().enumerate().filter(|(_, lacking)| !**lacking) {
            self.release_idle_of(group);
        }
    }

    /// Releases nodes that have been idle for too long.
    pub fn release_idle(&mut self) {
        for group in 0..self.view.node_groups.len() {
            self.release_idle_of(group);
        }
    }

    fn release_idle_of(&mut self, group: usize) {
        let of = &self.view.node_groups[group];
        let mut spare = self.groups[group].staying.saturating_sub(of.spec.min_nodes);
        let mut idle: Vec<usize> = of.nodes.clone();
        idle.retain(|at| {
            let node = &self.view.nodes[*at];
            node.is_serving() && self.decisions[*at] == Decision::Undecided && node.object.idle_since.is_some()
        });
        if spare == 0 || idle.is_empty() {
            return;
        }
        // First those in domains where the group has the fewest nodes: the rest stays together, and domains become whole.
        let staying = of.nodes.iter().copied().filter(|at| !self.is_leaving(*at));
        let neighbours = self.count_neighbours(&staying.collect::<Vec<_>>());
        idle.sort_by_key(|at| {
            let node = self.view.nodes[*at].object;
            (
                !node.unusable,
                node.pods,
                neighbours(*at),
                node.idle_since,
                Reverse(*at),
            )
        });
        for at in idle {
            match self.idle_until(at) {
                Some(until) if until > self.view.now => self.replan_by(until),
                Some(_) if spare > 0 => {
                    spare -= 1;
                    self.release_as_idle(at);
                }
                _ => {}
            }
        }
    }

    /// Releases a node that is idle for too long. Remembers if no pod used it.
    pub fn release_as_idle(&mut self, node: usize) {
        let now = self.view.now;
        let idle = now - self.view.nodes[node].object.idle_since.unwrap_or(now);
        let pods_wait = self.offered.remove(&node);
        if pods_wait {
            self.release(node, now, ActionReason::Unused { idle });
        } else if self.is_left_without_use(node) {
            self.release(node, now, ActionReason::NeverUsed { idle });
        } else {
            self.release(node, now, ActionReason::Idle { idle });
            return;
        }
        self.remember_unused(node, pods_wait, now);
    }

    /// Cancels reservations that no request needs.
    pub fn cancel_unneeded_reservations(&mut self) {
        for group in 0..self.view.node_groups.len() {
            let min_nodes = self.view.node_groups[group].spec.min_nodes;
            let mut reserved: Vec<usize> = self.view.node_groups[group].nodes.clone();
            reserved.retain(|at| {
                self.decisions[*at] == Decision::Undecided && self.view.nodes[*at].required_nodes().is_some()
            });
            for at in reserved.into_iter().rev() {
                if self.groups[group].staying <= min_nodes {
                    self.decisions[at] = Decision::Needed;
                } else {
                    self.cancel_reservation(at, ActionReason::ReservationUnneeded);
                }
            }
        }
    }

    /// Cancels the release of cordoned nodes that are in use, or that other pods keep, and for which no request waits. Returns their tenants.
    pub fn cancel_unneeded_releases(&mut self) -> BTreeSet<usize> {
        let mut tenants = BTreeSet::new();
        for group in 0..self.view.node_groups.len() {
            for at in self.groups[group].cordoned.clone() {
                if self.view.nodes[at].object.has_users() && self.may_cancel_release(at, &[]) {
                    self.cancel_release(at, ActionReason::StillInUse);
                    tenants.insert(self.view.node_groups[group].tenant);
                }
            }
        }
        tenants
    }
}
