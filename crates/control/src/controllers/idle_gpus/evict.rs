//! Gives back the GPUs of workloads that are due, if Prometheus still says so right before: their owners are stopped if the class says so, else their pods are evicted, as
//! `kubectl drain` does: disruption budgets and grace periods hold.

use super::{
    IdleGpusContext,
    judge::{self, Confirmed},
    stop,
    tenants::{Memory, ObservedTenant},
};
use crate::{apply::is_status, controllers::pod_deletion::evict_only_this, metrics::ResultLabels};
use berth_api::IdleLastStep;
use berth_idle_reclaim::{order::ReclaimOrder, pass::Decision, pod::GpuPod, workload::WorkloadName};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use std::{collections::HashSet, time::Duration};
use tokio::time::Instant;

/// Workloads that are given back in one pass at most: wrong metrics must not empty a fleet before somebody sees it.
const MAX_RECLAIMED: usize = 10;
/// Workloads that are tried in one pass at most. Those that a budget keeps do not count as given back, so that they keep no others.
const MAX_TRIED: usize = 200;
/// Time after which no further workload is tried in a pass: tenants decide how long it takes to stop an owner.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Workloads about which Prometheus is asked again together, before the first of them is given back.
const ASKED_TOGETHER: usize = 20;
/// Age of what is known of a workload that is given back, and so the longest time for the answer of Prometheus. To stop its owner may take
/// another 30 seconds before its pods are evicted.
const MAX_AGE: Duration = Duration::from_secs(30);

/// A workload that is due, with its tenant.
pub(super) type Due<'a> = (&'a ObservedTenant, &'a Decision);

/// Gives back the workloads that come first, if they are still idle. Those that a budget keeps are tried again in the next pass.
pub(super) async fn reclaim(context: &IdleGpusContext, memory: &mut Memory, mut due: Vec<Due<'_>>) {
    due.sort_by_cached_key(|(tenant, decision)| ReclaimOrder::new(decision, tenant.is_over_quota()));
    due.truncate(MAX_TRIED);
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
            if let Some(decision) = judge::find_due(answer, tenant, decision) {
                let leaves = reclaim_workload(context, memory, tenant, decision).await;
                reclaimed += usize::from(leaves);
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

/// Stops the owners of a workload, and evicts the pods of others. Returns whether at least one pod leaves.
async fn reclaim_workload(
    context: &IdleGpusContext,
    memory: &mut Memory,
    tenant: &ObservedTenant,
    decision: &Decision,
) -> bool {
    let stopped = match tenant.policy.last_step {
        IdleLastStep::EvictPods => HashSet::new(),
        IdleLastStep::StopOwner => stop::stop_owners(context, memory, tenant, decision).await,
    };
    let mut leaves = !stopped.is_empty();
    for pod in decision.pods.iter().filter(|pod| !pod.is_ending) {
        let result = if stopped.contains(&pod.uid) {
            STOPPED
        } else {
            evict_pod(context, pod).await
        };
        leaves |= result == EVICTED;
        let labels = ResultLabels { result };
        context.metrics.idle_evictions.get_or_create(&labels).inc();
    }
    if leaves {
        let workload = &decision.workload;
        tracing::info!(
            kind = workload.kind,
            namespace = workload.namespace,
            name = workload.name,
            gpus = decision.gpus,
            stopped = stopped.len(),
            "gave back GPUs that are idle: stopped owners of pods or evicted the pods"
        );
    }
    leaves
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
