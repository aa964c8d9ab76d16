//! How often the endpoints of the tenant's Services change on the host, and which Services are closed there for a while.
//!
//! Controllers of the host write the endpoints of all tenants' Services, a few each second. A pod that becomes ready or unready changes those of every
//! Service that selects it. Such a controller has each Service in its queue once, however often it changes meanwhile: others wait for as many
//! Services as change at the same time. So this counts, for each tenant:
//!
//! - A Service counts when its endpoints may change, once in [`INTERVAL`].
//! - Each count takes one from an allowance that grows again at the rate of the class ([`ALLOWANCE_SECONDS`] of it are the most).
//! - If nothing is left, the Service that has changed most is closed for [`CLOSED`] at least: it selects no pod on the host, and does not count. It is
//!   opened again once there is something left for that.
//!
//! So once the allowance is used up, in each [`INTERVAL`] the endpoints of at most twice as many Services change as the class allows: those that were opened,
//! and as many that are closed when they change.
//!
//! Time is what the last [`tick`](EndpointChanges::tick) said.

use super::{
    cache::Cache,
    json,
    kind_id::KindId,
    pod_addresses,
    resource::{Key, Name},
};
use crate::admission::writes::Pace;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    time::{Duration, Instant},
};

/// Time in which a Service counts once.
const INTERVAL: Duration = Duration::from_secs(10);
/// Seconds after which an empty allowance is whole again: many Services may change for some minutes, as when nodes are drained.
pub const ALLOWANCE_SECONDS: u64 = 600;
/// How long a Service is closed at least.
pub const CLOSED: Duration = Duration::from_secs(ALLOWANCE_SECONDS);
/// Time after which a change counts half when the Services are compared.
const HALF_LIFE: f64 = 300.0;

/// Labels or selectors.
type Labels = BTreeMap<String, String>;

/// What is known of the changes.
#[derive(Debug)]
pub struct EndpointChanges {
    now: Instant,
    pace: Pace,
    selectors: Selectors,
    pods: HashMap<Name, PodState>,
    /// Hash of what was written last of each Service.
    written: HashMap<Name, u64>,
    activities: HashMap<Name, Activity>,
    /// When Services that are closed are opened again.
    closed: HashMap<Name, Instant>,
}

/// What the endpoints of a pod depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PodState {
    /// Its state on the host.
    endpoint: u64,
    /// What was written of it last.
    applied: u64,
    labels: u64,
}

/// How often a Service has changed.
#[derive(Clone, Copy, Debug)]
struct Activity {
    counted_at: Instant,
    /// Number of changes, of which earlier ones count less.
    score: f64,
}

impl Activity {
    fn score_at(&self, now: Instant) -> f64 {
        let age = now.saturating_duration_since(self.counted_at);
        self.score * (-age.as_secs_f64() / HALF_LIFE).exp2()
    }
}

/// Services by what they select.
#[derive(Debug, Default)]
struct Selectors {
    by_service: HashMap<Name, Labels>,
    /// Services by their namespace and the first label that they select.
    by_label: HashMap<(String, String, String), BTreeSet<Name>>,
}

impl Selectors {
    fn set(&mut self, service: &Name, selector: Labels) {
        if self.by_service.get(service) == Some(&selector) {
            return;
        }
        if let Some(before) = self.by_service.remove(service)
            && let Some(label) = index_label(service, &before)
            && let Some(services) = self.by_label.get_mut(&label)
        {
            services.remove(service);
            if services.is_empty() {
                self.by_label.remove(&label);
            }
        }
        if let Some(label) = index_label(service, &selector) {
            self.by_label.entry(label).or_default().insert(service.clone());
            self.by_service.insert(service.clone(), selector);
        }
    }

    /// The Services that select a pod with these labels.
    fn matching(&self, namespace: &str, labels: &Labels) -> Vec<Name> {
        let by_label = labels
            .iter()
            .filter_map(|(key, value)| self.by_label.get(&(namespace.to_owned(), key.clone(), value.clone())));
        let selects = |service: &&Name| {
            let selector = self.by_service.get(*service);
            selector.is_some_and(|selector| selector.iter().all(|(key, value)| labels.get(key) == Some(value)))
        };
        by_label.flatten().filter(selects).cloned().collect()
    }
}

/// The label by which a Service is found; none if it selects nothing.
fn index_label(service: &Name, selector: &Labels) -> Option<(String, String, String)> {
    let (key, value) = selector.first_key_value()?;
    Some((service.namespace.to_string(), key.clone(), value.clone()))
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl EndpointChanges {
    /// Nothing has changed yet at `now`. In the long run `rate` changes a second are allowed.
    pub fn new(rate: u32, now: Instant) -> Self {
        let rate = u64::from(rate.max(1));
        Self {
            now,
            pace: Pace::with_allowance(rate * ALLOWANCE_SECONDS, rate, now),
            selectors: Selectors::default(),
            pods: HashMap::new(),
            written: HashMap::new(),
            activities: HashMap::new(),
            closed: HashMap::new(),
        }
    }

    /// Sets the time. Returns the Services that are open again: to open one changes its endpoints, and takes from the allowance.
    pub fn tick(&mut self, now: Instant) -> Vec<Name> {
        self.now = now;
        let over = self.closed.iter().filter(|(_, until)| **until <= now);
        let mut over: Vec<(Instant, Name)> = over.map(|(service, until)| (*until, service.clone())).collect();
        over.sort();
        let mut open = Vec::new();
        for (_, service) in over {
            if !self.pace.take_at_once(1, now) {
                break;
            }
            self.closed.remove(&service);
            let score = self.activities.get(&service).map_or(0.0, |last| last.score_at(now));
            let activity = Activity { counted_at: now, score };
            self.activities.insert(service.clone(), activity);
            open.push(service);
        }
        open
    }

    /// Whether a Service selects no pod on the host for now.
    pub fn is_closed(&self, service: &Name) -> bool {
        self.closed.contains_key(service)
    }

    /// Number of Services that are closed.
    pub fn count_closed(&self) -> usize {
        self.closed.len()
    }

    /// Whether another Service may be made now: the host makes endpoints for it. Takes it from the allowance.
    pub fn may_add_service(&mut self) -> bool {
        self.pace.take_at_once(1, self.now)
    }

    /// Sets what a Service selects; nothing once it is gone. One that is closed stays closed, also if it is made again.
    pub fn set_selector(&mut self, service: &Name, selector: Labels) {
        if selector.is_empty() {
            self.activities.remove(service);
        }
        self.selectors.set(service, selector);
    }

    /// Notes what was written of a Service on the host; none once it is gone. Returns the Service that is closed because of that.
    pub fn set_written(&mut self, service: &Name, written: Option<&str>) -> Option<Name> {
        let Some(written) = written.map(|written| hash(&written)) else {
            self.written.remove(service);
            return None;
        };
        let before = self.written.insert(service.clone(), written)?;
        let selects = self.selectors.by_service.contains_key(service);
        (before != written && selects).then(|| self.count(service)).flatten()
    }

    /// Notes the state of a pod on the host: of its endpoint, and of what was written of it. `counts` says whether what is new has changed; it has
    /// not while the pods are listed. Returns the Services that are closed because of that.
    fn set_pod(
        &mut self,
        pod: &Name,
        state: Option<(u64, u64)>,
        labels: impl FnOnce() -> Labels,
        counts: bool,
    ) -> Vec<Name> {
        let before = self.pods.get(pod).copied();
        if state == before.map(|before| (before.endpoint, before.applied)) {
            return Vec::new();
        }
        let labels = labels();
        let now = state.map(|(endpoint, applied)| PodState {
            endpoint,
            applied,
            labels: hash(&labels),
        });
        match now {
            Some(now) => self.pods.insert(pod.clone(), now),
            None => self.pods.remove(pod),
        };
        let of_endpoint = |state: PodState| (state.endpoint, state.labels);
        if !counts || now.map(of_endpoint) == before.map(of_endpoint) {
            return Vec::new();
        }
        let services = self.selectors.matching(&pod.namespace, &labels);
        services.iter().filter_map(|service| self.count(service)).collect()
    }

    /// Counts a change of a Service. Returns the Service that is closed because nothing is left.
    fn count(&mut self, service: &Name) -> Option<Name> {
        let now = self.now;
        if self.closed.contains_key(service) {
            return None;
        }
        let score = match self.activities.get(service) {
            Some(last) if now.saturating_duration_since(last.counted_at) < INTERVAL => return None,
            Some(last) => last.score_at(now),
            None => 0.0,
        };
        let activity = Activity {
            counted_at: now,
            score: score + 1.0,
        };
        self.activities.insert(service.clone(), activity);
        if self.pace.take_at_once(1, now) {
            return None;
        }
        let by_score = |(one, a): &(&Name, &Activity), (other, b): &(&Name, &Activity)| {
            let by_score = a.score_at(now).total_cmp(&b.score_at(now));
            by_score.then_with(|| one.cmp(other))
        };
        let open = self.activities.iter();
        let open = open.filter(|(service, _)| !self.closed.contains_key(*service));
        let busiest = open.max_by(by_score)?.0.clone();
        self.closed.insert(busiest.clone(), now + CLOSED);
        Some(busiest)
    }
}

/// Notes the selector of a Service of the tenant.
pub(crate) fn note_selector(cache: &Cache, service: &Name) -> Vec<Key> {
    let stored = cache.stores.tenant(KindId::Service).get(service);
    let selector = stored.map(|stored| json::strings(&stored.object(), &["spec", "selector"]));
    cache
        .endpoint_changes()
        .set_selector(service, selector.unwrap_or_default());
    Vec::new()
}

/// Notes what was written of a Service on the host. Returns the Service that is closed because of that.
pub(crate) fn note_written(cache: &Cache, service: &Name) -> Vec<Key> {
    let stored = cache.stores.host(KindId::Service).get(service);
    let written = stored.as_ref().and_then(|stored| stored.applied_hash.as_deref());
    let closed = cache.endpoint_changes().set_written(service, written);
    closed.into_iter().map(|service| KindId::Service.key(service)).collect()
}

/// Notes the state of a pod on the host. Returns the Services that are closed because of that.
pub(crate) fn note_pod(cache: &Cache, pod: &Name) -> Vec<Key> {
    let store = cache.stores.host(KindId::Pod);
    let state = store.get(pod).and_then(|stored| {
        let endpoint = endpoint_of(&stored.object(), stored.deletion.is_some())?;
        Some((endpoint, hash(&stored.applied_hash)))
    });
    let labels = || {
        let stored = cache.stores.tenant(KindId::Pod).get(pod);
        stored
            .map(|stored| json::strings(&stored.object(), &["metadata", "labels"]))
            .unwrap_or_default()
    };
    let closed = cache.endpoint_changes().set_pod(pod, state, labels, store.is_listed());
    closed.into_iter().map(|service| KindId::Service.key(service)).collect()
}

/// What the host's controllers make of a pod in the endpoints of a Service; none if it is no endpoint.
fn endpoint_of(pod: &Value, is_ending: bool) -> Option<u64> {
    let addresses = pod_addresses::of(pod);
    (!addresses.is_empty()).then(|| hash(&(addresses, pod_addresses::is_ready(pod), is_ending)))
}

#[cfg(test)]
#[path = "endpoint_changes_tests.rs"]
mod tests;
