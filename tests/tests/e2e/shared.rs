//! A node that two tenants use at the same time.

use crate::{
    attacks::{node_addresses, reaches_only},
    pods::{Space, only, server},
};
use berth_api::{NodeGroup, NodeMode, labels};
use berth_tests::{
    objects::apply,
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::DeleteParams};
use serde_json::json;
use std::sync::Arc;

/// The node that runs the platform.
const NODE: &str = "cpu-01";

async fn tenant(host: &TestCluster, name: &str) -> &'static Tenant {
    let mut wanted = cluster(name, &[]);
    wanted.spec.class_name = Some("sharing".into());
    wanted.spec.node_groups = vec![NodeGroup {
        name: "build".into(),
        pool_name: "system".into(),
        mode: NodeMode::Shared,
        ..NodeGroup::default()
    }];
    Box::leak(Box::new(Tenant::create(host, "sharing", &wanted).await))
}

/// Class: network, node and kubelet. On one node two tenants' pods do not reach each other, nor the node; logs and exec reach
/// the tenant's own; no device is there.
pub(crate) async fn two_tenants_on_one_node_do_not_meet(host: Arc<TestCluster>) {
    for object in [
        json!({"apiVersion": "berth.dev/v1alpha1", "kind": "HostNodePool", "metadata": {"name": "system"},
            "spec": {"nodeSelector": {"kubernetes.io/hostname": NODE}, "modes": ["Shared"]}}),
        // There is no registry to pull from.
        json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": "sharing"},
            "spec": {"sync": {"sharedNodes": {"pools": ["system"], "cachedImages": true}}}}),
    ] {
        apply(&host.client, "", &object).await.unwrap();
    }
    let (one, other) = tokio::join!(tenant(&host, "one"), tenant(&host, "other"));
    let (space, foreign) = tokio::join!(Space::new(one, "shared-node"), Space::new(other, "shared-node"));
    foreign.create("served", only(server())).await;
    space.create("own", only(server())).await;
    let (neighbour, own) = tokio::join!(foreign.ready("served"), space.ready("own"));
    for pod in [&neighbour, &own] {
        assert_eq!(pod.spec.as_ref().unwrap().node_name.as_deref(), Some(NODE));
    }
    let ip = |pod: &Pod| pod.status.as_ref().unwrap().pod_ip.clone().unwrap();
    let mine = format!("{}:8080", ip(&own));
    let node = node_addresses(&host, NODE).await.swap_remove(0);
    let mut targets = vec![mine.clone(), format!("{}:8080", ip(&neighbour))];
    targets.extend([10250, 10255, 9099].map(|port| format!("{node}:{port}")));
    reaches_only(&space, json!({}), &targets, &[mine]).await;

    // The node has no address in the tenant: its kubelet is found all the same.
    assert_eq!(space.exec("own", &["hostname"]).await.trim(), "own");
    let devices = space.exec("own", &["ls", "/dev"]).await;
    assert!(!devices.contains("nvidia") && !devices.contains("dri"), "{devices}");
    let on_host: Api<Pod> = Api::namespaced(host.client.clone(), &one.id.workload_namespace());
    let list = on_host
        .list(&kube::api::ListParams::default().labels(labels::SHARED_NODES))
        .await;
    assert!(!list.unwrap().items.is_empty());
    for path in ["pods", "runningpods/", "stats/summary", "metrics", "logs/"] {
        let said = space
            .kubectl()
            .run(&["get", "--raw", &format!("/api/v1/nodes/{NODE}/proxy/{path}")])
            .await;
        assert!(said.ended && !said.out.contains("served"), "{path}: {said:?}");
    }

    tokio::join!(one.delete(&host), other.delete(&host));
    let pools: Api<berth_api::HostNodePool> = Api::all(host.client.clone());
    pools.delete("system", &DeleteParams::default()).await.unwrap();
}
