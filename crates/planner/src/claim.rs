//! Serving one demand: what fits on nodes of its group is placed there, then cordoned nodes are kept, then free ones are
//! promised, and what is still missing is waited for or taken back from borrowers.

use crate::Topology;
use crate::packing::Load;
use crate::rooms::Picks;
use crate::round::Round;
use crate::supply::{Found, Search};
use crate::words::Why;

/// What is being served now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Band {
    /// Only what is within a guarantee of a share so deep in the tree, or deeper. Those below go first: what a team is
    /// guaranteed is not for others of its organization, whatever the organization is guaranteed.
    pub guaranteed: Option<usize>,
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

impl Round<'_> {
    /// One step for a demand: a gang gets all or nothing, anything else a node at a time.
    pub fn turn(&mut self, want: usize, band: Band) -> Turn {
        let demand = self.view.wants[want].demand;
        if demand.gang || demand.topology == Topology::SingleDomain {
            self.gang_turn(want, band)
        } else {
            self.node_turn(want, band)
        }
    }

    /// Whether a tenant is to be given `gpus` more now.
    pub fn is_in_band(&self, tenant: usize, band: Band, gpus: u64) -> bool {
        let depth = band.guaranteed;
        depth.is_none_or(|depth| self.tree.is_guaranteed_at(tenant, depth, gpus))
    }

    fn node_turn(&mut self, want: usize, band: Band) -> Turn {
        let picks = self.own_room(want);
        self.settle(want, picks);
        if self.requests[want].rest.is_empty() {
            return Turn::Done;
        }
        let asker = self.view.wants[want].asker;
        let tenant = self.view.askers[asker].tenant;
        let in_band = |round: &Self, gpus| round.is_in_band(tenant, band, gpus);
        let fits = |round: &Self, machine: usize| {
            round.matches(want, machine) && round.requests[want].rest.any_fits(&round.view.room(machine))
        };

        let own = self.holdings[asker].cordoned.iter().copied();
        if let Some(own) = own.into_iter().find(|at| self.may_be_kept(*at, &[]) && fits(self, *at)) {
            if !in_band(self, 0) {
                return Turn::Later;
            }
            self.keep(own, format!("{} needs it again", self.view.wants[want].demand.name));
            let room = self.view.room(own);
            self.add_room(asker, own, room);
            return Turn::Progress;
        }
        let found = self.find_free(want, &self.requests[want].rest, false, true);
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
                && self.comes(*at, asker)
                && self.matches(want, *at)
                && self.requests[want]
                    .rest
                    .any_fits(&self.view.kinds[self.view.machines[*at].kind].capacity)
        });
        let next = next.or_else(|| self.victim_for(want));
        let Some(machine) = next.filter(|_| not_lent.is_none()) else {
            return if band.guaranteed.is_some() {
                Turn::Later
            } else {
                let least = self.view.kinds.iter().map(|kind| kind.gpus).min().unwrap_or(1);
                let why = self.may_have(asker, 1, least).err().or(not_lent);
                self.blocked(want, why.unwrap_or(Why::NoneFree))
            };
        };
        let gpus = self.view.gpus(machine);
        if !in_band(self, gpus) {
            return Turn::Later;
        }
        if let Err(why) = self.may_have(asker, 1 + self.holdings[asker].awaited, gpus) {
            return self.blocked(want, why);
        }
        if self.take_back(machine, want) && self.pass_to_floor(machine) {
            return Turn::Progress;
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
        let picks = match self.view.wants[want].demand.topology {
            Topology::Any => self.gang_anywhere(want),
            Topology::SingleDomain => self.gang_in_one_domain(want),
        };
        let complete = picks.rest.is_empty();
        let fresh: u64 = picks.free.iter().map(|at| self.view.gpus(*at)).sum();
        let mut why = Why::NoneFree;
        if complete {
            if !self.is_in_band(tenant, band, fresh) {
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
            if let Some(turn) = self.wait_for_all(want, band, &picks) {
                return turn;
            }
            if band.guaranteed.is_none() && why == Why::NoneFree {
                self.be_patient(want, picks);
            }
        }
        if band.guaranteed.is_some() {
            Turn::Later
        } else {
            self.blocked(want, why)
        }
    }

    /// Room, cordoned and free nodes for a gang, wherever they are.
    fn gang_anywhere(&self, want: usize) -> Picks {
        let asker = self.view.wants[want].asker;
        let mut picks = self.pack(want, self.holdings[asker].rooms.iter());
        self.add_cordoned(want, &mut picks, |_| true);
        let found = self.find_free(want, &picks.rest, false, false);
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
            self.add_cordoned(want, &mut picks, here);
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
            let found = self.find_free(want, &picks.rest, true, false);
            picks.free = found.nodes;
            picks.rest = found.rest;
            picks
        })
    }

    /// Free nodes for what is left of a demand.
    fn find_free(&self, want: usize, load: &Load, one_domain: bool, first: bool) -> Found {
        let wanted = &self.view.wants[want];
        let search = Search {
            load,
            selector: wanted.selector,
            home: &self.holdings[wanted.asker].home,
            one_domain,
            first,
        };
        self.supply.find(&search, &self.view.kinds)
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

    pub fn blocked(&mut self, want: usize, why: Why) -> Turn {
        self.requests[want].why = Some(why);
        Turn::Done
    }
}
