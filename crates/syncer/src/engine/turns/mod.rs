//! Turns of writes to the host: how many bytes a second the syncer writes there for its tenant, and how many requests controllers of the host make
//! because of that.
//!
//! A tenant can change many objects on the host at once, with little: one label of a namespace is on all of its pods. Each write makes the host's
//! etcd keep another version of the whole object for minutes, and all tenants share it. So each creation and each update takes the bytes
//! of the object, not of the change, from an allowance that grows again at the [pace](Pace) of the tenant's class.
//!
//! Controllers of the host make a few requests a second for all tenants together, and one small pod with claims can cost them dozens. So a write takes
//! [these](berth_sync_rules::model::ToHost::controller_requests) from another allowance, before its bytes.
//!
//! Scheduler, kubelets and controllers write Events about the tenant's objects. About one pod a kubelet writes 25 at once at most, and then one in five minutes:
//! many come only from pods that are made again and again. So the bytes of those that the watch reports are taken from a third allowance, and a pod that is
//! made waits while nothing is left, for [an hour](LONGEST_FOR_EVENTS) at most after the last of them. How many it will have nobody knows before: it takes
//! [little](EVENTS_OF_POD) itself, by which pods come one after another. Even while nothing is left, pods come [now and then](EVENTS_BETWEEN_PODS): without
//! any, nodes that follow demand would be idle after minutes, and go to other tenants.
//!
//! A syncer starts with a tenth of each allowance: what was taken before is forgotten then, and teams can cause restarts. A start itself writes nothing, unless
//! objects become something else than before.
//!
//! | a write | waits for |
//! |---|---|
//! | of an object of more than [`LARGE`] bytes | earlier large ones |
//! | of a smaller one | earlier small ones: large objects never delay small ones |
//! | that makes a pod | earlier ones that do, in a line of their own, while too many Events are written. Then for what follows |
//! | that makes controllers of the host work | earlier ones that do, in a line of their own. Then for its bytes, as above |
//! | of an object that the tenant's API server waits for | nothing, and delays others |
//! | that renews tokens, in a small Secret | nothing, and delays others |
//! | that deletes, or that writes to the tenant | nothing |
//! | that the host does not store: a dry run, or one more try for an address that is taken | earlier ones of these, which are limited in number |
//!
//! A key that has to wait is reconciled again when its turn has come. Until then it takes no place of others, and its status is synced. Namespaces of
//! the tenant take turns, and so do kinds: pods whose claims are on the host do not come after all claims that are not. Requests that were taken are
//! [kept](super::request_grants) for ten minutes until the write has reached the host, however often it is tried: a pod that the host rejects again and again takes
//! them once in this time.
//!
//! A reconciliation [without the tenant](super::host_first) may not get to its write, so it changes nothing of what its key has or waits for.

mod line;
#[cfg(test)]
mod tests;

use super::request_grants::Grants;
use berth_runtime::{locks::lock, queue::Taken};
use berth_sync_rules::{
    admission::writes::{ALLOWANCE, LARGE, Pace},
    model::{HostLimits, resource::Key},
};
use line::Line;
use std::{
    collections::{HashMap, HashSet},
    sync::Mutex,
    time::Duration,
};
use tokio::time::Instant;

/// Result of a reconciliation of an object that waits for its turn.
pub(super) const WAITS: &str = "waiting for its turn";
/// Reason of the Event of an object that waits for long.
pub(super) const DELAYED: &str = "WriteDelayed";
/// Bytes of small objects that may be written at once: those of some ten thousand pods.
const SMALL_ALLOWANCE: u64 = 128 << 20;
/// An object that has grown by no more than this since its turn came keeps it: the status of a pod changes meanwhile.
const KEEPS_TURN: u64 = 4 << 10;
/// Seconds after which an empty allowance of requests is whole again: a team may start many pods with claims at once.
const REQUESTS_ALLOWANCE_SECONDS: u64 = 600;
/// Events get one in so many of the bytes a second that may be written: those of fifty pods that start with five Events each, by default.
pub(super) const EVENTS_PART: u64 = 2;
/// Bytes of Events that a pod takes itself: about those of one.
const EVENTS_OF_POD: u64 = 1 << 10;
/// While too many Events are written, a pod comes whenever so many bytes of them may be written. It can have 25 Events of 2 KB at once, a tenth of that.
const EVENTS_BETWEEN_PODS: u64 = 512 << 10;
/// Pods wait no longer than this because of Events that were written: the host has forgotten older ones by default.
const LONGEST_FOR_EVENTS: Duration = Duration::from_hours(1);
/// Tries of what the host does not store: how many a second, and how many at once. A comparison of a large chart with a cluster is a dry run of each Service.
const TRIES_PER_SECOND: u64 = 10;
const TRIES_AT_ONCE: u64 = 3000;
/// Interval at which the next key looks for room among what others have taken and not used.
const ROOM_INTERVAL: Duration = Duration::from_secs(1);
/// An object that will wait for so long gets an Event.
const LONG_WAIT: Duration = Duration::from_secs(30);

/// The answer to a write that asks whether it is its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It is. Its bytes are taken.
    Now,
    /// It is not.
    Later {
        /// Whether that will take long.
        takes_long: bool,
    },
}

/// Whether a write of an object is large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// More than [`LARGE`] bytes.
    Large,
    /// Less.
    Small,
}

impl Size {
    /// Both.
    pub(super) const ALL: [Self; 2] = [Self::Large, Self::Small];

    pub(super) fn of(bytes: u64) -> Self {
        if bytes > u64::from(LARGE) {
            Self::Large
        } else {
            Self::Small
        }
    }

    /// For metrics.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Large => "large",
            Self::Small => "small",
        }
    }
}

/// One of the lines, by what its keys wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineKind {
    /// For bytes.
    Bytes(Size),
    /// For requests of the host's controllers.
    Requests,
    /// For bytes of Events: new pods.
    Events,
}

impl LineKind {
    /// All.
    pub(super) const ALL: [Self; 4] = [
        Self::Bytes(Size::Large),
        Self::Bytes(Size::Small),
        Self::Requests,
        Self::Events,
    ];
}

/// The turns of all writes.
pub(super) struct Turns {
    large: Line,
    small: Line,
    requests: Line,
    events: Line,
    tries: Mutex<Pace>,
    /// Bytes that were taken for keys whose turn it is.
    granted: Mutex<HashMap<Key, u64>>,
    /// Requests that were taken for keys which have not written yet.
    granted_requests: Mutex<Grants>,
    /// Pods whose turn it is although Events are written, and which are not made yet.
    granted_events: Mutex<HashSet<Key>>,
}

/// What a reconciliation began with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    /// The bytes of its turn, if that has come.
    granted: Option<u64>,
    has_requests: bool,
    has_events: bool,
    asked: [u32; 4],
}

/// What a key keeps of its turns when a reconciliation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeps {
    /// All that it has: it was its turn, and it writes later for another reason.
    All,
    /// Requests: it has not written yet, because it waits or because that has failed.
    Requests,
    /// Nothing. It did not want to write, or it has written.
    Nothing,
}

/// Requests that may be taken at once.
pub(super) fn requests_at_once(limits: &HostLimits) -> u64 {
    u64::from(limits.controller_requests_per_second) * REQUESTS_ALLOWANCE_SECONDS
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

impl Turns {
    /// Turns for writes of so many bytes a second, in large objects and again in small ones, and for so many requests, with what a syncer starts with.
    /// What is on the host already has taken nothing.
    pub(super) fn new(limits: &HostLimits) -> Self {
        let rate = limits.write_bytes_per_second;
        let requests = u64::from(limits.controller_requests_per_second);
        let allowance = requests_at_once(limits);
        Self {
            large: Line::new(ALLOWANCE, rate),
            small: Line::new(SMALL_ALLOWANCE, rate),
            requests: Line::new(allowance, requests),
            events: Line::new(SMALL_ALLOWANCE, rate / EVENTS_PART),
            tries: Mutex::new(Pace::at_start(TRIES_AT_ONCE, TRIES_PER_SECOND, now())),
            granted: Mutex::default(),
            granted_requests: Mutex::new(Grants::new(allowance)),
            granted_events: Mutex::default(),
        }
    }

    fn line(&self, kind: LineKind) -> &Line {
        match kind {
            LineKind::Bytes(Size::Large) => &self.large,
            LineKind::Bytes(Size::Small) => &self.small,
            LineKind::Requests => &self.requests,
            LineKind::Events => &self.events,
        }
    }

    fn line_of(&self, bytes: u64) -> &Line {
        self.line(LineKind::Bytes(Size::of(bytes)))
    }

    fn grant(&self, kind: LineKind, key: &Key, amount: u64) {
        match kind {
            LineKind::Bytes(_) => {
                lock(&self.granted).insert(key.clone(), amount);
            }
            LineKind::Requests => lock(&self.granted_requests).add(key, amount),
            LineKind::Events => {
                lock(&self.granted_events).insert(key.clone());
            }
        }
    }

    /// A key asks to write an object of `bytes`. If its turn comes later, it is reconciled again then. One that has become much larger since its turn came
    /// waits for another: pods wait long for their places, and what they become meanwhile would be written as fast as they get these.
    pub(super) fn ask(&self, key: &Key, bytes: u64) -> Turn {
        let granted = lock(&self.granted).remove(key);
        match granted {
            Some(granted) if bytes.saturating_sub(granted) <= KEEPS_TURN => {
                self.take(bytes.saturating_sub(granted));
                Turn::Now
            }
            _ => self.line_of(bytes).ask(key, bytes, true),
        }
    }

    /// A key asks to write an object because of which controllers of the host make so many requests. If its turn comes later, it is reconciled again
    /// then. What it has taken it keeps until the write is [done](Turns::spend), for ten minutes at most.
    pub(super) fn ask_for_requests(&self, key: &Key, requests: u64) -> Turn {
        if requests == 0 {
            return Turn::Now;
        }
        let mut granted = lock(&self.granted_requests);
        // It may be another object of the name by now, and need more.
        let more = requests.saturating_sub(granted.get(key, now()));
        if more == 0 {
            return Turn::Now;
        }
        let has_room = granted.has_room(more, now());
        let turn = self.requests.ask(key, more, has_room);
        if turn == Turn::Now {
            granted.add(key, more);
        }
        turn
    }

    /// The key of a pod asks to make it, while Events are written. If its turn comes later, it is reconciled again then. It keeps its turn until the write is
    /// [done](Turns::spend), or until it does not want to write any more.
    pub(super) fn ask_for_events(&self, key: &Key) -> Turn {
        if lock(&self.granted_events).contains(key) {
            return Turn::Now;
        }
        if self.events.ask(key, EVENTS_OF_POD, true) == Turn::Now {
            self.grant(LineKind::Events, key, EVENTS_OF_POD);
            return Turn::Now;
        }
        let (amount, pods) = {
            let waiting = lock(&self.events.waiting);
            (waiting.amount, u32::try_from(waiting.keys.len()).unwrap_or(u32::MAX))
        };
        let wait = lock(&self.events.pace).wait_for(amount, now());
        let longest = self.events.pause_between_pods().saturating_mul(pods);
        Turn::Later {
            takes_long: wait.min(longest) >= LONG_WAIT,
        }
    }

    /// Takes the bytes of an Event that somebody has written. Pods that are made next wait longer, but not for ever: others may write Events without end.
    pub(super) fn take_event(&self, bytes: u64) {
        let mut pace = lock(&self.events.pace);
        if pace.wait_for(0, now()) < LONGEST_FOR_EVENTS {
            pace.reserve(bytes, now());
        }
    }

    /// A key has written what it asked for. Returns the requests that it had taken.
    pub(super) fn spend(&self, key: &Key) -> u64 {
        lock(&self.granted_events).remove(key);
        lock(&self.granted_requests).remove(key)
    }

    /// Takes requests that controllers of the host make whether or not anything is written. What is written next waits longer.
    pub(super) fn take_requests(&self, requests: u64) {
        if requests > 0 {
            lock(&self.requests.pace).reserve(requests, now());
        }
    }

    /// Takes bytes for a write that does not wait.
    pub(super) fn take(&self, bytes: u64) {
        if bytes > 0 {
            lock(&self.line_of(bytes).pace).reserve(bytes, now());
        }
    }

    /// The bytes that were taken for a key whose turn it is; 0 if it is not.
    pub(super) fn granted(&self, key: &Key) -> u64 {
        lock(&self.granted).get(key).copied().unwrap_or_default()
    }

    /// A key whose turn it was for `bytes` writes later, for another reason: it need not ask again. It keeps what was [taken](Self::granted) for it `before`
    /// it asked. Otherwise one that becomes smaller and larger again and again would take the difference each time, while keys of other namespaces wait.
    pub(super) fn keep(&self, key: &Key, bytes: u64, before: u64) {
        lock(&self.granted).insert(key.clone(), bytes.max(before));
    }

    /// Takes bytes for a write that can wait only for seconds. Returns the time after which it may begin.
    ///
    /// # Errors
    /// That would be too late. The error is the time after which the same write may be asked for again.
    pub(super) fn take_soon(&self, bytes: u64) -> Result<Duration, Duration> {
        lock(&self.line_of(bytes).pace).take(bytes, now())
    }

    /// Takes a try of a write that the host does not store. It takes no bytes, and is as much work for the host's API server as any other. Returns the time
    /// after which it may begin.
    ///
    /// # Errors
    /// That would be too late. The error is the time after which it may be asked for again.
    pub(super) fn take_try_soon(&self) -> Result<Duration, Duration> {
        lock(&self.tries).take(1, now())
    }

    /// The same for one that does not wait. Returns whether it may be made.
    pub(super) fn take_try_at_once(&self) -> bool {
        lock(&self.tries).take_at_once(1, now())
    }

    /// Whether the turn of a key for its bytes has come, and it has not written yet.
    #[cfg(test)]
    pub(super) fn has_turn(&self, key: &Key) -> bool {
        lock(&self.granted).contains_key(key)
    }

    /// A reconciliation of a key begins.
    pub(super) fn begin(&self, key: &Key) -> Begun {
        Begun {
            granted: lock(&self.granted).get(key).copied(),
            has_requests: lock(&self.granted_requests).contains(key),
            has_events: lock(&self.granted_events).contains(key),
            asked: LineKind::ALL.map(|kind| self.line(kind).asked(key)),
        }
    }

    /// The reconciliation has ended. What it did not ask for is not needed any more. What it keeps of its requests it loses in time. Not for one that
    /// has left something for [later](super::host_first): it may have left the write.
    pub(super) fn end(&self, key: &Key, begun: Begun, keeps: Keeps) {
        if begun.granted.is_some() && keeps != Keeps::All {
            let mut granted = lock(&self.granted);
            // Of one that has grown, the next turn may have come meanwhile.
            if granted.get(key) == begun.granted.as_ref() {
                granted.remove(key);
            }
        }
        if keeps != Keeps::Nothing {
            lock(&self.granted_requests).start(key, now());
        } else if begun.has_requests {
            lock(&self.granted_requests).remove(key);
        }
        if keeps == Keeps::Nothing && begun.has_events {
            lock(&self.granted_events).remove(key);
        }
        for (kind, asked) in LineKind::ALL.into_iter().zip(begun.asked) {
            let line = self.line(kind);
            if asked > 0 && line.asked(key) == asked {
                lock(&line.waiting).remove(key);
            }
        }
    }

    /// Waits for the next turn. Returns the key whose turn it is.
    pub(super) async fn next(&self, kind: LineKind) -> Key {
        let line = self.line(kind);
        loop {
            let Taken { key, .. } = line.queue.take().await;
            let amount = lock(&line.waiting).keys.get(&key.0).map(|asks| asks.amount);
            if let Some(amount) = amount {
                if kind == LineKind::Requests {
                    self.wait_for_room(&key.0, amount).await;
                }
                let wait = lock(&line.pace).reserve(amount, now());
                tokio::time::sleep(match kind {
                    LineKind::Events => wait.min(line.pause_between_pods()),
                    LineKind::Bytes(_) | LineKind::Requests => wait,
                })
                .await;
            }
            // It may not need its turn any more.
            let still_waits = lock(&line.waiting).remove(&key.0).is_some();
            line.queue.done(&key);
            if let (Some(amount), true) = (amount, still_waits) {
                self.grant(kind, &key.0, amount);
                return key.0;
            }
        }
    }

    /// Waits until others have used enough of the requests that they have taken, or have lost them, or until the key does not wait any more.
    async fn wait_for_room(&self, key: &Key, requests: u64) {
        while self.requests.asked(key) > 0 && !lock(&self.granted_requests).has_room(requests, now()) {
            tokio::time::sleep(ROOM_INTERVAL).await;
        }
    }

    /// Whether a key waits for its turn.
    pub(super) fn waits(&self, key: &Key) -> bool {
        LineKind::ALL.into_iter().any(|kind| self.line(kind).asked(key) > 0)
    }

    /// Number of keys that wait.
    pub(super) fn waiting(&self, kind: LineKind) -> usize {
        lock(&self.line(kind).waiting).keys.len()
    }
}
