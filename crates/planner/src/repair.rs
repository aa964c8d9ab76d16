//! Nodes that are not Ready for too long, of pools that repair them: they are taken from their node groups, which get others in their place. None is taken
//! while more nodes of the pool are not Ready than it allows: then the cause is not the nodes, but the network or an API server. One of a minimum stays while
//! there is none to take its place, since it may come back.

use crate::pass::{Decision, PlanningPass};
use crate::{ActionReason, PoolHealth, RepairPolicy, Seconds};

impl PlanningPass<'_> {
    /// Takes nodes that are not Ready for too long from their groups, the longest first.
    pub fn release_not_ready(&mut self) {
        let Some(policy) = self.view.pool.repair else { return };
        let mut health = PoolHealth::of(self.view.nodes.iter().map(|node| node.object), &policy);
        let mut replacements = self.count_replacements();
        for (overdue_at, at, group) in self.list_not_ready(&policy) {
            if overdue_at > self.view.now {
                self.replan_by(overdue_at);
                continue;
            }
            if !health.allows_repair() {
                continue;
            }
            let cordoned_until = self.view.nodes[at].cordoned_until();
            if cordoned_until.is_some_and(|until| until <= self.view.now) {
                self.keep_leaving(at, group);
                continue;
            }
            // No other one is needed for a node that leaves its group anyway, nor for one beyond the minimum.
            if cordoned_until.is_none() && self.is_of_minimum(at, group) {
                if replacements == 0 || !self.may_be_replaced(at, group) {
                    health.without_replacement += 1;
                    continue;
                }
                replacements -= 1;
            }
            let not_ready = self.view.now - (overdue_at - policy.not_ready_after);
            self.release_broken(at, group, ActionReason::NotReady { not_ready });
        }
        self.health = Some(health);
    }

    /// Nodes that serve a group or are cordoned, and are not Ready: when that is too long, the node, and its group. The longest first.
    fn list_not_ready(&self, policy: &RepairPolicy) -> Vec<(Seconds, usize, usize)> {
        let nodes = self.view.nodes.iter().enumerate();
        let mut found: Vec<(Seconds, usize, usize)> = nodes
            .filter(|(_, node)| (node.is_serving() || node.is_cordoned()) && !node.object.cordoned_by_people)
            .filter_map(|(at, node)| Some((policy.overdue_at(node.object)?, at, node.group?)))
            .collect();
        found.sort_unstable();
        found
    }

    /// How many nodes can take the place of others: those that are free. An autoscaler adds any number, up to the maximum of its pool.
    fn count_replacements(&self) -> usize {
        let scale_up = self.view.pool.scale_up.as_ref();
        let may_grow = scale_up.is_some_and(|limits| {
            let max_nodes = limits.max_nodes.map(|max_nodes| max_nodes as usize);
            max_nodes.is_none_or(|max_nodes| self.view.nodes.len() < max_nodes)
        });
        if may_grow { usize::MAX } else { self.available.nodes }
    }

    /// Whether quotas let a group have another node in place of this one, once the tenant has lost it.
    fn may_be_replaced(&self, node: usize, group: usize) -> bool {
        let (tenant, gpus) = (self.view.node_groups[group].tenant, self.view.gpus(node));
        let is_lent = self.tree.is_within_nominal_quota(tenant, 0) || self.check_lending(tenant, gpus).is_ok();
        is_lent && self.check_quota_limits(tenant, 0).is_ok()
    }

    /// Lets a node go that is drained next: its group does not get it back.
    fn keep_leaving(&mut self, node: usize, group: usize) {
        self.incoming.remove(node);
        self.groups[group].cordoned.retain(|other| *other != node);
        self.decisions[node] = Decision::Release {
            drain_at: self.view.now,
        };
    }

    /// Takes a node from its group at once and for good. It still counts for the quotas of its tenant, whose pods may run there, and nobody waits for it.
    fn release_broken(&mut self, node: usize, group: usize, reason: ActionReason) {
        let (tenant, gpus) = (self.view.node_groups[group].tenant, self.view.gpus(node));
        if self.view.nodes[node].is_cordoned() {
            self.keep_leaving(node, group);
            self.reasons[node] = Some(reason);
        } else {
            self.incoming.remove(node);
            self.release(node, self.view.now, reason);
        }
        self.groups[group].held -= 1;
        self.tree.remove_leaving(tenant, gpus);
        self.tree.add_draining(tenant, gpus);
    }

    /// Whether a node is not Ready for so long that its pool repairs it: nobody knows when it comes back.
    pub fn is_broken(&self, node: usize) -> bool {
        let policy = self.view.pool.repair.as_ref();
        let overdue_at = policy.and_then(|policy| policy.overdue_at(self.view.nodes[node].object));
        overdue_at.is_some_and(|overdue_at| overdue_at <= self.view.now)
    }
}
