//! A node counts for the most GPUs that it had since its tenant has it: who is root there decides what its kubelet reports.

use crate::setup::{NAMESPACE, SOON, Team, until_all_free};
use berth_api::{HostNodePool, NodeGroup, Project, labels};
use berth_tests::{
    objects::{apply, nodes_of_tenant},
    observer::Observer,
    test_cluster::TestCluster,
    wait::{until, until_true},
};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};

const PROJECT: &str = "recorded-gpus";
const GPU: &str = "nvidia.com/gpu";

/// A quota of one node, and a team that has it, waits for another one, and is root on the one that it has.
pub(crate) async fn a_node_that_reports_fewer_gpus_brings_its_tenant_no_other(host: Arc<TestCluster>) {
    let observer = Observer::start(&host.client, false);
    let project = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Project", "metadata": {"name": PROJECT},
        "spec": {"namespaces": [NAMESPACE],
            "quotas": [{"resource": "gpus", "poolName": "h100", "nominalQuota": 8, "borrowingLimit": 0}]}});
    apply(&host.client, "", &project).await.unwrap();
    let team = Team::create(&host, PROJECT, None, vec![NodeGroup::dynamic("a", "h100", 0, 2)]).await;
    team.run("train", 8, &json!({})).await;
    until_true("the pod runs", SOON, async || team.running().await == 1).await;
    let node = nodes_of_tenant(&host.client, team.id.slug()).await.remove(0);
    until("its GPUs are recorded", SOON, async || {
        let found = record(&host, &node).await;
        if found.as_deref() == Some("nvidia.com/gpu=8") {
            Ok(())
        } else {
            Err(found)
        }
    })
    .await;
    team.run("more", 8, &json!({})).await;
    until("the other pod waits", SOON, async || {
        let group = team.group().await;
        if group.message.contains("8 GPUs") {
            Ok(())
        } else {
            Err(group)
        }
    })
    .await;

    let before = gpus_of_pool(&host).await;
    report_gpus(&host, &node, 0).await;
    until_true("control knows it", SOON, async || {
        gpus_of_pool(&host).await == before - 8
    })
    .await;
    let end = Instant::now() + Duration::from_secs(5);
    while Instant::now() < end {
        assert!(team.held().await <= 1, "the quota is exceeded");
        sleep(Duration::from_millis(50)).await;
    }
    report_gpus(&host, &node, 8).await;

    team.delete(&host).await;
    let projects: Api<Project> = Api::all(host.client.clone());
    projects.delete(PROJECT, &DeleteParams::default()).await.unwrap();
    until_all_free(&host).await;
    assert_eq!(record(&host, &node).await, None, "it is not for the next tenant");
    observer.finish().await;
}

async fn record(host: &TestCluster, node: &str) -> Option<String> {
    let nodes: Api<Node> = Api::all(host.client.clone());
    let node = nodes.get(node).await.unwrap();
    node.annotations().get(labels::RECORDED_GPUS).cloned()
}

async fn gpus_of_pool(host: &TestCluster) -> i64 {
    let pools: Api<HostNodePool> = Api::all(host.client.clone());
    let status = pools.get("h100").await.unwrap().status;
    status.unwrap_or_default().gpus.unwrap_or_default()
}

/// As the kubelet of the node would.
async fn report_gpus(host: &TestCluster, node: &str, gpus: u32) {
    let nodes: Api<Node> = Api::all(host.client.clone());
    let amounts = json!({GPU: gpus.to_string()});
    let patch = Patch::Merge(json!({"status": {"allocatable": amounts, "capacity": amounts}}));
    nodes.patch_status(node, &PatchParams::default(), &patch).await.unwrap();
}
