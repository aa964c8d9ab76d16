//! The nodes that stay with node groups, and those of them that are their minimums.

use crate::pass::{GroupState, PlanningPass};

impl PlanningPass<'_> {
    /// Counts the nodes that groups have, and those on which pods of their tenants may still run.
    pub fn count_held_nodes(&mut self) {
        for group in 0..self.view.node_groups.len() {
            self.groups.push(GroupState::default());
            for at in self.view.node_groups[group].nodes.clone() {
                let gpus = self.view.gpus(at);
                self.groups[group].held += 1;
                if self.view.nodes[at].is_cordoned() {
                    self.groups[group].cordoned.push(at);
                    self.tree.add_leaving(self.view.node_groups[group].tenant, gpus);
                } else {
                    self.groups[group].domains.insert(self.view.nodes[at].domain);
                    self.add_staying(group, gpus);
                }
            }
            self.groups[group].domains.remove(&self.view.domains.len());
        }
        for (at, node) in self.view.nodes.iter().enumerate() {
            if let Some(tenant) = node.former_tenant {
                self.tree.add_draining(tenant, self.view.gpus(at));
            }
        }
    }

    /// Counts a node of `gpus` as one that stays with a group.
    pub fn add_staying(&mut self, group: usize, gpus: u64) {
        self.tree.add_used(self.view.node_groups[group].tenant, gpus);
        self.add_to_group(group, gpus);
    }

    /// The same, but for its tenant only what its minimum covers.
    pub fn add_to_group(&mut self, group: usize, gpus: u64) {
        let had_spare = self.has_spare_nodes(group);
        let state = &mut self.groups[group];
        state.staying += 1;
        match state.sizes.binary_search_by_key(&gpus, |(size, _)| *size) {
            Ok(at) => state.sizes[at].1 += 1,
            Err(at) => state.sizes.insert(at, (gpus, 1)),
        }
        self.note_spare_nodes(group, had_spare);
        self.count_minimum(group);
    }

    /// Counts a node of `gpus` as one that does not stay with a group.
    pub fn remove_staying(&mut self, group: usize, gpus: u64) {
        let had_spare = self.has_spare_nodes(group);
        let state = &mut self.groups[group];
        state.staying -= 1;
        if let Ok(at) = state.sizes.binary_search_by_key(&gpus, |(size, _)| *size) {
            state.sizes[at].1 -= 1;
            if state.sizes[at].1 == 0 {
                state.sizes.remove(at);
            }
        }
        self.note_spare_nodes(group, had_spare);
        self.tree.remove_used(self.view.node_groups[group].tenant, gpus);
        self.count_minimum(group);
    }

    /// Counts the GPUs of a group's minimum again: those of its smallest nodes, whichever of them came or went first. Otherwise a search that takes
    /// nodes of several sizes and puts them back would leave another sum.
    fn count_minimum(&mut self, group: usize) {
        let of = &self.view.node_groups[group];
        if of.spec.min_nodes == 0 {
            return;
        }
        let state = &mut self.groups[group];
        let (mut left, mut gpus) = (of.spec.min_nodes, 0);
        for (size, count) in &state.sizes {
            let counted = left.min(*count);
            gpus += size * u64::from(counted);
            left -= counted;
        }
        let before = std::mem::replace(&mut state.minimum_gpus, gpus);
        if before != gpus {
            self.tree.change_minimum(of.tenant, before, gpus);
        }
    }
}
