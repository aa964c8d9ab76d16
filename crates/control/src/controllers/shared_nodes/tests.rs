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
    host.insert(
        NODE,
        json!({
            "metadata": {"name": "cpu-1", "labels": {"cpu": "yes"}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }),
    );
    host
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
    };
    reconcile(&context).await.unwrap();
    serde_json::from_value(host.get(NODE).unwrap()).unwrap()
}

#[tokio::test]
async fn a_node_that_no_tenant_had_is_shared_at_once() {
    let node = reconcile_node(&host()).await;
    assert_eq!(shared_pool_of(&node).map(String::as_str), Some("cpu"));
}

#[tokio::test]
async fn a_node_that_lost_its_assignment_is_scrubbed_before_it_is_shared() {
    let host = host();
    // A tenant had it. Then its Node was deleted, and registered again with other labels.
    let before: Node = serde_json::from_value(json!({"metadata": {"name": "cpu-1", "uid": "before"}})).unwrap();
    in_use_markers::create_marker(&host.client(), &before, "vision-abc")
        .await
        .unwrap();
    let node = reconcile_node(&host).await;
    assert_eq!(shared_pool_of(&node), None);
    let assignment = Assignment::read(&node).unwrap();
    assert_eq!(
        (assignment.state, assignment.slug.as_str(), assignment.pool.as_str()),
        (AssignmentState::Scrubbing, "vision-abc", "cpu")
    );
    in_use_markers::delete_marker(&host.client(), "cpu-1").await.unwrap();
    let body = berth_node_lifecycle::assignment::clear_assignment_patch(&node);
    let nodes: Api<Node> = Api::all(host.client());
    nodes
        .patch("cpu-1", &PatchParams::default(), &Patch::Merge(body))
        .await
        .unwrap();
    assert!(shared_pool_of(&reconcile_node(&host).await).is_some(), "it is clean");
}
