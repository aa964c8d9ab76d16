//! What a tenant's status and its Events say of what is forbidden.

use berth_api::{
    Violation,
    conditions::{COMPLIANT, ConditionUpdate},
};
use jiff::Timestamp;
use std::time::Duration;

/// Reason of the Event when a grace period is over.
pub(super) const ENFORCED: &str = "ViolationEnforced";

/// The condition Compliant of a tenant that runs.
pub(in super::super) fn condition(violations: &[Violation]) -> ConditionUpdate {
    if violations.is_empty() {
        return ConditionUpdate::mark_true(
            COMPLIANT,
            "Allowed",
            "the class and the pools allow everything that the tenant runs with",
        );
    }
    let reason = if violations.iter().any(|violation| violation.enforced) {
        "Enforced"
    } else if violations.iter().any(|violation| violation.deadline.is_some()) {
        "EnforcementPending"
    } else {
        "NotEnforced"
    };
    let messages: Vec<String> = violations.iter().map(describe).collect();
    ConditionUpdate::mark_false(COMPLIANT, reason, messages.join(". "))
}

fn describe(violation: &Violation) -> String {
    let message = &violation.message;
    match &violation.deadline {
        None => message.clone(),
        Some(_) if violation.enforced => format!("{message}. The grace period is over: Berth withdraws it"),
        Some(deadline) => format!("{message}. Berth withdraws it at {}", deadline.0),
    }
}

/// A violation that began, and one whose grace period is over, as reason and message of an Event each.
pub(in super::super) fn events(before: &[Violation], after: &[Violation]) -> Vec<(String, String)> {
    let mut events = Vec::new();
    for violation in after {
        let earlier = before
            .iter()
            .find(|earlier| earlier.reason == violation.reason && earlier.object == violation.object);
        match earlier {
            None => events.push((violation.reason.clone(), describe(violation))),
            Some(earlier) if violation.enforced && !earlier.enforced => {
                events.push((ENFORCED.into(), describe(violation)));
            }
            Some(_) => {}
        }
    }
    events
}

/// Time until the next grace period is over.
pub(in super::super) fn until_next_deadline(violations: &[Violation], now: Timestamp) -> Option<Duration> {
    let pending = violations.iter().filter(|violation| !violation.enforced);
    let next = pending.filter_map(|violation| violation.deadline.as_ref()).min()?;
    let seconds = u64::try_from(next.0.as_second() - now.as_second()).unwrap_or_default();
    Some(Duration::from_secs(seconds.max(1)))
}
