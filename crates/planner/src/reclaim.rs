//! Taking borrowed nodes back. As few as possible: what is on its way to be free counts first, and nothing is taken for a
//! gang that would still not fit.

use crate::round::{Fate, Round};
use crate::tree::{Claim, Waiting};
use crate::words::clock;
use crate::{Order, Phase, Reclaim, Seconds};
use std::cmp::Reverse;
use std::collections::HashMap;

/// Nodes that may be taken back.
pub(crate) struct Victims {
    /// By group, the first to go first.
    pub of_asker: Vec<Vec<usize>>,
    /// Tenants that have any, in the tree.
    tenants: Waiting,
    /// Their groups that have any.
    pub askers: HashMap<usize, Vec<usize>>,
    /// The least of what runs on any of them.
    importance: Option<i32>,
}

impl<'a> Round<'a> {
    /// A node to take back for a demand.
    pub fn victim_for(&mut self, want: usize) -> Option<usize> {
        self.list_victims();
        self.pick(want, 0)
    }

    /// Nodes that may be taken back, by group: first the idle ones, then those with the least important use, then those of
    /// the smallest gang, then the emptiest, then the youngest.
    pub fn list_victims(&mut self) {
        if self.victims.is_some() {
            return;
        }
        let grace = self.view.pool.reclaim_grace_period;
        let mut lists = vec![Vec::new(); self.view.askers.len()];
        let mut next = None;
        for (asker, list) in lists.iter_mut().enumerate() {
            if self.view.pool.reclaim == Reclaim::Never
                || self.holdings[asker].kept <= self.view.askers[asker].group.min_nodes
            {
                continue;
            }
            for at in self.view.askers[asker].machines.iter().copied() {
                let machine = &self.view.machines[at];
                let Some(owner) = machine.owner() else { continue };
                if owner.phase != Phase::Assigned || machine.node.unusable || !self.is_open(at) {
                    continue;
                }
                // Cordoned now, it can be drained when the warning time is over; its tenure must be over by then.
                let warning = if machine.node.idle_since.is_some() { 0 } else { grace };
                let from = owner.since + self.view.pool.min_hold_duration - warning;
                if from <= self.view.now {
                    list.push(at);
                } else {
                    next = Some(next.map_or(from, |other: i64| other.min(from)));
                }
            }
            let gang = self.gangs(list);
            list.sort_by_key(|at| {
                let machine = &self.view.machines[*at];
                let since = machine.owner().map_or(0, |owner| owner.since);
                let use_of_it = (
                    machine.node.idle_since.is_none(),
                    self.importance(*at),
                    gang(*at),
                    machine.node.pods,
                );
                (self.fates[*at] == Fate::Wanted, use_of_it, Reverse(since), Reverse(*at))
            });
        }
        if let Some(next) = next {
            self.wake(next);
        }
        let in_use = lists
            .iter()
            .flatten()
            .filter(|at| self.view.machines[**at].node.idle_since.is_none());
        let mut victims = Victims {
            importance: in_use.map(|at| self.importance(*at)).min(),
            of_asker: lists,
            tenants: self.tree.nobody(),
            askers: HashMap::new(),
        };
        for asker in 0..self.view.askers.len() {
            let tenant = self.view.askers[asker].tenant;
            if !victims.of_asker[asker].is_empty() {
                let of_tenant: &mut Vec<usize> = victims.askers.entry(tenant).or_default();
                if of_tenant.is_empty() {
                    self.tree.enter(&mut victims.tenants, tenant);
                }
                of_tenant.push(asker);
            }
        }
        self.victims = Some(victims);
    }

    /// The largest gang that runs on a node: on how many of `nodes` it does, and its name. All of it stops when one of its
    /// nodes is taken, so the others are taken next.
    pub fn gangs(&self, nodes: &[usize]) -> impl Fn(usize) -> (u32, &'a str) + use<'a> {
        let mut sizes: HashMap<&'a str, u32> = HashMap::new();
        let of_node = |at: usize| self.view.machines[at].node.gangs.iter();
        for gang in nodes.iter().flat_map(|at| of_node(*at)) {
            *sizes.entry(gang).or_default() += 1;
        }
        let largest = |at: usize| {
            let sizes = of_node(at).map(|gang| (sizes[gang.as_str()], gang.as_str()));
            sizes.filter(|(size, _)| *size > 1).max()
        };
        let known: HashMap<usize, (u32, &'a str)> = nodes.iter().filter_map(|at| Some((*at, largest(*at)?))).collect();
        move |at| known.get(&at).copied().unwrap_or((1, ""))
    }

    pub fn is_open(&self, machine: usize) -> bool {
        matches!(self.fates[machine], Fate::Open | Fate::Wanted)
    }

    /// The priority of what a node is used for, or will be.
    fn importance(&self, machine: usize) -> i32 {
        let node = self.view.machines[machine].node;
        let waiting = self.view.machines[machine]
            .asker
            .filter(|_| self.fates[machine] == Fate::Wanted);
        let waiting = waiting.and_then(|asker| {
            self.view.askers[asker]
                .group
                .demand
                .iter()
                .map(|demand| demand.priority)
                .max()
        });
        let running = node.idle_since.is_none().then_some(node.priority);
        running.max(waiting).unwrap_or(i32::MIN)
    }

    /// The node to take next for a demand that has `already` GPUs in view: from whoever is most above its share.
    pub fn pick(&self, want: usize, already: u64) -> Option<usize> {
        let victims = self.victims.as_ref()?;
        let claimant = self.view.askers[self.view.wants[want].asker].tenant;
        let from_group = |asker: usize| {
            if self.holdings[asker].kept <= self.view.askers[asker].group.min_nodes {
                return None;
            }
            let fits = |at: &usize| {
                let capacity = &self.view.kinds[self.view.machines[*at].kind].capacity;
                self.is_open(*at) && self.matches(want, *at) && self.requests[want].rest.any_fits(capacity)
            };
            let take = |at: &usize| self.may_take(want, *at, already + self.view.gpus(*at), self.view.gpus(*at));
            let list = &victims.of_asker[asker];
            // Whether it may be taken depends on whose it is and, at most, on whether what runs there is less important.
            // The least important one is the first that does not idle.
            let first = list.iter().copied().find(fits)?;
            if take(&first) {
                return Some(first);
            }
            let in_use = |at: &usize| self.view.machines[*at].node.idle_since.is_none() && fits(at);
            list.iter().copied().find(in_use).filter(take)
        };
        let least = self.view.kinds.iter().map(|kind| kind.gpus).min().unwrap_or(1);
        let claim = Claim {
            wanted: already + least,
            least,
            fair: self.is_shared_fairly(),
            urgent: victims
                .importance
                .is_some_and(|least| least < self.view.wants[want].demand.priority),
        };
        let mut from_tenant = |tenant| victims.askers.get(&tenant)?.iter().find_map(|asker| from_group(*asker));
        self.tree
            .first_of_the_richest(claimant, &victims.tenants, &claim, &mut from_tenant)
    }

    /// Whether nodes are taken back for fairness alone. Where whoever waits longest is served first, they would go to
    /// somebody else, and be taken again.
    fn is_shared_fairly(&self) -> bool {
        self.view.pool.reclaim == Reclaim::FairShare && self.view.pool.order == Order::FairShare
    }

    /// Whether a demand may take a node away. `wanted`: GPUs that it is about to have more; `given`: those of the node, as
    /// long as they still count as its holder's.
    pub fn may_take(&self, want: usize, machine: usize, wanted: u64, given: u64) -> bool {
        let Some(holder) = self.view.machines[machine]
            .asker
            .map(|asker| self.view.askers[asker].tenant)
        else {
            return false;
        };
        let claimant = self.view.askers[self.view.wants[want].asker].tenant;
        if claimant == holder || !self.tree.is_borrowed(claimant, holder, given) {
            return false;
        }
        // What its holder's demand counts on is given up for guarantees only: gangs would take turns at taking nodes from each
        // other, and neither would start.
        let counted_on = matches!(self.fates[machine], Fate::Wanted | Fate::Lent { wanted: true });
        if self.tree.is_due(claimant, holder, wanted) || counted_on {
            return self.tree.is_due(claimant, holder, wanted);
        }
        // Who is giving nodes up takes none from others: nodes would go round.
        if self.tree.gives_up(claimant) {
            return false;
        }
        let (running, priority) = (self.importance(machine), self.view.wants[want].demand.priority);
        let urgent = running < priority && self.view.machines[machine].node.idle_since.is_none();
        // What is more important would be served first when it waits again, and take the node back.
        let fair = running <= priority && self.is_shared_fairly();
        urgent || fair && self.tree.is_fairer(claimant, holder, wanted, given)
    }

    /// Whether a node has been idle for so long that it may go back.
    pub fn is_expired(&self, machine: usize) -> bool {
        let serving = self.view.machines[machine]
            .owner()
            .is_some_and(|owner| owner.phase == Phase::Assigned);
        serving && self.idle_until(machine).is_some_and(|until| until <= self.view.now)
    }

    /// Takes a node from its group for a demand, if it was not: one that would go back after all, or a borrowed one. Tells
    /// whether it did.
    pub fn take_back(&mut self, machine: usize, want: usize) -> bool {
        let serving = self.view.machines[machine]
            .owner()
            .is_some_and(|owner| owner.phase == Phase::Assigned);
        if !serving || matches!(self.fates[machine], Fate::Release { .. }) {
            return false;
        }
        if self.is_expired(machine) {
            self.release_as_idle(machine);
        } else {
            self.reclaim(machine, want);
        }
        true
    }

    /// Cordons a borrowed node for a demand.
    fn reclaim(&mut self, machine: usize, want: usize) {
        let (until, from) = self.warning(machine);
        let (demand, asker) = (self.view.wants[want].demand, self.view.wants[want].asker);
        let why = format!(
            "borrowed, and {} of {} goes first{from}",
            demand.name, self.view.askers[asker].of.name
        );
        self.release(machine, until, why);
    }

    /// When a node that is taken from somebody is drained, and how that is said: whoever uses it is warned.
    pub fn warning(&self, machine: usize) -> (Seconds, String) {
        let idle = self.view.machines[machine].node.idle_since.is_some();
        let until = self.view.now + if idle { 0 } else { self.view.pool.reclaim_grace_period };
        let words = if until > self.view.now {
            format!(", drained from {}", clock(until))
        } else {
            String::new()
        };
        (until, words)
    }
}
