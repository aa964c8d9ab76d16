//! Nodes join and leave shared pools.

use super::*;
use crate::{
    clock::Clock,
    events::EventRecorder,
    metrics::Metrics,
    testing::{Script, ScriptedApi, StoreWriters},
};
use berth_node_lifecycle::AssignmentState;
use prometheus_client::registry::Registry;

const NODE: &str = "/api/v1/nodes/cpu-1";

/// A host with a shared pool and a node in it.
fn host() -> ScriptedApi {
    host_of(&Script::default())
}

fn host_of(script: &Script) -> ScriptedApi {
    let host = ScriptedApi::new("host", script);
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
    reconcile_host(host).await.unwrap();
    serde_json::from_value(host.get(NODE).unwrap()).unwrap()
}

async fn reconcile_host(host: &ScriptedApi) -> Result<Option<Duration>, ReconcileError> {
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
    reconcile(&context).await
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
async fn the_marker_of_a_node_that_a_former_version_reserved_gets_its_machine() {
    let host = host();
    let mut node = new_node();
    node["metadata"]["labels"]["cpu"] = "no".into();
    host.insert(NODE, node.clone());
    let assigned: Node = serde_json::from_value(node).unwrap();
    in_use_markers::ensure(&host.client(), &assigned, Use::Tenant("vision-abc"))
        .await
        .unwrap();
    let now = Timestamp::UNIX_EPOCH;
    let assignment = Assignment {
        slug: "vision-abc".into(),
        ..Assignment::reserved("uid-1", "train", "h100", 1, now, "").with_state(AssignmentState::Assigned, now, "")
    };
    let mut body = assignment.to_patch(&assigned, &[]);
    body["status"]["nodeInfo"] = json!({"machineID": "m", "systemUUID": "s"});
    let nodes: Api<Node> = Api::all(host.client());
    let params = PatchParams::default();
    nodes.patch("cpu-1", &params, &Patch::Merge(body)).await.unwrap();
    reconcile_node(&host).await;
    let markers = host.find("/configmaps/");
    assert_eq!(markers.len(), 1);
    assert!(
        markers[0]["metadata"]["labels"][labels::MACHINE].is_string(),
        "{markers:?}"
    );
    assert_eq!(markers[0]["data"]["tenant"], "vision-abc");
}

#[tokio::test]
async fn a_node_that_cannot_be_shared_does_not_hold_up_others() {
    let marks = "host POST /api/v1/namespaces/berth-system/configmaps";
    let reconcile_two = async |script: &Script| {
        let host = host_of(script);
        let mut other = new_node();
        other["metadata"]["name"] = "cpu-2".into();
        host.insert("/api/v1/nodes/cpu-2", other);
        let outcome = reconcile_host(&host).await;
        (outcome, shared_markers(&host).len())
    };
    let script = Script::default();
    let (outcome, shared) = reconcile_two(&script).await;
    assert!(outcome.is_ok());
    assert_eq!(shared, 2);
    let failing = Script::default();
    failing.fail_call(script.first(marks).unwrap());
    let (outcome, shared) = reconcile_two(&failing).await;
    assert_eq!(failing.failed().as_deref(), Some(marks));
    assert!(outcome.is_err());
    assert_eq!(shared, 1, "the other node is shared");
}

#[tokio::test]
async fn a_node_that_is_not_shared_after_all_has_no_marker() {
    let host = host();
    host.change_before_writes("/nodes/", 1);
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
