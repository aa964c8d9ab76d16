//! Evicts the pods of workloads that are due, as `kubectl drain` does: disruption budgets and grace periods hold.

use super::IdleGpusContext;
use crate::{apply::is_status, metrics::ResultLabels};
use berth_idle_reclaim::{
    pass::{self, Decision},
    pod::GpuPod,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, EvictParams, Preconditions},
};

/// Workloads that are given back in one pass at most: wrong metrics must not empty a fleet before somebody sees it.
const MAX_RECLAIMED: usize = 10;
/// Workloads that are tried in one pass at most. Those that a budget keeps do not count as given back, so that they keep no others.
const MAX_TRIED: usize = 200;

/// Evicts the pods of the workloads that come first. Those that a budget keeps are tried again in the next pass.
pub(super) async fn evict(context: &IdleGpusContext, due: &[Decision]) {
    let mut order: Vec<&Decision> = due.iter().collect();
    pass::sort_for_reclaim(&mut order);
    let mut reclaimed = 0;
    for decision in order.into_iter().take(MAX_TRIED) {
        if reclaimed == MAX_RECLAIMED {
            return;
        }
        if evict_workload(context, decision).await {
            reclaimed += 1;
        }
    }
}

/// Evicts the pods of a workload. Returns whether at least one of them leaves.
async fn evict_workload(context: &IdleGpusContext, decision: &Decision) -> bool {
    let mut leaves = false;
    for pod in decision.pods.iter().filter(|pod| !pod.is_ending) {
        let result = evict_pod(context, pod).await;
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
            "evicted pods whose GPUs are idle"
        );
    }
    leaves
}

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
