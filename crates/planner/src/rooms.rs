//! What a group has: room on its nodes, which demand is placed on before any node is given.

use crate::Topology;
use crate::packing::Load;
use crate::round::{Fate, Round};
use std::cmp::Reverse;

/// Nodes for a demand, by where they come from.
#[derive(Clone, Default)]
pub(crate) struct Picks {
    /// Room that it takes: (machine, what is left of it).
    pub rooms: Vec<(usize, Vec<u64>)>,
    pub cordoned: Vec<usize>,
    pub free: Vec<usize>,
    pub rest: Load,
}

impl Round<'_> {
    /// Places what fits on the nodes that every group has, before anything is given.
    pub fn place_on_own(&mut self) {
        for asker in 0..self.view.askers.len() {
            if self.view.askers[asker].group.demand.is_empty() {
                continue;
            }
            let machines = self.view.askers[asker].machines.iter().copied();
            let staying = machines
                .filter(|at| self.fates[*at] == Fate::Open && self.view.machines[*at].cordoned_until().is_none());
            let mut rooms: Vec<(usize, Vec<u64>)> = staying.map(|at| (at, self.view.room(at))).collect();
            // The fullest first, so that empty nodes can go back.
            rooms.sort_by(|a, b| (&a.1, a.0).cmp(&(&b.1, b.0)));
            self.holdings[asker].rooms = rooms;
        }
        for want in self.in_order_of_groups() {
            let gang = self.view.wants[want].demand.gang;
            let picks = self.own_room(want);
            if picks.rest.is_empty() || (!gang && self.view.wants[want].demand.topology == Topology::Any) {
                self.settle(want, picks);
            }
        }
    }

    /// Demand of each group: higher priority first, then what has waited longer.
    pub fn in_order_of_groups(&self) -> Vec<usize> {
        let mut wants: Vec<usize> = (0..self.view.wants.len())
            .filter(|want| self.requests[*want].why.is_none())
            .collect();
        wants.sort_by_key(|at| {
            let want = &self.view.wants[*at];
            let demand = want.demand;
            (
                want.asker,
                Reverse(demand.priority),
                demand.waiting_since,
                &demand.name,
                *at,
            )
        });
        wants
    }

    /// Room on nodes of the group for a demand; in one domain if it must be.
    pub fn own_room(&self, want: usize) -> Picks {
        let (asker, demand) = (self.view.wants[want].asker, self.view.wants[want].demand);
        let rooms = &self.holdings[asker].rooms;
        if demand.topology == Topology::Any {
            return self.pack(want, rooms.iter());
        }
        let homes = self.holdings[asker].home.iter();
        let in_domain = |domain: usize| {
            rooms
                .iter()
                .filter(move |(at, _)| self.view.machines[*at].domain == domain)
        };
        let mut tried = homes.map(|domain| self.pack(want, in_domain(*domain)));
        tried
            .find(|picks| picks.rest.is_empty())
            .unwrap_or_else(|| self.pack(want, [].iter()))
    }

    pub fn pack<'r>(&self, want: usize, rooms: impl Iterator<Item = &'r (usize, Vec<u64>)>) -> Picks {
        let mut picks = Picks {
            rest: self.requests[want].rest.clone(),
            ..Picks::default()
        };
        for (machine, room) in rooms {
            if picks.rest.is_empty() {
                break;
            }
            if self.matches(want, *machine) && picks.rest.any_fits(room) {
                let mut room = room.clone();
                picks.rest.place(&mut room);
                picks.rooms.push((*machine, room));
            }
        }
        picks
    }

    pub fn matches(&self, want: usize, machine: usize) -> bool {
        self.view.kinds[self.view.machines[machine].kind].matches[self.view.wants[want].selector]
    }

    /// Places a demand on the room it found.
    pub fn settle(&mut self, want: usize, picks: Picks) {
        let holding = &mut self.holdings[self.view.wants[want].asker];
        for (machine, room) in picks.rooms {
            if let Some(known) = holding.rooms.iter_mut().find(|(other, _)| *other == machine) {
                known.1 = room;
            }
            if self.fates[machine] == Fate::Open {
                self.fates[machine] = Fate::Wanted;
            }
        }
        self.requests[want].rest = picks.rest;
    }

    pub fn add_room(&mut self, asker: usize, machine: usize, room: Vec<u64>) {
        self.holdings[asker].rooms.push((machine, room));
    }

    /// Whether a cordoned node may still stay with its group, together with `others`: nobody who goes first claims it, it was
    /// not given up, and the group and its shares may have so much.
    pub fn may_be_kept(&self, machine: usize, others: &[usize]) -> bool {
        let open = self.fates[machine] == Fate::Open && !self.view.machines[machine].node.unusable;
        let asker = self.view.machines[machine].asker.filter(|_| open);
        asker.is_some_and(|asker| {
            let gpus: u64 = others.iter().chain([&machine]).map(|at| self.view.gpus(*at)).sum();
            self.holdings[asker].kept as usize + others.len() < self.view.askers[asker].most() as usize
                && self.tree.may_stay(self.view.askers[asker].tenant, gpus)
        })
    }

    /// Adds cordoned nodes of the group on which something of the demand fits.
    pub fn add_cordoned(&self, want: usize, picks: &mut Picks, here: impl Fn(usize) -> bool) {
        let own = &self.holdings[self.view.wants[want].asker].cordoned;
        for at in own.iter().copied().filter(|at| here(*at)) {
            if self.may_be_kept(at, &picks.cordoned)
                && self.matches(want, at)
                && picks.rest.place(&mut self.view.room(at)) > 0
            {
                picks.cordoned.push(at);
            }
        }
    }
}
