//! The places of users on the host, and the pods that wait for one: higher priorities first, then older pods.
//!
//! Members of a gang that has started do not wait for pods that have not: those of the gang that run need them, and control lets them start
//! first. While a user has no place left, such a gang has one more, and further ones until the user has twice as many places. In all it has
//! no more pods on the host than its size, with those that have succeeded there.
//!
//! Which gang a pod belongs to, and its size, is what the user says, and may change at any time. So a user has three times as many places at most,
//! however many gangs run and whatever their names are.

mod of_user;

use super::window::{Gang, Request};
use berth_sync_rules::model::resource::Name;
use of_user::{OfUser, Position, State, Waiting};
use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// A pod that waits for so long because of a limit says so. Pods of users with room need far less.
pub(super) const LONG_WAIT: Duration = Duration::from_secs(5);

/// A user, as far as the tenant tells users apart.
pub(super) type User = Arc<str>;

/// The answer to a pod that asks for a place.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// None if it has one.
    pub(super) waits: Option<Waits>,
    /// Other pods that got a place.
    pub(super) admitted: Vec<Name>,
}

/// A pod has no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waits {
    /// Whether [`UserPlaces::take_late`] has returned it.
    pub(super) is_late: bool,
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
    /// It has succeeded: its gang does not lack it.
    Succeeded,
    /// It is not there or is being deleted, and may be created again.
    Gone,
    /// It has failed, or is gone in the tenant as well.
    Ended,
}

/// Which pods have a place on the host, and which wait for one.
#[derive(Debug)]
pub(super) struct UserPlaces {
    /// Places of each user.
    most: usize,
    users: HashMap<User, OfUser>,
    pods: HashMap<Name, Pod>,
}

#[derive(Debug)]
struct Pod {
    user: User,
    gang: Option<Name>,
    state: State,
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

    /// Whether a pod has a place, waits for one, or is a member of a gang that has started.
    pub(super) fn knows(&self, name: &Name) -> bool {
        self.pods.contains_key(name)
    }

    /// Whether a pod waits for a place.
    pub(super) fn is_waiting(&self, name: &Name) -> bool {
        let pod = self.pods.get(name);
        pod.is_some_and(|pod| matches!(pod.state, State::Waiting(_)))
    }

    /// Whether pods of a gang wait for a place of their user.
    pub(super) fn has_waiting(&self, user: &User, gang: &Name) -> bool {
        self.users.get(user).is_some_and(|of_user| of_user.has_waiting(gang))
    }

    /// A pod is on the host that has not asked, as when the syncer starts. Returns the pods that got a place because its gang runs.
    pub(super) fn restore(&mut self, user: &User, request: Request, on_host: OnHost) -> Vec<Name> {
        let state = match on_host {
            OnHost::Gated { exceeds_limit } => State::OnHost { exceeds_limit },
            OnHost::Started if request.gang.is_some() => State::Started,
            OnHost::Succeeded if request.gang.is_some() => State::Succeeded,
            OnHost::Started | OnHost::Succeeded | OnHost::Gone | OnHost::Ended => return Vec::new(),
        };
        if self.knows(&request.name) {
            return Vec::new();
        }
        let gang = self.note_size(user, request.gang);
        self.put(request.name, Arc::clone(user), gang, state);
        self.admit(user)
    }

    /// A pod of a user, created at that time, asks for a place. If there is none it waits, and may ask again.
    pub(super) fn ask(&mut self, user: &User, created: &str, request: Request, now: Instant) -> Answer {
        let name = request.name.clone();
        let position = (Reverse(request.priority), created.to_owned(), name.clone());
        let mut admitted = self.leave_if_other(user, &position);
        admitted.extend(self.regroup(&name, user, request.gang.as_ref()));
        if !self.knows(&name) {
            let gang = self.note_size(user, request.gang);
            let waiting = Waiting {
                since: now,
                is_late: false,
            };
            let of_user = self.users.entry(Arc::clone(user)).or_default();
            of_user.line.insert(position.clone(), waiting);
            self.put(name.clone(), Arc::clone(user), gang, State::Waiting(position));
            // While there is room, it is the only one in the line.
            admitted.extend(self.admit(user));
        }
        admitted.retain(|other| *other != name);
        Answer {
            waits: self.find_waiting(&name).map(|waiting| Waits {
                is_late: waiting.is_late,
            }),
            admitted,
        }
    }

    /// A pod of a user belongs to this gang now, or to none. Returns the pods that got a place because of it.
    pub(super) fn regroup(&mut self, name: &Name, user: &User, gang: Option<&Gang>) -> Vec<Name> {
        // Another pod of that name asks anew.
        let Some(pod) = self.pods.get_mut(name).filter(|pod| pod.user == *user) else {
            return Vec::new();
        };
        if gang.is_none() && matches!(pod.state, State::Started | State::Succeeded) {
            return self.change(name, None);
        }
        let Some(of_user) = self.users.get_mut(user) else {
            return Vec::new();
        };
        let now = gang.map(|gang| &gang.name);
        let is_other = pod.gang.as_ref() != now;
        if is_other {
            of_user.regroup(&pod.state, pod.gang.as_ref(), now);
            pod.gang = now.cloned();
        }
        let is_resized = gang.is_some_and(|gang| of_user.set_size(gang));
        if is_other || is_resized {
            self.admit(user)
        } else {
            Vec::new()
        }
    }

    /// A pod that asked was seen on the host. Returns the pods that got a place because of it.
    pub(super) fn observe(&mut self, name: &Name, on_host: OnHost) -> Vec<Name> {
        let Some(pod) = self.pods.get(name) else {
            return Vec::new();
        };
        let is_member = pod.gang.is_some();
        let state = match (on_host, &pod.state) {
            // Also one that waits: the answer to an earlier creation was lost.
            (OnHost::Gated { exceeds_limit }, _) => Some(State::OnHost { exceeds_limit }),
            (OnHost::Started, _) => is_member.then_some(State::Started),
            (OnHost::Succeeded, _) => is_member.then_some(State::Succeeded),
            // An earlier pod of the name is gone.
            (OnHost::Gone, State::New | State::Waiting(_)) => return Vec::new(),
            // It is created again. If not, it is forgotten then.
            (OnHost::Gone, State::OnHost { .. }) => Some(State::New),
            (OnHost::Gone, State::Started | State::Succeeded) | (OnHost::Ended, _) => None,
        };
        if state.as_ref() == Some(&pod.state) {
            return Vec::new();
        }
        self.change(name, state)
    }

    /// A pod needs no place: it is not to be created, or was not created on the host. Returns the pods that got one instead.
    pub(super) fn forget(&mut self, name: &Name) -> Vec<Name> {
        match self.pods.get(name).map(|pod| &pod.state) {
            None | Some(State::OnHost { .. } | State::Started | State::Succeeded) => Vec::new(),
            Some(State::New | State::Waiting(_)) => self.change(name, None),
        }
    }

    /// The pods that have waited for [`LONG_WAIT`] while all pods of their users on the host wait because of a limit, each of them once.
    pub(super) fn take_late(&mut self, now: Instant) -> Vec<Name> {
        let mut late = Vec::new();
        for of_user in self.users.values_mut().filter(|of_user| of_user.is_blocked()) {
            for ((.., name), waiting) in &mut of_user.line {
                if !waiting.is_late && now.saturating_duration_since(waiting.since) >= LONG_WAIT {
                    waiting.is_late = true;
                    late.push(name.clone());
                }
            }
        }
        late
    }

    /// Forgets what is known of a pod that asks with this position, if that was another pod of the name: one of another user, one that had another
    /// place in the line, or one whose host pod is gone by now. Returns the pods that got its place.
    fn leave_if_other(&mut self, user: &User, position: &Position) -> Vec<Name> {
        let (.., name) = position;
        let is_other = |pod: &Pod| match &pod.state {
            _ if pod.user != *user => true,
            State::Waiting(known) => known != position,
            State::Started | State::Succeeded => true,
            State::New | State::OnHost { .. } => false,
        };
        if self.pods.get(name).is_some_and(is_other) {
            self.change(name, None)
        } else {
            Vec::new()
        }
    }

    /// Keeps the size of a gang, as the last of its pods says it. Returns its name.
    fn note_size(&mut self, user: &User, gang: Option<Gang>) -> Option<Name> {
        let gang = gang?;
        self.users.entry(Arc::clone(user)).or_default().set_size(&gang);
        Some(gang.name)
    }

    /// Puts a pod into a state. One that waits is in the line already.
    fn put(&mut self, name: Name, user: User, gang: Option<Name>, state: State) {
        let of_user = self.users.entry(Arc::clone(&user)).or_default();
        of_user.add(gang.as_ref(), &state);
        self.pods.insert(name, Pod { user, gang, state });
    }

    /// Since when a pod waits, if it does.
    fn find_waiting(&self, name: &Name) -> Option<&Waiting> {
        let Pod { user, state, .. } = self.pods.get(name)?;
        match state {
            State::Waiting(position) => self.users.get(user)?.line.get(position),
            State::New | State::OnHost { .. } | State::Started | State::Succeeded => None,
        }
    }

    /// Forgets a pod, but not the size of its gang.
    fn remove(&mut self, name: &Name) -> Option<Pod> {
        let pod = self.pods.remove(name)?;
        let of_user = self.users.get_mut(&pod.user)?;
        of_user.remove(pod.gang.as_ref(), &pod.state);
        Some(pod)
    }

    /// Changes the state of a pod, or forgets it. Returns the pods that got a place because of it.
    fn change(&mut self, name: &Name, state: Option<State>) -> Vec<Name> {
        let Some(Pod { user, gang, .. }) = self.remove(name) else {
            return Vec::new();
        };
        if let Some(state) = state {
            self.put(name.clone(), Arc::clone(&user), gang, state);
        }
        self.admit(&user)
    }

    /// Gives the places that a user has left to pods that wait.
    fn admit(&mut self, user: &User) -> Vec<Name> {
        let mut admitted = Vec::new();
        while let Some(name) = self.next(user)
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

    /// The pod of a user that gets the next place, if there is one.
    fn next(&self, user: &User) -> Option<Name> {
        self.users.get(user)?.next(self.most).cloned()
    }
}

#[cfg(test)]
mod tests;
