//! Actions of a plan on nodes that have an assignment: releasing, keeping and giving them up.

use super::{Pass, STALE_POLL, failures::StepFailures};
use crate::error::ReconcileError;
use berth_node_lifecycle::{Assignment, AssignmentState};
use berth_planner::{Action, ActionKind};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use std::time::Duration;

/// Applies all actions but reservations. Returns when to plan again, if a node changed meanwhile.
pub(super) async fn apply_actions(
    pass: &mut Pass<'_>,
    actions: &[Action],
    failures: &mut StepFailures,
) -> Option<Duration> {
    let mut again = None;
    for action in actions {
        if failures.is_exhausted() {
            break;
        }
        match apply_action(pass, action).await {
            Ok(Applied::Changed(node)) => pass.update_view(*node),
            Ok(Applied::Nothing) => {}
            Ok(Applied::Stale) => again = Some(STALE_POLL),
            Err(error) => failures.record("apply an action", &action.node, error),
        }
    }
    again
}

enum Applied {
    Changed(Box<Node>),
    /// The action does not apply to the node in its state.
    Nothing,
    /// The node changed meanwhile.
    Stale,
}

async fn apply_action(pass: &Pass<'_>, action: &Action) -> Result<Applied, ReconcileError> {
    let Some(node) = pass.nodes.get(&action.node) else {
        return Ok(Applied::Nothing);
    };
    let Some(assignment) = Assignment::read(node) else {
        return Ok(Applied::Nothing);
    };
    let reason = action.reason.to_string();
    let patched = match &action.kind {
        // No pod of the tenant was ever on it.
        ActionKind::CancelReservation | ActionKind::Release { .. } if assignment.state.is_pending() => {
            pass.free_node(node, Some(&assignment), &reason, None).await?
        }
        ActionKind::Release { drain_at } => match cordon(pass, assignment, *drain_at, &reason) {
            Some(cordoned) => pass.write_assignment(node, &cordoned, &[]).await?,
            None => return Ok(Applied::Nothing),
        },
        ActionKind::CancelRelease if assignment.state == AssignmentState::Cordoned => {
            let kept = assignment.with_state(AssignmentState::Assigned, pass.now, &reason);
            pass.write_assignment(node, &kept, &[]).await?
        }
        ActionKind::Reserve { .. } | ActionKind::CancelReservation | ActionKind::CancelRelease => {
            return Ok(Applied::Nothing);
        }
    };
    Ok(patched.map_or(Applied::Stale, |node| Applied::Changed(Box::new(node))))
}

/// The assignment of a node that is to be drained at `until`; none if it is drained by then anyway, or cannot be cordoned.
fn cordon(pass: &Pass<'_>, assignment: Assignment, until: i64, why: &str) -> Option<Assignment> {
    let until = Timestamp::from_second(until).unwrap_or(pass.now);
    match assignment.state {
        AssignmentState::Assigned => Some(Assignment {
            cordoned_until: Some(until),
            ..assignment.with_state(AssignmentState::Cordoned, pass.now, why)
        }),
        AssignmentState::Cordoned if assignment.cordoned_until.is_none_or(|earlier| until < earlier) => {
            Some(Assignment {
                cordoned_until: Some(until),
                reason: why.to_owned(),
                ..assignment
            })
        }
        _ => None,
    }
}
