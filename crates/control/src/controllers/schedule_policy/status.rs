//! The status of a `SchedulePolicy`.

use super::SchedulePolicyContext;
use crate::{
    apply::is_status,
    error::{ReconcileError, api},
    status_write::{StatusTarget, write_status},
};
use berth_api::{
    SchedulePolicy, SchedulePolicyStatus, ScheduleTransition,
    conditions::{self, ConditionUpdate, READY},
    crd,
};
use berth_schedules::{Schedule, ScheduleError};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{
    Resource,
    runtime::events::{Event, EventType},
};
use std::{
    collections::BTreeSet,
    sync::{Arc, LazyLock},
};

/// All fields of the status.
static FIELDS: LazyLock<BTreeSet<String>> = LazyLock::new(crd::status_fields::<SchedulePolicy>);
/// Transitions in the status.
const TRANSITIONS: usize = 3;

/// The whole status. `missing` are targets that do not exist.
pub(super) fn build(
    policy: &SchedulePolicy,
    schedule: &Result<Arc<Schedule>, ScheduleError>,
    missing: &[String],
    now: Timestamp,
) -> SchedulePolicyStatus {
    let before = policy.status.as_ref().map(|status| status.conditions.as_slice());
    let generation = policy.metadata.generation;
    let ready = ready_condition(schedule, missing);
    let mut status = SchedulePolicyStatus {
        observed_generation: generation,
        conditions: conditions::merge(before.unwrap_or_default(), &[ready], generation, now),
        ..SchedulePolicyStatus::default()
    };
    if let Ok(schedule) = schedule {
        let standing = schedule.standing(now);
        let window = |window: Option<&str>| window.map(ToOwned::to_owned);
        status.state = Some(standing.state);
        status.window = window(standing.window);
        let transitions = schedule.transitions(now, TRANSITIONS).into_iter();
        status.next_transitions = transitions
            .map(|(at, standing)| ScheduleTransition {
                time: Time(at),
                state: standing.state,
                window: window(standing.window),
            })
            .collect();
    }
    status
}

fn ready_condition(schedule: &Result<Arc<Schedule>, ScheduleError>, missing: &[String]) -> ConditionUpdate {
    match schedule {
        Err(invalid) => ConditionUpdate::mark_false(
            READY,
            "InvalidSpec",
            format!("the policy has no effect until this is changed: {invalid}"),
        ),
        Ok(_) if !missing.is_empty() => ConditionUpdate::mark_false(
            READY,
            "TargetNotFound",
            format!(
                "these targets do not exist: {}; correct spec.targets or create them. The policy is in effect for the other targets",
                missing.join(", ")
            ),
        ),
        Ok(_) => ConditionUpdate::mark_true(READY, "Ready", "the schedules are valid and all targets exist"),
    }
}

/// Writes the status if it differs from the one there is, and an Event if the policy is not in order for another reason than before.
///
/// # Errors
/// The host refuses or does not answer.
pub(super) async fn write(
    context: &SchedulePolicyContext,
    policy: &SchedulePolicy,
    after: &SchedulePolicyStatus,
) -> Result<(), ReconcileError> {
    let before = policy.status.clone().unwrap_or_default();
    if before == *after {
        return Ok(());
    }
    let target = StatusTarget::of(policy);
    match write_status::<SchedulePolicy>(&context.client, target, &FIELDS, after).await {
        Ok(()) => {}
        Err(error) if is_status(&error, 404) || is_status(&error, 409) => return Ok(()),
        Err(error) => return Err(api("write the status of a schedule policy")(error)),
    }
    if let Some(event) = event(&before, after) {
        context.recorder.publish(&event, &policy.object_ref(&())).await;
    }
    Ok(())
}

/// A warning, if the policy is not Ready for a new reason.
fn event(before: &SchedulePolicyStatus, after: &SchedulePolicyStatus) -> Option<Event> {
    let ready = |status: &SchedulePolicyStatus| {
        let mut conditions = status.conditions.iter();
        conditions.find(|condition| condition.type_ == READY).cloned()
    };
    let now = ready(after).filter(|condition| condition.status != "True")?;
    if ready(before).is_some_and(|earlier| earlier.reason == now.reason && earlier.message == now.message) {
        return None;
    }
    Some(Event {
        type_: EventType::Warning,
        reason: now.reason,
        note: Some(now.message),
        action: "Evaluate".into(),
        secondary: None,
    })
}
