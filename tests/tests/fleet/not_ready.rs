//! A node that is not Ready for too long leaves its group, which gets another one, and is scrubbed when it is Ready again. Nothing is taken while too many
//! nodes are not Ready.

use crate::setup::{CLOCK, SOON, Team, until_all_free};
use berth_api::{
    HostNodePool, NodeGroup,
    conditions::{self, REPAIR_ALLOWED},
    labels,
};
use berth_tests::{
    objects::nodes_of_tenant,
    observer::Observer,
    test_cluster::TestCluster,
    wait::{until, until_true},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;
use std::sync::Arc;

/// By how many seconds control's clock is ahead: what is not Ready now is so for longer than the pool allows.
const AHEAD: i64 = 900;

pub(crate) async fn a_group_gets_another_node_for_one_that_is_not_ready(host: Arc<TestCluster>) {
    let observer = Observer::start(&host.client, true);
    let repairs = json!({"scrub": {"policy": "Always"}, "repair": {"notReadyAfter": "10m", "maxUnhealthy": 1}});
    host.patch_pool("h100", &repairs).await;
    // Nodes are taken as long after this as a node may be not Ready, so the clock that is ahead must not say since when it is so.
    until_repair_is(&host, "WithinLimit").await;
    CLOCK.set_ahead(AHEAD);
    let team = Team::create(&host, "not-ready", None, vec![NodeGroup::private("all", "h100", 2)]).await;
    until_true("the team has its nodes", SOON, async || {
        team.group().await.assigned == 2
    })
    .await;
    team.run("train", 8, &json!({})).await;
    until_true("its pod runs", SOON, async || team.running().await == 1).await;
    let broken = team.pods.get("train").await.unwrap().spec.unwrap().node_name.unwrap();

    stop_kubelet(&host, &broken).await;
    until("the node waits until it is Ready", SOON, async || {
        let node = get_node(&host, &broken).await;
        let why = node.annotations().get(labels::QUARANTINE).cloned().unwrap_or_default();
        if why.starts_with("not Ready since") {
            Ok(())
        } else {
            Err(node.annotations().clone())
        }
    })
    .await;
    let nodes = until("the group has another node", SOON, async || {
        let nodes = nodes_of_tenant(&host.client, team.id.slug()).await;
        if nodes.len() == 2 && !nodes.contains(&broken) && team.group().await.assigned == 2 {
            Ok(nodes)
        } else {
            Err(nodes)
        }
    })
    .await;
    assert!(has_marker(&host, &broken).await, "it is dirty");

    // It looks like an outage: one more, and one was the limit.
    stop_kubelet(&host, &nodes[0]).await;
    until_repair_is(&host, "TooManyUnhealthy").await;
    assert_eq!(state_of(&get_node(&host, &nodes[0]).await).as_deref(), Some("Assigned"));
    start_kubelet(&host, &nodes[0]).await;
    until_repair_is(&host, "WithinLimit").await;
    assert_eq!(state_of(&get_node(&host, &nodes[0]).await).as_deref(), Some("Assigned"));
    assert_eq!(
        nodes_of_tenant(&host.client, team.id.slug()).await,
        nodes,
        "the team keeps both"
    );

    start_kubelet(&host, &broken).await;
    until("the node is clean and free", SOON, async || {
        let state = state_of(&get_node(&host, &broken).await);
        if state.is_none() { Ok(()) } else { Err(state) }
    })
    .await;
    until_true("its marker is gone", SOON, async || !has_marker(&host, &broken).await).await;

    team.delete(&host).await;
    until_all_free(&host).await;
    CLOCK.set_ahead(0);
    host.patch_pool("h100", &json!({"scrub": {"policy": "None"}, "repair": null}))
        .await;
    observer.finish().await;
}

/// Waits until the pool says, for this reason, whether nodes are taken that are not Ready.
async fn until_repair_is(host: &TestCluster, reason: &str) {
    let pools: Api<HostNodePool> = Api::all(host.client.clone());
    until(&format!("repair is {reason}"), SOON, async || {
        let status = pools.get("h100").await.unwrap().status.unwrap_or_default();
        let found = status.conditions.into_iter().find(|one| one.type_ == REPAIR_ALLOWED);
        match found {
            Some(condition) if condition.reason == reason => {
                let allowed = conditions::is_true(&[condition], REPAIR_ALLOWED);
                assert_eq!(allowed, reason == "WithinLimit");
                Ok(())
            }
            other => Err(other),
        }
    })
    .await;
}

async fn get_node(host: &TestCluster, name: &str) -> Node {
    Api::<Node>::all(host.client.clone()).get(name).await.unwrap()
}

fn state_of(node: &Node) -> Option<String> {
    node.annotations().get(labels::NODE_STATE).cloned()
}

/// Whether the in-use marker of a node exists.
async fn has_marker(host: &TestCluster, node: &str) -> bool {
    let markers: Api<ConfigMap> = Api::namespaced(host.client.clone(), "berth-system");
    let all = ListParams::default().labels(labels::IN_USE_MARKER);
    let list = markers.list(&all).await.unwrap();
    let is_of_node = |marker: &ConfigMap| {
        marker
            .data
            .as_ref()
            .and_then(|data| data.get("node"))
            .is_some_and(|of| of == node)
    };
    list.iter().any(is_of_node)
}

/// Takes the node from kwok, which would make it Ready again, and then says that it is not Ready.
async fn stop_kubelet(host: &TestCluster, node: &str) {
    simulate(host, node, None).await;
    let condition = json!({"type": "Ready", "status": "False", "lastTransitionTime": Timestamp::now().to_string()});
    let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
    let nodes: Api<Node> = Api::all(host.client.clone());
    nodes.patch_status(node, &PatchParams::default(), &patch).await.unwrap();
}

/// Gives the node back to kwok, which makes it Ready.
async fn start_kubelet(host: &TestCluster, node: &str) {
    simulate(host, node, Some("fake")).await;
}

async fn simulate(host: &TestCluster, node: &str, by_kwok: Option<&str>) {
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"kwok.x-k8s.io/node": by_kwok}}}));
    let nodes: Api<Node> = Api::all(host.client.clone());
    nodes.patch(node, &PatchParams::default(), &patch).await.unwrap();
}
