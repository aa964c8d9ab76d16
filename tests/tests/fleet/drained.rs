//! Nodes that a tenant loses count for its quota until its pods there have ended: a budget can keep them for an hour.

use crate::setup::{NAMESPACE, SOON, Team, until_all_free};
use berth_api::{NodeGroup, Project, TreeQuotaStatus, labels};
use berth_tests::{
    objects::apply,
    observer::Observer,
    test_cluster::TestCluster,
    wait::{until, until_true},
};
use k8s_openapi::api::{core::v1::Node, policy::v1::PodDisruptionBudget};
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use serde_json::json;
use std::sync::Arc;

const PROJECT: &str = "drained";

/// A quota of one node, and a team that has it, keeps a pod there, and then names its group anew or empties it for a moment.
pub(crate) async fn a_quota_is_not_walked_around_by_nodes_that_drain(host: Arc<TestCluster>) {
    let observer = Observer::start(&host.client, false);
    let project = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Project", "metadata": {"name": PROJECT},
        "spec": {"namespaces": [NAMESPACE],
            "quotas": [{"resource": "gpus", "poolName": "h100", "nominalQuota": 8, "borrowingLimit": 0}]}});
    apply(&host.client, "", &project).await.unwrap();
    let team = Team::create(&host, PROJECT, None, vec![NodeGroup::private("a", "h100", 1)]).await;
    team.run("train", 8, &json!({})).await;
    until_true("the pod runs", SOON, async || team.running().await == 1).await;
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "never"},
        "spec": {"maxUnavailable": 0, "selector": {}}});
    let workloads = team.id.workload_namespace();
    apply(&host.client, &workloads, &budget).await.unwrap();

    set_group(&host, &team, "a", 0).await;
    until_draining(&host).await;
    for name in ["a", "b", "c"] {
        set_group(&host, &team, name, 1).await;
        until_it_waits(&team, name).await;
    }
    assert_eq!(team.running().await, 1, "the budget holds");
    let has_all = async || {
        let quota = quota(&host).await?;
        let found = (quota.reserved, quota.used);
        if found == (8, Some(8)) {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    };
    until("the Project has what the pod uses", SOON, has_all).await;

    let budgets: Api<PodDisruptionBudget> = Api::namespaced(host.client.clone(), &workloads);
    budgets.delete("never", &DeleteParams::default()).await.unwrap();
    until_true("the group has a node", SOON, async || {
        assert!(team.held().await <= 1, "the quota is exceeded");
        team.group().await.assigned == 1
    })
    .await;
    assert_eq!(team.running().await, 0, "its pod has left");
    team.delete(&host).await;
    let projects: Api<Project> = Api::all(host.client.clone());
    projects.delete(PROJECT, &DeleteParams::default()).await.unwrap();
    until_all_free(&host).await;
    observer.finish().await;
}

/// Gives the team a group of this name instead of the one that it has.
async fn set_group(host: &TestCluster, team: &Team, name: &str, replicas: u32) {
    let groups = json!({"nodeGroups": [NodeGroup::private(name, "h100", replicas)]});
    host.patch_tenant(NAMESPACE, &team.name, &groups).await;
}

async fn until_draining(host: &TestCluster) {
    let nodes: Api<Node> = Api::all(host.client.clone());
    let draining = ListParams::default().labels(&format!("{}=Draining", labels::NODE_STATE));
    until_true("its node is drained", SOON, async || {
        nodes.list(&draining).await.is_ok_and(|list| list.items.len() == 1)
    })
    .await;
}

/// Waits until a group has no node because of the one that is drained.
async fn until_it_waits(team: &Team, name: &str) {
    until(&format!("group {name} waits"), SOON, async || {
        assert!(team.held().await <= 1, "the quota is exceeded");
        let group = team.group().await;
        let waits = group.name == name && group.message.contains("has 8 on nodes that are being drained");
        if waits { Ok(()) } else { Err(format!("{group:?}")) }
    })
    .await;
}

/// What the Project has of the quota.
async fn quota(host: &TestCluster) -> Result<TreeQuotaStatus, String> {
    let project = Api::<Project>::all(host.client.clone()).get(PROJECT).await;
    let status = project.map_err(|error| error.to_string())?.status;
    let quotas = status.map(|status| status.quotas).unwrap_or_default();
    quotas.into_iter().next().ok_or_else(|| "it has no status".to_owned())
}
