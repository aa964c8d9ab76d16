//! The annotation `berth.dev/gpus-idle` on pods and their owners in the tenant, and Events on the owners.
//!
//! Who reads a Deployment need not know its pods. The annotation is information: nothing is decided by it, and the team may remove it.

use super::{
    mark_and_restore::Found,
    owners::{OwnerKey, TenantObjects, pod_key},
    tenants::{Memory, ObservedTenant},
    waits::ObjectError,
    warn,
};
use crate::error::FirstError;
use berth_api::{IdleReclaimMode, IdleStep, labels::GPUS_IDLE_WARNING};
use berth_idle_reclaim::{pass::Decision, pod::GpuPod, workload::WorkloadName};
use kube::runtime::events::EventType;
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashSet};

/// Pods of one workload that are annotated, and whose owners are looked for. They rarely have more than one.
const MAX_PODS: usize = 32;
/// Workloads of one tenant in one pass.
const MAX_TASKS: usize = 50;

/// A workload whose annotations have to change.
pub(super) struct MarkTask<'a> {
    pub(super) workload: WorkloadName,
    /// The step to name; none: the annotations are removed.
    pub(super) step: Option<IdleStep>,
    /// The annotation.
    value: Option<String>,
    /// The Event on the owners.
    message: Option<String>,
    pub(super) pods: Vec<&'a GpuPod>,
    /// Owners that have the annotation.
    known: Vec<OwnerKey>,
}

/// What has to change in a tenant.
pub(super) fn plan<'a>(memory: &mut Memory, tenant: &ObservedTenant, found: &Found<'a>) -> Vec<MarkTask<'a>> {
    let mut tasks = Vec::new();
    let mut seen = BTreeSet::new();
    match found {
        Found::Decisions(decisions) => {
            for decision in *decisions {
                seen.insert(decision.workload.clone());
                tasks.extend(plan_workload(memory, tenant, decision));
            }
        }
        Found::Off(pods) => {
            let is_marked = |pod: &&GpuPod| memory.marked.get(&pod.uid).is_some_and(Option::is_some);
            let pods: Vec<&GpuPod> = pods.iter().map(AsRef::as_ref).filter(is_marked).collect();
            if !pods.is_empty() {
                tasks.push(MarkTask {
                    pods,
                    ..unmark(WorkloadName::default(), Vec::new())
                });
            }
        }
    }
    // Their pods are gone: the team scaled the owner down, or it was stopped.
    let inside = memory.inside(tenant);
    let gone = inside.owners.iter().filter(|(workload, _)| !seen.contains(*workload));
    tasks.extend(gone.map(|(workload, (_, owners))| unmark(workload.clone(), owners.clone())));
    put_failed_last(&mut tasks, &mut inside.failed);
    tasks.truncate(MAX_TASKS);
    tasks
}

/// Puts workloads last that could not be marked: a team may have more of them than there is room for.
fn put_failed_last(tasks: &mut [MarkTask<'_>], failed: &mut HashSet<WorkloadName>) {
    let planned: HashSet<&WorkloadName> = tasks.iter().map(|task| &task.workload).collect();
    failed.retain(|workload| planned.contains(workload));
    tasks.sort_by_key(|task| failed.contains(&task.workload));
}

fn unmark<'a>(workload: WorkloadName, known: Vec<OwnerKey>) -> MarkTask<'a> {
    MarkTask {
        workload,
        step: None,
        value: None,
        message: None,
        pods: Vec::new(),
        known,
    }
}

fn plan_workload<'a>(memory: &mut Memory, tenant: &ObservedTenant, decision: &'a Decision) -> Option<MarkTask<'a>> {
    let step = decision
        .step()
        .filter(|_| tenant.policy.mode == IdleReclaimMode::Enforce);
    let differs = |pod: &&GpuPod| memory.marked.get(&pod.uid).copied().flatten() != step;
    let pods = decision
        .pods
        .iter()
        .map(AsRef::as_ref)
        .filter(|pod: &&GpuPod| !pod.is_ending);
    let all: Vec<&GpuPod> = pods.take(MAX_PODS).collect();
    let has_changed = all.iter().any(differs);
    let known = memory.inside(tenant).owners.get(&decision.workload);
    let is_owner_current = match known {
        Some((marked, _)) => *marked == step,
        None => step.is_none(),
    };
    if !has_changed && is_owner_current {
        return None;
    }
    Some(MarkTask {
        workload: decision.workload.clone(),
        step,
        value: step.and_then(|_| annotation(decision)),
        message: step.map(|_| warn::describe(decision, &tenant.policy)),
        pods: all,
        known: known.map(|(_, owners)| owners.clone()).unwrap_or_default(),
    })
}

/// The annotation of a workload; none if nothing is held against it.
fn annotation(decision: &Decision) -> Option<String> {
    let state = decision.state?;
    let mut value = json!({"step": state.step.as_str(), "idleSince": warn::format_time(state.idle_since)});
    // It is written once for each step.
    if let Some(due) = decision.next_step_at.filter(|_| !decision.may_come_sooner()) {
        value["nextStepAt"] = warn::format_time(due).into();
    }
    Some(value.to_string())
}

/// Sets or removes the annotations. Returns the owners that were found, and the first failure: what comes after one is done nevertheless. What
/// admission of the tenant rejects stays without annotation, and is no failure.
pub(super) async fn carry_out(
    objects: &mut TenantObjects,
    task: &MarkTask<'_>,
) -> (Vec<OwnerKey>, Result<(), ObjectError>) {
    let mut failure = FirstError::<ObjectError>::default();
    let mut owners = BTreeSet::new();
    for pod in &task.pods {
        let Some(found) = failure.note(objects.find_owner(pod).await).flatten() else {
            continue;
        };
        let marked = set_annotation(objects, &pod_key(pod), &found.pod, task.value.as_deref()).await;
        failure.note(marked);
        let owner = failure.note(found.owner).flatten();
        owners.extend(owner.map(|owner| owner.key));
    }
    let all = owners
        .iter()
        .chain(task.known.iter().filter(|key| !owners.contains(key)));
    for key in all {
        let Some(object) = failure.note(objects.get(key).await).flatten() else {
            continue;
        };
        let marked = set_annotation(objects, key, &object, task.value.as_deref()).await;
        let has_changed = failure.note(marked) == Some(true);
        if let Some(message) = task.message.as_ref().filter(|_| has_changed) {
            let event = warn::idle_event(EventType::Warning, warn::IDLE_EVENT, message);
            objects.publish(&event, key).await;
        }
    }
    (owners.into_iter().collect(), failure.into_result())
}

/// Returns whether the annotation was changed.
async fn set_annotation(
    objects: &mut TenantObjects,
    key: &OwnerKey,
    object: &Value,
    value: Option<&str>,
) -> Result<bool, ObjectError> {
    if object["metadata"]["annotations"][GPUS_IDLE_WARNING].as_str() == value {
        return Ok(false);
    }
    let patch = json!({"metadata": {"uid": key.uid, "annotations": {GPUS_IDLE_WARNING: value}}});
    match objects.patch(key, &patch).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_rejected() => {
            tracing::debug!(object = %key, %error, "an object in a tenant cannot be annotated");
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::test_decision::idle_at, *};

    fn name(number: usize) -> WorkloadName {
        WorkloadName {
            name: number.to_string(),
            ..WorkloadName::default()
        }
    }

    #[test]
    fn workloads_that_cannot_be_marked_leave_room_for_the_others() {
        let mut failed: HashSet<WorkloadName> = (0..2 * MAX_TASKS).map(name).collect();
        failed.insert(name(1000));
        let mut tasks: Vec<MarkTask<'_>> = (0..=2 * MAX_TASKS)
            .map(|number| unmark(name(number), Vec::new()))
            .collect();
        put_failed_last(&mut tasks, &mut failed);
        assert_eq!(tasks[0].workload, name(2 * MAX_TASKS));
        assert_eq!(tasks[1].workload, name(0), "the order of the others stays");
        assert_eq!(
            failed.len(),
            2 * MAX_TASKS,
            "nothing is kept of workloads that are gone"
        );
    }

    #[test]
    fn the_annotation_has_no_time_before_which_the_last_step_may_come() {
        let has_time = |awaits_pods, step| {
            let decision = Decision {
                next_step_at: Some(60),
                awaits_pods,
                ..idle_at(step, "train")
            };
            let value: Value = serde_json::from_str(&annotation(&decision).unwrap()).unwrap();
            value["nextStepAt"].is_string()
        };
        assert!(has_time(false, IdleStep::CheckpointRequested));
        assert!(has_time(true, IdleStep::Warned));
        assert!(!has_time(true, IdleStep::CheckpointRequested));
    }
}
