//! A node on which the platform lets no new pods start goes to no tenant.

use crate::setup::{SOON, Team, until_all_free};
use berth_api::NodeGroup;
use berth_tests::{test_cluster::TestCluster, wait::until_true};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use std::sync::Arc;

const CLOSED: [&str; 3] = ["gpu-h100-01", "gpu-h100-02", "gpu-h100-03"];
const OPEN: &str = "gpu-h100-04";

async fn set_taints(host: &TestCluster, taints: &Value) {
    let nodes: Api<Node> = Api::all(host.client.clone());
    let patch = Patch::Merge(json!({"spec": {"taints": taints}}));
    for node in CLOSED {
        nodes.patch(node, &PatchParams::default(), &patch).await.unwrap();
    }
}

pub(crate) async fn a_pod_gets_a_node_on_which_it_can_start(host: Arc<TestCluster>) {
    let taint = json!({"key": "node-problem-detector.example.com/xid", "effect": "NoSchedule"});
    set_taints(&host, &json!([taint])).await;
    // One node is all that the group may have.
    let team = Team::create(&host, "closed", None, vec![NodeGroup::dynamic("burst", "h100", 0, 1)]).await;
    team.run("train", 8, &json!({})).await;
    until_true("the pod runs", SOON, async || team.running().await == 1).await;
    let pod = team.pods.get("train").await.unwrap();
    assert_eq!(pod.spec.unwrap().node_name.as_deref(), Some(OPEN));
    set_taints(&host, &json!([])).await;
    team.delete(&host).await;
    until_all_free(&host).await;
}
