//! The places of one user, and the pods of that user which wait for one.

use crate::engine::window::Gang;
use berth_sync_rules::model::resource::Name;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Instant,
};

/// How many times its places a user may have because of gangs that run.
const TIMES_FOR_GANGS: usize = 2;
/// The same for a gang of which no other pod has a place.
const TIMES_FOR_FIRST_MEMBERS: usize = 3;

/// Priority, time of creation, name: the least comes first.
pub(super) type Position = (Reverse<i64>, String, Name);

/// A pod without a place.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) since: Instant,
    pub(super) is_late: bool,
}

/// How far a pod is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It has a place, and is to be created.
    New,
    /// It has a place, and is on the host behind the gate.
    OnHost {
        /// Because of a limit.
        exceeds_limit: bool,
    },
    Waiting(Position),
    /// It is a member of a gang, and needs no place any more: control has let it start.
    Started,
    /// It is a member of a gang, and has succeeded.
    Succeeded,
}

impl State {
    fn has_place(&self) -> bool {
        matches!(self, Self::New | Self::OnHost { .. })
    }

    fn exceeds_limit(&self) -> bool {
        matches!(self, Self::OnHost { exceeds_limit: true })
    }
}

/// The pods of one user.
#[derive(Debug, Default)]
pub(super) struct OfUser {
    /// Pods with a place.
    placed: usize,
    /// Those of them that wait because of a limit.
    beyond_limit: usize,
    pub(super) line: BTreeMap<Position, Waiting>,
    gangs: HashMap<Name, OfGang>,
    /// The first pods in the line of gangs that run and need them: of those of which other pods have a place, and of the others.
    needed: BTreeSet<Position>,
    needed_first: BTreeSet<Position>,
    /// Gangs that may have no pod any more.
    emptied: Vec<Name>,
}

/// The pods of one user in one gang.
#[derive(Debug, Default)]
struct OfGang {
    /// Pods that start together.
    size: usize,
    /// Pods on the host without the gate.
    started: usize,
    /// Pods that have succeeded.
    succeeded: usize,
    /// Pods with a place.
    placed: usize,
    /// Positions of pods without a place.
    line: BTreeSet<Position>,
    /// What is in the sets of its user.
    needed: Option<Needed>,
}

/// A pod without a place that its gang needs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Needed {
    position: Position,
    /// Whether no other pod of the gang has a place.
    is_first: bool,
}

impl OfGang {
    /// Whether pods of it run, and need others that are not on the host.
    fn lacks_member(&self) -> bool {
        self.started > 0 && self.started + self.succeeded + self.placed < self.size
    }

    /// The pod that it needs next.
    fn find_needed(&self) -> Option<Needed> {
        let position = self.line.first().filter(|_| self.lacks_member())?;
        Some(Needed {
            position: position.clone(),
            is_first: self.placed == 0,
        })
    }

    fn is_empty(&self) -> bool {
        self.started == 0 && self.succeeded == 0 && self.placed == 0 && self.line.is_empty()
    }

    fn count_in(&mut self, state: &State) {
        match state {
            State::New | State::OnHost { .. } => self.placed += 1,
            State::Started => self.started += 1,
            State::Succeeded => self.succeeded += 1,
            State::Waiting(position) => {
                self.line.insert(position.clone());
            }
        }
    }

    fn count_out(&mut self, state: &State) {
        match state {
            State::New | State::OnHost { .. } => self.placed -= 1,
            State::Started => self.started -= 1,
            State::Succeeded => self.succeeded -= 1,
            State::Waiting(position) => {
                self.line.remove(position);
            }
        }
    }
}

impl OfUser {
    /// Whether all pods with a place wait because of a limit.
    pub(super) fn is_blocked(&self) -> bool {
        self.beyond_limit == self.placed
    }

    /// The pod that gets the next place, if there is one; the user has `most` places.
    pub(super) fn next(&self, most: usize) -> Option<&Name> {
        let (.., name) = if self.placed < most {
            self.line.keys().next()?
        } else {
            // The user has none left: more come for gangs that run.
            let is_below = |times: usize| self.placed < most.saturating_mul(times);
            let needed = self.needed.first().filter(|_| is_below(TIMES_FOR_GANGS));
            let needed_first = self.needed_first.first().filter(|_| is_below(TIMES_FOR_FIRST_MEMBERS));
            needed.into_iter().chain(needed_first).min()?
        };
        Some(name)
    }

    /// Whether pods of a gang wait for a place.
    pub(super) fn has_waiting(&self, gang: &Name) -> bool {
        self.gangs.get(gang).is_some_and(|of_gang| !of_gang.line.is_empty())
    }

    /// Keeps the size of a gang, as the last of its pods says it. Returns whether it had another one.
    pub(super) fn set_size(&mut self, gang: &Gang) -> bool {
        let mut before = 0;
        self.change_gang(&gang.name, |of_gang| {
            before = std::mem::replace(&mut of_gang.size, gang.size);
        });
        before != gang.size
    }

    /// Counts a pod. One that waits is in the line already.
    pub(super) fn add(&mut self, gang: Option<&Name>, state: &State) {
        self.placed += usize::from(state.has_place());
        self.beyond_limit += usize::from(state.exceeds_limit());
        self.add_to_gang(gang, state);
    }

    /// Counts a pod no more, and takes it out of the line.
    pub(super) fn remove(&mut self, gang: Option<&Name>, state: &State) {
        self.placed -= usize::from(state.has_place());
        self.beyond_limit -= usize::from(state.exceeds_limit());
        if let State::Waiting(position) = state {
            self.line.remove(position);
        }
        self.remove_from_gang(gang, state);
    }

    /// Counts a pod for another gang than before.
    pub(super) fn regroup(&mut self, state: &State, before: Option<&Name>, now: Option<&Name>) {
        self.remove_from_gang(before, state);
        self.add_to_gang(now, state);
    }

    fn add_to_gang(&mut self, gang: Option<&Name>, state: &State) {
        if let Some(gang) = gang {
            self.change_gang(gang, |of_gang| of_gang.count_in(state));
        }
    }

    fn remove_from_gang(&mut self, gang: Option<&Name>, state: &State) {
        if let Some(gang) = gang.filter(|gang| self.gangs.contains_key(*gang)) {
            self.change_gang(gang, |of_gang| of_gang.count_out(state));
        }
    }

    /// Changes a gang, and brings up to date what follows from it: there can be thousands of gangs, and there is a look at each change of a pod.
    fn change_gang(&mut self, gang: &Name, change: impl FnOnce(&mut OfGang)) {
        let of_gang = self.gangs.entry(gang.clone()).or_default();
        change(of_gang);
        let now = of_gang.find_needed();
        if of_gang.is_empty() {
            self.emptied.push(gang.clone());
        }
        if of_gang.needed == now {
            return;
        }
        let before = std::mem::replace(&mut of_gang.needed, now.clone());
        if let Some(before) = before {
            self.needed_of(before.is_first).remove(&before.position);
        }
        if let Some(now) = now {
            self.needed_of(now.is_first).insert(now.position);
        }
    }

    fn needed_of(&mut self, is_first: bool) -> &mut BTreeSet<Position> {
        if is_first {
            &mut self.needed_first
        } else {
            &mut self.needed
        }
    }

    /// Forgets gangs without pods. Returns whether no pod is left.
    pub(super) fn clear(&mut self) -> bool {
        for gang in self.emptied.drain(..) {
            if self.gangs.get(&gang).is_some_and(OfGang::is_empty) {
                self.gangs.remove(&gang);
            }
        }
        self.placed == 0 && self.line.is_empty() && self.gangs.is_empty()
    }
}
