//! Where pods may run when that changes while they wait, and pods that a scheduler of the tenant places.

use crate::{
    objects::{create, eventually, is_phase, pod},
    setup::Clusters,
    tenant_scheduling::bind,
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};

const NODES: [&str; 2] = ["gpu-h100-01", "gpu-h100-02"];

async fn patch_node(clusters: &Clusters, name: &str, patch: Value) {
    let nodes: Api<Node> = Api::all(clusters.tenant_admin.clone());
    let patch = Patch::Merge(patch);
    nodes.patch(name, &PatchParams::default(), &patch).await.unwrap();
}

async fn runs_on(clusters: &Clusters, name: &str, node: &str) {
    let pods = clusters.tenant_api::<Pod>();
    eventually("it runs", async || is_phase(&pods, name, "Running").await).await;
    let placed = pods.get(name).await.unwrap().spec.unwrap().node_name;
    assert_eq!(placed.as_deref(), Some(node));
    let host = clusters.host_pod(name).await.unwrap().spec.unwrap().node_name;
    assert_eq!(host.as_deref(), Some(node));
    pods.delete(name, &DeleteParams::default()).await.unwrap();
}

/// A pod that was created while all Nodes were cordoned, or before a Node had the label that it asks for, runs as soon as a Node is
/// open to it, as in any cluster.
pub async fn waiting_pods_follow_the_nodes(clusters: &Clusters) {
    let pods = clusters.tenant_api::<Pod>();
    for node in NODES {
        patch_node(clusters, node, json!({"spec": {"unschedulable": true}})).await;
    }
    let nodes: Api<Node> = Api::all(clusters.tenant_admin.clone());
    eventually("the syncer has seen the cordons", async || {
        for node in NODES {
            if nodes.get(node).await.unwrap().spec.unwrap().taints.is_none() {
                return false;
            }
        }
        true
    })
    .await;
    create(&pods, pod("held", &json!({}))).await;
    create(&pods, pod("labelled", &json!({"nodeSelector": {"color": "blue"}}))).await;
    eventually("both wait on the host", async || {
        clusters.host_pod("held").await.is_some() && clusters.host_pod("labelled").await.is_some()
    })
    .await;
    patch_node(clusters, NODES[1], json!({"spec": {"unschedulable": null}})).await;
    runs_on(clusters, "held", NODES[1]).await;
    assert!(!is_phase(&pods, "labelled", "Running").await);
    patch_node(
        clusters,
        NODES[0],
        json!({"spec": {"unschedulable": null}, "metadata": {"labels": {"color": "blue"}}}),
    )
    .await;
    runs_on(clusters, "labelled", NODES[0]).await;
    patch_node(clusters, NODES[0], json!({"metadata": {"labels": {"color": null}}})).await;
}

/// The host's scheduler leaves a pod that names another scheduler alone, and a Binding by that one counts.
pub async fn a_scheduler_of_the_tenant_places_single_pods(clusters: &Clusters) {
    let pods = clusters.tenant_api::<Pod>();
    create(&pods, pod("by-volcano", &json!({"schedulerName": "volcano"}))).await;
    // Created later and running: the syncer has observed the first one by then.
    create(&pods, pod("later", &json!({}))).await;
    eventually("the later one runs", async || is_phase(&pods, "later", "Running").await).await;
    assert!(clusters.host_pod("by-volcano").await.is_none());
    for node in NODES {
        if pods.get_opt("by-volcano").await.unwrap().is_none() {
            create(&pods, pod("by-volcano", &json!({"schedulerName": "volcano"}))).await;
        }
        bind(clusters, "by-volcano", node).await;
        runs_on(clusters, "by-volcano", node).await;
        eventually("it is gone", async || {
            pods.get_opt("by-volcano").await.unwrap().is_none()
        })
        .await;
    }
    pods.delete("later", &DeleteParams::default()).await.unwrap();
}
