//! Pods that the host removes: what a team sees of it, and that its work goes on.

use crate::{
    pods::{SOON, Space, is_ready, script, with},
    teams::vision,
};
use berth_api::labels;
use berth_tests::{test_cluster::TestCluster, wait::until};
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, EvictParams, ListParams},
};
use serde_json::json;
use std::sync::Arc;

/// A trainer that saves its work and exits with 0 at SIGTERM: its Job is not complete.
pub(crate) async fn a_job_goes_on_after_the_host_evicted_its_pod(host: Arc<TestCluster>) {
    let space = Space::new(vision(&host).await, "life-eviction").await;
    let text = "trap 'sleep 2; exit 0' TERM; touch /tmp/ready; while true; do sleep 0.1; done";
    let container = with(
        script(text),
        json!({"readinessProbe": {"exec": {"command": ["test", "-e", "/tmp/ready"]}, "periodSeconds": 1, "timeoutSeconds": 10}}),
    );
    let spec = json!({"template": {"spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 60, "containers": [container]}}});
    space
        .apply(json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "trainer"}, "spec": spec}))
        .await;
    let of_job = ListParams::default().labels("batch.kubernetes.io/job-name=trainer");
    let first = until("the pod is ready", SOON, async || {
        let pods = space.pods.list(&of_job).await.unwrap().items;
        pods.into_iter().find(is_ready).ok_or("no pod is ready")
    })
    .await;
    let on_host: Api<Pod> = Api::namespaced(host.client.clone(), &space.tenant.id.workload_namespace());
    let all = on_host.list(&ListParams::default()).await.unwrap().items;
    let origin = |pod: &Pod| pod.annotations().get(labels::ORIGIN_UID).cloned();
    let evicted = all.iter().find(|pod| origin(pod) == first.uid()).unwrap();
    on_host
        .evict(&evicted.name_any(), &EvictParams::default())
        .await
        .unwrap();
    space
        .until(&first.name_any(), "it is not ready while it ends", |pod| {
            !is_ready(pod) && pod.metadata.deletion_timestamp.is_none()
        })
        .await;
    let jobs: Api<Job> = space.api();
    let status = until("the Job counts a failure", SOON, async || {
        let status = jobs.get("trainer").await.unwrap().status.unwrap();
        let is_counted = status.failed == Some(1) && status.active == Some(1);
        if is_counted {
            Ok(status)
        } else {
            Err(format!("{status:?}"))
        }
    })
    .await;
    assert_eq!(status.succeeded.unwrap_or_default(), 0);
    let failed = space.pods.get(&first.name_any()).await.unwrap().status.unwrap();
    assert_eq!(
        (failed.phase.as_deref(), failed.reason.as_deref()),
        (Some("Failed"), Some("EvictionByEvictionAPI"))
    );
    until("another pod goes on", SOON, async || {
        let pods = space.pods.list(&of_job).await.unwrap().items;
        let is_other = |pod: &&Pod| pod.uid() != first.uid() && is_ready(pod);
        if pods.iter().any(|pod| is_other(&pod)) {
            Ok(())
        } else {
            Err("no other pod is ready")
        }
    })
    .await;
    jobs.delete("trainer", &DeleteParams::background()).await.unwrap();
}
