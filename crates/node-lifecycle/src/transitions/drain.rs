//! Transitions from Cordoned and Draining.

use super::{Observation, Tenant, Transition, recycle::requires_scrub, set_assignment};
use crate::{Assignment, AssignmentState};

pub(super) fn from_cordoned(observation: &Observation<'_>) -> Transition {
    let Observation { assignment, now, .. } = observation;
    let left = assignment
        .cordoned_until
        .map_or(0, |until| until.as_second() - now.as_second());
    if observation.tenant == Tenant::Gone || left <= 0 {
        return set_assignment(assignment.with_state(AssignmentState::Draining, *now, &assignment.reason));
    }
    Transition::CheckAfter(left)
}

pub(super) fn from_draining(observation: &Observation<'_>) -> Transition {
    let Observation {
        assignment, now, pool, ..
    } = observation;
    if observation.pods.is_empty() {
        if !requires_scrub(pool) {
            return Transition::Free("no pods are left; scrubbing is disabled in its pool".into());
        }
        return set_assignment(assignment.start_recycling(observation.node, *now, &assignment.reason));
    }
    let limit = pool.timeouts.drain();
    if assignment.elapsed(*now) >= limit {
        let blocked = drain_blocked_message(observation.pods, limit);
        if assignment.reason != blocked {
            // The state and its start time stay the same; only the reason changes.
            return set_assignment(Assignment {
                reason: blocked,
                ..(*assignment).clone()
            });
        }
    }
    if observation.tenant == Tenant::Gone {
        Transition::DeletePods
    } else {
        Transition::EvictPods
    }
}

fn drain_blocked_message(pods: &[String], limit: i64) -> String {
    const NAMED: usize = 5;
    let mut named = pods.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    if pods.len() > NAMED {
        named = format!("{named} and {} more", pods.len() - NAMED);
    }
    format!("pods remain after {limit} s: {named}; a PodDisruptionBudget may prevent their eviction")
}
