//! Nodes that go back: of tenants that are gone, idle for long enough, promised in vain.

use crate::round::{Fate, Round};
use crate::view::Catalog;
use crate::words::{Why, span};
use crate::{Phase, Seconds};
use std::cmp::Reverse;
use std::collections::BTreeSet;

impl Round<'_> {
    /// Nodes that nobody asks for any more, whatever demand there is.
    pub fn release_orphans(&mut self, catalog: &Catalog<'_>) {
        for at in 0..self.view.machines.len() {
            let machine = &self.view.machines[at];
            let Some(owner) = machine.owner().filter(|_| machine.asker.is_none()) else {
                continue;
            };
            let why = match catalog.living(&owner.tenant) {
                Some(tenant) => format!("{} no longer asks for it", catalog.tenants[tenant].name),
                None => "its tenant is gone".into(),
            };
            self.release(at, self.view.now, why);
            self.expect(at);
        }
    }

    /// How many of `nodes` are in the same domain as one of them.
    pub fn neighbours(&self, nodes: &[usize]) -> impl Fn(usize) -> u32 + use<> {
        let of: std::collections::HashMap<usize, usize> =
            nodes.iter().map(|at| (*at, self.view.machines[*at].domain)).collect();
        let mut count = vec![0; self.view.domains.len() + 1];
        for domain in of.values() {
            count[*domain] += 1;
        }
        move |at| of.get(&at).map_or(0, |domain| count[*domain])
    }

    /// Releases nodes that have been idle for long enough. `early`: only of groups that lack nothing, so that what they
    /// give back counts before anything is taken from others.
    pub fn release_idle(&mut self, early: bool) {
        let mut lacking = vec![false; self.view.askers.len()];
        for (want, request) in self.view.wants.iter().zip(&self.requests) {
            lacking[want.asker] |= !request.rest.is_empty() && !matches!(request.why, Some(Why::Never(_)));
        }
        for (asker, lacks) in lacking.into_iter().enumerate() {
            if early && lacks {
                continue;
            }
            let spare = self.holdings[asker]
                .kept
                .saturating_sub(self.view.askers[asker].group.min_nodes) as usize;
            let mut idle: Vec<usize> = self.view.askers[asker].machines.clone();
            idle.retain(|at| {
                let machine = &self.view.machines[*at];
                let serving = machine.owner().is_some_and(|owner| owner.phase == Phase::Assigned);
                serving && self.fates[*at] == Fate::Open && machine.node.idle_since.is_some()
            });
            if spare == 0 || idle.is_empty() {
                continue;
            }
            // Those in domains of which the group has the least: what it keeps stays together, and domains become whole.
            let staying = self.view.askers[asker].machines.iter().copied();
            let neighbours = self.neighbours(&staying.filter(|at| !self.is_leaving(*at)).collect::<Vec<_>>());
            idle.sort_by_key(|at| {
                let node = self.view.machines[*at].node;
                (
                    !node.unusable,
                    node.pods,
                    neighbours(*at),
                    node.idle_since,
                    Reverse(*at),
                )
            });
            let mut left = spare;
            for at in idle {
                match self.idle_until(at) {
                    Some(until) if until > self.view.now => self.wake(until),
                    Some(_) if left > 0 => {
                        left -= 1;
                        self.release_as_idle(at);
                    }
                    _ => {}
                }
            }
        }
    }

    /// When an idle node may go back.
    pub fn idle_until(&self, machine: usize) -> Option<Seconds> {
        let machine = &self.view.machines[machine];
        let (since, owner) = (machine.node.idle_since?, machine.owner()?);
        Some((since + self.view.pool.idle_timeout).max(owner.since + self.view.pool.min_hold_duration))
    }

    pub fn release_as_idle(&mut self, machine: usize) {
        let since = self.view.machines[machine].node.idle_since.unwrap_or(self.view.now);
        let why = format!("idle for {}", span(self.view.now - since));
        self.release(machine, self.view.now, why);
    }

    pub fn is_leaving(&self, machine: usize) -> bool {
        self.view.machines[machine].is_cordoned()
            || matches!(self.fates[machine], Fate::Release { .. } | Fate::Unreserve)
    }

    /// Promises that nothing came of are taken back.
    pub fn take_promises_back(&mut self) {
        for asker in 0..self.view.askers.len() {
            let floor = self.view.askers[asker].group.min_nodes;
            let mut promised: Vec<usize> = self.view.askers[asker].machines.clone();
            promised.retain(|at| self.fates[*at] == Fate::Open && self.view.machines[*at].reserved_of().is_some());
            for at in promised.into_iter().rev() {
                if self.holdings[asker].kept <= floor {
                    // Needed for the floor: it stays promised.
                    self.fates[at] = Fate::Wanted;
                } else {
                    self.unreserve(at, "what it was promised for did not come about".into());
                }
            }
        }
    }

    /// Cordoned nodes that nobody waits for any more stay with those who use them: these tenants.
    pub fn keep_unclaimed(&mut self) -> BTreeSet<usize> {
        let mut tenants = BTreeSet::new();
        for asker in 0..self.view.askers.len() {
            for at in self.holdings[asker].cordoned.clone() {
                if self.view.machines[at].node.idle_since.is_none() && self.may_be_kept(at, &[]) {
                    self.keep(at, "it is in use, and nobody waits for it any more".into());
                    tenants.insert(self.view.askers[asker].tenant);
                }
            }
        }
        tenants
    }
}
