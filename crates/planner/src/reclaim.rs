//! Taking borrowed nodes back. As few as possible: what is on its way to be free counts first, and nothing is taken for a
//! gang that would still not fit.

use crate::claim::{Band, Picks};
use crate::round::{Fate, Round};
use crate::tree::{Claim, Waiting};
use crate::words::clock;
use crate::{Domain, Phase, Reclaim};
use std::cmp::Reverse;
use std::collections::HashMap;

/// Nodes that may be taken back.
pub(crate) struct Victims {
    /// By group, the first to go first.
    of_asker: Vec<Vec<usize>>,
    /// Tenants that have any, in the tree.
    tenants: Waiting,
    /// Their groups that have any.
    askers: HashMap<usize, Vec<usize>>,
    /// The least of what runs on any of them.
    importance: Option<i32>,
}

impl Round<'_> {
    /// A node to take back for a demand.
    pub fn victim_for(&mut self, want: usize) -> Option<usize> {
        self.list_victims();
        self.pick(want, 0)
    }

    /// Nodes that may be taken back, by group: first the idle ones, then those with the least important use, then the
    /// emptiest, then the youngest.
    fn list_victims(&mut self) {
        if self.victims.is_some() {
            return;
        }
        let grace = self.view.pool.reclaim_grace;
        let mut lists = vec![Vec::new(); self.view.askers.len()];
        let mut next = None;
        for (asker, list) in lists.iter_mut().enumerate() {
            if self.view.pool.reclaim == Reclaim::Never
                || self.holdings[asker].kept <= self.view.askers[asker].group.min
            {
                continue;
            }
            for at in self.view.askers[asker].machines.iter().copied() {
                let machine = &self.view.machines[at];
                let Some(owner) = machine.owner() else { continue };
                if owner.phase != Phase::Assigned || machine.node.broken || !self.is_open(at) {
                    continue;
                }
                // Cordoned now, it can be drained when the warning time is over; its tenure must be over by then.
                let warning = if machine.node.idle_since.is_some() { 0 } else { grace };
                let from = owner.since + self.view.pool.minimum_tenure - warning;
                if from <= self.view.now {
                    list.push(at);
                } else {
                    next = Some(next.map_or(from, |other: i64| other.min(from)));
                }
            }
            list.sort_by_key(|at| {
                let machine = &self.view.machines[*at];
                let since = machine.owner().map_or(0, |owner| owner.since);
                let use_of_it = (
                    machine.node.idle_since.is_none(),
                    self.importance(*at),
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

    fn is_open(&self, machine: usize) -> bool {
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
    fn pick(&self, want: usize, already: u64) -> Option<usize> {
        let victims = self.victims.as_ref()?;
        let claimant = self.view.askers[self.view.wants[want].asker].tenant;
        let from_group = |asker: usize| {
            if self.holdings[asker].kept <= self.view.askers[asker].group.min {
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
            fair: self.view.pool.reclaim == Reclaim::FairShare,
            urgent: victims
                .importance
                .is_some_and(|least| least < self.view.wants[want].demand.priority),
        };
        let mut from_tenant = |tenant| victims.askers.get(&tenant)?.iter().find_map(|asker| from_group(*asker));
        self.tree
            .first_of_the_richest(claimant, &victims.tenants, &claim, &mut from_tenant)
    }

    /// Whether a demand may take a node away. `wanted`: GPUs that it is about to have more; `given`: those of the node, as
    /// long as they still count as its holder's.
    fn may_take(&self, want: usize, machine: usize, wanted: u64, given: u64) -> bool {
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
        // What its holder's demand counts on is given up for guarantees only.
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
        let fair = running <= priority && self.view.pool.reclaim == Reclaim::FairShare;
        urgent || fair && self.tree.is_fairer(claimant, holder, wanted, given)
    }

    /// A node of another group that has been idle for so long that it would go back after all.
    pub fn idle_for(&mut self, want: usize) -> Option<usize> {
        self.list_expired();
        self.next_expired(want)
    }

    fn next_expired(&self, want: usize) -> Option<usize> {
        self.expired.iter().flatten().copied().find(|at| {
            let machine = &self.view.machines[*at];
            let spare = |asker: usize| {
                asker != self.view.wants[want].asker && self.holdings[asker].kept > self.view.askers[asker].group.min
            };
            let capacity = &self.view.kinds[machine.kind].capacity;
            self.fates[*at] == Fate::Open
                && machine.asker.is_some_and(spare)
                && self.matches(want, *at)
                && self.requests[want].rest.any_fits(capacity)
        })
    }

    fn list_expired(&mut self) {
        if self.expired.is_none() {
            let machines = 0..self.view.machines.len();
            self.expired = Some(machines.filter(|at| self.is_expired(*at)).collect());
        }
    }

    fn is_expired(&self, machine: usize) -> bool {
        let serving = self.view.machines[machine]
            .owner()
            .is_some_and(|owner| owner.phase == Phase::Assigned);
        serving && self.idle_until(machine).is_some_and(|until| until <= self.view.now)
    }

    /// Takes a node from its group for a demand: one that would go back after all, or a borrowed one.
    pub fn take_back(&mut self, machine: usize, want: usize) {
        if self.is_expired(machine) {
            self.release_as_idle(machine);
        } else {
            self.reclaim(machine, want);
        }
    }

    /// Cordons a borrowed node for a demand.
    fn reclaim(&mut self, machine: usize, want: usize) {
        let node = self.view.machines[machine].node;
        let grace = if node.idle_since.is_some() {
            0
        } else {
            self.view.pool.reclaim_grace
        };
        let until = self.view.now + grace;
        let (demand, asker) = (self.view.wants[want].demand, self.view.wants[want].asker);
        let from = if grace > 0 {
            format!(", drained from {}", clock(until))
        } else {
            String::new()
        };
        let why = format!(
            "borrowed, and {} of {} goes first{from}",
            demand.name, self.view.askers[asker].of.name
        );
        self.release(machine, until, why);
    }

    /// A gang that would fit if it had what is on its way, and what others borrowed, is next: these are kept for it, and
    /// as many borrowed nodes as it needs are taken back. Otherwise nothing is done.
    pub fn wait_for_all(&mut self, want: usize, band: Band) -> bool {
        self.list_victims();
        self.list_expired();
        if self.coming.is_empty()
            && self.expired.as_ref().is_none_or(Vec::is_empty)
            && self.victims.as_ref().is_none_or(|victims| victims.askers.is_empty())
        {
            return false;
        }
        let found = match self.view.wants[want].demand.one_domain {
            Domain::Any => self.gather_anywhere(want),
            Domain::Required => self.gather_in_one_domain(want),
        };
        let Some((picks, later)) = found else { return false };
        let asker = self.view.wants[want].asker;
        let tenant = self.view.askers[asker].tenant;
        let gpus = |nodes: &[usize]| nodes.iter().map(|at| self.view.gpus(*at)).sum::<u64>();
        let fresh = gpus(&picks.free) + gpus(&later);
        let number = picks.free.len() + later.len() + self.holdings[asker].awaited;
        if (band.guaranteed && !self.tree.is_guaranteed(tenant, fresh)) || self.may_have(asker, number, fresh).is_err()
        {
            return false;
        }
        if self.is_lent(tenant, gpus(&picks.free)).is_err() {
            return false;
        }
        for own in &picks.cordoned {
            self.keep(*own, format!("{} needs it again", self.view.wants[want].demand.name));
            // Nothing else is placed on it: it is full when the gang starts.
        }
        let free = picks.free.clone();
        self.settle(
            want,
            Picks {
                rest: crate::packing::Load::default(),
                ..picks
            },
        );
        for machine in free.into_iter().chain(later) {
            if self.is_open(machine)
                && self.view.machines[machine]
                    .owner()
                    .is_some_and(|owner| owner.phase == Phase::Assigned)
            {
                self.take_back(machine, want);
            }
            self.await_node(machine, asker);
            self.requests[want].awaited.push(machine);
        }
        self.requests[want].why = Some(crate::words::Why::Coming);
        true
    }

    /// Own and free nodes, and later ones: those on their way, then borrowed ones, until the gang fits.
    fn gather_anywhere(&mut self, want: usize) -> Option<(Picks, Vec<usize>)> {
        let mut picks = self.gang_anywhere(want);
        let mut later = Vec::new();
        for at in &self.coming {
            if picks.rest.is_empty() {
                break;
            }
            let mut room = self.view.kinds[self.view.machines[*at].kind].capacity.clone();
            if self.matches(want, *at)
                && !self.is_own(want, *at)
                && !picks.cordoned.contains(at)
                && picks.rest.place(&mut room) > 0
            {
                later.push(*at);
            }
        }
        let in_view = picks.free.iter().chain(&later).map(|at| self.view.gpus(*at));
        let mut wanted: u64 = in_view.sum();
        let before = self.requests[want].rest.clone();
        let mut expired = Vec::new();
        while !picks.rest.is_empty() {
            self.requests[want].rest = picks.rest.clone();
            let Some(machine) = self.next_expired(want) else { break };
            wanted += self.view.gpus(machine);
            self.lend(machine);
            expired.push(machine);
            picks
                .rest
                .place(&mut self.view.kinds[self.view.machines[machine].kind].capacity.clone());
        }
        let mut taken = Vec::new();
        while !picks.rest.is_empty() {
            self.requests[want].rest = picks.rest.clone();
            let Some(machine) = self.pick(want, wanted) else { break };
            wanted += self.view.gpus(machine);
            self.lend(machine);
            taken.push(machine);
            picks
                .rest
                .place(&mut self.view.kinds[self.view.machines[machine].kind].capacity.clone());
        }
        self.requests[want].rest = before;
        // The first ones were picked while it was asking for less than all.
        let fair = taken.iter().all(|at| self.may_take(want, *at, wanted, 0));
        for machine in taken.iter().chain(&expired) {
            self.give_again(*machine);
        }
        later.extend(expired);
        later.extend(taken);
        (fair && picks.rest.is_empty()).then_some((picks, later))
    }

    /// A node that its own group gives up does not come to it: if it cannot be kept, others have taken it.
    pub fn is_own(&self, want: usize, machine: usize) -> bool {
        self.view.machines[machine].asker == Some(self.view.wants[want].asker)
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
            if self.view.machines[*at].domain < domains {
                coming[self.view.machines[*at].domain].push(*at);
            }
        }
        for at in self
            .victims
            .iter()
            .flat_map(|victims| victims.of_asker.iter().flatten())
        {
            let gpus = self.view.gpus(*at);
            if self.view.machines[*at].domain < domains && self.is_open(*at) && self.may_take(want, *at, gpus, gpus) {
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
                    let mut room = self.view.kinds[self.view.machines[*at].kind].capacity.clone();
                    if !self.matches(want, *at) || picks.rest.place(&mut room) == 0 {
                        continue;
                    }
                    number[source] += 1;
                    let own = self.view.machines[*at].asker == Some(asker) && self.may_be_kept(*at);
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
        let taken: Vec<usize> = later.iter().copied().filter(|at| !self.coming.contains(at)).collect();
        for machine in &taken {
            self.lend(*machine);
        }
        let fair = taken.iter().all(|at| {
            let of_group = self.view.machines[*at].asker;
            let above_floor =
                of_group.is_some_and(|asker| self.holdings[asker].kept >= self.view.askers[asker].group.min);
            above_floor && self.may_take(want, *at, wanted, 0)
        });
        for machine in &taken {
            self.give_again(*machine);
        }
        fair.then_some((picks, later))
    }
}
