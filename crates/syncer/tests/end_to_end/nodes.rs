//! Nodes: those that control publishes, and no others.

use crate::{
    objects::{create, eventually},
    setup::{CONTROL_PLANE, Clusters},
};
use berth_api::TenantNode;
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Event, Node},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
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

/// Taints of the host's Nodes reach the tenant and go again, and nothing else keeps the tenant's DaemonSets away.
pub async fn taints_follow_the_host_and_the_cordon(clusters: &Clusters) {
    let daemons: Api<DaemonSet> = clusters.tenant_api();
    let container = json!({"name": "agent", "image": "registry.k8s.io/pause:3.10.1"});
    let labels = json!({"app": "agent"});
    create(
        &daemons,
        json!({"metadata": {"name": "agent"}, "spec": {"selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}}}}),
    )
    .await;
    eventually("a DaemonSet without tolerations runs on all nodes", async || {
        let status = daemons.get("agent").await.unwrap().status.unwrap_or_default();
        (status.desired_number_scheduled, status.number_ready) == (2, 2)
    })
    .await;
    daemons.delete("agent", &DeleteParams::background()).await.unwrap();

    let nodes: Api<Node> = Api::all(clusters.tenant_admin.clone());
    let published: Api<TenantNode> = Api::namespaced(clusters.host_admin.clone(), CONTROL_PLANE);
    let merge = |patch| (PatchParams::default(), Patch::Merge(patch));
    let taints_are = async |what: &str, expected: &[&str]| {
        eventually(what, async || {
            let spec = nodes.get("gpu-h100-01").await.unwrap().spec.unwrap_or_default();
            let taints = spec.taints.unwrap_or_default();
            let keys: Vec<&str> = taints.iter().map(|taint| taint.key.as_str()).collect();
            keys == expected
        })
        .await;
    };
    let own = json!({"key": "team/dedicated", "effect": "PreferNoSchedule"});
    let (params, patch) = merge(json!({"spec": {"taints": [own]}}));
    nodes.patch("gpu-h100-01", &params, &patch).await.unwrap();
    let unreachable = json!({"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"});
    let (params, patch) = merge(json!({"spec": {"taints": [unreachable]}}));
    published.patch("gpu-h100-01", &params, &patch).await.unwrap();
    let both = ["node.kubernetes.io/unreachable", "team/dedicated"];
    taints_are("the host's taint is there beside the tenant's own", &both).await;
    let (params, patch) = merge(json!({"spec": {"taints": []}}));
    published.patch("gpu-h100-01", &params, &patch).await.unwrap();
    taints_are("the host's taint is gone", &["team/dedicated"]).await;

    let (params, patch) = merge(json!({"spec": {"unschedulable": true, "taints": null}}));
    nodes.patch("gpu-h100-01", &params, &patch).await.unwrap();
    taints_are(
        "the tenant's cordon has its taint",
        &["node.kubernetes.io/unschedulable"],
    )
    .await;
    let (params, patch) = merge(json!({"spec": {"unschedulable": null}}));
    nodes.patch("gpu-h100-01", &params, &patch).await.unwrap();
    taints_are("the cordon's taint is gone", &[]).await;
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
