//! Transitions from Scrubbing, Validating and Quarantined.

use super::{
    JobKind, JobState, Observation, POLL, Transition,
    drain::name_some,
    gpu_clients::{await_no_gpu_clients, find_absent_clients},
    gpu_configuration::{NO_MIG, await_mig, await_no_mps, clear_mig_labels},
    quarantine,
    repair::is_ready_again,
    set_assignment,
};
use crate::{AssignmentState, nvidia_labels::may_have_mig};
use berth_api::{HostNodePoolSpec, ScrubPolicy, is_node_ready, labels};
use kube_core::ResourceExt;

/// Seconds beyond the deadline of a Job after which a node is quarantined.
const JOB_MARGIN: i64 = 30;
/// The reason of a recycling that began again because its Job did not exist when its time was over.
const JOB_LOST: &str = "its Job was not started in time, or was deleted: the recycling starts again, once";

/// Whether nodes of a pool are scrubbed between two tenants.
pub fn requires_scrub(pool: &HostNodePoolSpec) -> bool {
    pool.scrub.policy == ScrubPolicy::Always
}

pub(super) fn from_scrubbing(observation: &Observation<'_>) -> Transition {
    let Observation {
        assignment, now, pool, ..
    } = observation;
    let limit = pool.timeouts.scrub();
    // A Job that has succeeded counts even if control was down for longer than the limit.
    let is_done = observation.job == JobState::Succeeded && observation.pods.is_empty();
    if !is_done && assignment.elapsed(*now) >= limit + JOB_MARGIN {
        if let Some(again) = restart_without_job(observation) {
            return again;
        }
        return quarantine(observation, &timeout_message(observation, "the scrub", limit));
    }
    if !observation.pods.is_empty() {
        if observation.job == JobState::Missing {
            return Transition::DeletePods {
                max_grace_seconds: pool.timeouts.terminate(),
                removes_overdue: true,
            };
        }
        // The scheduler can bind a pod late. What was scrubbed already could be dirty again.
        let reason = "a tenant's pod was bound during the scrub: the scrub starts again";
        return set_assignment(assignment.start_recycling(observation.node, *now, reason));
    }
    if may_have_mig(observation.node, pool)
        && let Some(wait) = await_mig(observation, NO_MIG, limit)
    {
        return wait;
    }
    if let Some(wait) = await_no_mps(observation, limit) {
        return wait;
    }
    // After MIG and MPS: the programs that are paused here report their end.
    if observation.job == JobState::Missing
        && let Some(wait) = await_no_gpu_clients(observation, limit)
    {
        return wait;
    }
    match &observation.job {
        JobState::Missing => Transition::StartJob(JobKind::Scrub),
        JobState::Running => Transition::CheckAfter(POLL),
        JobState::Failed(why) => quarantine(observation, &format!("the scrub failed: {why}")),
        JobState::Succeeded => {
            set_assignment(assignment.with_state(AssignmentState::Validating, *now, &assignment.reason))
        }
    }
}

/// Begins the recycling again, once, if its time is over and there was nothing to wait for: control did not run, or could not start
/// the Job. A node is not given to people for that.
fn restart_without_job(observation: &Observation<'_>) -> Option<Transition> {
    let Observation {
        assignment, node, now, ..
    } = observation;
    let is_lost = observation.job == JobState::Missing && observation.pods.is_empty() && assignment.reason != JOB_LOST;
    is_lost.then(|| set_assignment(assignment.start_recycling(node, *now, JOB_LOST)))
}

pub(super) fn from_validating(observation: &Observation<'_>) -> Transition {
    let Observation {
        assignment, now, pool, ..
    } = observation;
    let limit = pool.timeouts.validate();
    if !observation.pods.is_empty() {
        // It is unknown what the pod did.
        let reason = "a tenant's pod was bound during the validation: the node is scrubbed again";
        return set_assignment(assignment.start_recycling(observation.node, *now, reason));
    }
    if pool.validate.policy == ScrubPolicy::Always {
        if observation.job != JobState::Succeeded && assignment.elapsed(*now) >= limit + JOB_MARGIN {
            if let Some(again) = restart_without_job(observation) {
                return again;
            }
            return quarantine(observation, &timeout_message(observation, "the validation", limit));
        }
        match &observation.job {
            JobState::Missing => return Transition::StartJob(JobKind::Validate),
            JobState::Running => return Transition::CheckAfter(POLL),
            JobState::Failed(why) => return quarantine(observation, &format!("the validation failed: {why}")),
            JobState::Succeeded => {}
        }
    }
    if let Some(unhealthy) = find_unhealthy(observation) {
        if assignment.elapsed(*now) >= limit {
            return quarantine(observation, &format!("{unhealthy} after {limit} s"));
        }
        return Transition::CheckAfter(POLL);
    }
    Transition::Free("scrubbed and validated".into())
}

/// Why a scrubbed node cannot be used.
fn find_unhealthy(observation: &Observation<'_>) -> Option<String> {
    if !is_node_ready(observation.node) {
        return Some("the node is not Ready".into());
    }
    if !observation.claims.is_empty() {
        // The host's controllers free them when their pods have ended. With them, the next tenant would have fewer devices than the node has.
        return Some(format!(
            "devices of the node are still allocated to claims of tenants ({})",
            name_some(observation.claims)
        ));
    }
    if let Some(absent) = find_absent_clients(observation) {
        return Some(absent);
    }
    let resource = observation.pool.gpu_resource_name.as_ref()?;
    let status = observation.node.status.as_ref()?;
    let amount = |all: Option<&std::collections::BTreeMap<String, _>>| -> i64 {
        all.and_then(|all| all.get(resource))
            .and_then(|quantity: &k8s_openapi::apimachinery::pkg::api::resource::Quantity| quantity.0.parse().ok())
            .unwrap_or_default()
    };
    let (all, healthy) = (amount(status.capacity.as_ref()), amount(status.allocatable.as_ref()));
    (healthy < all).then(|| format!("{} of {all} {resource} are not healthy", all - healthy))
}

fn timeout_message(observation: &Observation<'_>, what: &str, limit: i64) -> String {
    let ready = if is_node_ready(observation.node) {
        ""
    } else {
        "; the node is not Ready"
    };
    let pods = if observation.pods.is_empty() {
        String::new()
    } else {
        format!("; remaining pods: {}", observation.pods.join(", "))
    };
    format!("{what} took longer than {limit} s{ready}{pods}")
}

pub(super) fn from_quarantined(observation: &Observation<'_>) -> Transition {
    let why = if observation.node.annotations().contains_key(labels::RELEASE_QUARANTINE) {
        "released from quarantine by an administrator"
    } else if is_ready_again(observation) {
        "it was not Ready, and is Ready again"
    } else {
        return Transition::Wait;
    };
    let assignment = observation
        .assignment
        .start_recycling(observation.node, observation.now, why);
    // The MIG manager tries a layout again only when the label has changed.
    let requested_again = if may_have_mig(observation.node, observation.pool) {
        clear_mig_labels()
    } else {
        Vec::new()
    };
    Transition::SetAssignment(Box::new(assignment), requested_again)
}
