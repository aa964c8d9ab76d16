//! Nodes that only pods which wait keep, and nodes that no pod ever used.

use crate::pass::{Decision, PlanningPass};
use crate::placement::Placement;
use crate::{LEAST_PATIENCE, Seconds, Topology};
use std::collections::BTreeMap;

/// A node that is idle from this time after its assignment on was never used.
const NOTICED_WITHIN: Seconds = 15;

impl PlanningPass<'_> {
    /// Notes nodes whose request also waits for a node that pods cannot use yet: they are not idle for lack of use.
    pub fn note_awaited_nodes(&mut self, request: usize, placement: &Placement) {
        let demand = self.view.requests[request].demand;
        let together = demand.gang || demand.topology == Topology::SingleDomain;
        let mut nodes = placement.on_held.iter();
        if together && nodes.any(|(at, _)| !self.view.nodes[*at].is_serving()) {
            self.note_awaited(placement);
        }
    }

    /// Notes that the request on these nodes of its group waits for further ones.
    pub fn note_awaited(&mut self, placement: &Placement) {
        for (at, _) in &placement.on_held {
            let was_counted_on = self.is_counted_on(*at);
            self.awaited[*at] = true;
            if !was_counted_on && self.is_counted_on(*at) {
                self.note_counted_on(*at);
            }
        }
    }

    /// Releases nodes that pods which wait have kept for too long without using them, as far as others lack them.
    pub fn release_unused(&mut self) {
        let mut kept: BTreeMap<usize, Vec<(Seconds, usize)>> = BTreeMap::new();
        for group in 0..self.view.node_groups.len() {
            let of_group = self.list_kept_too_long(group);
            if !of_group.is_empty() {
                let tenant = self.view.node_groups[group].tenant;
                kept.entry(tenant).or_default().extend(of_group);
            }
        }
        for (tenant, unused) in &mut self.unused {
            if !kept.contains_key(tenant) {
                unused.kept_since = None;
            }
        }
        let (now, patience) = (self.view.now, self.patience());
        let mut due: Vec<(Seconds, usize)> = Vec::new();
        for (tenant, nodes) in &kept {
            let kept_since = *self.unused.entry(*tenant).or_default().kept_since.get_or_insert(now);
            for (from, at) in nodes {
                // Nodes of one pod have no less time because those of another are kept for longer.
                let until = (*from).max(kept_since) + patience;
                if until <= now {
                    due.push((*from, *at));
                } else {
                    self.replan_by(until);
                }
            }
        }
        due.sort_unstable();
        let due: Vec<usize> = due.into_iter().map(|(_, at)| at).collect();
        self.give_to_others(&due);
        for (tenant, nodes) in kept {
            if nodes.iter().all(|(_, at)| self.is_leaving(*at)) {
                self.unused.entry(tenant).or_default().kept_since = None;
            }
        }
    }

    /// Nodes of a group beyond its minimum that are idle for too long, and since when. They stay only because requests count on them.
    fn list_kept_too_long(&mut self, group: usize) -> Vec<(Seconds, usize)> {
        let of = &self.view.node_groups[group];
        let spare = self.groups[group].staying.saturating_sub(of.spec.min_nodes);
        if spare == 0 {
            return Vec::new();
        }
        let kept = of.nodes.iter().copied();
        let kept = kept.filter(|at| self.decisions[*at] == Decision::Needed && !self.awaited[*at]);
        let mut kept: Vec<(Seconds, usize)> = kept.filter_map(|at| Some((self.too_long_from(at)?, at))).collect();
        let now = self.view.now;
        for (from, _) in &kept {
            self.replan_by(*from);
        }
        kept.retain(|(from, _)| *from <= now);
        // Those that are idle the longest.
        kept.sort_unstable();
        kept.truncate(spare as usize);
        kept
    }

    /// Since when no pod uses a node that serves its tenant; `None`: it is in use, no pod could use it now, or no other tenant would get it.
    fn left_idle_since(&self, node: usize) -> Option<Seconds> {
        let of = &self.view.nodes[node];
        let is_open = !of.object.unusable && !of.object.closed;
        of.object.idle_since.filter(|_| of.is_serving() && is_open)
    }

    /// From when on such a node is idle for too long, whatever waits for it; `None`: it is no such node.
    pub fn too_long_from(&self, node: usize) -> Option<Seconds> {
        let since = self.left_idle_since(node)?;
        Some(self.idle_until(node)?.max(since + self.patience()))
    }

    fn patience(&self) -> Seconds {
        self.view.pool.idle_timeout.max(LEAST_PATIENCE)
    }

    /// Whether no pod of its tenant ever used a node, although it could, and none keeps it.
    fn is_never_used(&self, node: usize) -> bool {
        let of = &self.view.nodes[node];
        let owner = of.owner().filter(|_| !of.object.kept_by_pods);
        owner
            .zip(self.left_idle_since(node))
            .is_some_and(|(owner, idle)| idle <= owner.since + NOTICED_WITHIN)
    }

    /// Whether no pod ever used a node and none needs it, and its tenant leaves more such nodes than it uses: a pod may find another place
    /// while a node joins.
    pub fn is_left_without_use(&mut self, node: usize) -> bool {
        // The planner itself has asked for more than the pods need where nodes are divided for a tenant.
        let is_unneeded = self.decisions[node] == Decision::Undecided && !self.view.pool.divides_nodes;
        let Some(group) = self.view.nodes[node]
            .group
            .filter(|_| is_unneeded && self.is_never_used(node))
        else {
            return false;
        };
        let tenant = self.view.node_groups[group].tenant;
        let known = self.leaves_most_unused.get(&tenant).copied();
        known.unwrap_or_else(|| {
            let leaves_most = self.leaves_more_than_it_uses(tenant);
            self.leaves_most_unused.insert(tenant, leaves_most);
            leaves_most
        })
    }

    fn leaves_more_than_it_uses(&self, tenant: usize) -> bool {
        let groups = self.view.node_groups.iter().filter(|group| group.tenant == tenant);
        let (mut used, mut never_used) = (0, 0);
        for group in groups {
            let mut never_used_of_group = 0_u32;
            for at in &group.nodes {
                let node = &self.view.nodes[*at];
                used += u32::from(node.is_in_use());
                never_used_of_group += u32::from(self.is_never_used(*at));
            }
            // It has these nodes without any pod.
            never_used += never_used_of_group.saturating_sub(group.spec.min_nodes);
        }
        never_used > used
    }
}
