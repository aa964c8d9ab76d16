//! All that a gang needs and cannot have yet: what is on its way is kept for it, and what others borrowed is taken back, if it
//! has everything then.

use crate::claim::{Band, Turn};
use crate::packing::Load;
use crate::rooms::Picks;
use crate::round::{Fate, Round};
use crate::words::Why;
use crate::{Phase, Topology};

impl Round<'_> {
    /// A gang that would fit if it had what is on its way, and what others borrowed, is next: these are kept for it, and
    /// as many borrowed nodes as it needs are taken back. Otherwise nothing is done. `there`: what it has and what is free.
    pub fn wait_for_all(&mut self, want: usize, band: Band, there: &Picks) -> Option<Turn> {
        self.list_victims();
        if self.coming.is_empty() && self.victims.as_ref().is_none_or(|victims| victims.askers.is_empty()) {
            return None;
        }
        let found = match self.view.wants[want].demand.topology {
            Topology::Any => self.gather_anywhere(want, there.clone()),
            Topology::SingleDomain => self.gather_in_one_domain(want),
        };
        let (picks, later) = found?;
        let asker = self.view.wants[want].asker;
        let tenant = self.view.askers[asker].tenant;
        let gpus = |nodes: &[usize]| nodes.iter().map(|at| self.view.gpus(*at)).sum::<u64>();
        let fresh = gpus(&picks.free) + gpus(&later);
        let number = picks.free.len() + later.len() + self.holdings[asker].awaited;
        if !self.is_in_band(tenant, band, fresh) || self.may_have(asker, number, fresh).is_err() {
            return None;
        }
        if self.is_lent(tenant, gpus(&picks.free)).is_err() {
            return None;
        }
        if !self.short.is_empty()
            && let Some(taken) = later.iter().copied().find(|at| self.take_back(*at, want))
        {
            self.pass_to_floor(taken);
            return Some(Turn::Progress);
        }
        for own in &picks.cordoned {
            self.keep(*own, format!("{} needs it again", self.view.wants[want].demand.name));
            // Nothing else is placed on it: it is full when the gang starts.
        }
        let free = picks.free.clone();
        self.settle(
            want,
            Picks {
                rest: Load::default(),
                ..picks
            },
        );
        for machine in free.into_iter().chain(later) {
            self.take_back(machine, want);
            self.await_node(machine, asker);
            self.requests[want].awaited.push(machine);
        }
        self.requests[want].why = Some(Why::Coming);
        Some(Turn::Done)
    }

    /// To own and free nodes, later ones: those on their way, then borrowed ones, until the gang fits.
    fn gather_anywhere(&mut self, want: usize, mut picks: Picks) -> Option<(Picks, Vec<usize>)> {
        let asker = self.view.wants[want].asker;
        let (mut later, mut lent) = (Vec::new(), Vec::new());
        for at in self.coming.clone() {
            if picks.rest.is_empty() {
                break;
            }
            let capacity = &self.view.kinds[self.view.machines[at].kind].capacity;
            let fits = self.matches(want, at) && picks.rest.any_fits(capacity);
            if fits && !self.is_own(want, at) && self.comes(at, asker) {
                picks.rest.place(&mut capacity.clone());
                later.push(at);
                if self.lend_expired(at) {
                    lent.push(at);
                }
            }
        }
        let in_view = picks.free.iter().chain(&later).map(|at| self.view.gpus(*at));
        let mut wanted: u64 = in_view.sum();
        let before = self.requests[want].rest.clone();
        let mut taken = Vec::new();
        while !picks.rest.is_empty() {
            self.requests[want].rest = picks.rest.clone();
            let Some(machine) = self.pick(want, wanted) else { break };
            wanted += self.view.gpus(machine);
            self.lend(machine);
            taken.push(machine);
            let mut room = self.view.kinds[self.view.machines[machine].kind].capacity.clone();
            picks.rest.place(&mut room);
        }
        self.requests[want].rest = before;
        // The first ones were picked while it was asking for less than all.
        let fair = taken.iter().all(|at| self.may_take(want, *at, wanted, 0));
        for machine in taken.iter().chain(&lent) {
            self.give_again(*machine);
        }
        later.extend(taken);
        (fair && picks.rest.is_empty()).then_some((picks, later))
    }

    /// The domain in which the gang fits with the fewest nodes taken from others, then with the fewest to wait for.
    fn gather_in_one_domain(&mut self, want: usize) -> Option<(Picks, Vec<usize>)> {
        self.searches = self.searches.checked_sub(1)?;
        let asker = self.view.wants[want].asker;
        let domains = self.view.domains.len();
        let (mut free, mut coming, mut borrowed) =
            (vec![vec![]; domains], vec![vec![]; domains], vec![vec![]; domains]);
        for (at, machine) in self.view.machines.iter().enumerate() {
            if machine.domain < domains && machine.is_free() && self.fates[at] == Fate::Open {
                free[machine.domain].push(at);
            }
        }
        for at in &self.coming {
            if self.view.machines[*at].domain < domains && self.comes(*at, asker) {
                coming[self.view.machines[*at].domain].push(*at);
            }
        }
        for at in self
            .victims
            .iter()
            .flat_map(|victims| victims.of_asker.iter().flatten())
        {
            let gpus = self.view.gpus(*at);
            let serves = self.view.machines[*at].domain < domains && self.is_open(*at) && !self.is_expired(*at);
            if serves && self.may_take(want, *at, gpus, gpus) {
                borrowed[self.view.machines[*at].domain].push(*at);
            }
        }
        let mut best: Option<(_, Picks, Vec<usize>)> = None;
        for domain in 0..domains {
            let rooms = self.holdings[asker].rooms.iter();
            let mut picks = self.pack(want, rooms.filter(|(at, _)| self.view.machines[*at].domain == domain));
            let mut later = Vec::new();
            let mut number = [0, 0, 0];
            for (source, nodes) in [&free[domain], &coming[domain], &borrowed[domain]]
                .into_iter()
                .enumerate()
            {
                for at in nodes {
                    let own = self.is_own(want, *at);
                    if !self.matches(want, *at) || own && !self.may_be_kept(*at, &picks.cordoned) {
                        continue;
                    }
                    let mut room = self.view.kinds[self.view.machines[*at].kind].capacity.clone();
                    if picks.rest.place(&mut room) == 0 {
                        continue;
                    }
                    number[source] += 1;
                    match source {
                        0 => picks.free.push(*at),
                        1 if own => picks.cordoned.push(*at),
                        _ => later.push(*at),
                    }
                }
            }
            let key = (number[2], number[1], number[0], domain);
            if picks.rest.is_empty() && best.as_ref().is_none_or(|(other, _, _)| key < *other) {
                best = Some((key, picks, later));
            }
        }
        let (_, picks, later) = best?;
        let in_view = picks.free.iter().chain(&later);
        let wanted = in_view.map(|at| self.view.gpus(*at)).sum();
        let serving = later.iter().copied().filter(|at| {
            let owner = self.view.machines[*at].owner();
            owner.is_some_and(|owner| owner.phase == Phase::Assigned) && self.is_open(*at)
        });
        let taken: Vec<usize> = serving.collect();
        for machine in &taken {
            self.lend(*machine);
        }
        let fair = taken.iter().all(|at| {
            let of_group = self.view.machines[*at].asker;
            let above_floor =
                of_group.is_some_and(|asker| self.holdings[asker].kept >= self.view.askers[asker].group.min_nodes);
            above_floor && (self.is_expired(*at) || self.may_take(want, *at, wanted, 0))
        });
        for machine in &taken {
            self.give_again(*machine);
        }
        fair.then_some((picks, later))
    }

    /// A node that its own group gives up does not come to it: if it cannot be kept, others have taken it.
    pub fn is_own(&self, want: usize, machine: usize) -> bool {
        self.view.machines[machine].asker == Some(self.view.wants[want].asker)
    }

    /// The same for a node that comes since it has been idle for long enough, if it is one.
    fn lend_expired(&mut self, machine: usize) -> bool {
        let still_there = self.fates[machine] == Fate::Open && self.is_expired(machine);
        if still_there {
            self.lend(machine);
        }
        still_there
    }

    /// For the time of a search, a node counts as taken.
    fn lend(&mut self, machine: usize) {
        if let Some(asker) = self.view.machines[machine].asker {
            self.holdings[asker].kept -= 1;
            self.tree
                .give_back(self.view.askers[asker].tenant, self.view.gpus(machine));
            self.fates[machine] = match self.fates[machine] {
                Fate::Wanted => Fate::Lent { wanted: true },
                _ => Fate::Lent { wanted: false },
            };
        }
    }

    fn give_again(&mut self, machine: usize) {
        if let Some(asker) = self.view.machines[machine].asker {
            self.holdings[asker].kept += 1;
            self.tree.take(self.view.askers[asker].tenant, self.view.gpus(machine));
            self.fates[machine] = match self.fates[machine] {
                Fate::Lent { wanted: true } => Fate::Wanted,
                _ => Fate::Open,
            };
        }
    }
}
