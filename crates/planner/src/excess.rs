//! Nodes beyond what somebody may have: a tenant asks for fewer, or the limit of a share was lowered.

use crate::Phase;
use crate::round::Round;
use std::cmp::Reverse;

impl Round<'_> {
    /// Takes back what groups and shares have beyond what they may have.
    pub fn take_excess(&mut self) {
        for asker in 0..self.view.askers.len() {
            let most = self.view.askers[asker].most();
            let excess = self.holdings[asker].kept.saturating_sub(most);
            if excess == 0 {
                continue;
            }
            for at in self.dispensable(asker).into_iter().take(excess as usize) {
                let why = format!("{} asks for {most} nodes only", self.view.askers[asker].of.name);
                self.release(at, self.view.now, why);
                self.expect(at);
            }
        }
        // What floors have goes last.
        for floors_too in [false, true] {
            self.enforce_limits(floors_too);
        }
    }

    /// Takes nodes from shares that have more than their limit: from the tenant that is the furthest above its share.
    fn enforce_limits(&mut self, floors_too: bool) {
        let mut holders = self.tree.nobody();
        let mut givers: Vec<(usize, u32)> = Vec::new();
        for (asker, holding) in self.holdings.iter().enumerate() {
            let floor = if floors_too {
                0
            } else {
                self.view.askers[asker].group.min_nodes
            };
            let spare = holding.kept.saturating_sub(floor);
            if spare > 0 {
                self.tree.enter(&mut holders, self.view.askers[asker].tenant);
                givers.push((asker, spare));
            }
        }
        let mut lists: Vec<Option<Vec<usize>>> = vec![None; givers.len()];
        while let Some((share, name, limit)) = self.tree.beyond_limit(&holders) {
            let Some(tenant) = self.tree.richest_below(share, &holders) else {
                return;
            };
            let of_tenant = |(asker, spare): &(usize, u32)| *spare > 0 && self.view.askers[*asker].tenant == tenant;
            let Some(giver) = givers.iter().position(of_tenant) else {
                return;
            };
            let asker = givers[giver].0;
            let list = lists[giver].get_or_insert_with(|| self.dispensable(asker).into_iter().rev().collect());
            let next = list.pop();
            givers[giver].1 -= 1;
            if givers[giver].1 == 0 {
                self.tree.exit(&mut holders, tenant);
            }
            let Some(at) = next else { continue };
            let (until, from) = self.warning(at);
            let why = format!("{name} has {limit} GPUs of pool {} at most{from}", self.view.pool.name);
            if self.view.machines[at].reserved_of().is_some() {
                self.unreserve(at, why);
            } else {
                self.release(at, until, why);
            }
            self.expect(at);
        }
    }

    /// Nodes of a group that stay, the first to be given up first: those that do not serve yet, broken ones, idle ones, those
    /// with the least important use, those of the smallest gang, the emptiest, and those in domains where the group has the fewest.
    fn dispensable(&self, asker: usize) -> Vec<usize> {
        let mut staying: Vec<usize> = self.view.askers[asker].machines.clone();
        staying.retain(|at| !self.is_leaving(*at));
        let (neighbours, gang) = (self.neighbours(&staying), self.gangs(&staying));
        staying.sort_by_key(|at| {
            let machine = &self.view.machines[*at];
            let serving = machine.owner().is_some_and(|owner| owner.phase == Phase::Assigned);
            let use_of_it = (
                machine.node.idle_since.is_none(),
                machine.node.priority,
                gang(*at),
                machine.node.pods,
            );
            (
                serving,
                !machine.node.unusable,
                use_of_it,
                neighbours(*at),
                Reverse(*at),
            )
        });
        staying
    }
}
