//! Claims of devices of gangs: the pods of a gang come to the host together. If each came as soon as there is room for its own claims, several gangs
//! would each get a part, and wait for the others for ever.
//!
//! | a pod of a gang | room for its claims |
//! |---|---|
//! | is the first that asks | if there is room for those of all pods of the gang that exist and are not on the host. From then on it is kept for these |
//! | does not ask | is kept for ten minutes: after that the pod does not count until it asks |
//! | asks, and waits for its turn after that, as for a place in the waiting room | is kept |
//! | asks, and is not created for another reason | is kept for the rest of these ten minutes; later only while it asks and waits for its turn |
//! | waits for a place of its user | is not kept |
//! | is created later, or again | as for the first one |
//! | is beyond those that start together | as for a pod without a gang |
//!
//! Nobody else has room that is kept. A gang for which there is no room keeps none, so that others do not wait for it. As long as there is less than all gangs
//! may want, a gang of which pods are missing waits for a minute: controllers create pods one after another, and two gangs that are created at the
//! same time would begin with a part. What missing pods may want is counted for that minute, and never more than the tenant may have. Pods of the gang without
//! claims exist as well, as the leader of workers with devices.

use super::window::Gang;
use berth_sync_rules::model::resource::Name;
use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::{Duration, Instant},
};

/// Time in which the controller of a gang creates its pods.
const CREATION: Duration = Duration::from_mins(1);
/// Time for which room is kept for a pod that does not use it.
const LASTS: Duration = Duration::from_mins(10);

/// Why there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// For the claims of one object.
    Full,
    /// For those of all pods of a gang.
    FullForGang,
    /// For these there never is: together they need so many.
    TooLarge(u64),
    /// Pods of the gang may be about to be created.
    Incomplete,
}

/// A pod that belongs to a gang.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) gang: Gang,
    /// 0 if it has none, or has succeeded.
    pub(super) claims: u64,
    /// Whether it is on the host, or has succeeded.
    pub(super) is_on_host: bool,
}

/// What is known of all pods that belong to gangs.
#[derive(Debug)]
pub(super) struct GangClaims {
    /// Claims that the tenant may have.
    limit: u64,
    gangs: HashMap<Name, OfGang>,
    pods: HashMap<Name, Pod>,
    /// Pods for which room is kept, or was, with the time since when. The first one was first.
    expected: VecDeque<(Instant, Name)>,
    /// Gangs of which pods may be about to be created, with the time since when. The first one was first.
    growing: VecDeque<(Instant, Name)>,
    /// Claims for which room is kept.
    kept: u64,
    /// Claims that all gangs may want besides those that are on the host.
    wanted: u64,
}

#[derive(Debug)]
struct Pod {
    gang: Name,
    claims: u64,
    state: State,
    /// When room was found for it.
    since: Instant,
    /// It has not used its room in time, once.
    was_absent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There is no room for its gang so far.
    Waiting,
    /// Room is kept for it.
    Expected,
    /// The same, and it waits for its turn.
    Asked,
    /// It is about to be created, and its claims are counted as those of other objects that are.
    Creating,
    /// It does not count until it asks.
    Absent,
    /// It is on the host, or has succeeded.
    OnHost,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    pods: usize,
    claims: u64,
}

/// The pods of one gang.
#[derive(Debug, Default)]
struct OfGang {
    /// Pods that start together.
    size: usize,
    /// The most claims that one of its pods has.
    largest: u64,
    /// Claims of the pods that wait.
    line: BTreeMap<Name, u64>,
    waiting: Count,
    kept: Count,
    creating: Count,
    absent: Count,
    on_host: Count,
    /// Since when pods that exist are not on the host.
    lacks_since: Option<Instant>,
    /// When this began last, if it was a short while ago: other pods of it may be about to be created.
    grows_since: Option<Instant>,
}

impl OfGang {
    fn count(&mut self, state: State) -> &mut Count {
        match state {
            State::Waiting => &mut self.waiting,
            State::Expected | State::Asked => &mut self.kept,
            State::Creating => &mut self.creating,
            State::Absent => &mut self.absent,
            State::OnHost => &mut self.on_host,
        }
    }

    fn put(&mut self, name: &Name, claims: u64, state: State, now: Instant) {
        self.largest = self.largest.max(claims);
        let count = self.count(state);
        count.pods += 1;
        count.claims += claims;
        if state == State::Waiting {
            self.line.insert(name.clone(), claims);
            if self.lacks_since.is_none() {
                self.lacks_since = Some(now);
                self.grows_since = Some(now);
            }
        }
    }

    fn take(&mut self, name: &Name, claims: u64, state: State) {
        let count = self.count(state);
        count.pods -= 1;
        count.claims -= claims;
        if state == State::Waiting {
            self.line.remove(name);
        }
    }

    /// Pods that exist, of those that count.
    fn pods(&self) -> usize {
        self.waiting.pods + self.comes()
    }

    /// Pods for which room has been found.
    fn comes(&self) -> usize {
        self.kept.pods + self.creating.pods + self.on_host.pods
    }

    /// Pods of those that start together for which no room has been found.
    fn lacks(&self) -> usize {
        self.size.saturating_sub(self.comes())
    }

    /// Claims that it may want besides those that are taken, of `limit` in all. What missing pods need is not known: as much as the largest at most.
    fn wanted(&self, limit: u64) -> u64 {
        let missing = if self.grows_since.is_some() {
            self.size.saturating_sub(self.pods()) as u64
        } else {
            0
        };
        let wanted = self.waiting.claims + self.kept.claims + missing * self.largest;
        wanted.min(limit)
    }

    /// The pods for which room is looked for when one asks, that one first, with their claims.
    fn batch<'a>(&'a self, first: &'a Name) -> impl Iterator<Item = (&'a Name, u64)> {
        let own = self.line.get(first).map(|claims| (first, *claims));
        let others = self.line.iter().filter(move |(name, _)| *name != first);
        let others = others.map(|(name, claims)| (name, *claims));
        own.into_iter().chain(others).take(self.lacks())
    }

    fn is_empty(&self) -> bool {
        self.pods() + self.absent.pods == 0
    }
}

impl GangClaims {
    /// Of a tenant that may have so many claims.
    pub(super) fn new(limit: u64) -> Self {
        Self {
            limit,
            gangs: HashMap::new(),
            pods: HashMap::new(),
            expected: VecDeque::new(),
            growing: VecDeque::new(),
            kept: 0,
            wanted: 0,
        }
    }

    /// Sets what a pod is to a gang; nothing if it belongs to none, or is not to come.
    pub(super) fn set(&mut self, name: &Name, member: Option<Member>, now: Instant) {
        self.expire(now);
        let Some(Member {
            gang,
            claims,
            is_on_host,
        }) = member
        else {
            self.remove(name);
            return;
        };
        let known = self.pods.get(name);
        let known = known.filter(|pod| pod.gang == gang.name && pod.claims == claims);
        let state = match known {
            _ if is_on_host => State::OnHost,
            Some(pod) if pod.state != State::OnHost => pod.state,
            _ => State::Waiting,
        };
        if known.is_some() {
            self.change(&gang.name, |of_gang| of_gang.size = gang.size);
            self.shift(name, state, now);
            return;
        }
        self.remove(name);
        self.change(&gang.name, |of_gang| {
            of_gang.size = gang.size;
            of_gang.put(name, claims, state, now);
        });
        let pod = Pod {
            gang: gang.name,
            claims,
            state,
            since: now,
            was_absent: false,
        };
        self.pods.insert(name.clone(), pod);
    }

    /// Asks for room for the claims of an object, which may be a pod of a gang. Of those that the tenant may have, nothing has taken `free`. Returns the other
    /// pods for which room was found, and is kept.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn ask(
        &mut self,
        pod: Option<&Name>,
        claims: u64,
        free: u64,
        now: Instant,
    ) -> Result<Vec<Name>, Refusal> {
        self.expire(now);
        let Some((name, state)) = pod.and_then(|name| Some((name, self.pods.get(name)?.state))) else {
            return self.ask_alone(claims, free);
        };
        match state {
            State::Waiting => {}
            State::Absent => self.shift(name, State::Waiting, now),
            State::OnHost => return self.ask_alone(claims, free),
            State::Expected | State::Asked | State::Creating => {
                self.shift(name, State::Asked, now);
                return has_room(claims, free);
            }
        }
        let Some(of_gang) = self.pods.get(name).and_then(|pod| self.gangs.get(&pod.gang)) else {
            return self.ask_alone(claims, free);
        };
        if of_gang.lacks() == 0 {
            return self.ask_alone(claims, free);
        }
        self.find_room(of_gang, name, free, now)?;
        let mut batch: Vec<Name> = of_gang.batch(name).map(|(name, _)| name.clone()).collect();
        for member in &batch {
            self.shift(member, State::Expected, now);
            if let Some(pod) = self.pods.get_mut(member) {
                pod.since = now;
            }
            self.expected.push_back((now, member.clone()));
        }
        self.shift(name, State::Asked, now);
        batch.retain(|member| member != name);
        Ok(batch)
    }

    /// A pod that has asked is about to be created: until [`Self::end_creation`], its claims are counted as those of other objects that are.
    pub(super) fn begin_creation(&mut self, name: &Name, now: Instant) {
        if self.is(name, State::Asked) {
            self.shift(name, State::Creating, now);
        }
    }

    /// A pod is created, or not: then its room is kept.
    pub(super) fn end_creation(&mut self, name: &Name, now: Instant) {
        if self.is(name, State::Creating) {
            self.shift(name, State::Asked, now);
        }
    }

    fn is(&self, name: &Name, state: State) -> bool {
        self.pods.get(name).is_some_and(|pod| pod.state == state)
    }

    /// A pod was not created although there was room. It may be tried again.
    pub(super) fn put_off(&mut self, name: &Name, now: Instant) {
        let Some(pod) = self.pods.get(name).filter(|pod| pod.state == State::Asked) else {
            return;
        };
        let is_over = pod.was_absent || now.saturating_duration_since(pod.since) >= LASTS;
        self.shift(name, if is_over { State::Absent } else { State::Expected }, now);
    }

    /// A pod waits for something that others need not wait for.
    pub(super) fn give_up(&mut self, name: &Name, now: Instant) {
        let state = self.pods.get(name).map(|pod| pod.state);
        if matches!(state, Some(State::Expected | State::Asked)) {
            self.shift(name, State::Absent, now);
        }
    }

    fn ask_alone(&self, claims: u64, free: u64) -> Result<Vec<Name>, Refusal> {
        has_room(claims, free.saturating_sub(self.kept))
    }

    /// Looks for room for the pods of a gang that would come with the one that asks.
    fn find_room(&self, of_gang: &OfGang, name: &Name, free: u64, now: Instant) -> Result<(), Refusal> {
        let claims: u64 = of_gang.batch(name).map(|(_, claims)| claims).sum();
        let all = of_gang.on_host.claims + of_gang.creating.claims + of_gang.kept.claims + claims;
        if all > self.limit {
            return Err(Refusal::TooLarge(all));
        }
        let is_new = of_gang
            .lacks_since
            .is_some_and(|since| now.saturating_duration_since(since) < CREATION);
        if is_new && of_gang.pods() < of_gang.size && self.wanted > free {
            return Err(Refusal::Incomplete);
        }
        if self.kept + claims > free {
            return Err(Refusal::FullForGang);
        }
        Ok(())
    }

    /// Room that was not used in time is for others again, and gangs whose pods have not come in time want no more for these.
    fn expire(&mut self, now: Instant) {
        let has_grown = |since: Instant| now.saturating_duration_since(since) >= CREATION;
        while self.growing.front().is_some_and(|(since, _)| has_grown(*since)) {
            let Some((since, gang)) = self.growing.pop_front() else {
                return;
            };
            if self
                .gangs
                .get(&gang)
                .is_some_and(|of_gang| of_gang.grows_since == Some(since))
            {
                self.change(&gang, |of_gang| of_gang.grows_since = None);
            }
        }
        let is_over = |since: Instant| now.saturating_duration_since(since) >= LASTS;
        while self.expected.front().is_some_and(|(since, _)| is_over(*since)) {
            let Some((since, name)) = self.expected.pop_front() else {
                return;
            };
            let is_unused = |pod: &Pod| pod.state == State::Expected && pod.since == since;
            if self.pods.get(&name).is_some_and(is_unused) {
                self.shift(&name, State::Absent, now);
            }
        }
    }

    /// Changes the state of a pod.
    fn shift(&mut self, name: &Name, state: State, now: Instant) {
        let Some(pod) = self.pods.get_mut(name).filter(|pod| pod.state != state) else {
            return;
        };
        let before = std::mem::replace(&mut pod.state, state);
        // One that is made again begins anew.
        pod.was_absent = state == State::Absent || (pod.was_absent && before != State::OnHost);
        let (gang, claims) = (pod.gang.clone(), pod.claims);
        self.change(&gang, |of_gang| {
            of_gang.take(name, claims, before);
            of_gang.put(name, claims, state, now);
        });
    }

    /// Forgets a pod.
    fn remove(&mut self, name: &Name) {
        if let Some(Pod {
            gang, claims, state, ..
        }) = self.pods.remove(name)
        {
            self.change(&gang, |of_gang| of_gang.take(name, claims, state));
        }
    }

    /// Changes a gang, and what is counted of all. One without pods is forgotten.
    fn change(&mut self, gang: &Name, change: impl FnOnce(&mut OfGang)) {
        let of_gang = self.gangs.entry(gang.clone()).or_default();
        let grew_since = of_gang.grows_since;
        self.kept -= of_gang.kept.claims;
        self.wanted -= of_gang.wanted(self.limit);
        change(of_gang);
        if of_gang.is_empty() {
            self.gangs.remove(gang);
            return;
        }
        if of_gang.waiting.pods + of_gang.kept.pods + of_gang.creating.pods == 0 {
            of_gang.lacks_since = None;
        }
        self.kept += of_gang.kept.claims;
        self.wanted += of_gang.wanted(self.limit);
        if let Some(since) = of_gang.grows_since.filter(|_| of_gang.grows_since != grew_since) {
            self.growing.push_back((since, gang.clone()));
        }
    }
}

/// Whether so many claims fit. No other pod comes with them.
fn has_room(claims: u64, free: u64) -> Result<Vec<Name>, Refusal> {
    if claims > free {
        return Err(Refusal::Full);
    }
    Ok(Vec::new())
}

#[cfg(test)]
mod tests;
