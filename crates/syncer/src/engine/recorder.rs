//! Events of the syncer itself, in the tenant: which fields are denied, what failed. The same message about the same
//! object counts up instead of repeating, and each object has a budget of Events.

use super::{api::Api, host_first};
use crate::metrics::Metrics;
use berth_api::text::event_note;
use berth_runtime::locks::lock;
use berth_sync_rules::{
    kinds::event::event_name,
    model::resource::{self, Key, Name, Resource},
};
use jiff::Timestamp;
use serde_json::json;
use std::{
    collections::HashMap,
    hash::Hash,
    sync::Mutex,
    time::{Duration, Instant},
};

/// Events that an object may have at once, and the time after which it may have one more.
const BUDGET: (f64, Duration) = (25.0, Duration::from_secs(30));
/// The same Event is written again, with a higher count, not sooner than this.
const REPEAT: Duration = Duration::from_mins(10);
/// Objects, or Events, that are remembered before the idle ones are forgotten.
const REMEMBERED: usize = 2048;
/// Those that are remembered at most. A tenant can make any number of Events that all differ; beyond it, all are forgotten: some are written once more.
const MOST_REMEMBERED: usize = 32_768;

/// What an Event is about.
pub(super) struct Subject<'a> {
    pub(super) key: &'a Key,
    /// The resource in the tenant.
    pub(super) resource: Resource,
    pub(super) uid: &'a str,
}

/// The type of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// For information.
    Normal,
    /// Something needs attention.
    Warning,
}

/// Writes Events to the tenant.
pub(super) struct Recorder {
    tenant: Api,
    metrics: Metrics,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Events that were written, by name.
    recorded: Remembered<(Name, String), RecordedEvent>,
    /// Events that objects may still have.
    budgets: Remembered<Name, (f64, Instant)>,
}

/// What is remembered for some time.
struct Remembered<K, V> {
    entries: HashMap<K, V>,
    /// With more entries, the idle ones are forgotten.
    most: usize,
}

impl<K, V> Default for Remembered<K, V> {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
            most: REMEMBERED,
        }
    }
}

impl<K: Eq + Hash, V> Remembered<K, V> {
    /// Makes room for another entry. As many as are left may come before the idle ones are looked for again: to go through all of them for each
    /// that comes would take long if few are idle.
    fn make_room(&mut self, is_idle: impl Fn(&V) -> bool) {
        if self.entries.len() <= self.most {
            return;
        }
        self.entries.retain(|_, entry| !is_idle(entry));
        if self.entries.len() > MOST_REMEMBERED / 2 {
            self.entries.clear();
        }
        self.most = (2 * self.entries.len()).max(REMEMBERED);
    }
}

struct RecordedEvent {
    count: u32,
    first: Timestamp,
    written: Instant,
}

impl Recorder {
    pub(super) fn new(tenant: Api, metrics: Metrics) -> Self {
        Self {
            tenant,
            metrics,
            state: Mutex::default(),
        }
    }

    /// Takes one Event from an object's budget; `false` if there is none left.
    pub(super) fn take_from_budget(&self, about: &Name) -> bool {
        let now = Instant::now();
        let mut state = lock(&self.state);
        state
            .budgets
            .make_room(|(left, since)| refilled(*left, *since, now) >= BUDGET.0);
        let budgets = &mut state.budgets.entries;
        let (left, since) = budgets.entry(about.clone()).or_insert((BUDGET.0, now));
        *left = refilled(*left, *since, now);
        *since = now;
        if *left < 1.0 {
            self.metrics.events_dropped.inc();
            return false;
        }
        *left -= 1.0;
        true
    }

    /// Records an Event about an object. Failures are logged only: an Event must never hold up the work it is about.
    pub(super) async fn record(&self, about: Subject<'_>, level: Level, reason: &'static str, message: &str) {
        // Before it counts as written.
        if host_first::defers() {
            return;
        }
        let Subject { key, resource, uid } = about;
        let Key { kind, name } = key;
        let message = event_note(message);
        let hash = berth_api::names::hash(&[kind.label(), uid, reason, &message]);
        let event_name = event_name(name, &hash);
        let Some((count, first)) = self.count_event(name, &event_name) else {
            return;
        };
        if !self.take_from_budget(name) {
            return;
        }
        let time = |time: Timestamp| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        // Events about cluster-scoped objects live in the namespace `default`.
        let namespace = if name.namespace.is_empty() {
            "default"
        } else {
            &name.namespace
        };
        let mut involved = json!({
            "apiVersion": resource.api_version(), "kind": resource.kind, "name": &*name.name, "uid": uid,
        });
        if !name.namespace.is_empty() {
            involved["namespace"] = (*name.namespace).into();
        }
        let event = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": event_name, "namespace": namespace},
            "involvedObject": involved,
            "type": if level == Level::Warning { "Warning" } else { "Normal" },
            "reason": reason,
            "message": message,
            "count": count,
            "firstTimestamp": time(first),
            "lastTimestamp": time(Timestamp::now()),
            "source": {"component": "berth-syncer"},
            "reportingComponent": "berth-syncer",
        });
        if let Err(error) = self.tenant.apply(resource::EVENT, namespace, &event_name, &event).await {
            tracing::warn!(%key, reason, %error, "could not write an Event");
        }
    }

    /// Counts an Event; `None` if it was written a short while ago.
    fn count_event(&self, name: &Name, event_name: &str) -> Option<(u32, Timestamp)> {
        let now = Instant::now();
        let mut state = lock(&self.state);
        state
            .recorded
            .make_room(|recorded| now.saturating_duration_since(recorded.written) >= REPEAT);
        let mut fresh = false;
        let recorded = state
            .recorded
            .entries
            .entry((name.clone(), event_name.to_owned()))
            .or_insert_with(|| {
                fresh = true;
                RecordedEvent {
                    count: 0,
                    first: Timestamp::now(),
                    written: now,
                }
            });
        recorded.count += 1;
        if !fresh && now.duration_since(recorded.written) < REPEAT {
            return None;
        }
        recorded.written = now;
        Some((recorded.count, recorded.first))
    }
}

fn refilled(left: f64, since: Instant, now: Instant) -> f64 {
    (left + now.duration_since(since).as_secs_f64() / BUDGET.1.as_secs_f64()).min(BUDGET.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn event_budgets_refill_up_to_their_limit() {
        let start = Instant::now();
        let later = |seconds| start + Duration::from_secs(seconds);
        assert!((refilled(0.0, start, later(30)) - 1.0).abs() < 1e-9);
        assert!((refilled(2.0, start, later(60)) - 4.0).abs() < 1e-9);
        assert!((refilled(20.0, start, later(100_000)) - BUDGET.0).abs() < 1e-9);
    }

    #[test]
    fn idle_entries_are_forgotten_and_others_are_not_looked_at_each_time() {
        let mut remembered = Remembered::default();
        let looks = Cell::new(0);
        let mut put = |number: usize, is_idle: bool| {
            remembered.make_room(|is_idle: &bool| {
                looks.set(looks.get() + 1);
                *is_idle
            });
            remembered.entries.insert(number, is_idle);
            remembered.entries.len()
        };
        let idle = (0..10_000).map(|number| put(number, true)).max();
        assert_eq!(idle, Some(REMEMBERED + 1));
        looks.set(0);
        let most = (0..200_000).map(|number| put(number, false)).max().unwrap();
        assert!(most <= MOST_REMEMBERED, "{most}");
        assert!(looks.get() < 3 * 200_000, "{}", looks.get());
    }
}
