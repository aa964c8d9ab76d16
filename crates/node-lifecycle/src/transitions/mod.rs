//! The states that a node goes through from one tenant to the next: a pure function from an observation of one node to its next
//! transition.
//!
//! | state | next state | when |
//! |---|---|---|
//! | none, shared before | Scrubbing | it is in a pool that is not shared, and no pod of a tenant is left |
//! | Reserved | Joining | its group has as many nodes as were reserved together |
//! |  | free | the others do not join in time, the tenant is gone, or an autoscaler removes the node |
//! | Joining | Assigned | no pod is left that its taint evicts, and MIG layout and sharing of GPUs are as the pool's spec says |
//! |  | free | the tenant is gone, or an autoscaler removes the node |
//! |  | Quarantined | such pods do not end; the setup of GPUs fails, or takes too long |
//! |  | Joining | the same, and control did not run when its time was over: once |
//! | Assigned | Cordoned | the planner releases it |
//! | Cordoned | Draining | the time of its drain has come, or the tenant is gone |
//! | Draining | Scrubbing | no pod of a tenant is left; never before |
//! |  | Quarantined | no pod of a tenant is left, and it is not Ready for so long that its pool repairs it |
//! |  | Quarantined | finalizers hold pods for ever, or pods do not end and nothing would end their processes, because scrubbing is disabled |
//! | Scrubbing | Validating | the scrub Job has succeeded |
//! |  | Scrubbing | its time is over and there is no Job: once |
//! |  | Quarantined | it failed, or took too long; MIG or MPS of the tenant before does not end, or the platform's own programs do not leave the GPUs |
//! | Validating | free | the validation Job has succeeded, all its GPUs are advertised and healthy, and no claim of a tenant has devices of it |
//! |  | Scrubbing | its time is over and there is no Job: once |
//! |  | Quarantined | it failed, or took too long |
//! | Quarantined | Scrubbing | people release it, or it waited until it is Ready, and is |
//!
//! No transition relies on an earlier one: the conditions of a state are checked each time.

mod drain;
mod gpu_clients;
mod gpu_configuration;
mod prepare;
mod recycle;
mod repair;

pub use drain::DrainStage;
pub use gpu_clients::{list_client_images, list_paused_pods};
pub use recycle::requires_scrub;

use crate::{Assignment, AssignmentState};
use berth_api::{HostNodePoolSpec, labels};
use drain::{from_cordoned, from_draining};
use gpu_clients::find_unrecorded_labels;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube_core::ResourceExt;
use prepare::{from_joining, from_reserved};
use recycle::{from_quarantined, from_scrubbing, from_validating};
use std::collections::BTreeSet;

/// Seconds until the next check of something that no watch reports.
const POLL: i64 = 1;

/// A Job that recycles a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobKind {
    Scrub,
    Validate,
}

impl JobKind {
    /// Its name in the names and labels of Jobs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scrub => "scrub",
            Self::Validate => "validate",
        }
    }
}

/// The state of a Job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum JobState {
    #[default]
    Missing,
    Running,
    Succeeded,
    /// It failed, for this reason.
    Failed(String),
}

/// The tenant of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tenant {
    /// It exists and has this slug.
    Alive(String),
    /// It no longer exists, or is not known, and none of its workloads are left.
    Gone,
}

/// What the next transition of a node depends on.
#[derive(Clone, Debug)]
pub struct Observation<'a> {
    pub now: Timestamp,
    pub node: &'a Node,
    pub assignment: &'a Assignment,
    pub pool: &'a HostNodePoolSpec,
    pub tenant: Tenant,
    /// For a reserved node: whether its group has all the nodes that it waits for.
    pub is_group_complete: bool,
    /// Pods that the taint of the node evicts and that may run there, listed by the API server, as `namespace/name`. Known in Joining, and in Reserved
    /// once the group is complete.
    pub evicted_pods: &'a [String],
    /// Pods of tenants on the node, listed by the API server, as `namespace/name`. Known from Draining on.
    pub pods: &'a [String],
    /// Those of them that are removed, and that finalizers alone hold.
    pub held_pods: &'a [String],
    /// Pods of the platform that use the node's GPUs and are to leave it, as `namespace/name`. Known in Scrubbing.
    pub gpu_clients: &'a [String],
    /// Images of the platform's pods on the node that leave it when its labels are paused. Known in Scrubbing.
    pub client_images: &'a BTreeSet<String>,
    /// Claims of tenants that have devices of the node, as `namespace/name`. Known in Validating.
    pub claims: &'a [String],
    /// The Job of the node's state, as the API server has it.
    pub job: JobState,
}

/// What to do with a node next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transition {
    /// Do nothing until something changes.
    Wait,
    /// Do nothing for this number of seconds, unless something changes.
    CheckAfter(i64),
    /// Write this assignment, and these further labels.
    SetAssignment(Box<Assignment>, Vec<(String, Option<String>)>),
    /// Write this assignment again: a part of it was removed or changed.
    CorrectDrift(Box<Assignment>),
    /// Remove the assignment, for this reason.
    Free(String),
    EvictPods,
    /// End the pods that the taint evicts, before the tenant gets the node.
    EndEvictedPods {
        /// Seconds that a pod has to end at most, if its own grace period is not shorter.
        max_grace_seconds: i64,
        /// Whether pods are deleted as well whose deletion has not begun.
        deletes_running: bool,
    },
    /// Delete the pods: their tenant is gone, or budgets have held up the drain for long enough.
    DeletePods {
        /// Seconds that a pod has to end at most, if its own grace period is not shorter.
        max_grace_seconds: i64,
        /// Whether pods that are overdue are removed although their kubelet has not reported their end.
        removes_overdue: bool,
    },
    StartJob(JobKind),
}

/// The next transition of a node that has an assignment.
pub fn next_transition(observation: &Observation<'_>) -> Transition {
    if let Some(corrected) = correct_drift(observation) {
        return Transition::CorrectDrift(Box::new(corrected));
    }
    match observation.assignment.state {
        AssignmentState::Reserved => from_reserved(observation),
        AssignmentState::Joining => from_joining(observation),
        AssignmentState::Assigned => Transition::Wait,
        AssignmentState::Cordoned => from_cordoned(observation),
        AssignmentState::Draining => from_draining(observation),
        AssignmentState::Scrubbing => from_scrubbing(observation),
        AssignmentState::Validating => from_validating(observation),
        AssignmentState::Quarantined => from_quarantined(observation),
    }
}

/// The next transition of a node without an assignment that several tenants shared and that is now in a pool that is not
/// shared. The controller of shared nodes evicts its pods; `pods` are those that are left.
pub fn next_transition_after_sharing(
    now: Timestamp,
    node: &Node,
    pool: (&str, &HostNodePoolSpec),
    pods: &[String],
) -> Transition {
    let (name, spec) = pool;
    if !pods.is_empty() {
        return Transition::CheckAfter(POLL);
    }
    if !recycle::requires_scrub(spec) {
        return Transition::Free("no pods are left; scrubbing is disabled in its pool".into());
    }
    let before = node.annotations().get(labels::PREVIOUS_SHARED_POOL);
    let reason = reason_after_sharing(before.map(String::as_str).unwrap_or_default());
    set_assignment(Assignment::scrub_unowned(node, "", name, now, &reason))
}

/// Why a node that tenants shared in a pool is scrubbed.
pub fn reason_after_sharing(pool: &str) -> String {
    format!("it was shared in pool {pool} and is scrubbed before it is assigned to a tenant")
}

fn set_assignment(assignment: Assignment) -> Transition {
    Transition::SetAssignment(Box::new(assignment), Vec::new())
}

/// The assignment to write again because a part of it was removed or changed; none if the node has all of it.
fn correct_drift(observation: &Observation<'_>) -> Option<Assignment> {
    let Observation {
        assignment, node, now, ..
    } = observation;
    let mut corrected = assignment.without_future_times(*now);
    if let Tenant::Alive(slug) = &observation.tenant
        && assignment.state.runs_tenant_pods()
        && !assignment.uid.is_empty()
    {
        corrected.slug.clone_from(slug);
    }
    corrected.paused_labels.extend(find_unrecorded_labels(observation));
    if corrected.since.is_none() {
        corrected.since = Some(*now);
    }
    if matches!(
        assignment.state,
        AssignmentState::Scrubbing | AssignmentState::Validating
    ) && assignment.recycling_id.is_empty()
    {
        // A Job of the lost recycling does not count any more.
        corrected = corrected.start_recycling(node, *now, "the recycling ID was lost: the recycling starts again");
    }
    (corrected != **assignment || !corrected.is_written_on(node)).then_some(corrected)
}

fn quarantine(observation: &Observation<'_>, reason: &str) -> Transition {
    set_assignment(
        observation
            .assignment
            .with_state(AssignmentState::Quarantined, observation.now, reason),
    )
}

#[cfg(test)]
mod tests;
