//! Gives back the GPUs of workloads that are due, if Prometheus still says so right before: their owners are stopped if the class says so, else their pods are evicted, as
//! `kubectl drain` does: disruption budgets and grace periods hold.

use super::{
    IdleGpusContext,
    judge::{self, Confirmed},
    stop,
    tenants::{Memory, ObservedTenant},
};
use crate::{apply::is_status, controllers::pod_deletion::evict_only_this, metrics::ResultLabels};
use berth_idle_reclaim::{
    attempts::PodStep,
    order::{self, MAX_RECLAIMED, ReclaimOrder},
    pass::Decision,
    pod::GpuPod,
    workload::WorkloadName,
};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use std::{collections::HashSet, sync::Arc, time::Duration};
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

/// Gives back the workloads that come first, if they are still idle. Those that a budget keeps are tried again in the next pass, after all others.
pub(super) async fn reclaim(context: &IdleGpusContext, memory: &mut Memory, due: Vec<Due<'_>>) {
    let due = order::take_turns(
        due,
        |(tenant, _)| tenant.uid.clone(),
        |(tenant, decision)| ReclaimOrder::new(decision, tenant.is_over_quota(), memory.attempts.last_try(decision)),
    );
    let started = Instant::now();
    let mut reclaimed = 0;
    for together in due.chunks(ASKED_TOGETHER) {
        let mut confirmed: Option<(Instant, Confirmed)> = None;
        for (tenant, decision) in together {
            if reclaimed == MAX_RECLAIMED || started.elapsed() > TIME_LIMIT {
                return;
            }
            let is_fresh = |(asked, _): &(Instant, Confirmed)| asked.elapsed() < MAX_AGE;
            let known = if let Some(known) = confirmed.take_if(|known| is_fresh(known)) {
                known
            } else {
                let asked = Instant::now();
                match judge::confirm(context, memory, together, MAX_AGE).await {
                    Ok(answer) => (asked, answer),
                    Err(error) => {
                        tracing::warn!(%error, "cannot ask again about GPUs that are due: nothing more is given back in this pass");
                        return;
                    }
                }
            };
            let (_, answer) = confirmed.insert(known);
            memory.attempts.note_tried(decision, context.clock.now().as_second());
            if let Some(decision) = judge::find_due(answer, tenant, decision) {
                let is_reclaimed = reclaim_workload(context, memory, tenant, decision).await;
                reclaimed += usize::from(is_reclaimed);
            } else {
                keep(context, decision);
            }
        }
    }
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

/// Stops the owners of a workload, and evicts the pods of others. Returns whether at least one owner was stopped or one pod leaves.
async fn reclaim_workload(
    context: &IdleGpusContext,
    memory: &mut Memory,
    tenant: &ObservedTenant,
    decision: &Decision,
) -> bool {
    let now = context.clock.now().as_second();
    let steps = decision.pods.iter().filter(|pod| !pod.is_ending).map(|pod| {
        let step = memory.attempts.next_step(pod, tenant.policy.last_step, now);
        (Arc::clone(pod), step)
    });
    let steps: Vec<(Arc<GpuPod>, PodStep)> = steps.collect();
    let of_owners = steps.iter().filter(|(_, step)| *step == PodStep::StopOwner);
    let of_owners: Vec<Arc<GpuPod>> = of_owners.map(|(pod, _)| Arc::clone(pod)).collect();
    let stopped = if of_owners.is_empty() {
        HashSet::new()
    } else {
        // Pods that stayed although their owner was stopped count as others that it has: it is not stopped again for these.
        let decision = Decision {
            pods: of_owners,
            ..decision.clone()
        };
        stop::stop_owners(context, memory, tenant, &decision).await
    };
    let mut evicted = 0;
    for (pod, step) in steps {
        let result = if stopped.contains(&pod.uid) {
            memory.attempts.note_stopped(&pod, context.clock.now().as_second());
            STOPPED
        } else if step == PodStep::Wait {
            continue;
        } else {
            evict_pod(context, &pod).await
        };
        evicted += usize::from(result == EVICTED);
        let labels = ResultLabels { result };
        context.metrics.idle_evictions.get_or_create(&labels).inc();
    }
    let is_reclaimed = evicted > 0 || !stopped.is_empty();
    if is_reclaimed {
        let workload = &decision.workload;
        tracing::info!(
            kind = workload.kind,
            namespace = workload.namespace,
            name = workload.name,
            gpus = decision.gpus,
            stopped = stopped.len(),
            evicted,
            "gives back GPUs that are idle: stopped owners of so many pods, and evicted so many pods"
        );
    }
    is_reclaimed
}

/// The result for a pod whose owner was stopped.
const STOPPED: &str = "stopped";
/// The result for a pod whose GPUs are no longer known to be idle.
const KEPT: &str = "kept";
/// The result of an eviction that the API server accepted.
const EVICTED: &str = "ok";

/// Evicts one pod; returns the result for metrics.
async fn evict_pod(context: &IdleGpusContext, pod: &GpuPod) -> &'static str {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &pod.namespace);
    let params = evict_only_this(Some(pod.uid.clone()));
    match pods.evict(&pod.name, &params).await {
        Ok(_) => EVICTED,
        // It is gone, or another pod has its name.
        Err(error) if is_status(&error, 404) || is_status(&error, 409) => "gone",
        Err(error) if is_status(&error, 429) => "blocked",
        Err(error) => {
            tracing::warn!(namespace = pod.namespace, pod = pod.name, %error, "cannot evict a pod whose GPUs are idle");
            "failed"
        }
    }
}
