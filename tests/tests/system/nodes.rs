//! Which tenant gets which node.

use berth_api::{Phase, conditions, labels};
use berth_tests::{
    objects::{gpu_pod, nodes_of_tenant, phase},
    tenant::{Tenant, cluster, ensure_namespace, until_gone},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use std::sync::Arc;

pub(crate) async fn last_node_goes_to_the_first_request(host: Arc<TestCluster>) {
    ensure_namespace(&host.client, "nodes-race").await;
    let tenants = host.tenants("nodes-race");
    // There are three L40S nodes, and other tests may hold some of them for a while: two that want two each can never both be served.
    for name in ["first", "second"] {
        tenants
            .create(&PostParams::default(), &cluster(name, &[("serve", "l40s", 2)]))
            .await
            .unwrap();
    }
    let (winner, loser) = until("one tenant is ready and the other one waits", SOON, async || {
        let mut ready = None;
        let mut waits = None;
        for name in ["first", "second"] {
            let cluster = tenants.get(name).await.map_err(|error| error.to_string())?;
            let status = cluster.status.clone().unwrap_or_default();
            let reason = status
                .conditions
                .iter()
                .find(|c| c.type_ == conditions::NODES_READY)
                .map(|c| c.reason.clone());
            match reason.as_deref() {
                Some("Assigned") => ready = Some(cluster),
                Some("InsufficientCapacity") => waits = Some(cluster),
                other => return Err(format!("{name}: {other:?}")),
            }
        }
        ready.zip(waits).ok_or_else(|| "both in the same state".to_owned())
    })
    .await;
    let waiting = loser.status.unwrap();
    assert_eq!(waiting.phase, Some(Phase::Provisioning));
    assert_eq!(
        waiting.nodes.unwrap().assigned,
        0,
        "no part of a larger request is held"
    );
    let message = &waiting
        .conditions
        .iter()
        .find(|c| c.type_ == conditions::NODES_READY)
        .unwrap()
        .message;
    assert!(
        message.contains("pool l40s") && message.contains("lower spec.nodeGroups[].replicas"),
        "{message}"
    );

    tenants
        .delete(&winner.name_any(), &DeleteParams::default())
        .await
        .unwrap();
    until_gone(&host, "nodes-race", &winner.name_any()).await;
    let served = Tenant::ready(&host, "nodes-race", &loser.metadata.name.unwrap()).await;
    assert_eq!(nodes_of_tenant(&host.client, served.id.slug()).await.len(), 2);
    served.delete(&host).await;
}

pub(crate) async fn a_group_grows_and_shrinks(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, "nodes-scale", &cluster("scale", &[("train", "h100", 1)])).await;
    let scale = async |count: u32| {
        let groups = json!({"nodeGroups": [{"name": "train", "poolName": "h100", "replicas": count}]});
        host.patch_tenant("nodes-scale", "scale", &groups).await;
    };
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
    pods.create(&PostParams::default(), &gpu_pod("a", 8)).await.unwrap();
    pods.create(&PostParams::default(), &gpu_pod("b", 8)).await.unwrap();
    scale(2).await;
    for name in ["a", "b"] {
        until_true(&format!("pod {name} runs"), SOON, async || {
            pods.get(name).await.is_ok_and(|pod| phase(&pod) == "Running")
        })
        .await;
    }
    let both = nodes_of_tenant(&host.client, tenant.id.slug()).await;
    assert_eq!(both.len(), 2);

    scale(1).await;
    until_true("one node is released", SOON, async || {
        nodes_of_tenant(&host.client, tenant.id.slug()).await.len() == 1
    })
    .await;
    let kept = nodes_of_tenant(&host.client, tenant.id.slug()).await;
    let released = both.iter().find(|node| !kept.contains(node)).unwrap();
    let nodes: Api<Node> = Api::all(host.client.clone());
    let free = until("it is clean, checked and free", SOON, async || {
        let node = nodes.get(released).await.map_err(|error| error.to_string())?;
        match node.labels().get(labels::NODE_STATE) {
            None => Ok(node),
            Some(state) => Err(state.clone()),
        }
    })
    .await;
    let spec = free.spec.unwrap();
    assert!(
        !spec.unschedulable.unwrap_or_default(),
        "a released node is not left cordoned"
    );
    // Its pod was ended as by a kubelet, and was not simply forgotten.
    until_true("the evicted pod has failed or is gone", SOON, async || {
        let mut states = Vec::new();
        for name in ["a", "b"] {
            states.push(pods.get_opt(name).await.unwrap().map(|pod| phase(&pod)));
        }
        states
            .iter()
            .filter(|state| state.as_deref() == Some("Running"))
            .count()
            == 1
    })
    .await;
    let seen: Api<Node> = Api::all(tenant.client.clone());
    until_true("the tenant sees one node", SOON, async || {
        seen.list(&kube::api::ListParams::default())
            .await
            .is_ok_and(|list| list.items.len() == 1)
    })
    .await;
    tenant.delete(&host).await;
}
