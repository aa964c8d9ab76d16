//! A pod that never starts gives its node back once others lack it, and they come first for a while, also after control was killed.

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

async fn until_paused(what: &str, team: &Team, expected: bool) {
    until(what, SOON, async || {
        touch(team).await;
        let unused = team.cluster().await.status.unwrap_or_default().unused_nodes;
        let is_paused = unused.iter().any(|unused| unused.paused_until.is_some());
        if is_paused == expected {
            Ok(())
        } else {
            Err(format!("{unused:?}, {:?}", team.group().await))
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
    // It is idle for too long, and then the pod has kept it for too long. Nobody lacks it yet.
    for ahead in [700, 1400] {
        CLOCK.set_ahead(ahead);
        touch(&team).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        until_paused("the node stays", &team, false).await;
    }
    assert_eq!(team.group().await.assigned, 1);
    let other = Team::create(&host, "starts", None, group()).await;
    for number in 0..4 {
        other.run(&format!("works-{number}"), 8, &json!({})).await;
    }
    until_paused("the node goes back", &team, true).await;

    let first = Control::first().take().unwrap();
    first.kill();
    *Control::first() = Some(Control::start(&host));
    until("another tenant gets all nodes", SOON, async || {
        let running = other.running().await;
        if running == 4 {
            Ok(())
        } else {
            Err(format!("{:?}", other.group().await))
        }
    })
    .await;
    until_paused("a new control remembers", &team, true).await;

    CLOCK.set_ahead(0);
    team.delete(&host).await;
    other.delete(&host).await;
    until_all_free(&host).await;
}
