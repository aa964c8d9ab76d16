//! Gives back the GPUs of workloads that are due, if Prometheus still says so right before: their owners are stopped if the class says so, else their pods are evicted, as
//! `kubectl drain` does: grace periods hold, and disruption budgets do for the time of the class.

use super::{
    IdleGpusContext,
    decisions::{self, Confirmed},
    stop,
    tenants::{InTenant, Memory, ObservedTenant},
    turns::{PATIENCE, Turns},
};
use crate::{apply::is_status, controllers::pod_deletion, metrics::ResultLabels};
use berth_idle_reclaim::{
    attempts::PodStep,
    order::{self, MAX_RECLAIMED, ReclaimOrder},
    pass::Decision,
    pod::GpuPod,
    workload::WorkloadName,
};
use berth_prometheus::QueryError;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use std::{collections::HashSet, iter, mem, sync::Arc, time::Duration};
use tokio::time::Instant;

/// Time after which no further workload is tried in a pass: tenants decide how long it takes to stop an owner.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Workloads about which Prometheus is asked again together, before the first of them is given back.
const ASKED_TOGETHER: usize = 20;
/// Age of what is known of a workload that is given back, and so the longest time for the answer of Prometheus. To stop its owner may take
/// another 30 seconds before its pods are evicted.
const MAX_AGE: Duration = Duration::from_secs(30);

/// A workload that is due, with its tenant.
pub(super) type Due<'a> = (&'a ObservedTenant, &'a Decision);

/// What Prometheus said right before.
struct Answer<'a> {
    asked: Instant,
    about: Vec<Due<'a>>,
    confirmed: Confirmed,
}

impl Answer<'_> {
    /// Whether it counts for a workload.
    fn is_fresh(&self, decision: &Decision) -> bool {
        let is_asked = self.about.iter().any(|(_, asked)| std::ptr::eq(*asked, decision));
        is_asked && self.asked.elapsed() < MAX_AGE
    }
}

/// What became of a workload.
struct Ended<'a> {
    tenant: &'a ObservedTenant,
    inside: InTenant,
    gave: Gave,
}

/// How a workload was given back.
#[derive(Default)]
struct Gave {
    /// Pods whose owner was stopped.
    stopped: Vec<Arc<GpuPod>>,
    /// How many pods were evicted.
    evicted: usize,
}

impl Gave {
    /// Whether at least one owner was stopped or one pod leaves.
    fn is_reclaimed(&self) -> bool {
        self.evicted > 0 || !self.stopped.is_empty()
    }
}

/// Gives back the workloads that come first, if they are still idle. Those that a budget keeps are tried again in the next pass, after all others.
///
/// One comes after the other, except for tenants that take long: the others go on beside them, and they are asked after all others once that is
/// known. So they delay nobody but themselves. As many tenants are waited for side by side as workloads may be given back.
pub(super) async fn reclaim<'a>(context: &'a IdleGpusContext, memory: &mut Memory, due: Vec<Due<'a>>) {
    let mut due = order::take_turns(
        due,
        |(tenant, _)| tenant.uid.clone(),
        |(tenant, decision)| ReclaimOrder::new(decision, tenant.is_over_quota(), memory.attempts.last_try(decision)),
    );
    let started = Instant::now();
    let mut turns: Turns<'a, Ended<'a>> = Turns::new();
    let mut reclaimed = 0;
    let mut answer: Option<Answer<'a>> = None;
    loop {
        for ended in turns.take_ended() {
            reclaimed += usize::from(remember(context, memory, ended));
        }
        let has_room = reclaimed + turns.count_busy() < MAX_RECLAIMED && started.elapsed() <= TIME_LIMIT;
        let Some(next) = find_next(memory, &turns, &due).filter(|_| has_room) else {
            if turns.wait().await {
                continue;
            }
            return;
        };
        let (tenant, decision) = due.remove(next);
        let known = match answer.take() {
            Some(known) if known.is_fresh(decision) => known,
            _ => {
                let about = iter::once((tenant, decision)).chain(due.iter().copied());
                let about = about.take(ASKED_TOGETHER).collect();
                match turns.beside(ask(context, memory, about)).await {
                    Ok(known) => known,
                    Err(error) => {
                        tracing::warn!(%error, "cannot ask again about GPUs that are due: nothing more is given back in this pass");
                        due.clear();
                        continue;
                    }
                }
            }
        };
        memory.attempts.note_tried(decision, context.clock.now().as_second());
        if let Some(confirmed) = decisions::find_due(&known.confirmed, tenant, decision) {
            let patience = if memory.inside(tenant).pace.is_late() {
                Duration::ZERO
            } else {
                PATIENCE
            };
            let steps = plan(context, memory, tenant, confirmed);
            let inside = mem::take(memory.inside(tenant));
            let work = give_back(context, tenant, inside, confirmed.clone(), steps);
            turns.begin(&tenant.uid, patience, work).await;
        } else {
            keep(context, decision);
        }
        answer = Some(known);
    }
}

/// The place of the workload that is tried next: of a tenant that is not busy, and if there is one, of a tenant that does not take long.
fn find_next<'a>(memory: &mut Memory, turns: &Turns<'a, Ended<'a>>, due: &[Due<'a>]) -> Option<usize> {
    let all = due.iter().enumerate();
    let free: Vec<(usize, &Due<'a>)> = all.filter(|(_, (tenant, _))| !turns.is_busy(&tenant.uid)).collect();
    let quick = free
        .iter()
        .find(|(_, (tenant, _))| !memory.inside(tenant).pace.is_late());
    quick.or(free.first()).map(|(place, _)| *place)
}

/// Asks Prometheus once more about workloads.
async fn ask<'a>(
    context: &IdleGpusContext,
    memory: &mut Memory,
    about: Vec<Due<'a>>,
) -> Result<Answer<'a>, QueryError> {
    let asked = Instant::now();
    let confirmed = decisions::confirm(context, memory, &about, MAX_AGE).await?;
    Ok(Answer {
        asked,
        about,
        confirmed,
    })
}

/// What is to be done about each pod of a workload.
fn plan(
    context: &IdleGpusContext,
    memory: &Memory,
    tenant: &ObservedTenant,
    decision: &Decision,
) -> Vec<(Arc<GpuPod>, PodStep)> {
    let now = context.clock.now().as_second();
    let pods = decision.pods.iter().filter(|pod| !pod.is_ending);
    pods.map(|pod| {
        (
            Arc::clone(pod),
            memory.attempts.next_step(pod, tenant.policy.last_step, now),
        )
    })
    .collect()
}

/// Gives back a workload of a tenant.
async fn give_back<'a>(
    context: &IdleGpusContext,
    tenant: &'a ObservedTenant,
    mut inside: InTenant,
    decision: Decision,
    steps: Vec<(Arc<GpuPod>, PodStep)>,
) -> Ended<'a> {
    let gave = reclaim_workload(context, &mut inside, tenant, &decision, steps).await;
    Ended { tenant, inside, gave }
}

/// Remembers what became of a workload. Returns whether it was given back.
fn remember(context: &IdleGpusContext, memory: &mut Memory, ended: Ended<'_>) -> bool {
    *memory.inside(ended.tenant) = ended.inside;
    let now = context.clock.now().as_second();
    for pod in &ended.gave.stopped {
        memory.attempts.note_stopped(pod, now);
    }
    ended.gave.is_reclaimed()
}

/// Notes that a workload is no longer idle, or that this is not known any more. The next pass says so to its team.
fn keep(context: &IdleGpusContext, decision: &Decision) {
    let WorkloadName { kind, namespace, name } = &decision.workload;
    tracing::info!(
        kind,
        namespace,
        name,
        "GPUs that were due are no longer known to be idle; keeping the pods"
    );
    let labels = ResultLabels { result: KEPT };
    let pods = u64::try_from(decision.pods.len()).unwrap_or(u64::MAX);
    context.metrics.idle_evictions.get_or_create(&labels).inc_by(pods);
}

/// The pods whose owners are to be stopped. Those without a node count with others that have one, and not alone: an owner that is not stopped by that, and makes
/// such a pod again in each pass, would be stopped in each pass.
fn list_pods_of_owners(steps: &[(Arc<GpuPod>, PodStep)]) -> Vec<Arc<GpuPod>> {
    let of_owners = steps.iter().filter(|(_, step)| *step == PodStep::StopOwner);
    let of_owners: Vec<Arc<GpuPod>> = of_owners.map(|(pod, _)| Arc::clone(pod)).collect();
    if of_owners.iter().any(|pod| pod.holds_devices()) {
        of_owners
    } else {
        Vec::new()
    }
}

/// Stops the owners of a workload, and evicts the pods of others.
async fn reclaim_workload(
    context: &IdleGpusContext,
    inside: &mut InTenant,
    tenant: &ObservedTenant,
    decision: &Decision,
    steps: Vec<(Arc<GpuPod>, PodStep)>,
) -> Gave {
    let of_owners = list_pods_of_owners(&steps);
    let stopped = if of_owners.is_empty() {
        HashSet::new()
    } else {
        // Pods that stayed although their owner was stopped count as others that it has: it is not stopped again for these.
        let decision = Decision {
            pods: of_owners,
            ..decision.clone()
        };
        stop::stop_owners(context, inside, tenant, &decision).await
    };
    let ignores_budgets = decision.is_overdue(tenant.policy.eviction_timeout, context.clock.now().as_second());
    let mut gave = Gave::default();
    for (pod, step) in steps {
        let result = if stopped.contains(&pod.uid) {
            gave.stopped.push(pod);
            STOPPED
        } else if step == PodStep::Wait || !pod.holds_devices() {
            // A pod without a node has nothing to give back. Its owner would make another one in each pass.
            continue;
        } else {
            evict_pod(context, &pod, ignores_budgets).await
        };
        gave.evicted += usize::from([EVICTED, FORCED].contains(&result));
        let labels = ResultLabels { result };
        context.metrics.idle_evictions.get_or_create(&labels).inc();
    }
    if gave.is_reclaimed() {
        let workload = &decision.workload;
        tracing::info!(
            kind = workload.kind,
            namespace = workload.namespace,
            name = workload.name,
            gpus = decision.gpus,
            stopped = stopped.len(),
            evicted = gave.evicted,
            "gives back GPUs that are idle: stopped owners of so many pods, and evicted so many pods"
        );
    }
    gave
}

/// The result for a pod whose owner was stopped.
const STOPPED: &str = "stopped";
/// The result for a pod whose GPUs are no longer known to be idle.
const KEPT: &str = "kept";
/// The result of an eviction that the API server accepted.
const EVICTED: &str = "ok";

/// The result of the deletion of a pod that a budget has kept for too long.
const FORCED: &str = "forced";

/// Evicts one pod, or deletes it if a budget may keep it no longer; returns the result for metrics.
async fn evict_pod(context: &IdleGpusContext, pod: &GpuPod, ignores_budgets: bool) -> &'static str {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &pod.namespace);
    let evicted = pod_deletion::evict_pod(&pods, &pod.name, Some(pod.uid.clone())).await;
    let is_kept = ignores_budgets && evicted.as_ref().is_err_and(is_refusal);
    let (result, left) = if is_kept {
        let deleted = pod_deletion::delete_in_its_time(&pods, &pod.name, Some(pod.uid.clone())).await;
        (FORCED, deleted)
    } else {
        (EVICTED, evicted)
    };
    match left {
        Ok(()) => result,
        // It is gone, or another pod has its name.
        Err(error) if is_status(&error, 404) || is_status(&error, 409) => "gone",
        Err(error) if is_status(&error, 429) => "blocked",
        Err(error) => {
            tracing::warn!(namespace = pod.namespace, pod = pod.name, %error, "cannot evict a pod whose GPUs are idle");
            "failed"
        }
    }
}

/// Whether the API server does not evict a pod that is there. The code of a budget is 429, but of a pod that two budgets select, it is 500.
fn is_refusal(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if ![404, 409].contains(&status.code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_idle_reclaim::pod::DevicesHeld;

    #[test]
    fn an_owner_is_not_stopped_for_a_pod_without_a_node_alone() {
        let pod = |devices_held| {
            Arc::new(GpuPod {
                devices_held,
                ..GpuPod::default()
            })
        };
        let (runs, waits) = (pod(DevicesHeld::Now), pod(DevicesHeld::NotYet));
        let count = |steps: &[(&Arc<GpuPod>, PodStep)]| {
            let steps: Vec<(Arc<GpuPod>, PodStep)> = steps.iter().map(|(pod, step)| (Arc::clone(pod), *step)).collect();
            list_pods_of_owners(&steps).len()
        };
        let stop = PodStep::StopOwner;
        assert_eq!(count(&[(&runs, stop), (&waits, stop)]), 2);
        assert_eq!(count(&[(&runs, PodStep::Evict), (&waits, stop)]), 0);
        assert_eq!(count(&[(&waits, stop)]), 0);
    }
}
