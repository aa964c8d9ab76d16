//! Transitions from Reserved and Joining.

use super::{
    Observation, POLL, Tenant, Transition,
    drain::name_first,
    gpu_configuration::{await_mig, await_sharing, gpu_configuration_labels},
    quarantine, set_assignment,
};
use crate::{Assignment, AssignmentState, node::autoscalers};
use berth_api::{is_node_ready, labels};

/// Pods that the reason of a quarantine names.
const NAMED: usize = 3;
/// Seconds after the time limit of joining until control looks at a node at the latest, if it runs.
const LOOKS_WITHIN: i64 = 60;
/// At the end of the reason of a node that joins once more.
const JOINS_AGAIN: &str = "; control did not run when its time to join was over: it joins again, once";
/// A pod has the time limit of joining, divided by this, to end. What is left is for the GPUs.
const END_DIVISOR: i64 = 4;

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
        let is_in_use = !observation.evicted_pods.is_empty();
        return Transition::SetAssignment(Box::new(joining), gpu_configuration_labels(pool, is_in_use));
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
    let next = join(observation);
    let is_given_up = matches!(&next, Transition::SetAssignment(set, _) if set.state == AssignmentState::Quarantined);
    let again = if is_given_up { join_again(observation) } else { None };
    again.unwrap_or(next)
}

/// Joins again, once, if the time is over and control did not run at that time: what it would have waited for, or ended, had no time. A node is not
/// given to people for that.
fn join_again(observation: &Observation<'_>) -> Option<Transition> {
    let Observation {
        assignment, now, pool, ..
    } = observation;
    let was_overlooked = assignment.elapsed(*now) >= pool.timeouts.join().saturating_add(LOOKS_WITHIN);
    let reason = &assignment.reason;
    (was_overlooked && !reason.ends_with(JOINS_AGAIN)).then(|| {
        let reason = format!("{reason}{JOINS_AGAIN}");
        set_assignment(assignment.with_state(AssignmentState::Joining, *now, &reason))
    })
}

/// The next transition of a node that control has looked at all the time.
fn join(observation: &Observation<'_>) -> Transition {
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
    if let Some(end) = end_evicted_pods(observation, limit) {
        return end;
    }
    if let Some(config) = pool.mig_config()
        && let Some(wait) = await_mig(observation, config, limit)
    {
        return wait;
    }
    if let Some(wait) = await_sharing(observation, limit) {
        return wait;
    }
    if !is_node_ready(observation.node) {
        if assignment.elapsed(*now) >= limit {
            return quarantine(observation, &format!("the node did not become Ready within {limit} s"));
        }
        return Transition::CheckAfter((limit - assignment.elapsed(*now)).max(POLL));
    }
    let reason = assignment.reason.strip_suffix(JOINS_AGAIN);
    let reason = reason.unwrap_or(&assignment.reason);
    let assigned = Assignment {
        slug: match &observation.tenant {
            Tenant::Alive(slug) => slug.clone(),
            Tenant::Gone => String::new(),
        },
        ..assignment.with_state(AssignmentState::Assigned, *now, reason)
    };
    set_assignment(assigned)
}

/// Ends the pods that the taint evicts; none once they are gone. kube-controller-manager begins their deletion, each with its own grace period.
///
/// | time in Joining | pods |
/// |---|---|
/// | less than a quarter of `limit` | what is being deleted has `terminate`, and a quarter of `limit`, to end at most |
/// | less than `limit` | the same of what is not being deleted yet |
/// | more | the node is quarantined |
///
/// None is removed before its kubelet reports its end: its processes could go on beside those of the tenant, and no scrub follows.
fn end_evicted_pods(observation: &Observation<'_>, limit: i64) -> Option<Transition> {
    let Observation {
        assignment,
        now,
        pool,
        evicted_pods,
        ..
    } = observation;
    if evicted_pods.is_empty() {
        return None;
    }
    let elapsed = assignment.elapsed(*now);
    if elapsed >= limit {
        let ready = if is_node_ready(observation.node) {
            ""
        } else {
            "; the node is not Ready"
        };
        let why = format!(
            "pods that do not tolerate the taint {} did not end within {limit} s: {}{ready}; delete them, or add the toleration to their \
             owner, before you release the node",
            labels::TENANT,
            name_first(evicted_pods, NAMED)
        );
        return Some(quarantine(observation, &why));
    }
    let time_to_end = limit / END_DIVISOR;
    Some(Transition::EndEvictedPods {
        max_grace_seconds: time_to_end.min(pool.timeouts.terminate()),
        deletes_running: elapsed >= time_to_end,
    })
}
