//! Which pods may be on the host without a node: all that wait there are tried again by the host's scheduler whenever something changes, before
//! new pods of other tenants, and controllers of the host go through them.
//!
//! | a pod | has a place |
//! |---|---|
//! | is to be created on the host | from then on, if there is one; else it waits |
//! | is on the host without a node | as long as it is: also if it has gates of the platform, was not tried yet, or is nominated |
//! | is to be created on the host again | still, as when a node is cordoned and its host pod is replaced |
//! | has a node, is gone in the tenant, or has ended | no more |
//! | was not created | no more: it asks again. It keeps the place if the host takes no pod at all |
//! | waits for requests of the host's controllers | none until it has them, unless it is a member of a gang |
//!
//! Half of the places may be of pods that ask the scheduler for the same, so that a queue of equal jobs leaves room for others. The next place is
//! for the pod with the highest priority; then for those of which the fewest have a place; then namespaces take turns.
//!
//! A gang that has begun gets places for all of its pods, up to as many as there are places, also beyond the limits. From its first pod on it takes
//! the places of those that are missing, up to half of all: otherwise several gangs that are created at the same time would each get
//! a part, and none could start. So pods exceed the limit by one and a half times at most. A gang with more pods than that starts when the platform raises the limit.

use super::window::{Gang, Line, Request};
use berth_sync_rules::model::resource::Name;
use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
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
    most: usize,
    /// Places that are taken, with those that are kept for members of gangs.
    taken: usize,
    shapes: HashMap<Shape, OfShape>,
    /// The shapes of which a pod could get the next place, the first one first.
    turns: BTreeSet<Turn>,
    gangs: HashMap<Name, OfGang>,
    pods: HashMap<Name, Pod>,
}

/// Priority of the first pod that waits, pods with a place, and the shape: the least comes first.
type Turn = (Reverse<i64>, usize, Shape);

/// The pods of one shape.
#[derive(Debug, Default)]
struct OfShape {
    /// Pods with a place.
    placed: usize,
    line: Line,
    /// The entry in [`WaitingRoom::turns`].
    turn: Option<Turn>,
}

/// The pods of one gang.
#[derive(Debug, Default)]
struct OfGang {
    /// Pods that start together.
    size: usize,
    /// Pods that have a node, or have succeeded.
    started: usize,
    /// Pods with a place.
    placed: usize,
    /// Pods that wait for one.
    waiting: BTreeSet<Name>,
}

#[derive(Debug)]
struct Pod {
    shape: Shape,
    gang: Option<Name>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    /// It has a place, and is to be created.
    New,
    /// It has a place, and is on the host.
    OnHost,
    /// It is a member of a gang, and has a node or has succeeded.
    Started,
}

impl State {
    fn has_place(self) -> bool {
        matches!(self, Self::New | Self::OnHost)
    }
}

impl OfGang {
    /// Pods of it that have no node yet, of those that start together.
    fn needs(&self) -> usize {
        self.size.saturating_sub(self.started)
    }

    /// Whether some of its pods have a place, and need others that have none.
    fn lacks_member(&self, most: usize) -> bool {
        0 < self.placed && self.placed < self.needs().min(most)
    }

    /// Places that it takes.
    fn taken(&self, most_alike: usize) -> usize {
        match self.placed {
            0 => 0,
            placed => placed.max(self.needs().min(most_alike)),
        }
    }

    fn is_empty(&self) -> bool {
        self.placed == 0 && self.started == 0 && self.waiting.is_empty()
    }
}

impl WaitingRoom {
    /// With so many places.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            taken: 0,
            shapes: HashMap::new(),
            turns: BTreeSet::new(),
            gangs: HashMap::new(),
            pods: HashMap::new(),
        }
    }

    /// Places for pods that are alike.
    pub(super) fn most_alike(&self) -> usize {
        (self.most / 2).max(1)
    }

    /// Pods with a place.
    pub(super) fn placed(&self) -> usize {
        self.shapes.values().map(|of_shape| of_shape.placed).sum()
    }

    /// Pods that wait for a place.
    pub(super) fn waiting(&self) -> usize {
        self.shapes.values().map(|of_shape| of_shape.line.len()).sum()
    }

    /// Whether a pod has a place, waits for one, or is a member of a gang that has started.
    pub(super) fn knows(&self, name: &Name) -> bool {
        self.pods.contains_key(name)
    }

    /// Whether a pod waits for a place.
    pub(super) fn is_waiting(&self, name: &Name) -> bool {
        self.pods.get(name).is_some_and(|pod| pod.state == State::Waiting)
    }

    /// A pod is on the host that has not asked, as when the syncer starts.
    pub(super) fn restore(&mut self, shape: &Shape, request: Request, on_host: OnHost) {
        let state = match on_host {
            OnHost::Waiting => State::OnHost,
            OnHost::Placed if request.gang.is_some() => State::Started,
            OnHost::Placed | OnHost::Gone | OnHost::Ended => return,
        };
        if !self.knows(&request.name) {
            let gang = self.note_size(request.gang);
            self.put(request.name, Arc::clone(shape), gang, state);
        }
    }

    /// A pod asks for a place. If there is none it waits, and may ask again.
    pub(super) fn ask(&mut self, shape: &Shape, request: Request, now: Instant) -> Answer {
        let name = request.name.clone();
        let is_asked_for = |pod: &Pod| matches!(pod.state, State::New | State::Waiting);
        // One that asked under this name may have been another pod.
        let is_other = |pod: &Pod| is_asked_for(pod) && pod.shape != *shape;
        let mut admitted = if self.pods.get(&name).is_some_and(is_other) {
            self.change(&name, None)
        } else {
            Vec::new()
        };
        admitted.extend(self.regroup(&name, request.gang.as_ref()));
        let known = self.pods.get(&name).map(|pod| pod.state);
        if known.is_none() {
            let gang = self.note_size(request.gang.clone());
            if self.has_room(shape, gang.as_ref()) {
                self.put(name.clone(), Arc::clone(shape), gang.clone(), State::New);
                admitted.extend(self.admit(gang));
            } else {
                self.wait(shape, request, gang, now);
            }
        }
        let since = self.shapes.get(shape).and_then(|of_shape| of_shape.line.since(&name));
        Answer {
            waits: since.map(|since| now.saturating_duration_since(since)),
            admitted,
        }
    }

    /// A pod belongs to this gang now, or to none. Returns the pods that got a place because of it.
    pub(super) fn regroup(&mut self, name: &Name, gang: Option<&Gang>) -> Vec<Name> {
        let now = gang.map(|gang| &gang.name);
        let Some(pod) = self.pods.get(name).filter(|pod| pod.gang.as_ref() != now) else {
            return gang.map(|gang| self.resize(gang)).unwrap_or_default();
        };
        let (before, state) = (pod.gang.clone(), pod.state);
        if gang.is_none() && state == State::Started {
            return self.change(name, None);
        }
        self.count_out(before.as_ref(), name, state);
        let now = self.note_size(gang.cloned());
        self.count_in(now.as_ref(), name, state);
        if let Some(pod) = self.pods.get_mut(name) {
            pod.gang.clone_from(&now);
        }
        let mut admitted = self.admit(now);
        admitted.extend(self.admit(before));
        admitted
    }

    /// A pod that asked was seen on the host. Returns the pods that got a place because of it.
    pub(super) fn observe(&mut self, name: &Name, on_host: OnHost) -> Vec<Name> {
        let Some(pod) = self.pods.get(name) else {
            return Vec::new();
        };
        let state = match (on_host, pod.state) {
            // Also one that waits: the answer to an earlier creation was lost.
            (OnHost::Waiting, _) => Some(State::OnHost),
            (OnHost::Placed, _) => pod.gang.is_some().then_some(State::Started),
            // An earlier pod of the name is gone.
            (OnHost::Gone, State::New | State::Waiting) => return Vec::new(),
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
            Some(State::New | State::Waiting) => self.change(name, None),
        }
    }

    /// A pod that got a place waits for something else before it is created, and asks again after that. Others may have the place, unless its gang
    /// needs it. Returns the pods that got one.
    pub(super) fn lend(&mut self, name: &Name) -> Vec<Name> {
        if self.pods.get(name).is_some_and(|pod| pod.gang.is_none()) {
            self.forget(name)
        } else {
            Vec::new()
        }
    }

    /// The pods that have waited for [`LONG_WAIT`](super::window::LONG_WAIT), each of them once.
    pub(super) fn take_late(&mut self, now: Instant) -> Vec<Name> {
        let lines = self.shapes.values_mut().map(|of_shape| &mut of_shape.line);
        lines.flat_map(|line| line.take_late(now)).collect()
    }

    fn has_room(&self, shape: &Shape, gang: Option<&Name>) -> bool {
        let of_gang = gang.and_then(|gang| self.gangs.get(gang));
        let of_shape = self.shapes.get(shape);
        let is_free = self.taken < self.most && of_shape.is_none_or(|known| known.placed < self.most_alike());
        is_free || of_gang.is_some_and(|of_gang| of_gang.lacks_member(self.most))
    }

    /// Gives places to pods that wait, those of a gang first.
    fn admit(&mut self, changed: Option<Name>) -> Vec<Name> {
        let mut admitted = Vec::new();
        let mut gang = changed;
        loop {
            let member = gang.as_ref().and_then(|gang| self.next_member(gang));
            if member.is_none() {
                self.drop_gang(gang.as_ref());
            }
            let next = member.or_else(|| self.next_of_lines());
            let Some(name) = next else { break };
            let Some(pod) = self.remove(&name) else { break };
            gang.clone_from(&pod.gang);
            self.put(name.clone(), pod.shape, pod.gang, State::New);
            admitted.push(name);
        }
        admitted
    }

    /// The next member of a gang that has begun.
    fn next_member(&self, gang: &Name) -> Option<Name> {
        let of_gang = self.gangs.get(gang).filter(|known| known.lacks_member(self.most))?;
        of_gang.waiting.first().cloned()
    }

    /// The next pod of all, if there is a place.
    fn next_of_lines(&self) -> Option<Name> {
        let (_, _, shape) = self.turns.first().filter(|_| self.taken < self.most)?;
        let first = self.shapes.get(shape)?.line.first()?;
        Some(first.name.clone())
    }

    /// Changes the state of a pod, or forgets it. Returns the pods that got a place because of it.
    fn change(&mut self, name: &Name, state: Option<State>) -> Vec<Name> {
        let Some(Pod { shape, gang, .. }) = self.remove(name) else {
            return Vec::new();
        };
        if let Some(state) = state {
            self.put(name.clone(), shape, gang.clone(), state);
        }
        self.admit(gang)
    }

    /// A gang has this size now, if any pod of it is known. Returns the pods that got a place because of it.
    fn resize(&mut self, gang: &Gang) -> Vec<Name> {
        if self.gangs.get(&gang.name).is_none_or(|known| known.size == gang.size) {
            return Vec::new();
        }
        let name = self.note_size(Some(gang.clone()));
        self.admit(name)
    }

    /// Keeps the size of a gang, as the last of its pods says it. Returns its name.
    fn note_size(&mut self, gang: Option<Gang>) -> Option<Name> {
        let Gang { name, size } = gang?;
        self.change_gang(&name, |of_gang| of_gang.size = size);
        Some(name)
    }

    fn change_gang(&mut self, gang: &Name, change: impl FnOnce(&mut OfGang)) {
        let most_alike = self.most_alike();
        let of_gang = self.gangs.entry(gang.clone()).or_default();
        let before = of_gang.taken(most_alike);
        change(of_gang);
        self.taken = self.taken + of_gang.taken(most_alike) - before;
    }

    /// Forgets a gang without pods.
    fn drop_gang(&mut self, gang: Option<&Name>) {
        if let Some(gang) = gang
            && self.gangs.get(gang).is_some_and(OfGang::is_empty)
        {
            self.gangs.remove(gang);
        }
    }

    /// Counts a pod of a gang, or of none.
    fn count_in(&mut self, gang: Option<&Name>, name: &Name, state: State) {
        let Some(gang) = gang else {
            self.taken += usize::from(state.has_place());
            return;
        };
        self.change_gang(gang, |of_gang| match state {
            State::Waiting => {
                of_gang.waiting.insert(name.clone());
            }
            State::New | State::OnHost => of_gang.placed += 1,
            State::Started => of_gang.started += 1,
        });
    }

    /// Counts it no more.
    fn count_out(&mut self, gang: Option<&Name>, name: &Name, state: State) {
        let Some(gang) = gang else {
            self.taken -= usize::from(state.has_place());
            return;
        };
        self.change_gang(gang, |of_gang| match state {
            State::Waiting => {
                of_gang.waiting.remove(name);
            }
            State::New | State::OnHost => of_gang.placed -= 1,
            State::Started => of_gang.started -= 1,
        });
    }

    /// Puts a pod into a state other than waiting.
    fn put(&mut self, name: Name, shape: Shape, gang: Option<Name>, state: State) {
        self.count_in(gang.as_ref(), &name, state);
        let of_shape = self.shapes.entry(Arc::clone(&shape)).or_default();
        of_shape.placed += usize::from(state.has_place());
        self.refresh(&shape);
        self.pods.insert(name, Pod { shape, gang, state });
    }

    /// Puts a pod into the line.
    fn wait(&mut self, shape: &Shape, request: Request, gang: Option<Name>, now: Instant) {
        let (name, state) = (request.name.clone(), State::Waiting);
        self.count_in(gang.as_ref(), &name, state);
        let of_shape = self.shapes.entry(Arc::clone(shape)).or_default();
        of_shape.line.add(request, now);
        self.refresh(shape);
        let shape = Arc::clone(shape);
        self.pods.insert(name, Pod { shape, gang, state });
    }

    /// Forgets a pod, but not the size of its gang.
    fn remove(&mut self, name: &Name) -> Option<Pod> {
        let pod = self.pods.remove(name)?;
        self.count_out(pod.gang.as_ref(), name, pod.state);
        if let Some(of_shape) = self.shapes.get_mut(&pod.shape) {
            of_shape.placed -= usize::from(pod.state.has_place());
            if pod.state == State::Waiting {
                of_shape.line.take(name);
            }
        }
        self.refresh(&pod.shape);
        Some(pod)
    }

    /// Brings the turn of a shape up to date.
    fn refresh(&mut self, shape: &Shape) {
        let most_alike = self.most_alike();
        let Some(of_shape) = self.shapes.get_mut(shape) else {
            return;
        };
        if let Some(turn) = of_shape.turn.take() {
            self.turns.remove(&turn);
        }
        if of_shape.placed == 0 && of_shape.line.is_empty() {
            self.shapes.remove(shape);
            return;
        }
        let first = of_shape.line.first().filter(|_| of_shape.placed < most_alike);
        if let Some(first) = first {
            let turn = (Reverse(first.priority), of_shape.placed, Arc::clone(shape));
            of_shape.turn = Some(turn.clone());
            self.turns.insert(turn);
        }
    }
}

#[cfg(test)]
mod tests;
