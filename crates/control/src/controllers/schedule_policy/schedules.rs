//! The policies as they were read last, and what they let tenants do.

use super::hierarchy::{Hierarchy, place_of};
use crate::{changes::Cached, stores::Stores};
use berth_api::{SchedulePolicy, ScheduleState, TenantCluster, TenantScheduleSpec, WorkloadSelector};
use berth_runtime::locks::lock;
use berth_schedules::{PolicyIndex, Schedule, ScheduleError, Stack, periods};
use jiff::Timestamp;
use kube::ResourceExt;
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard},
};

/// All policies. What is remembered can be read again: it saves work and decides nothing.
pub struct Schedules {
    clock: Box<dyn Fn() -> Timestamp + Send + Sync>,
    known: Mutex<Known>,
    /// Projects and Organizations, computed once for each change of them.
    pub(super) hierarchy: Cached<Hierarchy, u64>,
}

#[derive(Default)]
struct Known {
    /// Policies by name.
    parsed: HashMap<String, Parsed>,
    /// All of them, until one is changed.
    index: Option<Index>,
}

/// UID and generation of a policy.
type Version = (Option<String>, Option<i64>);

fn version(policy: &SchedulePolicy) -> Version {
    (policy.metadata.uid.clone(), policy.metadata.generation)
}

/// A policy as it was read.
struct Parsed {
    version: Version,
    schedule: Result<Arc<Schedule>, ScheduleError>,
}

/// All policies as they were when tenants were evaluated last.
struct Index {
    /// The valid ones.
    by_target: Arc<PolicyIndex>,
    versions: HashMap<String, Version>,
}

impl Known {
    fn read(&mut self, policy: &SchedulePolicy) -> Result<Arc<Schedule>, ScheduleError> {
        let (name, version) = (policy.name_any(), version(policy));
        if let Some(parsed) = self.parsed.get(&name).filter(|parsed| parsed.version == version) {
            return parsed.schedule.clone();
        }
        let schedule = Schedule::parse(&name, &policy.spec).map(Arc::new);
        let parsed = Parsed {
            version,
            schedule: schedule.clone(),
        };
        self.parsed.insert(name, parsed);
        schedule
    }

    fn index(&mut self, stores: &Stores) -> Arc<PolicyIndex> {
        if let Some(index) = &self.index {
            return Arc::clone(&index.by_target);
        }
        let policies = stores.schedule_policies.state();
        let read = policies.iter().map(|policy| (policy, self.read(policy)));
        let valid: Vec<(&Arc<SchedulePolicy>, Arc<Schedule>)> = read
            .filter_map(|(policy, schedule)| Some((policy, schedule.ok()?)))
            .collect();
        let targets = valid
            .into_iter()
            .map(|(policy, schedule)| (policy.spec.targets.as_slice(), schedule));
        let by_target = Arc::new(PolicyIndex::new(targets));
        let versions = policies.iter().map(|policy| (policy.name_any(), version(policy)));
        self.index = Some(Index {
            by_target: Arc::clone(&by_target),
            versions: versions.collect(),
        });
        by_target
    }
}

impl Schedules {
    /// No policies yet. `clock` says what time it is.
    pub fn new(clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self {
            clock: Box::new(clock),
            known: Mutex::default(),
            hierarchy: Cached::default(),
        }
    }

    /// The time by which schedules are evaluated.
    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        lock(&self.known)
    }

    /// Projects and Organizations.
    pub(super) fn hierarchy(&self, stores: &Stores) -> Arc<Hierarchy> {
        self.hierarchy
            .get(stores.changes.of_levels(), || Hierarchy::observe(stores))
    }

    /// Notes how a policy is now; `None` if it is gone. Returns whether tenants were evaluated with another version of it.
    pub(super) fn update(&self, name: &str, policy: Option<&SchedulePolicy>) -> bool {
        let mut known = self.known();
        if policy.is_none() {
            known.parsed.remove(name);
        }
        let current = policy.map(version);
        let is_stale = known
            .index
            .as_ref()
            .is_some_and(|index| index.versions.get(name) != current.as_ref());
        if is_stale {
            known.index = None;
        }
        is_stale
    }

    /// Reads a policy again that has changed or is gone, as the controller of policies does.
    #[cfg(test)]
    pub(in crate::controllers) fn forget(&self, name: &str) {
        self.update(name, None);
        self.known().index = None;
    }

    /// A policy, ready to be evaluated.
    ///
    /// # Errors
    /// Why it is invalid.
    pub(super) fn read(&self, policy: &SchedulePolicy) -> Result<Arc<Schedule>, ScheduleError> {
        self.known().read(policy)
    }

    /// The policies of one tenant.
    pub(in crate::controllers) fn of_tenant(&self, stores: &Stores, cluster: &TenantCluster) -> Stack {
        let index = self.known().index(stores);
        if index.is_empty() {
            return Stack::default();
        }
        index.stack(&place_of(stores, &self.hierarchy(stores), cluster))
    }

    /// What is published of the policies of one tenant and of its pods; none if it has none. `before` is what was published last.
    pub(in crate::controllers) fn publish(
        &self,
        stores: &Stores,
        cluster: &TenantCluster,
        before: Option<&TenantScheduleSpec>,
    ) -> Option<TenantScheduleSpec> {
        let index = self.known().index(stores);
        let place = place_of(stores, &self.hierarchy(stores), cluster);
        periods::publish(&index.stack(&place), &index.rules(&place), self.now(), before)
    }

    /// Which pods of one tenant may not start, or not run.
    pub(in crate::controllers) fn restricted_pods(&self, stores: &Stores, cluster: &TenantCluster) -> RestrictedPods {
        self.observe(stores, self.now()).restricted_pods(cluster)
    }

    /// What all policies let tenants do at `now`.
    pub(in crate::controllers) fn observe<'a>(&self, stores: &'a Stores, now: Timestamp) -> ObservedSchedules<'a> {
        let index = self.known().index(stores);
        ObservedSchedules {
            next_change: index.keep(now),
            hierarchy: self.hierarchy(stores),
            stores,
            index,
            now,
        }
    }
}

/// The policies at one instant.
pub(in crate::controllers) struct ObservedSchedules<'a> {
    /// When the state of one of them changes.
    pub(in crate::controllers) next_change: Option<Timestamp>,
    hierarchy: Arc<Hierarchy>,
    stores: &'a Stores,
    index: Arc<PolicyIndex>,
    now: Timestamp,
}

impl ObservedSchedules<'_> {
    /// What a tenant may do.
    pub(in crate::controllers) fn state(&self, cluster: &TenantCluster) -> ScheduleState {
        let place = place_of(self.stores, &self.hierarchy, cluster);
        self.index.stack(&place).state(self.now)
    }

    /// Which pods of a tenant may not start, or not run.
    pub(in crate::controllers) fn restricted_pods(&self, cluster: &TenantCluster) -> RestrictedPods {
        let place = place_of(self.stores, &self.hierarchy, cluster);
        let rules = self.index.rules(&place).into_iter();
        let rules = rules.map(|rule| (rule.stack.state(self.now), rule.workloads));
        RestrictedPods {
            all: self.index.stack(&place).state(self.now) != ScheduleState::Running,
            workloads: rules.filter(|(state, _)| *state != ScheduleState::Running).collect(),
        }
    }
}

/// Pods of a tenant that policies restrict.
#[derive(Debug)]
pub(in crate::controllers) struct RestrictedPods {
    /// A policy restricts the tenant as a whole.
    all: bool,
    /// What policies for some of its pods say.
    workloads: Vec<(ScheduleState, WorkloadSelector)>,
}

impl RestrictedPods {
    /// Whether there are none.
    pub(in crate::controllers) fn is_empty(&self) -> bool {
        !self.all && self.workloads.is_empty()
    }

    /// Whether a pod is one of them, by its namespace in the tenant and its labels. A host pod has the labels of the tenant's.
    pub(in crate::controllers) fn contains(&self, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        let mut workloads = self.workloads.iter();
        self.all || workloads.any(|(_, workloads)| workloads.matches(namespace, labels))
    }

    /// Whether such a pod goes on if it runs, and is one of them by its labels alone: its team may have given it these labels.
    pub(in crate::controllers) fn goes_on_by_labels(&self, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        let mut workloads = self.workloads.iter();
        let is_for_more = |(state, workloads): &(ScheduleState, WorkloadSelector)| {
            let stops = *state != ScheduleState::StartsForbidden;
            (stops || !workloads.selects_by_labels()) && workloads.matches(namespace, labels)
        };
        !self.all && !workloads.any(is_for_more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn labels_alone_let_a_pod_go_on_only_where_nothing_else_restricts_it() {
        let selector = |selector: Value| -> WorkloadSelector { serde_json::from_value(selector).unwrap() };
        let by_label = || selector(json!({"selector": {"matchLabels": {"tier": "batch"}}}));
        let by_namespace = || selector(json!({"namespaces": ["ml"], "selector": {}}));
        let labels = BTreeMap::from([("tier".to_owned(), "batch".to_owned())]);
        let (forbids, stops) = (ScheduleState::StartsForbidden, ScheduleState::Stopped);
        for (all, workloads, expected) in [
            (false, vec![(forbids, by_label())], true),
            (true, vec![(forbids, by_label())], false),
            (false, vec![(stops, by_label())], false),
            (false, vec![(forbids, by_namespace())], false),
            (false, vec![(forbids, by_label()), (forbids, by_namespace())], false),
        ] {
            let restricted = RestrictedPods { all, workloads };
            assert!(restricted.contains("ml", &labels), "{restricted:?}");
            assert_eq!(restricted.goes_on_by_labels("ml", &labels), expected, "{restricted:?}");
        }
    }
}
