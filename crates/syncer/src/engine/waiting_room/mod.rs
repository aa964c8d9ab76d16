//! Which pods may be on the host without a node: all that wait there are tried again by the host's scheduler whenever something changes, before
//! new pods of other tenants, and controllers of the host go through them.
//!
//! | a pod | has a place |
//! |---|---|
//! | is to be created on the host | from then on, if there is one; else it waits |
//! | is on the host without a node | as long as it is: also if it has gates of the platform, was not tried yet, or is nominated |
//! | is to be created on the host again | still, as when a node is cordoned and its host pod is replaced |
//! | has a node, is gone in the tenant, or has ended | no more |
//! | is a member of a gang and needs none, as one without devices in the [room of pods with devices](super::device_room) | none, and its gang does not lack it |
//! | was not created | no more: it asks again. It keeps the place if the host takes no pod at all, or does not answer |
//! | waits for requests of the host's controllers | none until it has them, unless it is a member of a gang. Then it gets one of the next: these pods have every second one |
//!
//! Half of the places may be of pods that ask the scheduler for the same, so that a queue of equal jobs leaves room for others. The next place is
//! for the pod with the highest priority; then pods take turns as in [`order`].
//!
//! A gang gets places for all of its pods together, as in [`of_gang`], also beyond the limits. It begins while one place is free, and no pod outside of it gets a place
//! until one is free again: so at most twice as many pods have a place as there are places, whatever gangs say about themselves. Places are kept for
//! pods that do not exist only within half of the room, and for those of a gang that had places and are gone; and only for a [while](of_gang::PATIENCE).

mod admission;
mod counts;
mod of_gang;
mod order;
mod patience;
mod ring;

use super::{
    user_places::User,
    window::{Gang, Line, Request},
};
use berth_sync_rules::model::resource::Name;
use of_gang::{Lack, OfGang};
use order::{Group, Order};
use ring::Ring;
use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

/// Pods that ask the scheduler for the same.
pub(super) type Shape = Arc<str>;

/// The answer to a pod that asks for a place.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// How long the pod has waited so far, if it has no place.
    pub(super) waits: Option<Duration>,
    /// Other pods that got a place.
    pub(super) admitted: Vec<Name>,
}

/// What has changed with time.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Checked {
    /// Pods that got a place.
    pub(super) admitted: Vec<Name>,
    /// Pods that have waited for [`LONG_WAIT`](super::window::LONG_WAIT) since the last check.
    pub(super) late: Vec<Name>,
}

/// What became of a pod on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnHost {
    /// It has no node.
    Waiting,
    /// It has a node, or has succeeded: its gang does not lack it.
    Placed,
    /// It is not there or is being deleted, and may be created again.
    Gone,
    /// It has failed, or is gone in the tenant as well.
    Ended,
}

/// The pods with a place, and those that wait for one.
#[derive(Debug)]
pub(super) struct WaitingRoom {
    /// Places.
    most: usize,
    /// Pods of a gang that can wait for each other here.
    most_gathered: usize,
    /// Pods that do not exist for which places are kept when gangs begin.
    most_missing: usize,
    /// Pods with a place.
    placed: usize,
    /// Places that are kept for pods of gangs.
    kept: usize,
    /// Pods with a place, by shape.
    shapes: HashMap<Shape, usize>,
    /// The pods that wait.
    lines: HashMap<Group, Line>,
    /// The lines of which a pod could get the next place.
    order: Order,
    gangs: HashMap<Name, OfGang>,
    /// Gangs whose pods wait for each other.
    gathering: Ring<Name, Lack>,
    pods: HashMap<Name, Pod>,
    /// Whether a place became free since the last check.
    has_freed: bool,
    /// Places that were taken when this was found out last.
    last_taken: usize,
    /// Since when none has become free.
    stalls_since: Option<Instant>,
}

#[derive(Debug)]
struct Pod {
    shape: Shape,
    gang: Option<Name>,
    /// The user whose turn it takes in its namespace, if users have limits.
    user: Option<User>,
    priority: i64,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    /// It had a place before, which it has lent, and gets one of the next.
    Returning,
    /// It has lent its place, and has not asked again.
    Lent,
    /// It has a place, and is to be created.
    New,
    /// It has a place, and is on the host.
    OnHost,
    /// It is a member of a gang, and has a node or has succeeded.
    Started,
    /// It is a member of a gang, and needs no place here.
    Exempt,
}

impl State {
    fn has_place(self) -> bool {
        matches!(self, Self::New | Self::OnHost)
    }
}

impl Pod {
    /// The line in which it waits, if it does.
    fn group(&self, name: &Name) -> Option<Group> {
        let alike = || (Arc::clone(&name.namespace), Arc::clone(&self.shape));
        match (self.state, &self.gang) {
            (State::Returning, _) => {
                let (namespace, shape) = alike();
                Some(Group::Returning(namespace, shape))
            }
            (State::Waiting, Some(gang)) => Some(Group::Gang(gang.clone())),
            (State::Waiting, None) => {
                let (namespace, shape) = alike();
                Some(Group::Alike(namespace, shape))
            }
            (State::Lent | State::New | State::OnHost | State::Started | State::Exempt, _) => None,
        }
    }

    /// Whether a pod of its name that asks for a place, and is of this shape, is another one, or this one on a host that lacks it by now.
    fn is_outdated(&self, shape: &Shape) -> bool {
        match self.state {
            State::Waiting | State::Returning | State::Lent | State::New => self.shape != *shape,
            State::OnHost => false,
            State::Started | State::Exempt => true,
        }
    }
}

impl WaitingRoom {
    /// With `most` places. `of_user` is how many pods of one user may wait on the host, if users have limits: places are not kept for more pods that do not
    /// exist, so that none has more than that by them.
    pub(super) fn new(most: usize, of_user: Option<usize>) -> Self {
        Self {
            most,
            most_gathered: of_user.unwrap_or(most).min(most),
            most_missing: of_user.unwrap_or(most),
            placed: 0,
            kept: 0,
            shapes: HashMap::new(),
            lines: HashMap::new(),
            order: Order::default(),
            gangs: HashMap::new(),
            gathering: Ring::default(),
            pods: HashMap::new(),
            has_freed: false,
            last_taken: 0,
            stalls_since: None,
        }
    }

    /// Places for pods that are alike, and within which places are kept for pods that do not exist.
    pub(super) fn most_alike(&self) -> usize {
        (self.most / 2).max(1)
    }

    /// Pods with a place.
    pub(super) fn placed(&self) -> usize {
        self.placed
    }

    /// Places that are kept for pods of gangs.
    pub(super) fn kept(&self) -> usize {
        self.kept
    }

    /// Pods that wait for a place.
    pub(super) fn waiting(&self) -> usize {
        self.lines.values().map(Line::len).sum()
    }

    /// Whether a pod has a place, waits for one, has lent its own, or is a member of a gang that has started or needs none.
    pub(super) fn knows(&self, name: &Name) -> bool {
        self.pods.contains_key(name)
    }

    /// Whether a pod waits for a place.
    pub(super) fn is_waiting(&self, name: &Name) -> bool {
        let pod = self.pods.get(name);
        pod.is_some_and(|pod| matches!(pod.state, State::Waiting | State::Returning))
    }

    /// Whether a pod has lent its place, and has not asked again.
    pub(super) fn has_lent(&self, name: &Name) -> bool {
        self.pods.get(name).is_some_and(|pod| pod.state == State::Lent)
    }

    /// A pod is on the host that has not asked, as when the syncer starts. Returns the pods that got a place because its gang does not lack it.
    pub(super) fn restore(&mut self, shape: &Shape, request: Request, on_host: OnHost) -> Vec<Name> {
        let state = match on_host {
            OnHost::Waiting => State::OnHost,
            OnHost::Placed if request.gang.is_some() => State::Started,
            OnHost::Placed | OnHost::Gone | OnHost::Ended => return Vec::new(),
        };
        if self.knows(&request.name) {
            return Vec::new();
        }
        let gang = self.note_size(request.gang);
        let pod = Pod {
            shape: Arc::clone(shape),
            gang: gang.clone(),
            user: request.user,
            priority: request.priority,
            state,
        };
        self.put(request.name, pod, None);
        self.admit(gang.as_ref())
    }

    /// A pod asks for a place. If there is none it waits, and may ask again.
    pub(super) fn ask(&mut self, shape: &Shape, request: Request, now: Instant) -> Answer {
        let name = request.name;
        let mut admitted = Vec::new();
        if self.pods.get(&name).is_some_and(|pod| pod.is_outdated(shape)) {
            admitted.extend(self.change(&name, None));
        }
        admitted.extend(self.regroup(&name, request.gang.as_ref()));
        let has_lent = self.has_lent(&name);
        if has_lent || !self.knows(&name) {
            self.remove(&name);
            let gang = self.note_size(request.gang);
            let pod = Pod {
                shape: Arc::clone(shape),
                gang: gang.clone(),
                user: request.user,
                priority: request.priority,
                state: if has_lent { State::Returning } else { State::Waiting },
            };
            self.put(name.clone(), pod, Some(now));
            // While there is room, no other pod waits that could have it.
            admitted.extend(self.admit(gang.as_ref()));
        }
        admitted.retain(|other| *other != name);
        Answer {
            waits: self.since(&name).map(|since| now.saturating_duration_since(since)),
            admitted,
        }
    }

    /// A pod is to be on the host or is there, and needs no place here. If it is a member of a gang, the gang does not lack it. Returns the pods that got a
    /// place because of it.
    pub(super) fn exempt(&mut self, name: &Name, gang: Option<&Gang>) -> Vec<Name> {
        if self.pods.get(name).is_some_and(|pod| pod.state == State::Exempt) {
            return self.regroup(name, gang);
        }
        // An earlier pod of this name may have needed one.
        let mut admitted = self.change(name, None);
        if let Some(gang) = self.note_size(gang.cloned()) {
            let pod = Pod {
                shape: Shape::default(),
                gang: Some(gang.clone()),
                user: None,
                priority: 0,
                state: State::Exempt,
            };
            self.put(name.clone(), pod, None);
            admitted.extend(self.admit(Some(&gang)));
        }
        admitted
    }

    /// A pod belongs to this gang now, or to none. Returns the pods that got a place because of it.
    pub(super) fn regroup(&mut self, name: &Name, gang: Option<&Gang>) -> Vec<Name> {
        let now = gang.map(|gang| &gang.name);
        let Some(pod) = self.pods.get(name).filter(|pod| pod.gang.as_ref() != now) else {
            return gang.map(|gang| self.resize(gang)).unwrap_or_default();
        };
        // Members of gangs lend nothing.
        let is_of_gangs = matches!(pod.state, State::Started | State::Exempt);
        if pod.state == State::Lent || gang.is_none() && is_of_gangs {
            return self.change(name, None);
        }
        let since = self.since(name);
        let Some(pod) = self.remove(name) else {
            return Vec::new();
        };
        let (before, now) = (pod.gang.clone(), self.note_size(gang.cloned()));
        if let Some(before) = before.as_ref().filter(|_| pod.state.has_place()) {
            self.change_gang(before, OfGang::drop_place);
        }
        if let Some(before) = &before {
            self.settle(before);
        }
        let state = match pod.state {
            State::Returning => State::Waiting,
            other => other,
        };
        let gang = now.clone();
        self.put(name.clone(), Pod { gang, state, ..pod }, since);
        let mut admitted = self.admit(now.as_ref());
        admitted.extend(self.admit(before.as_ref()));
        admitted
    }

    /// The pods that a gang lacks may not come for long: it waits for them no more, and no places are kept for them. Returns the pods that got a place
    /// because of it.
    pub(super) fn expect_no_more(&mut self, gang: &Name) -> Vec<Name> {
        let expects_more = |of_gang: &OfGang| of_gang.kept() > 0 || of_gang.gathers(self.most_gathered);
        if !self.gangs.get(gang).is_some_and(expects_more) {
            return Vec::new();
        }
        self.change_gang(gang, OfGang::give_up);
        self.admit(Some(gang))
    }

    /// A pod that asked was seen on the host. Returns the pods that got a place because of it.
    pub(super) fn observe(&mut self, name: &Name, on_host: OnHost) -> Vec<Name> {
        let Some(pod) = self.pods.get(name) else {
            return Vec::new();
        };
        let state = match (on_host, pod.state) {
            (OnHost::Waiting | OnHost::Placed | OnHost::Gone, State::Exempt)
            // An earlier pod of the name is gone.
            | (OnHost::Gone, State::New | State::Waiting | State::Returning | State::Lent) => return Vec::new(),
            // Also one that waits: the answer to an earlier creation was lost.
            (OnHost::Waiting, _) => Some(State::OnHost),
            (OnHost::Placed, _) => pod.gang.is_some().then_some(State::Started),
            // It is created again. If not, it is forgotten then.
            (OnHost::Gone, State::OnHost) => Some(State::New),
            (OnHost::Gone, State::Started) | (OnHost::Ended, _) => None,
        };
        if state == Some(pod.state) {
            return Vec::new();
        }
        self.change(name, state)
    }

    /// A pod needs no place: it is not to be created, or was not created on the host. Returns the pods that got one instead.
    pub(super) fn forget(&mut self, name: &Name) -> Vec<Name> {
        match self.pods.get(name).map(|pod| pod.state) {
            None | Some(State::OnHost | State::Started) => Vec::new(),
            Some(State::New | State::Waiting | State::Returning | State::Lent | State::Exempt) => {
                self.change(name, None)
            }
        }
    }

    /// A pod that got a place waits for something else before it is created, and gets one of the next places when it asks again. Until then others may
    /// have the place, unless its gang needs it. Returns the pods that got one.
    pub(super) fn lend(&mut self, name: &Name) -> Vec<Name> {
        let pod = self.pods.get(name);
        if pod.is_some_and(|pod| pod.gang.is_none() && pod.state == State::New) {
            self.change(name, Some(State::Lent))
        } else {
            Vec::new()
        }
    }

    /// Since when a pod waits, if it does.
    fn since(&self, name: &Name) -> Option<Instant> {
        let group = self.pods.get(name)?.group(name)?;
        self.lines.get(&group)?.since(name)
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
