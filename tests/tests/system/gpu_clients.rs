//! Programs of the platform that use GPUs: they are not on a node while it is scrubbed, and come back, although control is killed.

use crate::node_recycling::{Bench, POOL};
use berth_api::labels;
use berth_tests::{
    objects::apply,
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    batch::v1::Job,
    core::v1::{Node, Pod},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::json;
use std::sync::Arc;

const DCGM: &str = "nvidia.com/gpu.deploy.dcgm";
/// A DaemonSet that the platform has switched off.
const EXPORTER: &str = "nvidia.com/gpu.deploy.dcgm-exporter";

/// Whether a pod of the DaemonSet is on the node.
async fn has_pod(host: &TestCluster, node: &str) -> bool {
    let pods: Api<Pod> = Api::namespaced(host.client.clone(), node);
    let on_node = ListParams::default()
        .labels("app=dcgm")
        .fields(&format!("spec.nodeName={node}"));
    !pods.list(&on_node).await.unwrap().items.is_empty()
}

/// The Job that scrubs the node.
pub(crate) async fn find_scrub(host: &TestCluster, node: &str) -> Option<String> {
    let jobs: Api<Job> = Api::namespaced(host.client.clone(), "berth-system");
    let scrubs = ListParams::default().labels(&format!("{}=scrub", labels::NODE_JOB));
    let listed = jobs.list(&scrubs).await.unwrap();
    let mut names = listed.iter().map(ResourceExt::name_any);
    names.find(|name| name.contains(node))
}

/// The labels of both DaemonSets on a node.
fn values(node: &Node) -> [Option<&str>; 2] {
    [DCGM, EXPORTER].map(|key| node.labels().get(key).map(String::as_str))
}

pub(crate) async fn programs_leave_gpus_for_a_scrub_and_return_although_control_is_killed(host: Arc<TestCluster>) {
    let bench = Bench::new(&host, "gpu-clients", |_| {}).await;
    bench
        .patch_node(json!({"metadata": {"labels": {DCGM: "true", EXPORTER: "false"}}}))
        .await;
    let dcgm = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "dcgm"},
        "spec": {"selector": {"matchLabels": {"app": "dcgm"}}, "template": {
            "metadata": {"labels": {"app": "dcgm"}},
            "spec": {
                "nodeSelector": {DCGM: "true", POOL: bench.name}, "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "main", "image": "registry.example.com/dcgm"}],
            },
        }},
    });
    apply(&host.client, bench.name, &dcgm).await.unwrap();
    until_true("the program runs", SOON, async || has_pod(&host, bench.name).await).await;

    // The scrub does not end.
    bench
        .pod_annotations(json!({"simulation.berth.dev/run-for": "1h"}))
        .await;
    bench.tenant().await;
    bench.delete_tenant().await;
    let scrub = until("the node is scrubbed", SOON, async || {
        find_scrub(&host, bench.name).await.ok_or_else(|| "no Job".to_owned())
    })
    .await;
    assert!(!has_pod(&host, bench.name).await, "the program still uses GPUs");
    host.stop_control("first").await;
    let node = bench.node().await;
    assert_eq!(values(&node), [Some(labels::PAUSED_FOR_SCRUB), Some("false")]);
    assert_eq!(node.annotations()[labels::PAUSED_LABELS], format!("{DCGM}=true"));

    // The next scrub ends.
    bench
        .pod_annotations(json!({"simulation.berth.dev/run-for": null}))
        .await;
    let jobs: Api<Job> = Api::namespaced(host.client.clone(), "berth-system");
    jobs.delete(&scrub, &DeleteParams::background()).await.unwrap();
    host.start_control("first").await;
    let free = bench.until_state("Free").await;
    assert_eq!(values(&free), [Some("true"), Some("false")]);
    assert!(!free.annotations().contains_key(labels::PAUSED_LABELS));
    until_true("the program runs again", SOON, async || {
        has_pod(&host, bench.name).await
    })
    .await;

    let daemons: Api<DaemonSet> = Api::namespaced(host.client.clone(), bench.name);
    daemons.delete("dcgm", &DeleteParams::background()).await.unwrap();
    bench.remove().await;
}
