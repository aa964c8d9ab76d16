//! Nodes over a limit: the maximum of a node group or the limit of a quota was lowered.

use crate::ActionReason;
use crate::pass::PlanningPass;
use std::cmp::Reverse;

impl PlanningPass<'_> {
    /// Releases the nodes that node groups have over their maximum.
    pub fn release_over_maximum(&mut self) {
        for group in 0..self.view.node_groups.len() {
            let max_nodes = self.view.node_groups[group].max_nodes();
            let over = self.groups[group].staying.saturating_sub(max_nodes);
            if over == 0 {
                continue;
            }
            for at in self.list_by_dispensability(group).into_iter().take(over as usize) {
                let tenant = self.view.node_groups[group].owner.name.clone();
                self.release(at, self.view.now, ActionReason::OverMaximum { tenant, max_nodes });
                self.add_incoming(at);
            }
        }
    }

    /// Takes nodes from quotas over their limit: from the tenant that is the furthest above its fair share. Nodes of the minimum of
    /// a group only if `with_minimum`: these are taken last.
    pub fn release_over_quota(&mut self, with_minimum: bool) {
        let mut holders = self.tree.empty_set();
        let mut givers: Vec<(usize, u32)> = Vec::new();
        for (group, state) in self.groups.iter().enumerate() {
            let of = &self.view.node_groups[group];
            let untouched = if with_minimum { 0 } else { of.spec.min_nodes };
            let spare = state.staying.saturating_sub(untouched);
            if spare > 0 {
                self.tree.insert_tenant(&mut holders, of.tenant);
                givers.push((group, spare));
            }
        }
        let mut lists: Vec<Option<Vec<usize>>> = vec![None; givers.len()];
        while let Some((quota, limit)) = self.tree.find_quota_over_limit(&holders) {
            let Some(tenant) = self.tree.find_richest_tenant(quota, &holders) else {
                return;
            };
            let is_of_tenant =
                |(group, spare): &(usize, u32)| *spare > 0 && self.view.node_groups[*group].tenant == tenant;
            let Some(giver) = givers.iter().position(is_of_tenant) else {
                return;
            };
            let group = givers[giver].0;
            let list =
                lists[giver].get_or_insert_with(|| self.list_by_dispensability(group).into_iter().rev().collect());
            let next = list.pop();
            givers[giver].1 -= 1;
            if givers[giver].1 == 0 {
                self.tree.remove_tenant(&mut holders, tenant);
            }
            let Some(at) = next else { continue };
            let drain_at = self.drain_time(at);
            let reason = ActionReason::OverQuota {
                quota: limit.quota.to_owned(),
                limit: limit.gpus,
                scope: limit.scope.describe(&self.view.pool.name),
                drain_at: self.later_than_now(drain_at),
            };
            if self.view.nodes[at].required_nodes().is_some() {
                self.cancel_reservation(at, reason);
            } else {
                self.release(at, drain_at, reason);
            }
            self.add_incoming(at);
        }
    }

    /// Nodes of a group that stay, the first to be given up first: those that do not serve yet, unusable ones, idle ones, those
    /// with the lowest priority, those of the smallest gang, the emptiest, those in domains where the group has the fewest, and the
    /// youngest.
    fn list_by_dispensability(&self, group: usize) -> Vec<usize> {
        let mut staying: Vec<usize> = self.view.node_groups[group].nodes.clone();
        staying.retain(|at| !self.is_leaving(*at));
        let (neighbours, gang) = (self.count_neighbours(&staying), self.largest_gangs(&staying));
        staying.sort_by_key(|at| {
            let node = &self.view.nodes[*at];
            let use_of_it = (
                node.object.idle_since.is_none(),
                node.object.priority,
                gang(*at),
                node.object.pods,
            );
            let is_usable = !node.object.unusable;
            let since = node.owner().map_or(0, |owner| owner.since);
            let youngest = (Reverse(since), Reverse(*at));
            (node.is_serving(), is_usable, use_of_it, neighbours(*at), youngest)
        });
        staying
    }
}
