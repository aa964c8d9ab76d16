//! Nodes in use that pods which wait keep from others by what is left there: for a bounded time, as pods may never start.

use crate::pass::{Decision, PlanningPass};
use crate::{Reclaim, WaitingTime};
use std::collections::BTreeSet;

impl PlanningPass<'_> {
    /// Notes the groups of tenants whose pods have counted on nodes in use for too long.
    pub fn note_waiting_for_too_long(&mut self) {
        let is_over = |tenant: usize| {
            let known = self.unused.get(&tenant);
            known.is_some_and(|known| known.waiting.is_over(self.view.now))
        };
        let groups = self.view.node_groups.iter().enumerate();
        let waiting = groups.filter(|(_, group)| is_over(group.tenant)).map(|(at, _)| at);
        self.waiting_for_too_long = waiting.collect();
    }

    /// Whether requests that count on a node in use keep it from nobody any more. Those that wait for further nodes do: they cannot start yet.
    pub fn is_waited_for_too_long(&self, node: usize) -> bool {
        let of = &self.view.nodes[node];
        let is_late = of.group.is_some_and(|group| self.waiting_for_too_long.contains(&group));
        is_late && of.is_in_use() && !self.awaited[node]
    }

    /// Remembers which tenants have pods that count on nodes in use.
    pub fn remember_waiting(&mut self) {
        if self.view.pool.reclaim == Reclaim::Never {
            return;
        }
        let (mut counting, mut beginning) = (BTreeSet::new(), BTreeSet::new());
        for group in &self.view.node_groups {
            for at in group.nodes.iter().copied() {
                let is_counted_on = self.decisions[at] == Decision::Needed && !self.kept_by_pods.contains(&at);
                if !is_counted_on || !self.view.nodes[at].is_serving() {
                    continue;
                }
                counting.insert(group.tenant);
                if self.view.nodes[at].is_in_use() && !self.awaited[at] {
                    beginning.insert(group.tenant);
                    break;
                }
            }
        }
        let tenants: BTreeSet<usize> = self.view.node_groups.iter().map(|group| group.tenant).collect();
        for tenant in tenants {
            let known = self
                .unused
                .get(&tenant)
                .map_or_else(WaitingTime::default, |known| known.waiting);
            // Once begun, it goes on as long as pods count on any node: one that is used for a moment at times would begin it anew each time.
            let is_waiting = beginning.contains(&tenant) || known.is_running() && counting.contains(&tenant);
            let waiting = known.go_on(is_waiting, self.view.now);
            if waiting != known {
                self.unused.entry(tenant).or_default().waiting = waiting;
            }
            if let Some(over) = waiting.over_at() {
                self.replan_by(over);
            }
        }
    }

    /// Whether the requests that counted for too long on a node, or on others that their group loses by this plan, would be served before the one that reclaims it by
    /// priority or for a fair share, and take it back. Each of them may wait for any of these nodes next. `needed`: GPUs that the request needs together: a gang is
    /// within a nominal quota with all of its nodes or not at all.
    pub fn would_be_taken_back(&self, node: usize, request: usize, needed: u64) -> bool {
        let Some(group) = self.view.nodes[node]
            .group
            .filter(|_| self.is_waited_for_too_long(node))
        else {
            return false;
        };
        let is_lost = |at: usize| at == node || matches!(self.decisions[at], Decision::Release { .. });
        let lost = self.view.node_groups[group].nodes.iter().filter(|at| is_lost(**at));
        let Some(waiting) = lost.filter_map(|at| self.late_priorities.get(at)).max() else {
            return false;
        };
        let (claimant, holder) = (self.view.tenant_of(request), self.view.node_groups[group].tenant);
        let gpus = self.view.gpus(node);
        if self.may_reclaim_as_owed(claimant, node, needed, gpus) {
            return false;
        }
        let priority = self.view.requests[request].demand.priority;
        let is_fairer = self.reclaims_for_fairness() && self.tree.is_fairer(claimant, holder, gpus, gpus);
        *waiting > priority || *waiting == priority && !is_fairer
    }

    /// Notes the priority of a request that counts on a node, if others have counted on such nodes of its tenant for too long.
    pub fn note_late_priority(&mut self, node: usize, request: usize) {
        if self.waiting_for_too_long.contains(&self.view.requests[request].group) {
            let priority = self.view.requests[request].demand.priority;
            let highest = self.late_priorities.entry(node).or_insert(priority);
            *highest = priority.max(*highest);
        }
    }
}
