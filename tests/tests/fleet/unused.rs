//! A pod that never starts gives its node back, and gets no other for a while, also after control was killed.

use crate::setup::{CLOCK, Control, SOON, Team, until_all_free};
use berth_api::NodeGroup;
use berth_tests::{test_cluster::TestCluster, wait::until};
use serde_json::json;
use std::{sync::Arc, time::Duration};

/// Lets control look at its clock: pods come and go.
async fn touch(team: &Team) {
    team.run("touch", 64, &json!({})).await;
    team.stop("touch").await;
}

async fn until_held(what: &str, team: &Team, nodes: usize) {
    until(what, SOON, async || {
        touch(team).await;
        let held = team.held().await;
        if held == nodes {
            Ok(())
        } else {
            Err(format!("{held} nodes, {:?}", team.group().await))
        }
    })
    .await;
}

pub(crate) async fn a_pod_that_never_starts_does_not_keep_its_node(host: Arc<TestCluster>) {
    let group = || vec![NodeGroup::dynamic("burst", "h100", 0, 4)];
    let team = Team::create(&host, "stuck", None, group()).await;
    let term = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "nowhere"}}});
    let affinity = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
    team.run("never", 8, &json!({"spec": {"affinity": affinity}})).await;
    until("a node is assigned", SOON, async || {
        let group = team.group().await;
        if group.assigned == 1 {
            Ok(())
        } else {
            Err(format!("{group:?}"))
        }
    })
    .await;
    // It is idle for too long, and then the pod has kept it for too long.
    for (ahead, nodes) in [(150, 1), (300, 0)] {
        CLOCK.set_ahead(ahead);
        touch(&team).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        until_held("the node goes back", &team, nodes).await;
    }
    until("the status says so", SOON, async || {
        let status = team.cluster().await.status.unwrap_or_default();
        let group = team.group().await;
        let is_paused = status.unused_nodes.iter().any(|unused| unused.paused_until.is_some());
        if is_paused && group.message.contains("unused") && group.pending == 1 {
            Ok(())
        } else {
            Err(format!("{:?}, {group:?}", status.unused_nodes))
        }
    })
    .await;

    let first = Control::first().take().unwrap();
    first.kill();
    *Control::first() = Some(Control::start(&host));
    let other = Team::create(&host, "starts", None, group()).await;
    other.run("works", 8, &json!({})).await;
    until("another tenant gets its node", SOON, async || {
        let running = other.running().await;
        if running == 1 {
            Ok(())
        } else {
            Err(format!("{:?}", other.group().await))
        }
    })
    .await;
    assert_eq!(team.held().await, 0, "a new control remembers");
    CLOCK.set_ahead(300 + 700);
    until_held("the pause is over", &team, 1).await;

    CLOCK.set_ahead(0);
    team.delete(&host).await;
    other.delete(&host).await;
    until_all_free(&host).await;
}
