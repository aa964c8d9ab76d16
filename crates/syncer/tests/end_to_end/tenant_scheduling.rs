//! A tenant whose own schedulers place its pods.

use crate::{
    objects::{create, events, eventually, is_phase, pod},
    setup::Clusters,
};
use berth_api::{SchedulingMode, SyncPolicy};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Node, Pod},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedulers_in_the_tenant_decide() {
    let clusters = Clusters::start_with(SyncPolicy::default(), SchedulingMode::Tenant).await;
    let syncer = clusters.syncer().await;
    let nodes: Api<Node> = Api::all(clusters.tenant_admin.clone());
    eventually("two nodes", async || {
        nodes.list(&ListParams::default()).await.unwrap().items.len() == 2
    })
    .await;
    the_tenants_scheduler_places_by_its_own_labels(&clusters, &nodes).await;
    a_pod_waits_for_the_scheduler_it_names(&clusters).await;
    a_node_name_set_by_hand_counts(&clusters).await;
    daemons_run_everywhere(&clusters).await;
    policies_that_the_host_cannot_enforce_are_reported(&clusters).await;
    syncer.stop().await;
}

async fn the_tenants_scheduler_places_by_its_own_labels(clusters: &Clusters, nodes: &Api<Node>) {
    let patch = Patch::Merge(json!({"metadata": {"labels": {"mine": "yes"}}}));
    nodes
        .patch("gpu-h100-02", &PatchParams::default(), &patch)
        .await
        .unwrap();
    let pods = clusters.tenant_api::<Pod>();
    create(&pods, pod("chosen", &json!({"nodeSelector": {"mine": "yes"}}))).await;
    eventually("it runs", async || is_phase(&pods, "chosen", "Running").await).await;
    let node = |pod: Pod| pod.spec.unwrap().node_name;
    assert_eq!(node(pods.get("chosen").await.unwrap()).as_deref(), Some("gpu-h100-02"));
    assert_eq!(
        node(clusters.host_pod("chosen").await.unwrap()).as_deref(),
        Some("gpu-h100-02")
    );
}

pub async fn bind(clusters: &Clusters, name: &str, node: &str) {
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
    let request = http::Request::post(format!("/api/v1/namespaces/default/pods/{name}/binding"))
        .header("content-type", "application/json")
        .body(serde_json::to_vec(&binding).unwrap())
        .unwrap();
    clusters.tenant_admin.request::<Value>(request).await.unwrap();
}

async fn a_pod_waits_for_the_scheduler_it_names(clusters: &Clusters) {
    let pods = clusters.tenant_api::<Pod>();
    create(&pods, pod("by-volcano", &json!({"schedulerName": "volcano"}))).await;
    // Created later and running: the syncer has observed the first one by then.
    create(&pods, pod("later", &json!({}))).await;
    eventually("the later one runs", async || is_phase(&pods, "later", "Running").await).await;
    assert!(clusters.host_pod("by-volcano").await.is_none());
    bind(clusters, "by-volcano", "gpu-h100-01").await;
    eventually("it runs", async || is_phase(&pods, "by-volcano", "Running").await).await;
}

async fn a_node_name_set_by_hand_counts(clusters: &Clusters) {
    let pods = clusters.tenant_api::<Pod>();
    create(&pods, pod("by-hand", &json!({"nodeName": "gpu-h100-01"}))).await;
    eventually("it runs", async || is_phase(&pods, "by-hand", "Running").await).await;
}

async fn daemons_run_everywhere(clusters: &Clusters) {
    let template = json!({"metadata": {"labels": {"app": "agent"}}, "spec": {"containers": [{"name": "main", "image": "agent:1"}]}});
    let agent = json!({"metadata": {"name": "agent"}, "spec": {"selector": {"matchLabels": {"app": "agent"}}, "template": template}});
    let daemons = clusters.tenant_api::<DaemonSet>();
    create(&daemons, agent).await;
    eventually("one runs on each node", async || {
        let status = daemons.get("agent").await.unwrap().status.unwrap_or_default();
        status.number_available == Some(2)
    })
    .await;
    daemons.delete("agent", &DeleteParams::default()).await.unwrap();
}

async fn policies_that_the_host_cannot_enforce_are_reported(clusters: &Clusters) {
    let pods = clusters.tenant_api::<Pod>();
    let gpus = json!([{"name": "main", "image": "train:1", "resources": {"limits": {"nvidia.com/gpu": "80"}}}]);
    create(
        &pods,
        pod("too-much", &json!({"schedulerName": "mine", "containers": gpus})),
    )
    .await;
    bind(clusters, "too-much", "gpu-h100-01").await;
    eventually("condition and Event report the failure", async || {
        let status = pods.get("too-much").await.unwrap().status.unwrap();
        let conditions = status.conditions.unwrap_or_default();
        let is = |kind: &str, value: &str, reason: Option<&str>| {
            conditions.iter().any(|condition| {
                condition.type_ == kind
                    && condition.status == value
                    && reason.is_none_or(|reason| condition.reason.as_deref() == Some(reason))
            })
        };
        is("PodScheduled", "True", None)
            && is("berth.dev/Synced", "False", Some("NotPlaced"))
            && !events(clusters, "too-much", "FailedScheduling").await.is_empty()
    })
    .await;
    pods.delete("too-much", &DeleteParams::default()).await.unwrap();
    eventually("it is gone on both sides", async || {
        pods.get_opt("too-much").await.unwrap().is_none() && clusters.host_pod("too-much").await.is_none()
    })
    .await;
}
