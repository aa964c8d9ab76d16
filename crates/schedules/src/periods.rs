//! The state now and its next changes, as they are published: their reader needs no time zones and no cron, and goes on when control is
//! down.

use crate::{Stack, Standing, WorkloadRule};
use berth_api::{
    MAX_WORKLOAD_SCHEDULES, SchedulePeriod, ScheduleState, TenantScheduleSpec, WorkloadSchedule, whole_seconds,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Periods that are published: the present one and the next seven, which is more than three days of a daily window. So long may control be
/// down without any effect on the pods.
const PERIODS: usize = 8;

/// What is published for a tenant at `now`; none if it has no policies. `before` is what was published last: it says when the present state
/// began, also if control was down then.
pub fn publish(
    stack: &Stack,
    rules: &[WorkloadRule],
    now: Timestamp,
    before: Option<&TenantScheduleSpec>,
) -> Option<TenantScheduleSpec> {
    if stack.is_empty() && rules.is_empty() {
        return None;
    }
    let tenant_before = before.map(|before| before.tenant.as_slice()).unwrap_or_default();
    // Those of the outermost targets come first.
    let workloads = rules.iter().take(MAX_WORKLOAD_SCHEDULES).map(|rule| WorkloadSchedule {
        policy_name: rule.policy().to_owned(),
        workloads: rule.workloads.clone(),
        periods: periods(&rule.stack, now, periods_of(before, rule)),
    });
    Some(TenantScheduleSpec {
        workloads: workloads.collect(),
        tenant: periods(stack, now, tenant_before),
    })
}

/// What is published for a tenant that falls asleep or sleeps since `stop.from`: a stop, whatever its `policies` say. The last period of a list that has
/// begun applies. The stops of policies are before it, so that they say when they began once the tenant is awake: otherwise each sleep would give
/// budgets their time again. And budgets hold no longer than in a stop of a policy that has begun before.
pub fn with_sleep(policies: Option<TenantScheduleSpec>, mut stop: SchedulePeriod) -> TenantScheduleSpec {
    let TenantScheduleSpec { tenant, workloads } = policies.unwrap_or_default();
    let of_policy = SchedulePeriod::at(&tenant, stop.from.0).and_then(SchedulePeriod::budgets_hold_until);
    let left = of_policy.map(|until| until.duration_since(stop.from.0).as_secs().max(0));
    stop.eviction_timeout_seconds = stop.eviction_timeout_seconds.into_iter().chain(left).min();
    let stops = tenant
        .into_iter()
        .filter(|period| period.state == ScheduleState::Stopped);
    TenantScheduleSpec {
        tenant: stops.chain([stop]).collect(),
        workloads,
    }
}

/// Whether a period is the stop of a tenant that sleeps: those of policies name them.
pub fn is_of_sleep(period: &SchedulePeriod) -> bool {
    period.state == ScheduleState::Stopped && period.policy_name.is_none()
}

/// The periods of a rule as they were published last.
fn periods_of<'a>(before: Option<&'a TenantScheduleSpec>, rule: &WorkloadRule) -> &'a [SchedulePeriod] {
    let known = before.into_iter().flat_map(|before| &before.workloads);
    let is_rule = |known: &&WorkloadSchedule| known.policy_name == rule.policy() && known.workloads == rule.workloads;
    known
        .filter(is_rule)
        .map(|known| known.periods.as_slice())
        .next()
        .unwrap_or_default()
}

fn periods(stack: &Stack, now: Timestamp, before: &[SchedulePeriod]) -> Vec<SchedulePeriod> {
    if stack.is_empty() {
        return Vec::new();
    }
    let standing = stack.standing(now);
    let present = period(began(before, standing.state, now), &standing);
    let later = stack.transitions(now, PERIODS - 1).into_iter();
    let later = later.map(|(at, standing)| period(at, &standing));
    std::iter::once(present).chain(later).collect()
}

/// When the present state began: as was published, or else now. So a policy that is created in the middle of its window gives budgets
/// their whole time. That the tenant slept meanwhile changes nothing.
fn began(before: &[SchedulePeriod], state: ScheduleState, now: Timestamp) -> Timestamp {
    let of_policies = before.iter().filter(|period| !is_of_sleep(period));
    let of_policies: Vec<SchedulePeriod> = of_policies.cloned().collect();
    let known = SchedulePeriod::at(&of_policies, now).filter(|known| known.state == state);
    let whole = whole_seconds(now);
    // Not later than now: the clock may have been set back.
    known.map_or(whole, |known| known.from.0.min(whole))
}

fn period(from: Timestamp, standing: &Standing<'_>) -> SchedulePeriod {
    let schedule = standing.schedule.filter(|_| standing.state != ScheduleState::Running);
    let stop = schedule.filter(|_| standing.state == ScheduleState::Stopped);
    SchedulePeriod {
        from: Time(from),
        state: standing.state,
        policy_name: schedule.map(|schedule| schedule.policy().to_owned()),
        window_name: schedule.and(standing.window).map(ToOwned::to_owned),
        warning_period_seconds: stop.map(|schedule| schedule.warning_period().as_secs()),
        eviction_timeout_seconds: stop.map(|schedule| schedule.eviction_timeout().as_secs()),
    }
}
