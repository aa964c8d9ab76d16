//! Nodes that cannot be scrubbed because they are not Ready for too long, in pools that repair their nodes: they wait in quarantine, and leave it by
//! themselves.

use super::{Observation, Transition, set_assignment};
use crate::{Assignment, AssignmentState, repair::broken_since};
use berth_api::is_node_ready;

/// Lets a node without pods wait until it is Ready; `None`: it need not.
pub(super) fn await_ready(observation: &Observation<'_>) -> Option<Transition> {
    let Observation {
        assignment, now, pool, ..
    } = observation;
    let since = broken_since(observation.node, pool, *now)?;
    let why = format!("not Ready since {since}: it is scrubbed and validated once it is Ready");
    Some(set_assignment(Assignment {
        not_ready_since: Some(since),
        ..assignment.with_state(AssignmentState::Quarantined, *now, &why)
    }))
}

/// Whether a quarantined node waited until it is Ready, and is.
pub(super) fn is_ready_again(observation: &Observation<'_>) -> bool {
    observation.assignment.not_ready_since.is_some() && is_node_ready(observation.node)
}
