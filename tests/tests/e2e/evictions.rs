//! Pods that the host removes: what a team sees of it, and that its work goes on.

use crate::{
    pods::{SOON, Space, script, with},
    teams::vision,
};
use berth_api::{is_pod_ready, labels};
use berth_tests::{test_cluster::TestCluster, wait::until};
use k8s_openapi::api::{apps::v1::Deployment, batch::v1::Job, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, EvictParams, ListParams},
};
use serde_json::{Value, json};
use std::sync::Arc;

/// A trainer that saves its work and exits with 0 at SIGTERM: its Job is not complete, also if its policy counts no disruptions.
pub(crate) async fn a_job_goes_on_after_the_host_evicted_its_pod(host: Arc<TestCluster>) {
    let space = Space::new(vision(&host).await, "life-eviction").await;
    let jobs: Api<Job> = space.api();
    let ignored = json!({"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]});
    for (name, policy, failures) in [("trainer", Value::Null, 1), ("tolerant", ignored, 0)] {
        let mut spec = trainer();
        spec["restartPolicy"] = "Never".into();
        let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
            "spec": {"template": {"spec": spec}, "podFailurePolicy": policy}});
        space.apply(job).await;
        let selector = format!("batch.kubernetes.io/job-name={name}");
        let first = until_other_is_ready(&space, &selector, None).await;
        evict_on_host(&host, &space, &first).await;
        until_it_ends(&space, &first).await;
        let counts = async || {
            let status = jobs.get(name).await.unwrap().status.unwrap_or_default();
            (status.succeeded.unwrap_or_default(), status.failed.unwrap_or_default())
        };
        until("the Job counts the failure while the pod ends", SOON, async || {
            let counted = counts().await;
            if counted == (0, failures) { Ok(()) } else { Err(counted) }
        })
        .await;
        end(&space, &first).await;
        until_other_is_ready(&space, &selector, Some(&first)).await;
        assert_eq!(counts().await, (0, failures), "{name}");
        jobs.delete(name, &DeleteParams::background()).await.unwrap();
    }
}

/// Another pod serves before the one that the host evicts has ended.
pub(crate) async fn a_deployment_replaces_a_pod_that_the_host_evicts(host: Arc<TestCluster>) {
    let space = Space::new(vision(&host).await, "life-replaced").await;
    let labels = json!({"app": "served"});
    let template = json!({"metadata": {"labels": labels}, "spec": trainer()});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "served"},
        "spec": {"selector": {"matchLabels": labels}, "template": template}});
    space.apply(deployment).await;
    let first = until_other_is_ready(&space, "app=served", None).await;
    evict_on_host(&host, &space, &first).await;
    until_other_is_ready(&space, "app=served", Some(&first)).await;
    until_it_ends(&space, &first).await;
    end(&space, &first).await;
    let deployments: Api<Deployment> = space.api();
    deployments.delete("served", &DeleteParams::background()).await.unwrap();
}

/// A pod's spec whose process exits with 0 some time after it got SIGTERM: when the test lets it [`end`].
fn trainer() -> Value {
    let text = "trap 'until [ -e /tmp/end ]; do sleep 0.1; done; exit 0' TERM; touch /tmp/ready; while true; do sleep 0.1; done";
    let probe = json!({"exec": {"command": ["test", "-e", "/tmp/ready"]}, "periodSeconds": 1, "timeoutSeconds": 10});
    json!({"terminationGracePeriodSeconds": 300, "containers": [with(script(text), json!({"readinessProbe": probe}))]})
}

/// Waits until a pod is ready that is not this one.
async fn until_other_is_ready(space: &Space, selector: &str, known: Option<&Pod>) -> Pod {
    until("another pod is ready", SOON, async || {
        let pods = space.pods.list(&ListParams::default().labels(selector)).await.unwrap();
        let is_other = |pod: &Pod| is_pod_ready(pod) && pod.uid() != known.and_then(ResourceExt::uid);
        pods.into_iter().find(is_other).ok_or("no other pod is ready")
    })
    .await
}

async fn evict_on_host(host: &TestCluster, space: &Space, pod: &Pod) {
    let on_host: Api<Pod> = Api::namespaced(host.client.clone(), &space.tenant.id.workload_namespace());
    let all = on_host.list(&ListParams::default()).await.unwrap().items;
    let is_its = |host: &&Pod| host.annotations().get(labels::ORIGIN_UID) == pod.metadata.uid.as_ref();
    let name = all.iter().find(is_its).unwrap().name_any();
    on_host.evict(&name, &EvictParams::default()).await.unwrap();
}

/// Waits until a pod is deleted in the tenant as on the host, and is not ready.
async fn until_it_ends(space: &Space, pod: &Pod) {
    let ending = space
        .until(&pod.name_any(), "ends", |pod| {
            !is_pod_ready(pod) && pod.metadata.deletion_timestamp.is_some()
        })
        .await;
    assert_eq!(ending.uid(), pod.uid());
    assert_eq!(ending.metadata.deletion_grace_period_seconds, Some(300));
}

/// Lets a pod end, and waits until it is gone.
async fn end(space: &Space, pod: &Pod) {
    space.exec(&pod.name_any(), &["touch", "/tmp/end"]).await;
    until("the pod is gone", SOON, async || {
        let found = space.pods.get_opt(&pod.name_any()).await.unwrap();
        found.map_or(Ok(()), |pod| Err(format!("{:?}", pod.status)))
    })
    .await;
}
