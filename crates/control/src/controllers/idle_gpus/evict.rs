//! Gives back the GPUs of workloads that are due: their owners are stopped if the class says so, else their pods are evicted, as
//! `kubectl drain` does: disruption budgets and grace periods hold.

use super::{
    IdleGpusContext, stop,
    tenants::{Memory, ObservedTenant},
};
use crate::{apply::is_status, metrics::ResultLabels};
use berth_api::IdleLastStep;
use berth_idle_reclaim::{
    pass::{self, Decision},
    pod::GpuPod,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, EvictParams, Preconditions},
};
use std::{collections::HashSet, time::Duration};
use tokio::time::Instant;

/// Workloads that are given back in one pass at most: wrong metrics must not empty a fleet before somebody sees it.
const MAX_RECLAIMED: usize = 10;
/// Workloads that are tried in one pass at most. Those that a budget keeps do not count as given back, so that they keep no others.
const MAX_TRIED: usize = 200;
/// Time after which no further workload is tried in a pass: tenants decide how long it takes to stop an owner.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// A workload that is due, with its tenant.
pub(super) type Due<'a> = (&'a ObservedTenant, &'a Decision);

/// Gives back the workloads that come first. Those that a budget keeps are tried again in the next pass.
pub(super) async fn reclaim(context: &IdleGpusContext, memory: &mut Memory, mut due: Vec<Due<'_>>) {
    pass::sort_for_reclaim(&mut due, |(_, decision)| decision);
    let started = Instant::now();
    let mut reclaimed = 0;
    for (tenant, decision) in due.into_iter().take(MAX_TRIED) {
        if reclaimed == MAX_RECLAIMED || started.elapsed() > TIME_LIMIT {
            return;
        }
        if reclaim_workload(context, memory, tenant, decision).await {
            reclaimed += 1;
        }
    }
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
/// The result of an eviction that the API server accepted.
const EVICTED: &str = "ok";

/// Evicts one pod; returns the result for metrics.
async fn evict_pod(context: &IdleGpusContext, pod: &GpuPod) -> &'static str {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &pod.namespace);
    let params = EvictParams {
        delete_options: Some(DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(pod.uid.clone()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        }),
        ..EvictParams::default()
    };
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
