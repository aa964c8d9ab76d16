//! Sleep: a tenant that nobody uses has no processes, and wakes when it is needed.
//!
//! [`follow`] collects what is known, lets [`berth_sleep`] decide, and records the next state in the status before anything is done for it.
//! The rest of the reconcile follows the recorded state, also if the next one cannot be recorded: while a tenant falls asleep or sleeps, its
//! schedule is a stop, and while it sleeps, its components do not run, but for those that enforce its class once that has changed.

mod inside;
mod message;

use super::{
    apply::HostSide, context::TenantContext, enforcement, error::TenantError, schedule::ObservedSchedule,
    settings::Settings, status, target::Tenant,
};
use crate::{clock::whole_seconds, metrics::WakeLabels};
use berth_api::{
    Phase, SleepCause, SleepMode, SleepState, SleepStatus, TenantCluster, TenantClusterStatus,
    conditions::{self, AWAKE, CONTROL_PLANE_READY, ConditionUpdate, READY, SERVING, SYNCER_READY},
};
use berth_runtime::locks::lock;
use berth_sleep::{Activity, Decision, Facts, Stay, WakeCause, decide};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use std::time::Duration;
use tokio::time::Instant;

/// Steps in which the status follows the last activity: it must not change with every request.
const ACTIVITY_STEP: SignedDuration = SignedDuration::from_mins(5);
/// Pause before a tenant that falls asleep, or whose class is enforced while it sleeps, is looked at again.
const FALLING_ASLEEP: Duration = Duration::from_secs(2);
/// Pause after a state was recorded: the watch shows it by then, and wakes the tenant.
const RECORDED: Duration = Duration::from_secs(1);

/// What was decided about a tenant.
pub(super) struct ObservedSleep {
    decision: Decision,
    facts: Facts,
    known: Known,
    /// Whether the state that was decided is not recorded. The tenant stays in the one before, and the status may be another by now.
    is_unrecorded: bool,
}

/// What a state is recorded with, besides the facts.
struct Known {
    /// What is recorded.
    recorded: SleepStatus,
    /// Hash of the rules that its class has now.
    rules: String,
    /// Whether it is among the few that are started because their class has changed, and in its time.
    has_place: bool,
}

/// What came of a decision.
pub(super) enum FollowedSleep {
    /// Another state was recorded: the tenant is reconciled again after this time.
    Recorded(Duration),
    /// The state stays. None: the tenant has no setting for sleep and never slept, or its settings are not known.
    Stays(Option<Box<ObservedSleep>>),
}

/// What came of recording a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Record {
    /// There was nothing to record.
    Unneeded,
    /// It is in the status.
    Written,
    /// It is not: the status is another than the watch has shown, or others change the object all the time, or too many reconciles in a row have
    /// recorded something.
    Postponed,
}

/// Decides whether a tenant sleeps, and records its next state if that is another. If that cannot be recorded, the tenant stays as it is for this
/// reconcile: its team could keep everything else from it otherwise. Applies `host` before it waits for the tenant.
pub(super) async fn follow(
    context: &TenantContext,
    tenant: &Tenant,
    settings: Option<&Settings>,
    schedule: &ObservedSchedule,
    host: &mut HostSide<'_>,
    now: Timestamp,
) -> FollowedSleep {
    let observed = match settings {
        Some(settings) => observe(context, tenant, settings, schedule, host, now).await,
        None => None,
    };
    let Some(mut observed) = observed else {
        return FollowedSleep::Stays(None);
    };
    let recorded = carry_out(context, tenant, &observed).await.unwrap_or_else(|error| {
        let (namespace, name) = (&tenant.cluster.metadata.namespace, &tenant.cluster.metadata.name);
        tracing::warn!(namespace, name, %error, "cannot record whether a tenant sleeps, which stays as it is");
        Record::Postponed
    });
    if recorded == Record::Written {
        return FollowedSleep::Recorded(RECORDED);
    }
    observed.is_unrecorded = recorded == Record::Postponed;
    FollowedSleep::Stays(Some(Box::new(observed)))
}

async fn observe(
    context: &TenantContext,
    tenant: &Tenant,
    settings: &Settings,
    schedule: &ObservedSchedule,
    host: &mut HostSide<'_>,
    now: Timestamp,
) -> Option<ObservedSleep> {
    let status = tenant.cluster.status.as_ref();
    let rules = enforcement::rules_hash(&settings.sync);
    let mut facts = collect(context, tenant, settings, schedule, &rules, now)?;
    let places = &context.tenants.enforcement_places;
    let known = Known {
        recorded: status.and_then(|status| status.sleep.clone()).unwrap_or_default(),
        rules,
        has_place: places.has_place(&tenant.key(), Instant::now()),
    };
    let mut decision = decide(&facts);
    if decision == Decision::LookInside {
        // The tenant decides how long that takes, and its team how often.
        host.apply().await;
        match inside::read(tenant, now).await {
            Ok(inside) => facts.inside = Some(inside),
            Err(why) => return Some(ObservedSleep::unknown(facts, known, why)),
        }
        decision = decide(&facts);
    }
    let cause = match &decision {
        Decision::FallAsleep { cause, .. } => Some(*cause),
        Decision::Sleep { .. } if facts.state == SleepState::FallingAsleep => facts.cause,
        _ => None,
    };
    // The last moment to notice that somebody uses it.
    if cause == Some(SleepCause::Idle) {
        if let Err(why) = inside::count_use(tenant, &context.clock).await {
            return Some(ObservedSleep::unknown(facts, known, why));
        }
        facts.activity = read_activity(context, tenant, settings, now);
        decision = decide(&facts);
    }
    Some(ObservedSleep::new(decision, facts, known))
}

fn collect(
    context: &TenantContext,
    tenant: &Tenant,
    settings: &Settings,
    schedule: &ObservedSchedule,
    rules: &str,
    now: Timestamp,
) -> Option<Facts> {
    let cluster = &tenant.cluster;
    let status = cluster.status.as_ref();
    let known = status.and_then(|status| status.sleep.as_ref());
    let spec = cluster.spec.sleep.as_ref();
    let (mode, sleep_requested, wake_requested) = requests(cluster);
    let after_idle = settings.sleep.idle_seconds(spec).map(SignedDuration::from_secs);
    if known.is_none() && after_idle.is_none() && mode == SleepMode::Auto && sleep_requested.is_none() {
        return None;
    }
    let time = |of: fn(&SleepStatus) -> Option<&Time>| known.and_then(of).map(|time| time.0);
    let conditions = status.map(|status| status.conditions.as_slice()).unwrap_or_default();
    Some(Facts {
        now,
        mode,
        after_idle,
        stops_pods: settings.sleep.stops_pods,
        pods_end_within: pods_end_within(settings),
        state: cluster.sleep_state(),
        cause: known.and_then(|known| known.cause),
        since: time(|known| known.since.as_ref()),
        wakes_at: time(|known| known.wakes_at.as_ref()),
        activity: read_activity(context, tenant, settings, now),
        has_pods: context.stores.workloads.has_unfinished(tenant.id.slug()),
        is_ready: [CONTROL_PLANE_READY, SYNCER_READY]
            .iter()
            .all(|kind| conditions::is_true(conditions, kind)),
        serves: is_recorded_serving(conditions) || tenant.memory.connection.applier().is_some(),
        enforcement: enforcement::find(context, tenant, known, rules),
        sleep_requested,
        wake_requested,
        schedule: schedule.state,
        next_start: schedule.next_start,
        inside: None,
    })
}

/// What people ask of the tenant: the mode, and when they asked it to sleep and to wake. A request that comes while a state is recorded is older than
/// that state, and would be void.
fn requests(cluster: &TenantCluster) -> (SleepMode, Option<Timestamp>, Option<Timestamp>) {
    let mode = cluster.spec.sleep.as_ref().map(|spec| spec.mode).unwrap_or_default();
    (mode, cluster.sleep_requested_at(), cluster.wake_requested_at())
}

/// How long pods of a tenant that falls asleep may take to end: as long as budgets may keep them, and their longest grace period.
fn pods_end_within(settings: &Settings) -> SignedDuration {
    let grace = settings.sync.pods.max_termination_grace_period_seconds();
    SignedDuration::from_secs(i64::from(berth_sleep::EVICTION_TIMEOUT_SECONDS) + i64::from(grace))
}

/// When the tenant was used last, as far as this process knows.
fn read_activity(context: &TenantContext, tenant: &Tenant, settings: &Settings, now: Timestamp) -> Activity {
    if settings.replicas > 1 && context.runtime.uses_pods() {
        let why = "its API server has several replicas, and each counts its own requests; set spec.controlPlane.replicas to 1";
        return Activity::Unknown(why.into());
    }
    let log = lock(&tenant.memory.activity);
    match log.last(now.max(context.clock.now())) {
        Some(last) => Activity::Known(last),
        None => Activity::Unknown("its API server has not said yet how often it was used".into()),
    }
}

impl ObservedSleep {
    fn new(decision: Decision, facts: Facts, known: Known) -> Self {
        Self {
            decision,
            facts,
            known,
            is_unrecorded: false,
        }
    }

    fn unknown(facts: Facts, known: Known, why: String) -> Self {
        Self::new(facts.keep_falling_asleep(Stay::ActivityUnknown(why)), facts, known)
    }

    /// The state that is to be recorded; none if it stays.
    fn next(&self) -> Option<SleepStatus> {
        let Facts {
            now,
            state,
            cause,
            since,
            ..
        } = &self.facts;
        let at = |time: Timestamp| Some(Time(whole_seconds(time)));
        let last_activity = match &self.facts.activity {
            Activity::Known(last) => at(*last),
            Activity::Unknown(_) => None,
        };
        let sleep = |state, cause, since, wakes_at: Option<Timestamp>| SleepStatus {
            state,
            cause,
            since,
            wakes_at: wakes_at.and_then(at),
            last_activity: last_activity.clone(),
            enforced_rules: None,
        };
        let Known { recorded, rules, .. } = &self.known;
        Some(match &self.decision {
            Decision::Stay(_) | Decision::LookInside => return None,
            Decision::FallAsleep { cause, wakes_at } => {
                sleep(SleepState::FallingAsleep, Some(*cause), at(*now), *wakes_at)
            }
            // It goes on sleeping: nothing else changes, so that no request is void.
            Decision::Enforce => SleepStatus {
                state: SleepState::Enforcing,
                ..recorded.clone()
            },
            // What the syncer has done by then follows neither these rules nor the recorded ones.
            Decision::StopEnforcing => SleepStatus {
                state: SleepState::Sleeping,
                enforced_rules: None,
                ..recorded.clone()
            },
            Decision::Sleep { wakes_at } if *state == SleepState::Enforcing => SleepStatus {
                state: SleepState::Sleeping,
                wakes_at: wakes_at.and_then(at),
                enforced_rules: Some(rules.clone()),
                ..recorded.clone()
            },
            Decision::Sleep { wakes_at } => SleepStatus {
                enforced_rules: Some(rules.clone()),
                ..sleep(SleepState::Sleeping, *cause, since.and_then(at), *wakes_at)
            },
            // Its control plane still runs.
            Decision::Wake(_) if *state == SleepState::FallingAsleep => sleep(SleepState::Awake, None, at(*now), None),
            Decision::Wake(_) => SleepStatus {
                last_activity: at(*now),
                ..sleep(SleepState::Waking, None, at(*now), None)
            },
            Decision::Awake => sleep(SleepState::Awake, None, since.and_then(at), None),
        })
    }

    /// The condition Awake; none if it stays as it was.
    pub(super) fn condition(&self) -> Option<ConditionUpdate> {
        (!self.is_unrecorded).then(|| message::condition(&self.facts, &self.decision))
    }

    /// Whether the state that was decided is not recorded.
    pub(super) fn is_unrecorded(&self) -> bool {
        self.is_unrecorded
    }

    /// Whether the tenant is looked at as seldom as one that is settled: nothing of it runs, or what runs has not followed its class in its time. If a syncer
    /// cannot run at all, the tenants that sleep are all like that in the end.
    pub(super) fn is_looked_at_seldom(&self) -> bool {
        let is_late = self.facts.state == SleepState::Enforcing && !self.known.has_place;
        self.facts.state == SleepState::Sleeping || is_late
    }

    /// Time until something is decided anew.
    pub(super) fn until_next(&self, now: Timestamp) -> Option<Duration> {
        if self.is_unrecorded {
            return Some(RECORDED);
        }
        let is_next = [SleepState::FallingAsleep, SleepState::Enforcing].contains(&self.facts.state);
        if is_next && !self.is_looked_at_seldom() {
            return Some(FALLING_ASLEEP);
        }
        let next = match &self.decision {
            Decision::Stay(Stay::InUse { until }) => Some(*until),
            Decision::Stay(Stay::Sleeping { wakes_at }) => *wakes_at,
            Decision::Stay(Stay::Enforcing) => self.facts.wakes_at.filter(|at| *at > now),
            _ => None,
        };
        let next = next.into_iter().chain(self.facts.next_request()).min()?;
        Some(Duration::try_from(next.duration_since(now)).unwrap_or_default())
    }

    /// Sets what the status says of sleep while the state stays.
    pub(super) fn write_to(&self, status: &mut TenantClusterStatus) {
        let sleep = status.sleep.get_or_insert_default();
        if let Decision::Stay(Stay::Sleeping { wakes_at }) = &self.decision {
            sleep.wakes_at = wakes_at.map(|at| Time(whole_seconds(at)));
            if self.facts.mode == SleepMode::Asleep {
                // What would have woken it is not known any more.
                sleep.cause = Some(SleepCause::Mode);
            }
        }
        if let Activity::Known(last) = self.facts.activity {
            let published = sleep.last_activity.as_ref().map(|time| time.0);
            let is_far = published.is_none_or(|published| last.duration_since(published).abs() >= ACTIVITY_STEP);
            if is_far {
                sleep.last_activity = Some(Time(whole_seconds(last)));
            }
        }
    }
}

/// Records the next state, if it is another. Nothing is counted twice: a status that another process has changed is not written.
async fn carry_out(context: &TenantContext, tenant: &Tenant, observed: &ObservedSleep) -> Result<Record, TenantError> {
    let Some(next) = observed.next() else {
        return record_serving(context, tenant, observed).await;
    };
    if !tenant.memory.may_end_early() {
        return Ok(Record::Postponed);
    }
    let (cluster, before) = (&tenant.cluster, tenant.cluster.status.clone().unwrap_or_default());
    let mut updates = vec![message::of_transition(&next, &observed.facts, &observed.decision)];
    if next.state.is_asleep() {
        let sleeps = |kind| ConditionUpdate::mark_false(kind, status::SLEEPING, status::SLEEPS);
        updates.extend([CONTROL_PLANE_READY, SYNCER_READY, READY].map(sleeps));
    }
    let phase = match next.state {
        SleepState::Sleeping | SleepState::Enforcing => Phase::Sleeping,
        SleepState::Waking => Phase::Waking,
        _ if conditions::is_true(&before.conditions, READY) => Phase::Ready,
        SleepState::Awake | SleepState::FallingAsleep => Phase::Provisioning,
    };
    let (state, since) = (next.state, next.since.clone());
    let after = TenantClusterStatus {
        phase: Some(phase),
        conditions: conditions::merge(
            &before.conditions,
            &updates,
            cluster.metadata.generation,
            observed.facts.now,
        ),
        sleep: Some(next),
        ..before
    };
    // The beginning of a sleep stays the same while a class is enforced, so that a request counts whenever it comes.
    let is_written = if state.is_asleep() && observed.facts.state.is_asleep() {
        status::write_unless_changed(context, cluster, &after, |_| ()).await?
    } else {
        status::write_unless_changed(context, cluster, &after, requests).await?
    };
    if !is_written {
        return Ok(Record::Postponed);
    }
    match (&observed.decision, state) {
        (Decision::Wake(cause), SleepState::Waking) => context.metrics.count_wake(*cause),
        (Decision::Awake, _) => {
            let woken = since.map_or(observed.facts.now, |since| since.0);
            let seconds = context.clock.now().duration_since(woken).as_secs_f64();
            context.metrics.wake_seconds.observe(seconds.max(0.0));
        }
        _ => {}
    }
    Ok(Record::Written)
}

/// Records at once that the API server of a tenant that wakes answers: the gateway passes connections on from then on, where it does not
/// see that by itself, while the rest of the tenant is started. Otherwise as [`carry_out`].
async fn record_serving(
    context: &TenantContext,
    tenant: &Tenant,
    observed: &ObservedSleep,
) -> Result<Record, TenantError> {
    let (cluster, before) = (&tenant.cluster, tenant.cluster.status.clone().unwrap_or_default());
    let serves = matches!(observed.decision, Decision::Stay(Stay::Waking { serves: true }));
    if !serves || is_recorded_serving(&before.conditions) || !tenant.memory.may_end_early() {
        return Ok(Record::Unneeded);
    }
    let conditions = conditions::merge(
        &before.conditions,
        &[message::condition(&observed.facts, &observed.decision)],
        cluster.metadata.generation,
        observed.facts.now,
    );
    let after = TenantClusterStatus { conditions, ..before };
    Ok(
        if status::write_unless_changed(context, cluster, &after, |_| ()).await? {
            Record::Written
        } else {
            Record::Postponed
        },
    )
}

/// Whether the status says that the API server has answered since the tenant was woken.
fn is_recorded_serving(conditions: &[Condition]) -> bool {
    let is_serving = |condition: &Condition| condition.type_ == AWAKE && condition.reason == SERVING;
    conditions.iter().any(is_serving)
}

impl crate::metrics::SleepMetrics {
    fn count_wake(&self, cause: WakeCause) {
        let labels = WakeLabels { cause: cause.name() };
        self.wakes.get_or_create(&labels).inc();
    }
}
