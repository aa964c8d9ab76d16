//! Pods of the platform on free nodes.

use crate::setup::{NAMESPACE, SOON, Team, until_all_free};
use berth_api::{HostNodePool, NodeGroup};
use berth_tests::{
    test_cluster::TestCluster,
    wait::{until, until_true},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use std::sync::Arc;

const NODE: &str = "gpu-h100-01";

pub(crate) async fn a_node_on_which_the_platform_runs_a_pod_is_not_assigned(host: Arc<TestCluster>) {
    let pods: Api<Pod> = Api::namespaced(host.client.clone(), NAMESPACE);
    let pod = json!({
        "metadata": {"name": "registry"},
        "spec": {"nodeName": NODE, "containers": [{"name": "main", "image": "registry:1"}]},
    });
    let pod = serde_json::from_value(pod).unwrap();
    let made = pods.create(&PostParams::default(), &pod).await.unwrap();
    let pools: Api<HostNodePool> = Api::all(host.client.clone());
    let named = async || {
        let status = pools.get("h100").await.unwrap().status.unwrap_or_default();
        status.unavailable_nodes
    };
    until("the pool says why", SOON, async || {
        let found = named().await;
        let reason = format!("it is in use: {NAMESPACE}/registry runs there");
        if found.iter().any(|node| node.name == NODE && node.reason == reason) {
            Ok(())
        } else {
            Err(found)
        }
    })
    .await;
    let team = Team::create(&host, "in-use", None, vec![NodeGroup::private("all", "h100", 3)]).await;
    until_true("the team has the other nodes", SOON, async || {
        team.group().await.assigned == 3
    })
    .await;
    let pod = pods.get("registry").await.unwrap();
    assert_eq!(pod.metadata.uid, made.metadata.uid);
    assert!(pod.metadata.deletion_timestamp.is_none(), "it is not evicted");
    let other = Team::create(&host, "in-use-too", None, vec![NodeGroup::private("all", "h100", 1)]).await;
    pods.delete("registry", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    until_true("the other team has the node", SOON, async || {
        other.group().await.assigned == 1
    })
    .await;
    until_true("the pool does not name it", SOON, async || {
        named().await.iter().all(|node| node.name != NODE)
    })
    .await;
    team.delete(&host).await;
    other.delete(&host).await;
    until_all_free(&host).await;
}
