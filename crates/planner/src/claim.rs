//! Serving one demand: what fits on nodes of its group is placed there, then cordoned nodes are kept, then free ones are
//! promised, and what is still missing is waited for or taken back from borrowers.

use crate::packing::Load;
use crate::round::{Fate, Round};
use crate::supply::{Search, Supply};
use crate::words::Why;
use crate::{Domain, Seconds};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// How long a gang may be overtaken unless the pool says otherwise.
const PATIENCE: Seconds = 600;

/// What is being served now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Band {
    /// Only what is within a guarantee.
    pub guaranteed: bool,
    /// Only demand of this priority.
    pub priority: i32,
}

/// How far a turn came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It has got a node and needs more.
    Progress,
    /// All of it is placed, or has to wait.
    Done,
    /// Not in this band.
    Later,
}

/// Nodes for a gang, by where they come from.
#[derive(Default)]
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
            if picks.rest.is_empty() || (!gang && self.view.wants[want].demand.one_domain == Domain::Any) {
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
            (want.asker, Reverse(demand.priority), demand.since, &demand.name, *at)
        });
        wants
    }

    /// Room on nodes of the group for a demand; in one domain if it must be.
    fn own_room(&self, want: usize) -> Picks {
        let (asker, demand) = (self.view.wants[want].asker, self.view.wants[want].demand);
        let rooms = &self.holdings[asker].rooms;
        if demand.one_domain == Domain::Any {
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

    /// One step for a demand: a gang gets all or nothing, anything else a node at a time.
    pub fn turn(&mut self, want: usize, band: Band) -> Turn {
        let demand = self.view.wants[want].demand;
        if demand.gang || demand.one_domain == Domain::Required {
            self.gang_turn(want, band)
        } else {
            self.node_turn(want, band)
        }
    }

    fn node_turn(&mut self, want: usize, band: Band) -> Turn {
        let picks = self.own_room(want);
        self.settle(want, picks);
        if self.requests[want].rest.is_empty() {
            return Turn::Done;
        }
        let asker = self.view.wants[want].asker;
        let tenant = self.view.askers[asker].tenant;
        let in_band = |round: &Self, gpus| !band.guaranteed || round.tree.is_guaranteed(tenant, gpus);
        let fits = |round: &Self, machine: usize| {
            round.matches(want, machine) && round.requests[want].rest.any_fits(&round.view.room(machine))
        };

        let own = self.holdings[asker].cordoned.iter().copied();
        if let Some(own) = own.into_iter().find(|at| self.may_be_kept(*at) && fits(self, *at)) {
            if !in_band(self, 0) {
                return Turn::Later;
            }
            self.keep(own, format!("{} needs it again", self.view.wants[want].demand.name));
            let room = self.view.room(own);
            self.add_room(asker, own, room);
            return Turn::Progress;
        }
        let found = self.supply.find(
            &Search {
                load: &self.requests[want].rest,
                selector: self.view.wants[want].selector,
                home: &self.holdings[asker].home,
                one_domain: false,
                first: true,
            },
            &self.view.kinds,
        );
        let mut not_lent = None;
        if let Some(node) = found.nodes.first().copied() {
            let gpus = self.view.gpus(node);
            if !in_band(self, gpus) {
                return Turn::Later;
            }
            if let Err(why) = self.may_have(asker, 1, gpus) {
                return self.blocked(want, why);
            }
            match self.is_lent(tenant, gpus) {
                Ok(()) => {
                    let why = self.gift_words(want, false);
                    self.reserve(node, asker, false, why);
                    let room = self.view.room(node);
                    self.add_room(asker, node, room);
                    self.requests[want].given += 1;
                    return Turn::Progress;
                }
                Err(why) => not_lent = Some(why),
            }
        }
        let next = self.coming.iter().copied().find(|at| {
            !self.is_own(want, *at)
                && self.matches(want, *at)
                && self.requests[want]
                    .rest
                    .any_fits(&self.view.kinds[self.view.machines[*at].kind].capacity)
        });
        let next = next.or_else(|| self.idle_for(want)).or_else(|| self.victim_for(want));
        let Some(machine) = next.filter(|_| not_lent.is_none()) else {
            return if band.guaranteed {
                Turn::Later
            } else {
                self.blocked(want, not_lent.unwrap_or(Why::NoneFree))
            };
        };
        let gpus = self.view.gpus(machine);
        if !in_band(self, gpus) {
            return Turn::Later;
        }
        if let Err(why) = self.may_have(asker, 1 + self.holdings[asker].awaited, gpus) {
            return self.blocked(want, why);
        }
        if !self.coming.contains(&machine) {
            self.take_back(machine, want);
        }
        self.await_node(machine, asker);
        let mut room = self.view.kinds[self.view.machines[machine].kind].capacity.clone();
        self.requests[want].rest.place(&mut room);
        self.requests[want].awaited.push(machine);
        self.requests[want].why.get_or_insert(Why::Coming);
        Turn::Progress
    }

    fn gang_turn(&mut self, want: usize, band: Band) -> Turn {
        let asker = self.view.wants[want].asker;
        let tenant = self.view.askers[asker].tenant;
        let picks = match self.view.wants[want].demand.one_domain {
            Domain::Any => self.gang_anywhere(want),
            Domain::Required => self.gang_in_one_domain(want),
        };
        let complete = picks.rest.is_empty();
        let fresh: u64 = picks.free.iter().map(|at| self.view.gpus(*at)).sum();
        let mut why = Why::NoneFree;
        if complete {
            if band.guaranteed && !self.tree.is_guaranteed(tenant, fresh) {
                return Turn::Later;
            }
            match self
                .may_have(asker, picks.free.len(), fresh)
                .and_then(|()| self.is_lent(tenant, fresh))
            {
                Ok(()) => {
                    self.grant(want, picks);
                    return Turn::Done;
                }
                Err(other) => why = other,
            }
        } else {
            let lacks = self.nodes_for(want, &picks.rest);
            let number = picks.free.len() + lacks as usize;
            let least = self.view.kinds.iter().map(|kind| kind.gpus).min().unwrap_or(1);
            if let Err(other) = self.may_have(asker, number, fresh + least * u64::from(lacks)) {
                why = other;
            }
        }
        if matches!(why, Why::NoneFree | Why::NotLent { .. }) {
            if self.wait_for_all(want, band) {
                return Turn::Done;
            }
            if !band.guaranteed && why == Why::NoneFree {
                self.be_patient(want, picks);
            }
        }
        if band.guaranteed {
            Turn::Later
        } else {
            self.blocked(want, why)
        }
    }

    /// Room, cordoned and free nodes for a gang, wherever they are.
    pub fn gang_anywhere(&self, want: usize) -> Picks {
        let asker = self.view.wants[want].asker;
        let mut picks = self.pack(want, self.holdings[asker].rooms.iter());
        for own in &self.holdings[asker].cordoned {
            let mut room = self.view.room(*own);
            if self.may_be_kept(*own) && self.matches(want, *own) && picks.rest.place(&mut room) > 0 {
                picks.cordoned.push(*own);
            }
        }
        let found = self.supply.find(
            &Search {
                load: &picks.rest,
                selector: self.view.wants[want].selector,
                home: &self.holdings[asker].home,
                one_domain: false,
                first: false,
            },
            &self.view.kinds,
        );
        picks.free = found.nodes;
        picks.rest = found.rest;
        picks
    }

    /// The same in one domain: where the group is already, with the fewest nodes more, else the tightest.
    fn gang_in_one_domain(&self, want: usize) -> Picks {
        let asker = self.view.wants[want].asker;
        let holding = &self.holdings[asker];
        let mut best: Option<Picks> = None;
        for domain in &holding.home {
            let here = |at: usize| self.view.machines[at].domain == *domain;
            let mut picks = self.pack(want, holding.rooms.iter().filter(|(at, _)| here(*at)));
            for own in holding.cordoned.iter().filter(|at| here(**at)) {
                let mut room = self.view.room(*own);
                if self.may_be_kept(*own) && self.matches(want, *own) && picks.rest.place(&mut room) > 0 {
                    picks.cordoned.push(*own);
                }
            }
            let (nodes, rest) =
                self.supply
                    .in_domain(*domain, &picks.rest, self.view.wants[want].selector, &self.view.kinds);
            picks.free = nodes;
            picks.rest = rest;
            let fewer = best.as_ref().is_none_or(|other| picks.free.len() < other.free.len());
            if picks.rest.is_empty() && fewer {
                best = Some(picks);
            }
        }
        best.unwrap_or_else(|| {
            let mut picks = self.pack(want, [].iter());
            let found = self.supply.find(
                &Search {
                    load: &picks.rest,
                    selector: self.view.wants[want].selector,
                    home: &holding.home,
                    one_domain: true,
                    first: false,
                },
                &self.view.kinds,
            );
            picks.free = found.nodes;
            picks.rest = found.rest;
            picks
        })
    }

    /// Gives a gang all its nodes.
    fn grant(&mut self, want: usize, mut picks: Picks) {
        let asker = self.view.wants[want].asker;
        let (free, cordoned) = (std::mem::take(&mut picks.free), std::mem::take(&mut picks.cordoned));
        let mut load = self.requests[want].rest.clone();
        for (machine, _) in &picks.rooms {
            if let Some((_, before)) = self.holdings[asker].rooms.iter().find(|(other, _)| other == machine) {
                load.place(&mut before.clone());
            }
        }
        self.settle(want, picks);
        for own in cordoned {
            self.keep(own, format!("{} needs it again", self.view.wants[want].demand.name));
            let mut room = self.view.room(own);
            load.place(&mut room);
            self.add_room(asker, own, room);
        }
        let why = self.gift_words(want, true);
        for node in free {
            self.reserve(node, asker, true, why.clone());
            let mut room = self.view.room(node);
            load.place(&mut room);
            self.add_room(asker, node, room);
            self.requests[want].given += 1;
        }
    }

    pub fn add_room(&mut self, asker: usize, machine: usize, room: Vec<u64>) {
        self.holdings[asker].rooms.push((machine, room));
    }

    /// Whether a cordoned node may still stay with its group: nobody who goes first claims it, and it was not given up.
    pub fn may_be_kept(&self, machine: usize) -> bool {
        let open = self.fates[machine] == Fate::Open && !self.view.machines[machine].node.broken;
        let asker = self.view.machines[machine].asker.filter(|_| open);
        asker.is_some_and(|asker| self.holdings[asker].kept < self.view.askers[asker].group.max)
    }

    pub fn blocked(&mut self, want: usize, why: Why) -> Turn {
        self.requests[want].why = Some(why);
        Turn::Done
    }

    /// A gang that is next and has waited long enough has free nodes kept for it, as they come, until it can have them all.
    /// Only one at a time, so that the pool does not stand still.
    fn be_patient(&mut self, want: usize, picks: Picks) {
        let since = self.view.wants[want].demand.since;
        let from = since + self.view.pool.patience.unwrap_or(PATIENCE);
        if from > self.view.now {
            self.wake(from);
            return;
        }
        if self.holds_for_gang || !self.could_have(want) {
            return;
        }
        self.holds_for_gang = true;
        let asker = self.view.wants[want].asker;
        let (free, rest) = match self.view.wants[want].demand.one_domain {
            Domain::Any => (picks.free, picks.rest),
            Domain::Required => self.most_promising_domain(want),
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
        let wanted = &self.view.wants[want];
        let search = Search {
            load: &wanted.load,
            selector: wanted.selector,
            home: &BTreeSet::new(),
            one_domain: wanted.demand.one_domain == Domain::Required,
            first: false,
        };
        let found = self
            .reachable
            .as_ref()
            .map(|reachable| reachable.find(&search, &self.view.kinds));
        found.is_some_and(|found| found.rest.is_empty())
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
            for at in asker.machines.iter().take(asker.group.min as usize) {
                follows_demand[*at] = false;
            }
        }
        let hoped = view.machines.iter().enumerate().filter(|(at, machine)| {
            let given_back = machine.asker.is_some() && follows_demand[*at];
            !machine.node.broken && (machine.is_free() || machine.is_returning() || given_back)
        });
        let hoped: Vec<(usize, usize, usize)> = hoped.map(|(at, machine)| (at, machine.kind, machine.domain)).collect();
        let mut supply = Supply::new(view.domain_sizes());
        supply.fill(hoped.into_iter(), &view.kinds);
        self.reachable = Some(supply);
    }
}
