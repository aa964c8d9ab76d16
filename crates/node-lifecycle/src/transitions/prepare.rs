//! Transitions from Reserved and Joining.

use super::{
    Observation, POLL, Tenant, Transition,
    gpu_configuration::{await_mig, await_sharing, gpu_configuration_labels},
    quarantine, set_assignment,
};
use crate::{
    Assignment, AssignmentState,
    node::{autoscalers, is_ready},
};

pub(super) fn from_reserved(observation: &Observation<'_>) -> Transition {
    let Observation {
        assignment, now, pool, ..
    } = observation;
    if observation.tenant == Tenant::Gone {
        return Transition::Free("its tenant no longer exists".into());
    }
    if let Some(taint) = autoscalers::find_removal_taint(observation.node) {
        return Transition::Free(removal_message(taint));
    }
    if observation.is_group_complete {
        let joining = assignment.with_state(AssignmentState::Joining, *now, &assignment.reason);
        return Transition::SetAssignment(Box::new(joining), gpu_configuration_labels(pool));
    }
    let limit = pool.timeouts.reserve();
    if assignment.elapsed(*now) >= limit {
        return Transition::Free(format!(
            "the other nodes of its reservation were not reserved within {limit} s"
        ));
    }
    Transition::CheckAfter(limit - assignment.elapsed(*now))
}

fn removal_message(taint: &str) -> String {
    format!("an autoscaler is about to remove it (taint {taint})")
}

pub(super) fn from_joining(observation: &Observation<'_>) -> Transition {
    let Observation {
        assignment, now, pool, ..
    } = observation;
    if observation.tenant == Tenant::Gone {
        // It never ran a pod of the tenant, and the GPU layout is the pool's.
        return Transition::Free("its tenant no longer exists".into());
    }
    if let Some(taint) = autoscalers::find_removal_taint(observation.node) {
        return Transition::Free(removal_message(taint));
    }
    let limit = pool.timeouts.join();
    if let Some(config) = pool.mig_config()
        && let Some(wait) = await_mig(observation, config, limit)
    {
        return wait;
    }
    if let Some(wait) = await_sharing(observation, limit) {
        return wait;
    }
    if !is_ready(observation.node) {
        if assignment.elapsed(*now) >= limit {
            return quarantine(observation, &format!("the node did not become Ready within {limit} s"));
        }
        return Transition::CheckAfter((limit - assignment.elapsed(*now)).max(POLL));
    }
    let assigned = Assignment {
        slug: match &observation.tenant {
            Tenant::Alive(slug) => slug.clone(),
            Tenant::Gone => String::new(),
        },
        ..assignment.with_state(AssignmentState::Assigned, *now, &assignment.reason)
    };
    set_assignment(assigned)
}
