//! What schedules of the platform let the tenant's pods do, as control has published it. Pure: evaluated at an instant.

use crate::model::{
    cache::Cache,
    json,
    kind_id::KindId,
    resource::{Key, Name},
};
use berth_api::{SchedulePeriod, ScheduleState, TENANT_SCHEDULE, TenantScheduleSpec, WorkloadSchedule};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use std::{collections::BTreeMap, fmt, sync::Arc};

/// By how much the clocks of control and of the syncer may differ: the host refuses pods by the clock of control.
const CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(30);

/// What is published for the tenant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PublishedSchedule(TenantScheduleSpec);

/// The policy that restricts a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// Name of the SchedulePolicy.
    policy: String,
    /// Its open window; none outside all its Start windows.
    window: Option<String>,
}

/// Why a pod may not start now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restriction {
    /// The policy that decides.
    pub cause: Cause,
    /// When the pod may start, as far as that is known.
    pub until: Option<Timestamp>,
    /// If the pod may not run either: until when PodDisruptionBudgets may keep it.
    pub budgets_hold_until: Option<Timestamp>,
}

/// A stop of which the pod is warned now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The policy that stops it.
    pub cause: Cause,
    /// When.
    pub at: Timestamp,
}

/// What a pod may do at an instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSchedule {
    /// None: it may start.
    pub restriction: Option<Restriction>,
    /// None: no stop is near.
    pub warning: Option<Warning>,
}

/// Which periods apply at an instant, and of which stops pods are warned. Two instants with the same phase say the same of every pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Phase(Vec<(Option<usize>, bool)>);

impl PublishedSchedule {
    /// What control has published; nothing if the host has no such object. What cannot be read says nothing.
    pub fn of(cache: &Cache) -> Arc<Self> {
        let store = cache.stores.host(KindId::TenantSchedule);
        cache.schedule.get(&[store], || {
            let published = store.get(&Name::new("", TENANT_SCHEDULE));
            let published = published.filter(|published| published.deletion.is_none());
            let spec = published.and_then(|published| serde_json::from_value(published.object()["spec"].clone()).ok());
            Self(spec.unwrap_or_default())
        })
    }

    /// All lists of periods.
    fn timelines(&self) -> impl Iterator<Item = &[SchedulePeriod]> {
        let workloads = self.0.workloads.iter().map(|rule| rule.periods.as_slice());
        std::iter::once(self.0.tenant.as_slice()).chain(workloads)
    }

    /// The lists of periods that apply to a pod, the outermost first.
    fn timelines_of<'a>(&'a self, namespace: &str, pod: &Value) -> Vec<&'a [SchedulePeriod]> {
        let TenantScheduleSpec { tenant, workloads } = &self.0;
        let mut found: Vec<_> = (!tenant.is_empty()).then_some(tenant.as_slice()).into_iter().collect();
        if !workloads.is_empty() {
            let labels = json::strings(pod, &["metadata", "labels"]);
            found.extend(rules_of(workloads, namespace, &labels));
        }
        found
    }

    /// What a pod in a namespace of the tenant may do.
    pub fn of_pod(&self, namespace: &str, pod: &Value, now: Timestamp) -> PodSchedule {
        let timelines = self.timelines_of(namespace, pod);
        PodSchedule {
            restriction: restriction(&timelines, now),
            warning: warning(&timelines, now),
        }
    }

    /// Why no pod of the tenant may start, now or by a clock that differs a little: the host may refuse pods already, or still.
    pub fn restriction_by_any_clock(&self, now: Timestamp) -> Option<Restriction> {
        let timelines = [self.0.tenant.as_slice()];
        let moved = [SignedDuration::ZERO, CLOCK_SKEW, -CLOCK_SKEW];
        let mut instants = moved.into_iter().filter_map(|by| now.checked_add(by).ok());
        instants.find_map(|at| restriction(&timelines, at))
    }

    /// The phase at an instant.
    pub fn phase(&self, now: Timestamp) -> Phase {
        let of_timeline = |periods: &[SchedulePeriod]| {
            let position = SchedulePeriod::position_at(periods, now);
            (position, warning(&[periods], now).is_some())
        };
        Phase(self.timelines().map(of_timeline).collect())
    }

    /// When the phase changes next.
    pub fn next_change(&self, now: Timestamp) -> Option<Timestamp> {
        let periods = self.timelines().flatten();
        let instants = periods.flat_map(|period| period.warns_at().into_iter().chain([period.from.0]));
        instants.filter(|at| *at > now).min()
    }

    /// The pods for which another phase may mean something else: those that the policies are for, and those that are not on the host, which
    /// an earlier policy may have held back.
    pub fn concerned_pods(&self, cache: &Cache) -> Vec<Key> {
        let pods = cache.stores.tenant(KindId::Pod).all().into_iter();
        let host = cache.stores.host(KindId::Pod);
        let concerned = pods.filter(|(name, pod)| {
            !host.contains(name) || !self.timelines_of(&name.namespace, &pod.object()).is_empty()
        });
        concerned.map(|(name, _)| KindId::Pod.key(name)).collect()
    }
}

fn rules_of<'a>(
    rules: &'a [WorkloadSchedule],
    namespace: &str,
    labels: &BTreeMap<String, String>,
) -> impl Iterator<Item = &'a [SchedulePeriod]> {
    let matching = rules.iter().filter(|rule| rule.workloads.matches(namespace, labels));
    matching.map(|rule| rule.periods.as_slice())
}

/// The period that decides at an instant: of those with the strictest state the outermost.
fn deciding<'a>(timelines: &[&'a [SchedulePeriod]], at: Timestamp) -> Option<&'a SchedulePeriod> {
    let present = || timelines.iter().filter_map(|periods| SchedulePeriod::at(periods, at));
    let strictest = present().map(|period| period.state).max()?;
    present().find(|period| period.state == strictest)
}

fn state(timelines: &[&[SchedulePeriod]], at: Timestamp) -> ScheduleState {
    deciding(timelines, at).map(|period| period.state).unwrap_or_default()
}

/// When some period begins after an instant, in order.
fn changes(timelines: &[&[SchedulePeriod]], after: Timestamp) -> Vec<Timestamp> {
    let periods = timelines.iter().flat_map(|periods| periods.iter());
    let mut changes: Vec<_> = periods.map(|period| period.from.0).filter(|at| *at > after).collect();
    changes.sort_unstable();
    changes
}

fn restriction(timelines: &[&[SchedulePeriod]], now: Timestamp) -> Option<Restriction> {
    let deciding = deciding(timelines, now).filter(|period| period.state != ScheduleState::Running)?;
    let present = timelines.iter().filter_map(|periods| SchedulePeriod::at(periods, now));
    Some(Restriction {
        cause: Cause::of(deciding),
        until: changes(timelines, now)
            .into_iter()
            .find(|at| state(timelines, *at) == ScheduleState::Running),
        budgets_hold_until: present.filter_map(SchedulePeriod::budgets_hold_until).min(),
    })
}

/// The next stop of pods that may run, if they are warned of it now.
fn warning(timelines: &[&[SchedulePeriod]], now: Timestamp) -> Option<Warning> {
    if state(timelines, now) == ScheduleState::Stopped {
        return None;
    }
    let at = changes(timelines, now)
        .into_iter()
        .find(|at| state(timelines, *at) == ScheduleState::Stopped)?;
    let stop = deciding(timelines, at)?;
    let is_warned = stop.warns_at().is_some_and(|from| from <= now);
    is_warned.then(|| Warning {
        cause: Cause::of(stop),
        at,
    })
}

impl Cause {
    fn of(period: &SchedulePeriod) -> Self {
        Self {
            policy: period.policy_name.clone().unwrap_or_default(),
            window: period.window_name.clone(),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.window {
            // No policy stops a tenant that sleeps.
            _ if self.policy.is_empty() => f.write_str("The sleep of the tenant"),
            Some(window) => write!(f, "SchedulePolicy {}, window {window},", self.policy),
            None => write!(f, "SchedulePolicy {}, outside its Start windows,", self.policy),
        }
    }
}

impl Restriction {
    /// What the tenant reads about a pod that waits.
    pub fn waits(&self) -> String {
        let start = match self.until {
            Some(until) => format!("It starts by itself from {until} on"),
            None if self.cause.policy.is_empty() => "It starts by itself when the tenant is awake".to_owned(),
            None => "It starts by itself when the policy allows it".to_owned(),
        };
        format!("{} does not let this pod start now. {start}.", self.cause)
    }

    /// What the tenant reads about a pod that is ended.
    pub fn ends(&self) -> String {
        let until = self.until.map(|until| format!(" until {until}")).unwrap_or_default();
        format!("{} stops this pod{until}", self.cause)
    }
}

impl Warning {
    /// What the tenant reads about a pod that will be ended.
    pub fn message(&self) -> String {
        format!(
            "{} stops this pod at {}: it is evicted then. Let it write a checkpoint before.",
            self.cause, self.at
        )
    }
}

#[cfg(test)]
mod tests;
