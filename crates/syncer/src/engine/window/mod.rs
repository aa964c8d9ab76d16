//! Which pods may be created on the host now: the tenant's pods that the host's scheduler has not tried yet are limited.
//!
//! The scheduler has one queue for all tenants. Without a limit, a tenant that creates a thousand pods at once delays the pods of
//! all others by as long as the scheduler takes for a thousand. With it, most of them wait here, in the order of [`line`], and
//! delay no other tenant. How many may be in the scheduler's queue is in [`limit`].
//!
//! | a pod | has a place |
//! |---|---|
//! | is to be created on the host | from then on, if there is one; else it waits |
//! | is a member of a gang that has fewer pods with a place than its size | at once: the gang starts together or not at all |
//! | has a node, bound or nominated, was found unschedulable, or is gone | no more |
//! | has scheduling gates of the platform | none: the scheduler does not try it |
//! | was rejected by the host | no more: it asks again after its back-off |
//! | was not tried for [`TIMEOUT`] | none any more: it waits for something else, such as further pods of its group |
//! | was not created for as long, as the tenant's API server takes long for it | none any more: it asks again. Places of pods that are not on the host do not count then: most of these wait for long as well |
//!
//! The window says when a pod has a place: a pod that waits does not ask again by itself. [`SchedulingWindow::check`] looks after places of
//! pods that are not tried. Each scheduler of the host has a window, see [`by_scheduler`].
//!
//! A window whose limit is the least one may rest after a pod was tried: then no pod gets a place until the rest is over, but for the
//! other members of its gang.
//!
//! If no pod at all was tried for [`TIMEOUT`], there is no scheduler, or one that does not say what it tried. Then every pod gets a place,
//! so that the demand for nodes is seen, until a pod is tried again.
//!
//! Pods that were tried and have no node are limited as well: see [`waiting_room`](super::waiting_room).

mod by_scheduler;
mod limit;
mod line;

use berth_sync_rules::{kinds::pod::placement::SchedulingStage, model::resource::Name};
pub(super) use by_scheduler::SchedulingWindows;
use limit::Limit;
use line::Waiting;
pub(super) use line::{Gang, Line, Request};
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// Time after which a pod that was not tried has no place any more.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A pod that waits for so long gets an Event.
pub(super) const LONG_WAIT: Duration = Duration::from_secs(30);

/// The pods with a place, and those that wait for one.
#[derive(Debug)]
pub(super) struct SchedulingWindow {
    limit: Limit,
    line: Line,
    placed: HashMap<Name, Placed>,
    /// Pods in `placed` that count.
    used: usize,
    /// Those of them of which nothing was seen since they got their place.
    unseen: usize,
    /// Pods with a place, by gang.
    members: HashMap<Name, usize>,
    /// No pod was tried for a while: every pod gets a place.
    is_open: bool,
    last_try: Option<Instant>,
    /// No pod gets a place before.
    rests_until: Option<Instant>,
}

/// A pod with a place.
#[derive(Debug)]
struct Placed {
    since: Instant,
    /// When it was first seen on the host.
    on_host: Option<Instant>,
    counts: bool,
    /// It has asked after its place was over, and is about to be created.
    is_at_hand: bool,
    /// The time until it is tried says how long the queue is: it waits for nothing else, such as its gang or the end of a back-off.
    is_measured: bool,
    gang: Option<Name>,
}

impl Placed {
    /// Whether its place was over before it was created.
    fn is_late(&self) -> bool {
        !self.counts && self.on_host.is_none()
    }

    fn is_unseen(&self) -> bool {
        self.counts && self.on_host.is_none() && !self.is_at_hand
    }

    /// It is about to be created, later than expected.
    fn renew(&mut self, now: Instant) {
        (self.counts, self.is_at_hand, self.since) = (true, true, now);
    }

    /// It was seen on the host.
    fn arrive(&mut self, now: Instant) {
        if self.is_late() {
            // Since when it was being created is not known.
            (self.counts, self.is_measured, self.since) = (true, false, now);
        }
        self.on_host.get_or_insert(now);
    }
}

/// A pod that got a place.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Admitted {
    pub(super) name: Name,
    /// How long it waited for the place.
    pub(super) waited: Duration,
}

/// The answer to a pod that asks for a place.
#[derive(Debug)]
pub(super) struct Answer {
    /// How long the pod has waited so far, if it has no place.
    pub(super) waits: Option<Duration>,
    /// Pods that got a place, this one included.
    pub(super) admitted: Vec<Admitted>,
}

/// What became of a pod on the host.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// How long the scheduler took until it tried the pod, if it has.
    pub(super) tried_after: Option<Duration>,
    /// Pods that got a place because of it.
    pub(super) admitted: Vec<Admitted>,
}

/// What has changed with time.
#[derive(Debug, Default)]
pub(super) struct Checked {
    /// Pods that got a place.
    pub(super) admitted: Vec<Admitted>,
    /// Pods that have waited for [`LONG_WAIT`] since the last check.
    pub(super) late: Vec<Name>,
}

impl SchedulingWindow {
    /// A window of at most `maximum` pods.
    pub(super) fn new(maximum: usize) -> Self {
        Self {
            limit: Limit::new(maximum),
            line: Line::default(),
            placed: HashMap::new(),
            used: 0,
            unseen: 0,
            members: HashMap::new(),
            is_open: false,
            last_try: None,
            rests_until: None,
        }
    }

    /// How many pods may have a place now.
    pub(super) fn limit(&self) -> usize {
        self.limit.current()
    }

    /// Pods with a place that count.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Pods that wait for a place.
    pub(super) fn waiting(&self) -> usize {
        self.line.len()
    }

    /// When [`SchedulingWindow::check`] must be called next, if pods wait for the end of a rest.
    pub(super) fn rests_until(&self) -> Option<Instant> {
        self.rests_until.filter(|_| !self.line.is_empty())
    }

    /// Whether a pod has a place or waits for one.
    pub(super) fn knows(&self, name: &Name) -> bool {
        self.has(name) || self.line.get(name).is_some()
    }

    /// Whether a pod has a place.
    fn has(&self, name: &Name) -> bool {
        self.placed.contains_key(name)
    }

    /// A pod that is on the host when the syncer starts, and was not tried yet.
    pub(super) fn restore(&mut self, request: Request, now: Instant) {
        self.place(request, Some(now), now);
    }

    /// A pod asks for a place. If there is none it waits, and may ask again.
    pub(super) fn ask(&mut self, request: Request, now: Instant) -> Answer {
        let name = request.name.clone();
        let mut admitted = Vec::new();
        if self.placed.get(&name).is_some_and(Placed::is_late) {
            if self.has_place_for_late(now) {
                self.change(&name, |pod| pod.renew(now));
            } else {
                self.leave(&name);
            }
        }
        // A pod that has a place asks again if its creation failed.
        if !self.has(&name) {
            let lacks_member = self.lacks_member(&request);
            self.line.add(request, now);
            if lacks_member && let Some(member) = self.line.remove(&name) {
                admitted.push(self.place_waiting(member, now));
            }
        }
        admitted.extend(self.admit(now));
        let waits = self.line.since(&name).map(|since| now.saturating_duration_since(since));
        Answer { waits, admitted }
    }

    /// A pod was seen on the host; no stage if it is gone or being deleted there.
    pub(super) fn observe(&mut self, name: &Name, stage: Option<SchedulingStage>, now: Instant) -> Progress {
        self.observe_waiting(name, stage, now);
        if stage == Some(SchedulingStage::Untried) {
            self.change(name, |pod| pod.arrive(now));
        }
        let mut tried_after = None;
        let leaves = match (stage, self.placed.get(name)) {
            (_, None) | (Some(SchedulingStage::Untried), Some(_)) => false,
            (Some(SchedulingStage::Tried), Some(pod)) => {
                let elapsed = |at| now.saturating_duration_since(at);
                // Others could not end a rest, so they begin none either.
                if pod.is_measured {
                    self.limit.measure(elapsed(pod.since), !self.line.is_empty(), now);
                    let rest = self.limit.rest();
                    self.rests_until = (!rest.is_zero()).then(|| now + rest);
                }
                tried_after = Some(pod.on_host.map_or(Duration::ZERO, elapsed));
                true
            }
            (Some(SchedulingStage::Gated), Some(_)) => true,
            // If this pod is not created yet, an earlier one of the name is gone.
            (None, Some(pod)) => pod.on_host.is_some(),
        };
        if tried_after.is_some() {
            self.last_try = Some(now);
            self.is_open = false;
        }
        if leaves {
            self.leave(name);
        }
        Progress {
            tried_after,
            admitted: self.admit(now),
        }
    }

    /// The same for a pod that waits. It does not if it is on the host already: the answer to an earlier creation was lost.
    fn observe_waiting(&mut self, name: &Name, stage: Option<SchedulingStage>, now: Instant) {
        if stage.is_some()
            && let Some(Waiting { request, .. }) = self.line.remove(name)
            && stage == Some(SchedulingStage::Untried)
        {
            self.place(request, Some(now), now);
        }
    }

    /// A pod needs no place: it is gone in the tenant, or was not created on the host. Returns the pods that got one instead.
    pub(super) fn forget(&mut self, name: &Name, now: Instant) -> Vec<Admitted> {
        self.line.remove(name);
        if self.placed.get(name).is_some_and(|pod| pod.on_host.is_none()) {
            self.leave(name);
        }
        self.admit(now)
    }

    /// To be called every second or so, and at the end of a rest: what has changed because nothing happened.
    pub(super) fn check(&mut self, now: Instant) -> Checked {
        if !self.is_open {
            self.expire(now);
        }
        Checked {
            admitted: self.admit(now),
            late: self.line.take_late(now),
        }
    }

    /// Whether a pod may be created whose place was over before.
    fn has_place_for_late(&self, now: Instant) -> bool {
        let rests = self.rests_until.is_some_and(|end| now < end);
        self.is_open || (!rests && self.used - self.unseen < self.limit.current())
    }

    /// Whether fewer pods of the pod's gang have a place than start together, and some have.
    fn lacks_member(&self, request: &Request) -> bool {
        request.gang.as_ref().is_some_and(|gang| {
            let members = self.members.get(&gang.name).copied();
            members.is_some_and(|members| members < gang.size)
        })
    }

    /// Gives places to the first pods that wait, as far as there are any.
    fn admit(&mut self, now: Instant) -> Vec<Admitted> {
        let mut admitted = Vec::new();
        // During a rest pods may also leave the line without a place.
        if self.placed.is_empty() && self.line.is_empty() {
            self.limit.reset();
            self.rests_until = None;
        }
        self.rests_until = self.rests_until.filter(|end| now < *end);
        while (self.is_open || self.rests_until.is_none() && self.used < self.limit.current())
            && let Some(first) = self.line.take_first()
        {
            let gang = first.request.gang.clone();
            admitted.push(self.place_waiting(first, now));
            while let Some(gang) = &gang
                && self.members.get(&gang.name).is_some_and(|members| *members < gang.size)
                && let Some(fellow) = self.line.take_member(&gang.name)
            {
                admitted.push(self.place_waiting(fellow, now));
            }
        }
        admitted
    }

    fn place_waiting(&mut self, pod: Waiting, now: Instant) -> Admitted {
        let Waiting { request, since, .. } = pod;
        let name = request.name.clone();
        self.place(request, None, now);
        Admitted {
            name,
            waited: now.saturating_duration_since(since),
        }
    }

    fn place(&mut self, request: Request, on_host: Option<Instant>, now: Instant) {
        let Request {
            name,
            gang,
            priority: _,
            user: _,
        } = request;
        let is_measured = gang.as_ref().is_none_or(|gang| gang.size <= 1);
        let gang = gang.map(|gang| gang.name);
        if let Some(gang) = &gang {
            *self.members.entry(gang.clone()).or_default() += 1;
        }
        let pod = Placed {
            since: now,
            on_host,
            counts: true,
            is_at_hand: false,
            is_measured,
            gang,
        };
        self.used += 1;
        self.unseen += usize::from(pod.is_unseen());
        self.placed.insert(name, pod);
    }

    /// Changes a pod with a place, and what is counted of it.
    fn change(&mut self, name: &Name, change: impl FnOnce(&mut Placed)) {
        if let Some(pod) = self.placed.get_mut(name) {
            self.used -= usize::from(pod.counts);
            self.unseen -= usize::from(pod.is_unseen());
            change(pod);
            self.used += usize::from(pod.counts);
            self.unseen += usize::from(pod.is_unseen());
        }
    }

    /// Takes a pod's place away.
    fn leave(&mut self, name: &Name) {
        let Some(pod) = self.placed.remove(name) else { return };
        self.used -= usize::from(pod.counts);
        self.unseen -= usize::from(pod.is_unseen());
        if let Some(gang) = pod.gang
            && let Some(members) = self.members.get_mut(&gang)
        {
            *members -= 1;
            if *members == 0 {
                self.members.remove(&gang);
            }
        }
    }

    /// Lets pods that were not tried for too long count no more. If no other was tried meanwhile, opens the window.
    fn expire(&mut self, now: Instant) {
        let within =
            |at: Option<Instant>, time: Duration| at.is_some_and(|at| now.saturating_duration_since(at) < time);
        let is_silent = !within(self.last_try, TIMEOUT);
        for pod in self.placed.values_mut() {
            if pod.counts && now.saturating_duration_since(pod.since) >= TIMEOUT {
                self.used -= 1;
                self.unseen -= usize::from(pod.is_unseen());
                pod.counts = false;
                // The scheduler leaves out pods that have other gates, of the platform, and gangs that are not complete.
                self.is_open |= is_silent && pod.on_host.is_some() && pod.is_measured;
            }
        }
    }
}

#[cfg(test)]
mod tests;
