//! How often the endpoints of the tenant's Services change on the host, and which Services are closed there for a while.
//!
//! Controllers of the host write the endpoints of all tenants' Services, a few each second. A pod that becomes ready or unready changes those of every
//! Service that selects it. Such a controller has each Service in its queue once, however often it changes meanwhile: others wait for as many
//! Services as change at the same time. So this counts, for each tenant:
//!
//! - A Service counts when its endpoints may change, once in [`INTERVAL`].
//! - Each count takes one from an allowance that grows again at the rate of the class ([`ALLOWANCE_SECONDS`] of it are the most, and a syncer starts with a
//!   tenth of that).
//! - For each count beyond it, one of the Services that have changed most is closed for [`CLOSED`] at least: it selects no pod on the host, and does not
//!   count. It is opened again once there is something left for that.
//! - Writes of the syncer wait before that: while no more than a [part](PART_OF_PODS) of the allowance is left, [no Service](EndpointChanges::may_write) is
//!   changed on the host, and that part is for pods. So a release that changes all Services closes none. One that has waited for
//!   [long](super::waiting_services) is changed all the same: pods may use up all that grows.
//! - A Service that is made on the host takes from another allowance of the same size, and pays for its deletion as well. If nothing is left there,
//!   [no more are made](EndpointChanges::may_create) for now. It closes nothing: what is made has a new name each time, and has not changed often.
//!
//! So once the first allowance is used up, in each [`INTERVAL`] the endpoints of at most twice as many Services change as the class allows: those that were
//! opened, and as many that are closed when they change. As many as it allows are made, and as many deleted.
//!
//! Time is what the last [`tick`](EndpointChanges::tick) said.

use super::{
    cache::Cache,
    json,
    kind_id::KindId,
    pod_addresses,
    resource::{Key, Name},
    selectors::{Labels, Selectors, pack, unpack},
    store::Stored,
    waiting_services::WaitingServices,
};
use crate::admission::writes::Pace;
use berth_api::{labels, pod_labels};
use serde_json::Value;
use std::{
    collections::{BTreeSet, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    time::{Duration, Instant},
};

/// Time in which a Service counts once.
const INTERVAL: Duration = Duration::from_secs(10);
/// Seconds after which an empty allowance is whole again: many Services may change for some minutes, as when nodes are drained.
pub const ALLOWANCE_SECONDS: u64 = 600;
/// How long a Service is closed at least.
pub const CLOSED: Duration = Duration::from_secs(ALLOWANCE_SECONDS);
/// The part of the allowance, one in so many, that only changes of pods take: half of what a syncer starts with.
const PART_OF_PODS: u64 = 20;
/// Time after which a change counts half when the Services are compared.
const HALF_LIFE: f64 = 300.0;

/// What is known of the changes.
#[derive(Debug)]
pub struct EndpointChanges {
    now: Instant,
    pace: Pace,
    /// What writes of Services leave of the allowance.
    for_pods: u64,
    /// Services that wait because no more than that is left.
    waiting: WaitingServices,
    /// The pace of Services that are made.
    creations: Pace,
    selectors: Selectors,
    pods: HashMap<Name, PodState>,
    /// The Services on the host.
    written: HashMap<Name, Written>,
    /// Of Services on the host.
    activities: HashMap<Name, Activity>,
    /// When Services that are closed are opened again.
    closed: HashMap<Name, Instant>,
}

/// What the endpoints of a pod depend on.
#[derive(Debug)]
struct PodState {
    /// Its state on the host.
    endpoint: u64,
    /// What was written of it last.
    applied: u64,
    /// The labels with which it was written. There are many pods, so they are [packed](pack).
    labels: Box<str>,
}

/// What the endpoints of a Service on the host depend on, besides its pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// Which object it is.
    uid: u64,
    /// What was written of it last.
    applied: u64,
    /// Whether it has a selector. The host makes no endpoints for others.
    selects: bool,
    /// Whether that selects no pod because the tenant makes the endpoints itself.
    is_own: bool,
}

impl Written {
    fn of(service: &Stored) -> Self {
        let selector = json::strings(&service.object(), &["spec", "selector"]);
        Self {
            uid: hash(&service.uid),
            applied: hash(&service.applied_hash),
            selects: !selector.is_empty(),
            is_own: selector.get(labels::ENDPOINTS).map(String::as_str) == Some(labels::ENDPOINTS_OWN),
        }
    }
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

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl EndpointChanges {
    /// Nothing is known at `now`: a tenth of the allowances is left, as for all [that start](Pace::at_start). In the long run `rate` changes a second are
    /// allowed.
    pub fn new(rate: u32, now: Instant) -> Self {
        let rate = u64::from(rate.max(1));
        let pace = Pace::at_start(rate * ALLOWANCE_SECONDS, rate, now);
        Self {
            now,
            pace,
            for_pods: rate * ALLOWANCE_SECONDS / PART_OF_PODS,
            waiting: WaitingServices::new(rate, now),
            creations: pace,
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
        self.waiting.forget_old(now);
        let over = self.closed.iter().filter(|(_, until)| **until <= now);
        let mut over: Vec<(Instant, Name)> = over.map(|(service, until)| (*until, service.clone())).collect();
        over.sort();
        let mut open = Vec::new();
        for (_, service) in over {
            // One that is not on the host has no endpoints there that change.
            if self.has_endpoints(&service) {
                if !self.pace.take_at_once(1, now) {
                    continue;
                }
                self.note_change(&service, 0.0);
            }
            self.closed.remove(&service);
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

    /// Whether another Service with a selector may be made on the host now. It is counted when it is there.
    pub fn may_create(&self) -> bool {
        self.creations.has(1, self.now)
    }

    /// Whether a Service that is on the host may be changed there now. Unlike a change of a pod, that can wait, and then no Service is closed for it. It
    /// does not wait for ever: if pods use up what is left, those that change most pay for it.
    pub fn may_write(&mut self, service: &Name) -> bool {
        !self.would_count(service) || self.leaves_pods_their_part() || self.waiting.may_write(service, self.now)
    }

    /// A Service that may be written waits for something else first. Other Services that wait do not wait for it meanwhile.
    pub fn wait_elsewhere(&mut self, service: &Name) {
        self.waiting.step_aside(service);
    }

    /// Counts a change of a Service that is about to be written to the host. It does not count again when it is there.
    pub fn begin_write(&mut self, service: &Name) {
        if self.would_count(service) {
            if !self.leaves_pods_their_part() {
                self.waiting.count_write(self.now);
            }
            self.pace.reserve(1, self.now);
            self.note_change(service, 1.0);
        }
        self.waiting.remove(service);
    }

    /// Whether a change of a Service leaves enough for those of pods.
    fn leaves_pods_their_part(&self) -> bool {
        self.pace.has(1 + self.for_pods, self.now)
    }

    /// Sets what a Service selects on the host; nothing once it is gone. One that is closed stays closed, also if it is made again.
    pub fn set_selector(&mut self, service: &Name, selector: Labels) {
        self.selectors.set(service, selector);
    }

    /// Notes what a Service is on the host; none once it is gone. `counts` says whether what is new has changed; it has not while the Services are
    /// listed. Returns the Services that are closed because of that.
    pub(crate) fn set_written(&mut self, service: &Name, written: Option<Written>, counts: bool) -> Vec<Name> {
        let Some(written) = written else {
            self.written.remove(service);
            self.activities.remove(service);
            self.waiting.remove(service);
            return Vec::new();
        };
        let before = self.written.insert(service.clone(), written);
        if !counts || !written.selects || before == Some(written) {
            return Vec::new();
        }
        // One that an earlier release left without a selector gets its own. No team causes that, so no Service is closed for it.
        let has_changed = |before: Written| before.uid == written.uid && (before.selects || !written.is_own);
        if before.is_some_and(has_changed) {
            return self.count([service]);
        }
        // However much is left: it is there. Its first pods, and its adoption if it was reserved, are part of its creation.
        self.creations.reserve(1, self.now);
        self.note_change(service, 0.0);
        Vec::new()
    }

    /// Notes the state of a pod on the host: of its endpoint, and of what was written of it. `labels` are those of the tenant's pod, under their keys on
    /// the host, if there is one.
    /// `counts` says whether what is new has changed; it has not while the pods are listed. Returns the Services that are closed because of that.
    fn set_pod(
        &mut self,
        pod: &Name,
        state: Option<(u64, u64)>,
        labels: impl FnOnce() -> Option<Labels>,
        counts: bool,
    ) -> Vec<Name> {
        let known = self.pods.get(pod).map(|before| (before.endpoint, before.applied));
        if state == known {
            return Vec::new();
        }
        let before = self.pods.remove(pod);
        let had = before.map(|before| unpack(&before.labels)).unwrap_or_default();
        // They reach the host with what is written. A pod without one in the tenant keeps them until it has ended.
        let is_written = state.is_some_and(|(_, applied)| known.is_none_or(|(_, before)| before != applied));
        let has = is_written.then(labels).flatten().unwrap_or_else(|| had.clone());
        if let Some((endpoint, applied)) = state {
            let labels = pack(&has);
            let state = PodState {
                endpoint,
                applied,
                labels,
            };
            self.pods.insert(pod.clone(), state);
        }
        let is_same = state.map(|(endpoint, _)| endpoint) == known.map(|(endpoint, _)| endpoint);
        if !counts || (is_same && had == has) {
            return Vec::new();
        }
        let mut services: BTreeSet<Name> = self.selectors.matching(&pod.namespace, &has).into_iter().collect();
        if had != has {
            services.extend(self.selectors.matching(&pod.namespace, &had));
        }
        self.count(&services)
    }

    /// Whether the host makes endpoints for a Service.
    fn has_endpoints(&self, service: &Name) -> bool {
        self.written.get(service).is_some_and(|written| written.selects)
    }

    /// Whether a change of a Service would count now.
    fn would_count(&self, service: &Name) -> bool {
        let last = self.activities.get(service);
        let has_counted = last.is_some_and(|last| self.now.saturating_duration_since(last.counted_at) < INTERVAL);
        !has_counted && !self.is_closed(service) && self.has_endpoints(service)
    }

    /// Counts a change of each of these Services. Returns those that are closed because too little is left.
    fn count<'a>(&mut self, services: impl IntoIterator<Item = &'a Name>) -> Vec<Name> {
        let mut beyond = 0;
        for service in services {
            if !self.would_count(service) {
                continue;
            }
            self.note_change(service, 1.0);
            if !self.pace.take_at_once(1, self.now) {
                beyond += 1;
            }
        }
        self.close_busiest(beyond)
    }

    /// Notes a change of a Service, that adds so much to its score.
    fn note_change(&mut self, service: &Name, adds: f64) {
        let last = self.activities.get(service);
        let activity = Activity {
            counted_at: self.now,
            score: last.map_or(0.0, |last| last.score_at(self.now)) + adds,
        };
        self.activities.insert(service.clone(), activity);
    }

    /// Closes as many Services, those that have changed most. Looks at each once: one pod may change thousands.
    fn close_busiest(&mut self, count: usize) -> Vec<Name> {
        if count == 0 {
            return Vec::new();
        }
        let open = self.activities.iter();
        let open = open.filter(|(service, _)| !self.is_closed(service) && self.has_endpoints(service));
        let mut open: Vec<(f64, &Name)> = open
            .map(|(service, activity)| (activity.score_at(self.now), service))
            .collect();
        if count < open.len() {
            let by_score = |(a, one): &(f64, &Name), (b, other): &(f64, &Name)| {
                b.total_cmp(a).then_with(|| other.cmp(one)) // the highest first
            };
            open.select_nth_unstable_by(count, by_score);
            open.truncate(count);
        }
        let busiest: Vec<Name> = open.into_iter().map(|(_, service)| service.clone()).collect();
        let until = self.now + CLOSED;
        self.closed
            .extend(busiest.iter().map(|service| (service.clone(), until)));
        busiest
    }

    /// Closes a Service.
    #[cfg(test)]
    pub(crate) fn close(&mut self, service: &Name) {
        self.closed.insert(service.clone(), self.now + CLOSED);
    }
}

/// Notes what a Service is on the host, and what it selects there: the tenant's may differ from it, if it is not stored or not written yet. Returns
/// the Services that are closed because of that.
pub(crate) fn note_written(cache: &Cache, service: &Name) -> Vec<Key> {
    let store = cache.stores.host(KindId::Service);
    let stored = store.get(service);
    let selector = stored.as_ref().map(|stored| selector_of(&stored.object()));
    let written = stored.map(|stored| Written::of(&stored));
    let mut changes = cache.endpoint_changes();
    changes.set_selector(service, selector.unwrap_or_default());
    let closed = changes.set_written(service, written, store.is_listed());
    closed.into_iter().map(|service| KindId::Service.key(service)).collect()
}

/// The labels of tenants' pods that a host Service selects; none if it selects no pod. Labels that the host sets itself are left out, as they are
/// of [pods](labels_of): more pods count then.
fn selector_of(service: &Value) -> Labels {
    let mut selector = json::strings(service, &["spec", "selector"]);
    if selector.contains_key(labels::ENDPOINTS) {
        return Labels::new();
    }
    selector.retain(|key, _| key != labels::TENANT && !pod_labels::BOUND.contains(&key.as_str()));
    // Services are found by one of their labels: all pods of the namespace have this one.
    if selector.len() > 1 {
        selector.remove(labels::TENANT_OBJECT_NAMESPACE);
    }
    selector
}

/// The labels by which Services of the host find a pod of the tenant.
fn labels_of(name: &Name, pod: &Value) -> Labels {
    let own = json::strings(pod, &["metadata", "labels"]).into_iter();
    let own = own.filter(|(key, _)| !pod_labels::BOUND.contains(&key.as_str()));
    let namespace = (labels::TENANT_OBJECT_NAMESPACE.to_owned(), name.namespace.to_string());
    own.map(|(key, value)| (pod_labels::host_key(&key), value))
        .chain([namespace])
        .collect()
}

/// Notes the state of a pod on the host. Returns the Services that are closed because of that.
pub(crate) fn note_pod(cache: &Cache, pod: &Name) -> Vec<Key> {
    let store = cache.stores.host(KindId::Pod);
    let state = store.get(pod).and_then(|stored| {
        let endpoint = endpoint_of(&stored.object(), stored.deletion.is_some())?;
        Some((endpoint, hash(&stored.applied_hash)))
    });
    let labels = || {
        let stored = cache.stores.tenant(KindId::Pod).get(pod)?;
        Some(labels_of(pod, &stored.object()))
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
