//! Events of the syncer itself, in the tenant: what is refused, what failed. The same words about the same object
//! count up instead of repeating, and each object has its allowance.

use super::api::Api;
use crate::metrics::Metrics;
use berth_sync_rules::{
    kinds::{self, event::event_name},
    resource::{self, Key, Name},
};
use jiff::Timestamp;
use serde_json::json;
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Events that an object may have at once, and the time after which it may have one more.
const ALLOWANCE: (f64, Duration) = (25.0, Duration::from_secs(30));
/// The same words are written again, with a higher count, not sooner than this.
const REPEAT: Duration = Duration::from_mins(10);
/// Objects remembered before the idle ones are forgotten.
const REMEMBERED: usize = 2048;

/// How bad it is.
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
    /// What was said, by Event name.
    said: HashMap<(Name, String), Said>,
    /// What objects may still say.
    left: HashMap<Name, (f64, Instant)>,
}

struct Said {
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

    /// Takes one from an object's allowance; `false` if there is none left.
    pub(super) fn allows(&self, about: &Name) -> bool {
        let now = Instant::now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.left.len() > REMEMBERED {
            state
                .left
                .retain(|_, (left, since)| refilled(*left, *since, now) < ALLOWANCE.0);
        }
        let (left, since) = state.left.entry(about.clone()).or_insert((ALLOWANCE.0, now));
        *left = refilled(*left, *since, now);
        *since = now;
        if *left < 1.0 {
            self.metrics.events_dropped.inc();
            return false;
        }
        *left -= 1.0;
        true
    }

    /// Says something about an object. Failures are logged only: an Event must never hold up the work it is about.
    pub(super) async fn record(&self, key: &Key, uid: &str, level: Level, reason: &'static str, message: &str) {
        let Key { kind, name } = key;
        let hash = berth_api::names::hash(&[kind.label(), uid, reason, message]);
        let event_name = event_name(name, &hash);
        let Some((count, first)) = self.note(name, &event_name) else {
            return;
        };
        if !self.allows(name) {
            return;
        }
        let time = |time: Timestamp| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        // Events about cluster-scoped objects live in the namespace `default`.
        let namespace = if name.namespace.is_empty() {
            "default"
        } else {
            &name.namespace
        };
        let Some(resource) = kinds::kind(*kind).resource() else {
            return;
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

    /// Counts words; `None` if they were said a short while ago.
    fn note(&self, name: &Name, event_name: &str) -> Option<(u32, Timestamp)> {
        let now = Instant::now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.said.len() > REMEMBERED {
            state.said.retain(|_, said| said.written.elapsed() < REPEAT);
        }
        let mut fresh = false;
        let said = state
            .said
            .entry((name.clone(), event_name.to_owned()))
            .or_insert_with(|| {
                fresh = true;
                Said {
                    count: 0,
                    first: Timestamp::now(),
                    written: now,
                }
            });
        said.count += 1;
        if !fresh && now.duration_since(said.written) < REPEAT {
            return None;
        }
        said.written = now;
        Some((said.count, said.first))
    }
}

fn refilled(left: f64, since: Instant, now: Instant) -> f64 {
    (left + now.duration_since(since).as_secs_f64() / ALLOWANCE.1.as_secs_f64()).min(ALLOWANCE.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowances_fill_up_again_but_never_beyond_the_first() {
        let start = Instant::now();
        let later = |seconds| start + Duration::from_secs(seconds);
        assert!((refilled(0.0, start, later(30)) - 1.0).abs() < 1e-9);
        assert!((refilled(2.0, start, later(60)) - 4.0).abs() < 1e-9);
        assert!((refilled(20.0, start, later(100_000)) - ALLOWANCE.0).abs() < 1e-9);
    }
}
