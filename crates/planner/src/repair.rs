//! Nodes that are not Ready for too long, of pools that repair them: they are taken from their node groups, which get others in their place. None is taken
//! while more nodes of the pool are not Ready than it allows: then the cause is not the nodes, but the network or an API server. One of a minimum stays while
//! there is none to take its place, since it may come back.

use crate::pass::{Decision, PlanningPass};
use crate::{ActionReason, PoolHealth, RepairPolicy, Seconds};
use std::collections::HashMap;
use std::ops::Range;

/// Nodes that can take the place of others.
#[derive(Default)]
struct Replacements {
    /// How many are left: those that are free, and those that an autoscaler may add.
    left: usize,
    /// GPUs of the nodes whose place they take.
    gpus: u64,
    /// How many each tenant gets.
    of_tenant: HashMap<usize, usize>,
}

impl Replacements {
    /// Counts one for a node of a tenant that has `gpus`.
    fn take(&mut self, tenant: usize, gpus: u64) {
        self.left = self.left.saturating_sub(1);
        self.gpus += gpus;
        *self.of_tenant.entry(tenant).or_default() += 1;
    }
}

/// A node that is not Ready.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct NotReady {
    /// When it may be taken.
    due_at: Seconds,
    /// Since when it is not Ready.
    since: Seconds,
    node: usize,
    group: usize,
}

impl PlanningPass<'_> {
    /// Takes nodes that are not Ready for too long from their groups, the longest first.
    pub fn release_not_ready(&mut self) {
        let Some(policy) = self.view.pool.repair else { return };
        let mut health = PoolHealth::of(self.view.nodes.iter().map(|node| node.object), &policy);
        let mut replacements = self.count_replacements();
        for found in self.list_not_ready(&policy) {
            let (at, group) = (found.node, found.group);
            if found.due_at > self.view.now {
                self.replan_by(found.due_at);
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
                if !self.is_replaced(at, group, &replacements) {
                    health.without_replacement += 1;
                    continue;
                }
                replacements.take(self.view.node_groups[group].tenant, self.view.gpus(at));
            }
            let not_ready = self.view.now - found.since;
            self.release_broken(at, group, ActionReason::NotReady { not_ready });
        }
        self.health = Some(health);
    }

    /// Nodes that serve a group or are cordoned, and are not Ready, the longest first.
    fn list_not_ready(&self, policy: &RepairPolicy) -> Vec<NotReady> {
        let nodes = self.view.nodes.iter().enumerate();
        let mut found: Vec<NotReady> = nodes
            .filter(|(_, node)| (node.is_serving() || node.is_cordoned()) && !node.object.exempt_from_repair)
            .filter_map(|(at, node)| {
                Some(NotReady {
                    due_at: policy.due_at(node.object)?,
                    since: node.object.not_ready_since?,
                    node: at,
                    group: node.group?,
                })
            })
            .collect();
        found.sort_unstable();
        found
    }

    /// The nodes that can take the place of others: those that are free, and as many as an autoscaler may add.
    fn count_replacements(&self) -> Replacements {
        let scale_up = self.view.pool.scale_up.as_ref();
        let room = scale_up.map_or(0, |limits| {
            let max_nodes = limits.max_nodes.map(|max_nodes| max_nodes as usize);
            max_nodes.map_or(usize::MAX, |max_nodes| max_nodes.saturating_sub(self.view.nodes.len()))
        });
        Replacements {
            left: self.available.nodes.saturating_add(room),
            ..Replacements::default()
        }
    }

    /// Whether a group gets another node in place of this one of its minimum, once its tenant has lost it: there is one, and quotas allow it. A tenant gets all
    /// that it lacks for its minimums or nothing, so there must be one for each.
    fn is_replaced(&mut self, node: usize, group: usize, replacements: &Replacements) -> bool {
        let (tenant, gpus) = (self.view.node_groups[group].tenant, self.view.gpus(node));
        if replacements.left == 0 || self.check_quota_limits(tenant, 0).is_err() {
            return false;
        }
        let counted = replacements.of_tenant.get(&tenant).copied().unwrap_or_default();
        let besides = self.count_lacking(tenant).saturating_sub(counted);
        let more = self.view.smallest_node_gpus * besides as u64;
        let is_lent = self.tree.is_lent_within_nominal_quota(tenant, more, &[])
            || self.check_lending(tenant, replacements.gpus + gpus + more).is_ok();
        let is_for_all = besides < replacements.left && is_lent && self.check_quota_limits(tenant, more).is_ok();
        is_for_all || counted == 0 && self.is_replaced_within_nominal_quota(node, tenant, replacements.left)
    }

    /// Whether there are enough of `nodes` for all that a tenant lacks within a nominal quota, once it has lost this one: what it lacks beyond waits by itself.
    fn is_replaced_within_nominal_quota(&mut self, node: usize, tenant: usize, nodes: usize) -> bool {
        let (groups, mut depths) = (self.list_groups_of(tenant), self.tree.nominal_quota_depths());
        self.assume_released(node);
        let is_enough = depths.any(|depth| {
            let lacking = self.list_lacking_nodes(&groups, Some(depth));
            let lacking: usize = lacking.iter().map(|(_, missing)| *missing as usize).sum();
            (1..=nodes).contains(&lacking)
        });
        self.undo_assumption(node);
        is_enough
    }

    /// How many nodes a tenant lacks for minimums, without those that its groups have and may keep.
    fn count_lacking(&self, tenant: usize) -> usize {
        let lacking = self.list_groups_of(tenant).map(|group| {
            let cordoned = self.groups[group].cordoned.len();
            (self.count_missing(group) as usize).saturating_sub(cordoned)
        });
        lacking.sum()
    }

    /// The groups of a tenant.
    fn list_groups_of(&self, tenant: usize) -> Range<usize> {
        let groups = &self.view.node_groups;
        groups.partition_point(|of| of.tenant < tenant)..groups.partition_point(|of| of.tenant <= tenant)
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
