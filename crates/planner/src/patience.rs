//! A gang that has waited long enough is no longer overtaken: free nodes are kept for it.

use crate::packing::Load;
use crate::rooms::Picks;
use crate::round::Round;
use crate::{Seconds, Topology};
use std::cmp::Reverse;

/// How long a gang may be overtaken unless the pool says otherwise.
const PATIENCE: Seconds = 600;

impl Round<'_> {
    /// A gang that is next and has waited long enough has free nodes kept for it, as they come, until it can have them all.
    /// Only one at a time, so that the pool does not stand still.
    pub fn be_patient(&mut self, want: usize, picks: Picks) {
        let since = self.view.wants[want].demand.waiting_since;
        let from = since + self.view.pool.starvation_limit.unwrap_or(PATIENCE);
        if from > self.view.now {
            self.wake(from);
            return;
        }
        if self.holds_for_gang || !self.could_have(want) {
            return;
        }
        self.holds_for_gang = true;
        let asker = self.view.wants[want].asker;
        let (free, rest) = match self.view.wants[want].demand.topology {
            Topology::Any => (picks.free, picks.rest),
            Topology::SingleDomain => self.most_promising_domain(want),
        };
        self.requests[want].rest = rest;
        // Nodes that the gang's group has are not held for it: they go back when they have been idle for long enough.
        for machine in free {
            self.await_node(machine, asker);
            self.requests[want].awaited.push(machine);
        }
    }

    /// Whether the pool has enough for a gang once others give back what follows demand.
    fn could_have(&mut self, want: usize) -> bool {
        self.list_reachable();
        let reachable = self.reachable.as_ref();
        reachable.is_some_and(|reachable| self.view.fits(want, reachable))
    }

    /// The free nodes of the domain that has the most of them, of those that are large enough for the gang.
    fn most_promising_domain(&self, want: usize) -> (Vec<usize>, Load) {
        let (load, selector, kinds) = (
            &self.view.wants[want].load,
            self.view.wants[want].selector,
            &self.view.kinds,
        );
        let large = |domain: &usize| {
            let reachable = self.reachable.as_ref();
            reachable.is_some_and(|reachable| reachable.in_domain(*domain, load, selector, kinds).1.is_empty())
        };
        let large = (0..self.view.domains.len()).filter(large);
        let found = large.map(|domain| self.supply.in_domain(domain, load, selector, kinds));
        let most = found.max_by_key(|(nodes, _)| (nodes.len(), Reverse(nodes.first().copied())));
        most.unwrap_or_else(|| (Vec::new(), load.clone()))
    }

    /// All nodes that demand may hope for: free ones, those on their way, and those of groups that follow demand.
    fn list_reachable(&mut self) {
        if self.reachable.is_some() {
            return;
        }
        let view = &self.view;
        let mut follows_demand = vec![true; view.machines.len()];
        for asker in &view.askers {
            for at in asker.machines.iter().take(asker.group.min_nodes as usize) {
                follows_demand[*at] = false;
            }
        }
        self.reachable = Some(view.supply(|at| {
            let machine = &view.machines[at];
            // What was promised to a floor a moment ago is gone.
            let hoped = match machine.asker {
                Some(_) => follows_demand[at],
                None => machine.is_free() || machine.is_returning(),
            };
            hoped && !machine.node.unusable
        }));
    }
}
