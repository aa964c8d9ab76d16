//! The places of users on the host, and the pods that wait for one: higher priorities first, then older pods.
//!
//! Members of a gang that has started do not wait for pods that have not: those of the gang that run need them, and control lets them start
//! first. While a user has no place left, such a gang has one more, and further ones until the user has twice as many places. In all it has
//! no more pods on the host than its size. So a user who starts many gangs has one pod more for each that runs.

use super::window::Gang;
use berth_sync_rules::model::resource::Name;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

/// A pod that waits for so long because of a limit says so. Pods of users with room need far less.
pub(super) const LONG_WAIT: Duration = Duration::from_secs(5);

/// A pod that asks for a place.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// Name in the tenant.
    pub(super) name: Name,
    /// Its user, as far as the tenant tells users apart.
    pub(super) user: Arc<str>,
    /// Priority in the tenant.
    pub(super) priority: i64,
    /// When it was created in the tenant.
    pub(super) created: String,
    /// The gang that it belongs to.
    pub(super) gang: Option<Gang>,
}

/// The answer to a pod that asks for a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It has one.
    HasPlace,
    /// It has none.
    Waits {
        /// Whether [`UserPlaces::take_late`] has returned it.
        is_late: bool,
    },
}

/// What became of a pod on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnHost {
    /// It is behind the gate.
    Gated {
        /// Because of a limit, as control says. Otherwise control has not counted it yet.
        exceeds_limit: bool,
    },
    /// Control has let it start.
    Started,
    /// It is not there, has ended, or is being deleted.
    Gone,
}

/// Priority, time of creation, name: the least comes first.
type Position = (Reverse<i64>, String, Name);

/// Which pods have a place on the host, and which wait for one.
#[derive(Debug)]
pub(super) struct UserPlaces {
    /// Places of each user.
    most: usize,
    users: HashMap<Arc<str>, OfUser>,
    pods: HashMap<Name, Pod>,
}

/// The pods of one user.
#[derive(Debug, Default)]
struct OfUser {
    /// Pods with a place.
    placed: usize,
    /// Those of them that wait because of a limit.
    beyond_limit: usize,
    line: BTreeMap<Position, Waiting>,
    gangs: HashMap<Name, OfGang>,
}

/// The pods of one user in one gang.
#[derive(Debug, Default)]
struct OfGang {
    /// Pods that start together.
    size: usize,
    /// Pods on the host without the gate.
    started: usize,
    /// Pods with a place.
    placed: usize,
    /// Positions of pods without a place.
    line: BTreeSet<Position>,
}

/// A pod without a place.
#[derive(Debug)]
struct Waiting {
    since: Instant,
    is_late: bool,
}

#[derive(Debug)]
struct Pod {
    user: Arc<str>,
    gang: Option<Name>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// It has a place, and is to be created.
    New,
    /// It has a place, and is on the host.
    OnHost {
        exceeds_limit: bool,
    },
    Waiting(Position),
    /// It is a member of a gang, and needs no place any more.
    Started,
}

impl State {
    fn has_place(&self) -> bool {
        matches!(self, Self::New | Self::OnHost { .. })
    }

    fn exceeds_limit(&self) -> bool {
        matches!(self, Self::OnHost { exceeds_limit: true })
    }
}

impl OfGang {
    /// Whether pods of it run, and need others that are not on the host.
    fn lacks_member(&self) -> bool {
        self.started > 0 && self.started + self.placed < self.size
    }

    fn is_empty(&self) -> bool {
        self.started == 0 && self.placed == 0 && self.line.is_empty()
    }
}

impl OfUser {
    /// Whether there is a place for a pod of a gang, or of none.
    fn has_room(&self, most: usize, gang: Option<&Name>) -> bool {
        let of_gang = gang.and_then(|gang| self.gangs.get(gang));
        self.placed < most || of_gang.is_some_and(|of_gang| self.exceeds_places(most, of_gang))
    }

    /// Whether a gang gets a place although the user has none left.
    fn exceeds_places(&self, most: usize, of_gang: &OfGang) -> bool {
        of_gang.lacks_member() && (of_gang.placed == 0 || self.placed < most.saturating_mul(2))
    }

    /// The pod that gets the next place, if there is one.
    fn next(&self, most: usize) -> Option<&Position> {
        if self.placed < most {
            return self.line.keys().next();
        }
        let gangs = self.gangs.values().filter(|of_gang| self.exceeds_places(most, of_gang));
        gangs.filter_map(|of_gang| of_gang.line.first()).min()
    }

    /// Counts a pod that is not in the line.
    fn add(&mut self, gang: Option<&Name>, state: &State) {
        self.placed += usize::from(state.has_place());
        self.beyond_limit += usize::from(state.exceeds_limit());
        if let Some(gang) = gang {
            let of_gang = self.gangs.entry(gang.clone()).or_default();
            of_gang.placed += usize::from(state.has_place());
            of_gang.started += usize::from(matches!(state, State::Started));
        }
    }

    /// The reverse, also for one in the line.
    fn remove(&mut self, gang: Option<&Name>, state: &State) {
        self.placed -= usize::from(state.has_place());
        self.beyond_limit -= usize::from(state.exceeds_limit());
        let mut of_gang = gang.and_then(|gang| self.gangs.get_mut(gang));
        if let Some(of_gang) = &mut of_gang {
            of_gang.placed -= usize::from(state.has_place());
            of_gang.started -= usize::from(matches!(state, State::Started));
        }
        if let State::Waiting(position) = state {
            self.line.remove(position);
            of_gang.map(|of_gang| of_gang.line.remove(position));
        }
    }

    /// Forgets gangs without pods. Returns whether no pod is left.
    fn clear(&mut self) -> bool {
        self.gangs.retain(|_, of_gang| !of_gang.is_empty());
        self.placed == 0 && self.line.is_empty() && self.gangs.is_empty()
    }
}

impl UserPlaces {
    /// With so many places for each user.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            users: HashMap::new(),
            pods: HashMap::new(),
        }
    }

    /// Whether a pod has a place or waits for one.
    pub(super) fn knows(&self, name: &Name) -> bool {
        self.pods.contains_key(name)
    }

    /// A pod is on the host that has not asked, as when the syncer starts.
    pub(super) fn restore(&mut self, name: Name, user: Arc<str>, gang: Option<Gang>, on_host: OnHost) {
        let state = match on_host {
            OnHost::Gated { exceeds_limit } => State::OnHost { exceeds_limit },
            OnHost::Started if gang.is_some() => State::Started,
            OnHost::Started | OnHost::Gone => return,
        };
        if !self.knows(&name) {
            let gang = self.note_size(&user, gang);
            self.put(name, user, gang, state);
        }
    }

    /// A pod asks for a place. If there is none it waits, and may ask again.
    pub(super) fn ask(&mut self, request: Request, now: Instant) -> Answer {
        let Request {
            name,
            user,
            priority,
            created,
            gang,
        } = request;
        let is_waiting = match self.pods.get(&name).map(|pod| &pod.state) {
            None => false,
            Some(State::Waiting(_)) => true,
            Some(State::New | State::OnHost { .. } | State::Started) => return Answer::HasPlace,
        };
        let gang = self.note_size(&user, gang);
        let of_user = self.users.entry(Arc::clone(&user)).or_default();
        // While there is room, nobody waits. One that waits has room now if its gang has grown.
        if of_user.has_room(self.most, gang.as_ref()) {
            self.remove(&name);
            self.put(name, user, gang, State::New);
            return Answer::HasPlace;
        }
        if is_waiting {
            let is_late = self.is_late(&name);
            return Answer::Waits { is_late };
        }
        let position = (Reverse(priority), created, name.clone());
        let waiting = Waiting {
            since: now,
            is_late: false,
        };
        of_user.line.insert(position.clone(), waiting);
        if let Some(gang) = &gang {
            let of_gang = of_user.gangs.entry(gang.clone()).or_default();
            of_gang.line.insert(position.clone());
        }
        let state = State::Waiting(position);
        self.pods.insert(name, Pod { user, gang, state });
        Answer::Waits { is_late: false }
    }

    /// A pod that asked was seen on the host. Returns the pods that got a place because of it.
    pub(super) fn observe(&mut self, name: &Name, on_host: OnHost) -> Vec<Name> {
        let Some(pod) = self.pods.get(name) else {
            return Vec::new();
        };
        match (on_host, &pod.state) {
            // Also one that waits: the answer to an earlier creation was lost.
            (OnHost::Gated { exceeds_limit }, _) => self.change(name, State::OnHost { exceeds_limit }),
            (OnHost::Started, _) if pod.gang.is_some() => self.change(name, State::Started),
            // An earlier pod of the name is gone.
            (OnHost::Gone, State::New | State::Waiting(_)) => Vec::new(),
            (OnHost::Started, _) | (OnHost::Gone, State::OnHost { .. } | State::Started) => self.leave(name),
        }
    }

    /// A pod needs no place: it is gone in the tenant, or was not created on the host. Returns the pods that got one instead.
    pub(super) fn forget(&mut self, name: &Name) -> Vec<Name> {
        match self.pods.get(name).map(|pod| &pod.state) {
            None | Some(State::OnHost { .. } | State::Started) => Vec::new(),
            Some(State::New | State::Waiting(_)) => self.leave(name),
        }
    }

    /// The pods that have waited for [`LONG_WAIT`] while all pods of their users on the host wait because of a limit, each of them once.
    pub(super) fn take_late(&mut self, now: Instant) -> Vec<Name> {
        let mut late = Vec::new();
        let blocked = self.users.values_mut();
        for of_user in blocked.filter(|of_user| of_user.beyond_limit == of_user.placed) {
            for ((.., name), waiting) in &mut of_user.line {
                if !waiting.is_late && now.saturating_duration_since(waiting.since) >= LONG_WAIT {
                    waiting.is_late = true;
                    late.push(name.clone());
                }
            }
        }
        late
    }

    /// Keeps the size of a gang, as the last of its pods says it. Returns its name.
    fn note_size(&mut self, user: &Arc<str>, gang: Option<Gang>) -> Option<Name> {
        let Gang { name, size } = gang?;
        let of_user = self.users.entry(Arc::clone(user)).or_default();
        of_user.gangs.entry(name.clone()).or_default().size = size;
        Some(name)
    }

    /// Puts a pod into a state other than waiting.
    fn put(&mut self, name: Name, user: Arc<str>, gang: Option<Name>, state: State) {
        let of_user = self.users.entry(Arc::clone(&user)).or_default();
        of_user.add(gang.as_ref(), &state);
        self.pods.insert(name, Pod { user, gang, state });
    }

    /// Whether [`Self::take_late`] has returned a pod.
    fn is_late(&self, name: &Name) -> bool {
        let waiting = self.pods.get(name).and_then(|pod| match &pod.state {
            State::Waiting(position) => self.users.get(&pod.user)?.line.get(position),
            State::New | State::OnHost { .. } | State::Started => None,
        });
        waiting.is_some_and(|waiting| waiting.is_late)
    }

    /// Forgets a pod, but not the size of its gang.
    fn remove(&mut self, name: &Name) -> Option<Pod> {
        let pod = self.pods.remove(name)?;
        let of_user = self.users.get_mut(&pod.user)?;
        of_user.remove(pod.gang.as_ref(), &pod.state);
        Some(pod)
    }

    /// Changes the state of a pod. Returns the pods that got a place because of it.
    fn change(&mut self, name: &Name, state: State) -> Vec<Name> {
        let Some(Pod { user, gang, .. }) = self.remove(name) else {
            return Vec::new();
        };
        self.put(name.clone(), Arc::clone(&user), gang, state);
        self.admit(&user)
    }

    /// Forgets a pod. Returns the pods that got its place.
    fn leave(&mut self, name: &Name) -> Vec<Name> {
        self.remove(name).map_or_else(Vec::new, |pod| self.admit(&pod.user))
    }

    /// Gives the places that a user has left to pods that wait.
    fn admit(&mut self, user: &Arc<str>) -> Vec<Name> {
        let mut admitted = Vec::new();
        let first = |places: &Self| {
            let (.., first) = places.users.get(user)?.next(places.most)?;
            Some(first.clone())
        };
        while let Some(name) = first(self)
            && let Some(Pod { user, gang, .. }) = self.remove(&name)
        {
            self.put(name.clone(), user, gang, State::New);
            admitted.push(name);
        }
        if self.users.get_mut(user).is_some_and(OfUser::clear) {
            self.users.remove(user);
        }
        admitted
    }
}

#[cfg(test)]
mod tests;
