//! Warnings: a condition on each host pod of an idle workload, and Events. The syncers carry both into the tenants.
//!
//! The condition is information. What was decided is in the status of the `TenantCluster`, which no tenant can write.

use super::{
    IdleGpusContext,
    tenants::{Memory, ObservedTenant},
};
use crate::{
    error::ReconcileError,
    host_pods::{HostPod, pod_condition},
};
use berth_api::{IdleLastStep, IdleReclaimMode, IdleStep, conditions::GPUS_IDLE};
use berth_idle_reclaim::{
    Seconds,
    pass::Decision,
    pod::{GpuPod, ObservedCondition},
    policy::Policy,
};
use jiff::Timestamp;
use kube::{
    Resource,
    runtime::events::{Event, EventType},
};
use serde_json::Value;
use std::sync::Arc;

/// Reason of the condition and of Events when GPUs are no longer idle.
const ACTIVE: &str = "Active";
/// Reason of Events on pods and tenants with idle GPUs.
pub(super) const IDLE_EVENT: &str = "GPUsIdle";
/// Pods of one workload that get an Event.
const MAX_EVENTS: usize = 32;
/// Workloads of one tenant about which there is an Event in one pass.
const MAX_TENANT_EVENTS: usize = 20;

/// What a pod should say.
struct Wanted {
    is_true: bool,
    reason: &'static str,
    message: String,
}

impl Wanted {
    fn is_observed(&self, observed: Option<&ObservedCondition>) -> bool {
        observed.is_some_and(|observed| observed.is_true == self.is_true && observed.reason == self.reason)
    }
}

/// Sets the conditions of the pods of a workload and publishes an Event for each change. A pod that the host refuses to change keeps nothing from
/// the others.
///
/// # Errors
/// The host's API server refuses or does not answer.
pub(super) async fn update_pods(
    context: &IdleGpusContext,
    memory: &mut Memory,
    tenant: &ObservedTenant,
    decision: &Decision,
) -> Result<(), ReconcileError> {
    let step = decision
        .step()
        .filter(|_| tenant.policy.mode == IdleReclaimMode::Enforce);
    let message = describe(decision, &tenant.policy);
    let mut events = 0;
    let mut result = Ok(());
    for pod in &decision.pods {
        let Some(wanted) = wanted(pod, step, &message) else {
            continue;
        };
        if wanted.is_observed(pod.condition.as_ref()) {
            continue;
        }
        let written = keep_refusal(set_condition(context, pod, &wanted).await, &mut result)?;
        if !written {
            continue;
        }
        if events < MAX_EVENTS && memory.published.get(&pod.uid) != Some(&wanted.reason) {
            publish(context, pod, &wanted).await;
            memory.published.insert(pod.uid.clone(), wanted.reason);
            events += 1;
        }
    }
    result
}

/// Takes back the conditions of pods that nothing is held against. A pod that the host refuses to change keeps nothing from the others.
///
/// # Errors
/// The host's API server refuses or does not answer.
pub(super) async fn clear_pods(
    context: &IdleGpusContext,
    memory: &mut Memory,
    pods: &[Arc<GpuPod>],
) -> Result<(), ReconcileError> {
    let mut result = Ok(());
    for pod in pods {
        memory.published.remove(&pod.uid);
        if let Some(wanted) = wanted(pod, None, "") {
            keep_refusal(set_condition(context, pod, &wanted).await, &mut result)?;
        }
    }
    result
}

/// Whether a pod was written. Keeps the first refusal in `first`, for when the other pods are written.
///
/// # Errors
/// The host's API server does not answer, or refuses all of it.
fn keep_refusal(
    written: Result<(), ReconcileError>,
    first: &mut Result<(), ReconcileError>,
) -> Result<bool, ReconcileError> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.refusal().is_some() => {
            if first.is_ok() {
                *first = Err(error);
            }
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// None for a pod that need not say anything.
fn wanted(pod: &GpuPod, step: Option<IdleStep>, message: &str) -> Option<Wanted> {
    if pod.is_ending || !pod.holds_devices() {
        return None;
    }
    if let Some(step) = step {
        return Some(Wanted {
            is_true: true,
            reason: step.as_str(),
            message: message.to_owned(),
        });
    }
    let is_warned = pod.condition.as_ref().is_some_and(|observed| observed.is_true);
    is_warned.then(|| Wanted {
        is_true: false,
        reason: ACTIVE,
        message: "The GPUs are in use, or the rules of the class no longer apply to the pod.".to_owned(),
    })
}

/// What the team reads: no name of the host is in it.
pub(super) fn describe(decision: &Decision, policy: &Policy) -> String {
    let Some(state) = &decision.state else {
        return String::new();
    };
    let workload = &decision.workload;
    let subject = format!(
        "The {} GPUs of {} {}/{} have done nothing since {}",
        decision.gpus,
        workload.kind,
        workload.namespace,
        workload.name,
        format_time(state.idle_since)
    );
    let what = match state.step {
        IdleStep::Warned | IdleStep::WarnedAgain => {
            "Berth reclaims GPUs that stay idle. Use them, or delete what you no longer need. The next step is due at"
        }
        IdleStep::CheckpointRequested if policy.last_step == IdleLastStep::StopOwner => {
            "Write a checkpoint now: Berth stops their owner, or evicts the pods, if their GPUs stay idle, at"
        }
        IdleStep::CheckpointRequested => "Write a checkpoint now: the pods are evicted if their GPUs stay idle, at",
        IdleStep::Reclaimable => {
            let what = match (policy.mode, policy.last_step) {
                (IdleReclaimMode::Enforce, IdleLastStep::EvictPods) => "The pods are evicted.",
                (IdleReclaimMode::Enforce, IdleLastStep::StopOwner) => {
                    "Their owner is stopped, or the pods are evicted if that is not possible."
                }
                (_, IdleLastStep::EvictPods) => "In mode Enforce the pods would be evicted.",
                (_, IdleLastStep::StopOwner) => "In mode Enforce their owner would be stopped.",
            };
            if policy.mode != IdleReclaimMode::Enforce {
                return format!("{subject}. {what}");
            }
            let until = format_time(state.step_since.saturating_add(policy.eviction_timeout));
            return format!("{subject}. {what} Disruption budgets keep pods until {until} at the latest.");
        }
    };
    let or_sooner = if decision.may_come_sooner() {
        ", or sooner, once none of its pods waits for a node or for a schedule"
    } else {
        ""
    };
    match decision.next_step_at {
        Some(due) => format!("{subject}. {what} {} at the earliest{or_sooner}.", format_time(due)),
        None => format!("{subject}. Berth reclaims GPUs that stay idle."),
    }
}

pub(super) fn format_time(second: Seconds) -> String {
    Timestamp::from_second(second).map_or_else(|_| second.to_string(), |time| time.to_string())
}

/// Sets the condition on the host pod, unless another pod has its name by now.
async fn set_condition(context: &IdleGpusContext, pod: &GpuPod, wanted: &Wanted) -> Result<(), ReconcileError> {
    let condition = build_condition(pod, wanted, context.clock.now());
    host_pod(pod).set_condition(&context.client, &condition).await
}

/// The condition of a pod, with the time if its status is another one than before.
fn build_condition(pod: &GpuPod, wanted: &Wanted, now: Timestamp) -> Value {
    let flips = pod
        .condition
        .as_ref()
        .is_none_or(|observed| observed.is_true != wanted.is_true);
    let why = (wanted.reason, wanted.message.as_str());
    pod_condition(GPUS_IDLE, wanted.is_true, why, flips.then_some(now))
}

fn host_pod(pod: &GpuPod) -> HostPod<'_> {
    HostPod {
        namespace: &pod.namespace,
        name: &pod.name,
        uid: &pod.uid,
    }
}

async fn publish(context: &IdleGpusContext, pod: &GpuPod, wanted: &Wanted) {
    let (type_, reason) = if wanted.is_true {
        (EventType::Warning, IDLE_EVENT)
    } else {
        (EventType::Normal, "GPUsActive")
    };
    let event = idle_event(type_, reason, &wanted.message);
    context.recorder.publish(&event, &host_pod(pod).reference()).await;
}

/// Publishes on the `TenantCluster` which workloads are idle and which are due.
pub(super) async fn publish_on_tenant(context: &IdleGpusContext, tenant: &ObservedTenant, decisions: &[&Decision]) {
    let reference = tenant.cluster.object_ref(&());
    for decision in decisions.iter().take(MAX_TENANT_EVENTS) {
        let message = describe(decision, &tenant.policy);
        let message = match tenant.policy.mode {
            IdleReclaimMode::DryRun => format!("Dry run: {message}"),
            _ => message,
        };
        let event = idle_event(EventType::Normal, IDLE_EVENT, &message);
        context.recorder.publish(&event, &reference).await;
    }
}

pub(super) fn idle_event(type_: EventType, reason: &str, message: &str) -> Event {
    Event {
        type_,
        reason: reason.to_owned(),
        note: Some(message.to_owned()),
        action: "ReclaimIdleGPUs".to_owned(),
        secondary: None,
    }
}

#[cfg(test)]
mod tests {
    use super::{super::test_decision::idle_at, *};
    use berth_api::IdleReclaim;
    use berth_idle_reclaim::pod::DevicesHeld;

    fn decision(step: IdleStep, next_step_at: Option<Seconds>) -> Decision {
        let mut decision = Decision {
            gpus: 8,
            next_step_at,
            ..idle_at(step, "train")
        };
        decision.workload.kind = "Job".into();
        decision.workload.namespace = "ml".into();
        decision.state.as_mut().unwrap().step_since = 3600;
        decision
    }

    #[test]
    fn messages_say_what_to_do_and_until_when() {
        let policy = |mode, last_step| {
            let rules = IdleReclaim {
                mode,
                last_step,
                ..IdleReclaim::default()
            };
            Policy::new(&rules)
        };
        let enforce = policy(IdleReclaimMode::Enforce, IdleLastStep::EvictPods);
        let text = describe(&decision(IdleStep::Warned, Some(7200)), &enforce);
        assert_eq!(
            text,
            "The 8 GPUs of Job ml/train have done nothing since 1970-01-01T00:00:00Z. Berth reclaims GPUs that stay idle. Use \
             them, or delete what you no longer need. The next step is due at 1970-01-01T02:00:00Z at the earliest."
        );
        let text = describe(&decision(IdleStep::CheckpointRequested, Some(7200)), &enforce);
        assert!(text.contains("Write a checkpoint now: the pods are evicted"), "{text}");
        assert!(text.ends_with("at 1970-01-01T02:00:00Z at the earliest."), "{text}");
        let mut waits = decision(IdleStep::CheckpointRequested, Some(7200));
        waits.awaits_pods = true;
        let text = describe(&waits, &enforce);
        assert!(
            text.contains("at 1970-01-01T02:00:00Z at the earliest, or sooner, once"),
            "{text}"
        );
        let last = |mode, last_step| describe(&decision(IdleStep::Reclaimable, None), &policy(mode, last_step));
        let (evict, stop) = (IdleLastStep::EvictPods, IdleLastStep::StopOwner);
        let until = "Disruption budgets keep pods until 1970-01-01T02:00:00Z at the latest.";
        let text = last(IdleReclaimMode::Enforce, evict);
        assert!(text.ends_with(&format!("The pods are evicted. {until}")), "{text}");
        assert!(last(IdleReclaimMode::Enforce, stop).ends_with(until));
        assert!(last(IdleReclaimMode::DryRun, evict).ends_with("would be evicted."));
        assert!(last(IdleReclaimMode::Enforce, stop).contains("Their owner is stopped"));
        assert!(last(IdleReclaimMode::DryRun, stop).ends_with("would be stopped."));
    }

    #[test]
    fn the_transition_time_moves_only_when_the_status_flips() {
        let mut pod = GpuPod {
            devices_held: DevicesHeld::Now,
            ..GpuPod::default()
        };
        let wanted = wanted(&pod, Some(IdleStep::WarnedAgain), "m").unwrap();
        let time = |pod: &GpuPod| {
            let condition = build_condition(pod, &wanted, Timestamp::UNIX_EPOCH);
            condition["lastTransitionTime"].clone()
        };
        assert_eq!(time(&pod), "1970-01-01T00:00:00Z");
        pod.condition = Some(ObservedCondition {
            is_true: true,
            reason: "Warned".into(),
        });
        assert_eq!(time(&pod), Value::Null);
    }

    #[test]
    fn a_pod_that_was_not_warned_needs_no_condition() {
        let mut pod = GpuPod {
            devices_held: DevicesHeld::Now,
            ..GpuPod::default()
        };
        assert!(wanted(&pod, None, "").is_none());
        pod.condition = Some(ObservedCondition {
            is_true: true,
            reason: "Warned".into(),
        });
        assert!(wanted(&pod, None, "").is_some_and(|wanted| !wanted.is_true));
        pod.is_ending = true;
        assert!(wanted(&pod, Some(IdleStep::Warned), "").is_none());
    }
}
