//! Placement of requests on the nodes that their groups have, before any node is reserved.

use crate::load::Load;
use crate::pass::{Decision, PlanningPass};
use crate::{Seconds, Topology};
use std::cmp::Reverse;

/// Nodes for a request, by where they come from.
#[derive(Clone, Default)]
pub(crate) struct Placement {
    /// Nodes of its group, with their free capacity afterwards, in the order of [`GroupState::free_capacity`](crate::pass::GroupState::free_capacity).
    pub on_held: Vec<(usize, Vec<u64>)>,
    pub cordoned: Vec<usize>,
    pub free: Vec<usize>,
    pub unplaced: Load,
}

impl PlanningPass<'_> {
    /// Places requests on the nodes that their groups have, as far as they fit.
    pub fn place_on_held_nodes(&mut self) {
        for group in 0..self.view.node_groups.len() {
            if self.view.node_groups[group].spec.demand.is_empty() {
                continue;
            }
            let nodes = self.view.node_groups[group].nodes.iter().copied();
            let staying =
                nodes.filter(|at| self.decisions[*at] == Decision::Undecided && !self.view.nodes[*at].is_cordoned());
            // The fullest first, so that empty nodes can be released. Of the empty ones those that were used last: the others are idle
            // in truth as well.
            let mut sorted: Vec<_> = staying
                .map(|at| (self.view.free_capacity(at), self.last_use(at)))
                .collect();
            sorted.sort_unstable();
            let free = sorted.into_iter().map(|(free, (.., at))| (at, free)).collect();
            self.groups[group].free_capacity = free;
        }
        for request in self.list_open_by_group() {
            let gang = self.view.requests[request].demand.gang;
            let placement = self.place_on_held(request);
            if placement.unplaced.is_empty() || (!gang && self.view.requests[request].demand.topology == Topology::Any)
            {
                self.note_awaited_nodes(request, &placement);
                self.apply_placement(request, placement);
            }
        }
    }

    /// Sorts nodes in use before idle ones, the one first that became idle last, and both before those that do not serve yet.
    fn last_use(&self, node: usize) -> (bool, bool, Reverse<Option<Seconds>>, usize) {
        let of = &self.view.nodes[node];
        let idle_since = of.object.idle_since.filter(|_| of.is_serving());
        (!of.is_serving(), idle_since.is_some(), Reverse(idle_since), node)
    }

    /// Requests that are not blocked, group by group: higher priority first, then those that have waited longer.
    pub fn list_open_by_group(&self) -> Vec<usize> {
        let requests = self.view.requests_by_group.iter().copied();
        requests
            .filter(|request| self.progress[*request].blocked_by.is_none())
            .collect()
    }

    /// Finds nodes of its group for a request; in a single domain if the request requires that.
    pub fn place_on_held(&self, request: usize) -> Placement {
        let (group, demand) = (self.view.requests[request].group, self.view.requests[request].demand);
        let free = &self.groups[group].free_capacity;
        if demand.topology == Topology::Any {
            // A group may have thousands of nodes, and each step adds one.
            let (full, removals) = self.progress[request].looked_at;
            let from = if removals == self.groups[group].removals {
                full
            } else {
                0
            };
            let unplaced = &self.progress[request].unplaced;
            let fits = |(at, free): &(usize, Vec<u64>)| self.matches(request, *at) && unplaced.any_fits(free);
            debug_assert!(!free[..from].iter().any(fits), "a pod fits on a node that is left out");
            return self.pack(request, free.iter().skip(from));
        }
        let domains = self.groups[group].domains.iter();
        let in_domain = |domain: usize| free.iter().filter(move |(at, _)| self.view.nodes[*at].domain == domain);
        let mut tried = domains.map(|domain| self.pack(request, in_domain(*domain)));
        tried
            .find(|placement| placement.unplaced.is_empty())
            .unwrap_or_else(|| self.pack(request, [].iter()))
    }

    /// Places what is left of a request on nodes with free capacity.
    pub fn pack<'r>(&self, request: usize, nodes: impl Iterator<Item = &'r (usize, Vec<u64>)>) -> Placement {
        let mut placement = Placement {
            unplaced: self.progress[request].unplaced.clone(),
            ..Placement::default()
        };
        for (node, free) in nodes {
            if placement.unplaced.is_empty() {
                break;
            }
            if self.matches(request, *node) && placement.unplaced.any_fits(free) {
                let mut free = free.clone();
                placement.unplaced.place(&mut free);
                placement.on_held.push((*node, free));
            }
        }
        placement
    }

    /// Takes the capacity that was found for a request.
    pub fn apply_placement(&mut self, request: usize, placement: Placement) {
        if !placement.on_held.is_empty() {
            self.changes += 1;
        }
        let state = &mut self.groups[self.view.requests[request].group];
        // Both are in the same order. From the end, where nodes are that were added for this request.
        let mut known = state.free_capacity.iter_mut().rev();
        let mut nodes = Vec::with_capacity(placement.on_held.len());
        for (node, free) in placement.on_held.into_iter().rev() {
            let known = known.find(|(other, _)| *other == node);
            debug_assert!(known.is_some(), "a node is in another place than it was found in");
            if let Some(known) = known {
                known.1 = free;
            }
            nodes.push(node);
        }
        for node in nodes {
            self.note_late_priority(node, request);
            let was_counted_on = self.is_counted_on(node);
            self.kept_by_pods.remove(&node);
            if self.decisions[node] == Decision::Undecided {
                self.decisions[node] = Decision::Needed;
                // Nobody counts on it any more, however long it is idle.
                self.incoming.remove(node);
            }
            if !was_counted_on && self.is_counted_on(node) {
                self.note_counted_on(node);
            }
        }
        self.progress[request].unplaced = placement.unplaced;
    }

    /// Notes that none of the pods of a request that have no node fits on a node of its group. Less may be free there later, and not more.
    pub fn note_looked_at(&mut self, request: usize) {
        let state = &self.groups[self.view.requests[request].group];
        self.progress[request].looked_at = (state.free_capacity.len(), state.removals);
    }

    /// Lets requests of a group use nothing of a node any more.
    pub fn remove_free_capacity(&mut self, group: usize, node: usize) {
        let state = &mut self.groups[group];
        state.free_capacity.retain(|(other, _)| *other != node);
        state.removals += 1;
    }

    /// Lets requests of a group use what is free of a node that stays with it.
    pub fn add_free_capacity(&mut self, group: usize, node: usize, free: Vec<u64>) {
        self.changes += 1;
        self.groups[group].free_capacity.push((node, free));
    }

    /// Whether the release of a cordoned node can be cancelled, together with that of `others`: it is not kept for a request
    /// that was served earlier, its tenant did not leave it unused, and the limits of its group and quotas allow it.
    pub fn may_cancel_release(&self, node: usize, others: &[usize]) -> bool {
        let is_undecided = self.decisions[node] == Decision::Undecided && !self.view.nodes[node].object.unusable;
        let group = self.view.nodes[node].group.filter(|_| is_undecided);
        group.is_some_and(|group| {
            let tenant = self.view.node_groups[group].tenant;
            if self.was_left_unused(node, tenant) {
                return false;
            }
            let gpus: u64 = others.iter().chain([&node]).map(|at| self.view.gpus(*at)).sum();
            self.groups[group].staying as usize + others.len() < self.view.node_groups[group].max_nodes() as usize
                && self.tree.may_stay(tenant, gpus)
        })
    }

    /// Adds cordoned nodes of the group on which some of the pods fit.
    pub fn add_cordoned(&self, request: usize, placement: &mut Placement, here: impl Fn(usize) -> bool) {
        let own = &self.groups[self.view.requests[request].group].cordoned;
        for at in own.iter().copied().filter(|at| here(*at)) {
            if self.may_cancel_release(at, &placement.cordoned)
                && self.matches(request, at)
                && placement.unplaced.place(&mut self.view.free_capacity(at)) > 0
            {
                placement.cordoned.push(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;
    use crate::view::Catalog;
    use crate::{Amounts, Demand, Fleet, Node, NodeGroup, PodSet, Pool, Tenant};

    fn gpus(number: u64) -> Amounts {
        [("gpu".to_owned(), number)].into()
    }

    /// A tenant with a request of two pods, and two nodes.
    fn fleet() -> Fleet {
        let pods = PodSet {
            count: 2,
            requests: gpus(8),
        };
        let group = NodeGroup {
            name: "g".into(),
            pool: "h100".into(),
            max_nodes: 8,
            demand: vec![Demand {
                name: "job".into(),
                pod_sets: vec![pods],
                ..Demand::default()
            }],
            ..NodeGroup::default()
        };
        let node = |name: &str| Node {
            name: name.into(),
            pool: "h100".into(),
            capacity: gpus(8),
            ..Node::default()
        };
        Fleet {
            pools: vec![Pool {
                name: "h100".into(),
                gpu_resource_name: Some("gpu".into()),
                ..Pool::default()
            }],
            nodes: vec![node("n1"), node("n2")],
            tenants: vec![Tenant {
                uid: "a".into(),
                name: "a".into(),
                node_groups: vec![group],
                ..Tenant::default()
            }],
            ..Fleet::default()
        }
    }

    #[test]
    fn a_node_that_comes_after_others_are_gone_is_looked_at() {
        let fleet = fleet();
        let catalog = Catalog::new(&fleet.tenants, &fleet.nodes);
        let tree = Tree::new(&fleet.pools[0], &fleet.quotas, &catalog.tenants);
        let mut pass = PlanningPass::new(catalog.view(fleet.now, &fleet.pools[0]), tree);
        let found = |pass: &PlanningPass<'_>| pass.place_on_held(0).on_held.len();
        pass.add_free_capacity(0, 0, vec![0, 1]);
        assert_eq!(found(&pass), 0, "it is full");
        pass.note_looked_at(0);
        pass.remove_free_capacity(0, 0);
        pass.add_free_capacity(0, 1, vec![8, 1]);
        assert_eq!(found(&pass), 1);
        let placement = pass.place_on_held(0);
        pass.apply_placement(0, placement);
        pass.note_looked_at(0);
        assert_eq!(found(&pass), 0);
        assert_eq!(
            pass.progress[0].looked_at,
            (1, 1),
            "what is known to be full is not looked at again"
        );
        pass.add_free_capacity(0, 0, vec![8, 1]);
        assert_eq!(found(&pass), 1, "one more");
    }
}
