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
const MAX_WORKLOADS: usize = 10;

/// Evicts the pods of the workloads that come first. Those that a budget keeps are tried again in the next pass.
pub(super) async fn evict(context: &IdleGpusContext, due: &[Decision]) {
    let mut order: Vec<&Decision> = due.iter().collect();
    pass::sort_for_reclaim(&mut order);
    for decision in order.into_iter().take(MAX_WORKLOADS) {
        let workload = &decision.workload;
        tracing::info!(
            kind = workload.kind,
            namespace = workload.namespace,
            name = workload.name,
            gpus = decision.gpus,
            "evicting pods whose GPUs are idle"
        );
        for pod in decision.pods.iter().filter(|pod| !pod.is_ending) {
            let result = evict_pod(context, pod).await;
            context
                .metrics
                .idle_evictions
                .get_or_create(&ResultLabels { result })
                .inc();
        }
    }
}

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
        Ok(_) => "ok",
        // It is gone, or another pod has its name.
        Err(error) if is_status(&error, 404) || is_status(&error, 409) => "gone",
        Err(error) if is_status(&error, 429) => "blocked",
        Err(error) => {
            tracing::warn!(namespace = pod.namespace, pod = pod.name, %error, "cannot evict a pod whose GPUs are idle");
            "failed"
        }
    }
}
