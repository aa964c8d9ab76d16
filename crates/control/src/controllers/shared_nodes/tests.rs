//! Nodes join and leave shared pools.

use super::*;
use crate::{
    controllers::nodes::clock::Clock,
    events::EventRecorder,
    metrics::Metrics,
    testing::{Script, ScriptedApi, StoreWriters},
};
use berth_node_lifecycle::AssignmentState;
use prometheus_client::registry::Registry;

const NODE: &str = "/api/v1/nodes/cpu-1";

/// A host with a shared pool and a node in it.
fn host() -> ScriptedApi {
    let host = ScriptedApi::new("host", &Script::default());
    host.insert(
        "/apis/berth.dev/v1alpha1/hostnodepools/cpu",
        json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "HostNodePool", "metadata": {"name": "cpu"},
            "spec": {"nodeSelector": {"cpu": "yes"}, "modes": ["Shared"]},
        }),
    );
    host.insert(NODE, new_node());
    host
}

/// The node as its kubelet registers it.
fn new_node() -> Value {
    json!({
        "metadata": {"name": "cpu-1", "labels": {"cpu": "yes"}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    })
}

/// The pools in the markers of shared nodes.
fn shared_markers(host: &ScriptedApi) -> Vec<String> {
    let markers = host.find("/configmaps/");
    let pools = markers
        .iter()
        .filter_map(|marker| marker["data"]["sharedPool"].as_str());
    pools.map(ToOwned::to_owned).collect()
}

/// The node after one reconcile.
async fn reconcile_node(host: &ScriptedApi) -> Node {
    let (stores, mut writers) = StoreWriters::new();
    writers.update(host);
    let context = SharedNodesContext {
        client: host.client(),
        stores,
        clock: Clock::default(),
        metrics: Metrics::new(&mut Registry::default()),
        recorder: EventRecorder::new(host.client()),
        marked: MarkedNodes::default(),
    };
    reconcile(&context).await.unwrap();
    serde_json::from_value(host.get(NODE).unwrap()).unwrap()
}

#[tokio::test]
async fn a_node_that_no_tenant_had_is_shared_at_once() {
    let host = host();
    let node = reconcile_node(&host).await;
    assert_eq!(shared_pool_of(&node).map(String::as_str), Some("cpu"));
    assert_eq!(shared_markers(&host), ["cpu"], "its machine is known to be in use");
    reconcile_node(&host).await;
    // Its Node is deleted and comes back in the same pool.
    host.insert(NODE, new_node());
    assert!(shared_pool_of(&reconcile_node(&host).await).is_some());
    assert_eq!(shared_markers(&host), ["cpu"]);
}

#[tokio::test]
async fn a_node_that_is_shared_already_is_marked() {
    let shares = json!({"labels": {"cpu": "yes", labels::SHARED_POOL: "cpu", labels::POOL: "cpu"}});
    let shared = json!({"labels": {"cpu": "no"}, "annotations": {labels::PREVIOUS_SHARED_POOL: "cpu"}});
    for metadata in [shares, shared] {
        let host = host();
        let mut node = new_node();
        for (key, value) in metadata.as_object().unwrap() {
            node["metadata"][key] = value.clone();
        }
        host.insert(NODE, node);
        reconcile_node(&host).await;
        assert_eq!(shared_markers(&host), ["cpu"]);
    }
}

#[tokio::test]
async fn a_node_that_is_not_shared_after_all_has_no_marker() {
    let host = host();
    host.change_before_patches("/nodes/", 1);
    let node = reconcile_node(&host).await;
    assert_eq!((shared_pool_of(&node), shared_markers(&host).len()), (None, 0));
}

#[tokio::test]
async fn a_node_that_lost_its_assignment_is_scrubbed_before_it_is_shared() {
    let host = host();
    // A tenant had it. Then its Node was deleted, and registered again with other labels.
    let before: Node = serde_json::from_value(json!({"metadata": {"name": "cpu-1", "uid": "before"}})).unwrap();
    in_use_markers::ensure(&host.client(), &before, Use::Tenant("vision-abc"))
        .await
        .unwrap();
    let node = reconcile_node(&host).await;
    assert_eq!(shared_pool_of(&node), None);
    let assignment = Assignment::read(&node).unwrap();
    assert_eq!(
        (assignment.state, assignment.slug.as_str(), assignment.pool.as_str()),
        (AssignmentState::Scrubbing, "vision-abc", "cpu")
    );
    let marker = in_use_markers::read_version(&host.client(), "cpu-1").await.unwrap();
    in_use_markers::delete(&host.client(), &marker.unwrap()).await.unwrap();
    let body = berth_node_lifecycle::assignment::clear_assignment_patch(&node);
    let nodes: Api<Node> = Api::all(host.client());
    nodes
        .patch("cpu-1", &PatchParams::default(), &Patch::Merge(body))
        .await
        .unwrap();
    assert!(shared_pool_of(&reconcile_node(&host).await).is_some(), "it is clean");
}
