//! Demand brings nodes, all of a gang's or none, and guarantees are kept.

use crate::{
    explain,
    setup::{SOON, Team, until_all_free},
};
use berth_api::{NodeGroup, PoolQuota, TenantClass, TenantClassSpec, conditions, labels};
use berth_tests::{observer::Observer, test_cluster::TestCluster, wait::until, wait::until_true};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;
use std::{sync::Arc, time::Instant};

pub(crate) async fn a_pending_pod_brings_a_node_and_an_idle_one_goes_back(host: Arc<TestCluster>) {
    let observer = Observer::start(&host.client, false);
    let team = Team::create(&host, "demand", None, vec![NodeGroup::dynamic("burst", "h100", 0, 4)]).await;
    until_true("it is ready without any node", SOON, async || {
        let status = team.cluster().await.status.unwrap_or_default();
        conditions::is_true(&status.conditions, conditions::NODES_READY)
    })
    .await;
    assert_eq!(team.held().await, 0);
    // A pod that fits no node brings none.
    team.run("too-large", 64, &json!({})).await;
    let begin = Instant::now();
    team.run("train", 8, &json!({})).await;
    until_true("a node is assigned", SOON, async || team.group().await.assigned == 1).await;
    eprintln!("pending pod to node in the status: {:?}", begin.elapsed());
    until_true("the pod runs", SOON, async || team.running().await == 1).await;
    assert_eq!(team.held().await, 1);
    team.stop("train").await;
    until_true("the idle node goes back", SOON, async || team.held().await == 0).await;
    until_all_free(&host).await;
    let nodes: Api<Node> = Api::all(host.client.clone());
    let list = nodes.list(&ListParams::default()).await.unwrap();
    assert!(list.iter().all(|node| !node.labels().contains_key(labels::TENANT)));
    team.delete(&host).await;
    observer.finish().await;
}

pub(crate) async fn nominal_quota_is_reclaimed_from_borrowers(host: Arc<TestCluster>) {
    let observer = Observer::start(&host.client, false);
    let classes: Api<TenantClass> = Api::all(host.client.clone());
    let spec = TenantClassSpec {
        quotas: vec![PoolQuota {
            pool_name: "h100".into(),
            nominal_quota: 16,
            ..PoolQuota::default()
        }],
        ..TenantClassSpec::default()
    };
    classes
        .create(&PostParams::default(), &TenantClass::new("owners", spec))
        .await
        .unwrap();
    let group = || vec![NodeGroup::dynamic("burst", "h100", 0, 4)];
    let owner = Team::create(&host, "owner", Some("owners"), group()).await;
    let guest = Team::create(&host, "guest", None, group()).await;
    for name in ["a", "b", "c", "d"] {
        guest.run(name, 8, &json!({})).await;
    }
    until_true("the guest has everything", SOON, async || guest.running().await == 4).await;
    until_true("the guest's status counts what it borrowed", SOON, async || {
        guest.group().await.borrowed == 4
    })
    .await;
    owner.run("x", 8, &json!({})).await;
    owner.run("y", 8, &json!({})).await;
    until_true("the owner has its two nodes", SOON, async || owner.running().await == 2).await;
    assert_eq!(guest.held().await, 2, "no more than necessary was taken");
    assert_eq!(guest.running().await, 2);
    assert_eq!(owner.group().await.borrowed, 0);
    owner.delete(&host).await;
    guest.delete(&host).await;
    classes.delete("owners", &DeleteParams::default()).await.unwrap();
    until_all_free(&host).await;
    observer.finish().await;
}

pub(crate) async fn gang_gets_all_its_nodes_or_waits(host: Arc<TestCluster>) {
    let observer = Observer::start(&host.client, false);
    let other = Team::create(&host, "other", None, vec![NodeGroup::private("own", "h100", 1)]).await;
    until_true("the other one has its node", SOON, async || {
        other.group().await.assigned == 1
    })
    .await;
    let team = Team::create(&host, "gang", None, vec![NodeGroup::dynamic("burst", "h100", 0, 4)]).await;
    let gang = json!({"metadata": {"annotations": {labels::GANG: "ring", labels::GANG_SIZE: "4"}}});
    for name in ["r0", "r1", "r2", "r3"] {
        team.run(name, 8, &gang).await;
    }
    until("its status says what it waits for", SOON, async || {
        let group = team.group().await;
        if group.pending > 0 && group.message.contains("ring") {
            Ok(())
        } else {
            Err(format!("{group:?}"))
        }
    })
    .await;
    assert_eq!(team.held().await, 0, "three of four nodes would be of no use");
    explain::explains_tenants_and_nodes(&host, &team, &other).await;
    other.delete(&host).await;
    until_true("the gang runs", SOON, async || team.running().await == 4).await;
    team.delete(&host).await;
    until_all_free(&host).await;
    observer.finish().await;
}
