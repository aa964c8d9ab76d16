//! Nodes that only pods keep which use none of their devices.

use crate::pass::{Decision, PlanningPass};

impl PlanningPass<'_> {
    /// Keeps idle nodes for pods that select them and use none of their devices: released as idle, they would come again for the same pods.
    /// From here on they are nodes that pods keep without using them, which go to others that lack them. Others reclaim them as if they were
    /// in use.
    pub fn keep_nodes_of_other_pods(&mut self) {
        for at in 0..self.view.nodes.len() {
            let node = &self.view.nodes[at];
            let is_kept = node.object.kept_by_pods && node.is_serving() && node.group.is_some();
            if is_kept && self.decisions[at] == Decision::Undecided {
                self.decisions[at] = Decision::Needed;
                self.kept_by_pods.insert(at);
                // Nobody counts on it, however long it is idle.
                self.incoming.remove(at);
            }
        }
    }
}
