//! Nodes: those that control publishes, and no others.

use crate::setup::{Clusters, create, eventually};
use k8s_openapi::api::core::v1::{Event, Node};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;

pub async fn nodes_appear(clusters: &Clusters) {
    let nodes: Api<Node> = Api::all(clusters.tenant_admin.clone());
    eventually("two ready nodes", async || {
        let nodes = nodes.list(&ListParams::default()).await.unwrap();
        let ready = |node: &Node| {
            let conditions = node
                .status
                .as_ref()
                .and_then(|status| status.conditions.clone())
                .unwrap_or_default();
            conditions
                .iter()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True")
        };
        nodes.items.len() == 2 && nodes.iter().all(ready)
    })
    .await;
    // Changes by a tenant to labels of the host are undone; its own labels stay.
    let patch = json!({"metadata": {"labels": {"nvidia.com/gpu.product": "other", "mine": "yes"}}});
    nodes
        .patch("gpu-h100-01", &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
    eventually("the label is put back", async || {
        let labels = nodes.get("gpu-h100-01").await.unwrap().metadata.labels.unwrap();
        labels["nvidia.com/gpu.product"] != "other" && labels["mine"] == "yes"
    })
    .await;
}

pub async fn nodes_go(clusters: &Clusters) {
    let nodes: Api<Node> = Api::all(clusters.tenant_admin.clone());
    create(&nodes, json!({"metadata": {"name": "made-by-hand"}})).await;
    clusters.unpublish_node("gpu-h100-02").await;
    eventually("only the node that control publishes is left", async || {
        let left = nodes.list(&ListParams::default()).await.unwrap();
        left.items.len() == 1 && left.items[0].metadata.name.as_deref() == Some("gpu-h100-01")
    })
    .await;
    let events: Api<Event> = Api::namespaced(clusters.tenant_admin.clone(), "default");
    eventually("an Event reports the tenant's own node", async || {
        let events = events.list(&ListParams::default()).await.unwrap();
        events
            .iter()
            .any(|event| event.reason.as_deref() == Some("NodeRejected"))
    })
    .await;
    clusters.publish_nodes(&["gpu-h100-02"]).await;
}
