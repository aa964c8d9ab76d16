//! What schedules let a tenant do, and the condition WithinSchedule.

use super::context::TenantContext;
use crate::controllers::schedule_policy::pause_until;
use berth_api::{
    ScheduleState, TenantCluster,
    conditions::{ConditionUpdate, WITHIN_SCHEDULE},
};
use berth_schedules::{Stack, Standing};
use jiff::Timestamp;
use std::time::Duration;

/// Reason of a condition: the tenant is warned.
pub(super) const STOPS_SOON: &str = "StopsSoon";
/// Changes that are looked at to find the next stop.
const TRANSITIONS: usize = 4;

/// What schedules let a tenant do now.
pub(super) struct ObservedSchedule {
    pub(super) state: ScheduleState,
    /// None for a tenant that never had a schedule.
    pub(super) condition: Option<ConditionUpdate>,
    /// When schedules that restrict it, now or later, let it run again.
    pub(super) next_start: Option<Timestamp>,
    /// Pause until that changes, or until the tenant is warned.
    pub(super) pause: Option<Duration>,
}

/// Evaluates the policies of a tenant.
pub(super) fn observe(context: &TenantContext, cluster: &TenantCluster) -> ObservedSchedule {
    let stack = context.schedules.of_tenant(&context.stores, cluster);
    let mut conditions = cluster.status.iter().flat_map(|status| &status.conditions);
    let had_schedule = conditions.any(|condition| condition.type_ == WITHIN_SCHEDULE);
    evaluate(&stack, context.schedules.now(), had_schedule)
}

fn evaluate(stack: &Stack, now: Timestamp, had_schedule: bool) -> ObservedSchedule {
    if stack.is_empty() {
        let none = || {
            ConditionUpdate::mark_true(
                WITHIN_SCHEDULE,
                "NoSchedule",
                "no SchedulePolicy is for this tenant as a whole",
            )
        };
        return ObservedSchedule {
            state: ScheduleState::Running,
            condition: had_schedule.then(none),
            next_start: None,
            pause: None,
        };
    }
    let standing = stack.standing(now);
    let transitions = stack.transitions(now, TRANSITIONS);
    let warning = next_warning(standing.state, &transitions);
    let is_warned = warning.as_ref().is_some_and(|warning| warning.from <= now);
    let message = describe(&standing, &transitions, warning.as_ref().filter(|_| is_warned));
    let reason = if is_warned { STOPS_SOON } else { standing.state.name() };
    let condition = match standing.state {
        ScheduleState::Running => ConditionUpdate::mark_true(WITHIN_SCHEDULE, reason, message),
        ScheduleState::StartsForbidden | ScheduleState::Stopped => {
            ConditionUpdate::mark_false(WITHIN_SCHEDULE, reason, message)
        }
    };
    let change = stack.next_change(now).evaluate_again();
    let warned_at = warning.map(|warning| warning.from).filter(|from| *from > now);
    let next = change.into_iter().chain(warned_at).min();
    ObservedSchedule {
        state: standing.state,
        condition: Some(condition),
        next_start: find_next_start(standing.state, &transitions),
        pause: Some(pause_until(now, next)),
    }
}

/// When schedules let a tenant run again that they restrict, now or later.
fn find_next_start(state: ScheduleState, transitions: &[(Timestamp, Standing<'_>)]) -> Option<Timestamp> {
    let mut is_restricted = state != ScheduleState::Running;
    for (at, standing) in transitions {
        let runs = standing.state == ScheduleState::Running;
        if is_restricted && runs {
            return Some(*at);
        }
        is_restricted = !runs;
    }
    None
}

/// A stop of which the tenant is warned.
struct Warning {
    /// When the warning begins.
    from: Timestamp,
    stop: Timestamp,
    policy: String,
}

/// The next stop of a tenant that is not stopped.
fn next_warning(state: ScheduleState, transitions: &[(Timestamp, Standing<'_>)]) -> Option<Warning> {
    if state == ScheduleState::Stopped {
        return None;
    }
    let (stop, standing) = transitions
        .iter()
        .find(|(_, standing)| standing.state == ScheduleState::Stopped)?;
    let schedule = standing.schedule?;
    Some(Warning {
        from: stop.checked_sub(schedule.warning_period()).unwrap_or(*stop),
        stop: *stop,
        policy: schedule.policy().to_owned(),
    })
}

/// The message of the condition. It changes only when the state, its cause or the next change does.
fn describe(standing: &Standing<'_>, transitions: &[(Timestamp, Standing<'_>)], warning: Option<&Warning>) -> String {
    let cause = standing.schedule.map(|schedule| match standing.window {
        Some(window) => format!("SchedulePolicy {}, window {window}", schedule.policy()),
        None => format!("SchedulePolicy {}, outside its Start windows", schedule.policy()),
    });
    let now = match (standing.state, cause) {
        (ScheduleState::Stopped, Some(cause)) => {
            format!("stopped by {cause}: the tenant has no nodes of its own and no pod runs")
        }
        (ScheduleState::StartsForbidden, Some(cause)) => {
            format!("{cause}: what runs goes on, and no node is added and no pod starts")
        }
        _ => "no SchedulePolicy restricts the tenant now".to_owned(),
    };
    let next = transitions.first();
    let next = next.map(|(at, standing)| format!("; from {at} on: {}", standing.state.name()));
    let warning = warning.map(|Warning { stop, policy, .. }| {
        format!("; SchedulePolicy {policy} stops the tenant at {stop}: its pods are evicted and its nodes released")
    });
    format!("{now}{}{}", next.unwrap_or_default(), warning.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::{KubeDuration, SchedulePolicySpec, ScheduleTarget, ScheduleTargetKind};
    use berth_schedules::{Place, PolicyIndex, Schedule};
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn stack(windows: &Value, warning_period: Option<&str>) -> Stack {
        let target = ScheduleTarget {
            kind: ScheduleTargetKind::TenantCluster,
            name: "vision".into(),
            namespace: Some("team".into()),
            workloads: None,
        };
        let spec = SchedulePolicySpec {
            time_zone: "UTC".into(),
            targets: vec![target],
            windows: serde_json::from_value(windows.clone()).unwrap(),
            warning_period: warning_period.map(KubeDuration::from),
            eviction_timeout: None,
        };
        let schedule = Arc::new(Schedule::parse("nights", &spec).unwrap());
        let place = Place {
            namespace: "team".into(),
            name: "vision".into(),
            ..Place::default()
        };
        PolicyIndex::new([(spec.targets.as_slice(), schedule)]).stack(&place)
    }

    fn night() -> Value {
        json!([{"name": "night", "action": "Stop", "schedule": "0 22 * * *", "duration": "8h"}])
    }

    fn at(stack: &Stack, now: &str) -> (Option<bool>, &'static str, String, Option<Duration>) {
        let found = evaluate(stack, now.parse().unwrap(), false);
        let condition = found.condition.unwrap();
        (condition.status, condition.reason, condition.message, found.pause)
    }

    #[test]
    fn a_tenant_without_policies_has_the_condition_only_if_it_had_one() {
        let now = Timestamp::from_second(0).unwrap();
        assert_eq!(evaluate(&Stack::default(), now, false).condition, None);
        let left = evaluate(&Stack::default(), now, true).condition.unwrap();
        assert_eq!((left.status, left.reason), (Some(true), "NoSchedule"));
    }

    #[test]
    fn the_condition_names_the_policy_and_the_next_change() {
        let stack = stack(&night(), None);
        let (status, reason, message, _) = at(&stack, "2026-05-05T12:00:00Z");
        assert_eq!((status, reason), (Some(true), "Running"));
        assert_eq!(
            message,
            "no SchedulePolicy restricts the tenant now; from 2026-05-05T22:00:00Z on: Stopped"
        );
        let (status, reason, message, _) = at(&stack, "2026-05-05T23:00:00Z");
        assert_eq!((status, reason), (Some(false), "Stopped"));
        assert_eq!(
            message,
            "stopped by SchedulePolicy nights, window night: the tenant has no nodes of its own and no pod runs; from \
             2026-05-06T06:00:00Z on: Running"
        );
    }

    #[test]
    fn the_next_start_is_that_after_the_present_or_the_next_restriction() {
        let start = |now: &str| evaluate(&stack(&night(), None), now.parse().unwrap(), false).next_start;
        let morning: Timestamp = "2026-05-06T06:00:00Z".parse().unwrap();
        assert_eq!(start("2026-05-05T12:00:00Z"), Some(morning));
        assert_eq!(start("2026-05-05T23:00:00Z"), Some(morning));
        assert_eq!(evaluate(&Stack::default(), morning, false).next_start, None);
    }

    #[test]
    fn a_tenant_is_warned_before_a_stop() {
        let stack_15m = stack(&night(), None);
        assert_eq!(at(&stack_15m, "2026-05-05T21:44:59Z").1, "Running");
        let (status, reason, message, _) = at(&stack_15m, "2026-05-05T21:45:00Z");
        assert_eq!((status, reason), (Some(true), STOPS_SOON));
        assert!(
            message.ends_with("; SchedulePolicy nights stops the tenant at 2026-05-05T22:00:00Z: its pods are evicted and its nodes released"),
            "{message}"
        );
        assert_eq!(at(&stack_15m, "2026-05-05T21:50:00Z").2, message, "it is one Event");
        let stack_2h = stack(&night(), Some("2h"));
        assert_eq!(at(&stack_2h, "2026-05-05T20:00:00Z").1, STOPS_SOON);
    }

    #[test]
    fn a_tenant_in_which_nothing_starts_is_warned_as_well() {
        let windows = json!([
            {"name": "night", "action": "Stop", "schedule": "0 22 * * *", "duration": "8h"},
            {"name": "evening", "action": "Forbid", "schedule": "0 21 * * *", "duration": "1h"},
        ]);
        let stack = stack(&windows, None);
        assert_eq!(at(&stack, "2026-05-05T21:30:00Z").1, "StartsForbidden");
        let (status, reason, ..) = at(&stack, "2026-05-05T21:50:00Z");
        assert_eq!((status, reason), (Some(false), STOPS_SOON));
    }

    #[test]
    fn the_tenant_is_reconciled_for_the_warning_and_for_the_change() {
        let stack = stack(&night(), None);
        assert_eq!(at(&stack, "2026-05-05T21:44:50Z").3, Some(Duration::from_secs(10)));
        assert_eq!(at(&stack, "2026-05-05T21:59:30Z").3, Some(Duration::from_secs(30)));
        assert_eq!(at(&stack, "2026-05-05T12:00:00Z").3, Some(Duration::from_secs(60)));
    }

    #[test]
    fn outside_of_start_windows_the_message_says_so() {
        let office = json!([{"name": "office", "action": "Start", "schedule": "0 8 * * *", "duration": "10h"}]);
        let (status, _, message, _) = at(&stack(&office, None), "2026-05-05T19:00:00Z");
        assert_eq!(status, Some(false));
        assert!(message.contains("nights, outside its Start windows"), "{message}");
    }
}
