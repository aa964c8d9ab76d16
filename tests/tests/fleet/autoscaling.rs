//! What an autoscaler sees of tenants' demand, and which nodes it may remove. The test acts as the autoscaler: it adds a node
//! for what the real scheduler cannot place.

use crate::setup::{Control, SOON, Team, until_all_free};
use berth_api::{HostNodePool, HostNodePoolStatus, NodeGroup, conditions, labels};
use berth_node_lifecycle::node::autoscalers::PROTECTION_ANNOTATIONS;
use berth_tests::{
    objects::{apply_example, simulate_node},
    test_cluster::TestCluster,
    wait::{until, until_true},
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};
use std::sync::Arc;

/// The pool of the examples, and what selects its nodes.
const POOL: &str = "h100-cloud";
const LABEL: &str = "example.com/pool";
/// Where placeholders are.
const NAMESPACE: &str = "berth-system";

struct Cloud {
    host: Arc<TestCluster>,
    pools: Api<HostNodePool>,
    nodes: Api<Node>,
    pods: Api<Pod>,
}

impl Cloud {
    /// A pool that an autoscaler adds nodes to, without a node.
    async fn new(host: &Arc<TestCluster>) -> Self {
        let pools: Api<HostNodePool> = Api::all(host.client.clone());
        apply_example(&host.client, "", "pools/cloud.yaml").await;
        let hasty = json!({
            "scrub": {"policy": "None"}, "validate": {"policy": "None"},
            "policy": {"minHoldDuration": "0s", "idleTimeout": "2s", "reclaimGracePeriod": "1s"},
        });
        host.patch_pool(POOL, &hasty).await;
        Self {
            pools,
            nodes: Api::all(host.client.clone()),
            pods: Api::namespaced(host.client.clone(), NAMESPACE),
            host: Arc::clone(host),
        }
    }

    async fn add_node(&self, name: &str) {
        simulate_node(&self.host.client, "gpu-h100-01", name, json!({LABEL: POOL})).await;
    }

    async fn placeholders(&self) -> Vec<Pod> {
        let params = ListParams::default().labels(&format!("{}={POOL}", labels::PLACEHOLDER));
        self.pods.list(&params).await.unwrap().items
    }

    /// Waits for so many placeholders, of which so many have a node.
    async fn until_placed(&self, what: &str, all: usize, placed: usize) {
        until(what, SOON, async || {
            let pods = self.placeholders().await;
            let has_node = |pod: &&Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
            let found = (pods.len(), pods.iter().filter(has_node).count());
            if found == (all, placed) {
                return Ok(());
            }
            Err(format!("{found:?}"))
        })
        .await;
    }

    /// Waits until the pool's status requests so many nodes and pods.
    async fn until_status(&self, nodes: u32, pods: u32) -> HostNodePoolStatus {
        until("the pool's status has the request", SOON, async || {
            let status = self.pools.get(POOL).await.unwrap().status.unwrap_or_default();
            let found = status.requested.map(|requested| (requested.nodes, requested.pods));
            if found == Some((nodes, pods)) {
                return Ok(status);
            }
            Err(format!("{found:?}"))
        })
        .await
    }

    async fn set_limit(&self, most: Value) {
        let spec = json!({"autoscaling": {"maxNodes": most}});
        self.host.patch_pool(POOL, &spec).await;
    }

    /// How many of the pool's nodes autoscalers leave alone.
    async fn protected(&self) -> usize {
        let params = ListParams::default().labels(&format!("{LABEL}={POOL}"));
        let nodes = self.nodes.list(&params).await.unwrap();
        let keeps = |node: &&Node| {
            PROTECTION_ANNOTATIONS
                .iter()
                .any(|key| node.annotations().contains_key(*key))
        };
        nodes.iter().filter(keeps).count()
    }
}

pub(crate) async fn missing_nodes_are_requested_from_an_autoscaler(host: Arc<TestCluster>) {
    let cloud = Cloud::new(&host).await;
    let team = Team::create(&host, "grow", None, vec![NodeGroup::dynamic("burst", POOL, 0, 4)]).await;
    let gang = json!({"metadata": {"annotations": {labels::GANG: "pair", labels::GANG_SIZE: "2"}}});
    team.run("p0", 8, &gang).await;
    team.run("p1", 8, &gang).await;
    cloud.until_placed("both pods of the gang are requested", 2, 0).await;
    let status = cloud.until_status(2, 2).await;
    assert!(conditions::is_true(&status.conditions, conditions::NODES_REQUESTED));
    until_true("the scheduler says that nodes are missing", SOON, async || {
        let pods = cloud.placeholders().await;
        let waits = |pod: &Pod| {
            let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
            conditions
                .into_iter()
                .any(|one| one.type_ == "PodScheduled" && one.reason.as_deref() == Some("Unschedulable"))
        };
        pods.len() == 2 && pods.iter().all(waits)
    })
    .await;
    for pod in cloud.placeholders().await {
        let spec = pod.spec.unwrap();
        assert_eq!(spec.node_selector.unwrap().get(LABEL).map(String::as_str), Some(POOL));
        assert_eq!(
            (spec.priority, spec.preemption_policy.as_deref()),
            (Some(-10), Some("Never"))
        );
    }

    // A placeholder keeps the first node for the gang; it has no owner yet.
    cloud.add_node("cloud-1").await;
    cloud.until_placed("one has a node", 2, 1).await;
    cloud.until_status(1, 2).await;
    assert_eq!((team.held().await, cloud.protected().await), (0, 0));

    // Another control finds out from the existing objects what is still to be requested.
    let first = Control::first().take().unwrap();
    first.kill();
    let name = cloud.placeholders().await[0].name_any();
    let at_once = DeleteParams::default().grace_period(0);
    cloud.pods.delete(&name, &at_once).await.unwrap();
    *Control::first() = Some(Control::start(&host));
    cloud.until_placed("the missing one is created again", 2, 1).await;

    cloud.add_node("cloud-2").await;
    until_true("the gang runs", SOON, async || team.running().await == 2).await;
    cloud.until_placed("nothing is requested any more", 0, 0).await;
    let status = cloud.until_status(0, 0).await;
    assert!(!conditions::is_true(&status.conditions, conditions::NODES_REQUESTED));
    assert_eq!(cloud.protected().await, 2);

    // More than the pool may have is not requested; the condition says so.
    cloud.set_limit(json!(2)).await;
    team.run("more", 8, &json!({})).await;
    until("the condition reports the limit", SOON, async || {
        let status = cloud.pools.get(POOL).await.unwrap().status.unwrap_or_default();
        let mut found = status
            .conditions
            .iter()
            .filter(|one| one.type_ == conditions::NODES_REQUESTED);
        match found.next() {
            Some(one) if one.reason == "LimitReached" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    assert!(cloud.placeholders().await.is_empty());
    cloud.set_limit(Value::Null).await;
    cloud.until_placed("it is requested now", 1, 0).await;

    // Requests and protection of nodes go with the tenant.
    team.delete(&host).await;
    cloud.until_placed("nothing is requested any more", 0, 0).await;
    until_all_free(&host).await;
    assert_eq!(cloud.protected().await, 0);
    for name in ["cloud-1", "cloud-2"] {
        let node = cloud.nodes.get(name).await.unwrap();
        assert!(!node.annotations().contains_key(labels::AUTOSCALER_ANNOTATIONS));
        cloud.nodes.delete(name, &DeleteParams::default()).await.unwrap();
    }
    cloud.pools.delete(POOL, &DeleteParams::default()).await.unwrap();
}
