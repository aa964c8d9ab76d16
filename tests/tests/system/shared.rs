//! Nodes that several tenants use at the same time, beside nodes of their own.

use crate::schedules;
use berth_api::{HostNodePool, NodeGroup, NodeMode, TenantClass, TenantCluster, TenantNode, conditions, labels};
use berth_tests::{
    files::example,
    objects::{apply, gpu_pod, nodes_of_tenant, phase},
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::sync::Arc;

const EXAMPLE: &str = "shared/builds.yaml";

fn pod_on(name: &str, node: &str) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": name}, "spec": {
        "containers": [{"name": "main", "image": "registry.example.com/any"}],
        "nodeSelector": {"kubernetes.io/hostname": node},
    }}))
    .unwrap()
}

async fn run(client: &Client, pod: &Pod) -> String {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    pods.create(&PostParams::default(), pod).await.unwrap();
    let name = pod.name_any();
    until(&format!("pod {name} runs"), SOON, async || {
        let pod = pods.get(&name).await.map_err(|error| error.to_string())?;
        match (phase(&pod).as_str(), pod.spec.and_then(|spec| spec.node_name)) {
            ("Running", Some(node)) => Ok(node),
            _ => Err(format!("{:?}", pod.status)),
        }
    })
    .await
}

async fn label(nodes: &Api<Node>, node: &str, key: &str, value: Value) {
    let body = json!({"metadata": {"labels": {key: value}}});
    let patch = Patch::Merge(&body);
    nodes.patch(node, &PatchParams::default(), &patch).await.unwrap();
}

async fn until_pool_says(pools: &Api<HostNodePool>, expected: &str) {
    until(&format!("the pool says {expected}"), SOON, async || {
        let status = pools.get("cpu").await.map_err(|error| error.to_string())?.status;
        let conditions = status.unwrap_or_default().conditions;
        let message = conditions.iter().find(|condition| condition.type_ == conditions::READY);
        let message = message.map(|condition| condition.message.clone());
        match message {
            Some(message) if message.contains(expected) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

/// Host pods of a tenant on a node.
async fn on_host(host: &TestCluster, tenant: &Tenant, node: &str) -> Vec<Pod> {
    let pods: Api<Pod> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
    let list = pods.list(&ListParams::default()).await.unwrap();
    let is_there = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
    list.items.into_iter().filter(is_there).collect()
}

async fn refuses_invalid_pools(pools: &Api<HostNodePool>) {
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    for (more, expected) in [
        (json!({"modes": ["Shared", "Private"]}), "no other mode"),
        (
            json!({"modes": ["Shared"], "gpuResourceName": "nvidia.com/gpu"}),
            "a node with GPUs belongs to one tenant",
        ),
    ] {
        let mut spec = json!({"nodeSelector": {"a": "b"}});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let pool = HostNodePool::new("cannot-be", serde_json::from_value(spec).unwrap());
        let error = pools.create(&dry, &pool).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let change = json!({"spec": {"modes": ["Private"]}});
    let error = pools
        .patch("cpu", &PatchParams::default(), &Patch::Merge(&change))
        .await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("create another pool"), "{error}");
}

/// What a tenant sees of a node that others use as well.
async fn sees_little(host: &TestCluster, tenant: &Tenant) {
    let published: Api<TenantNode> = Api::namespaced(host.client.clone(), &tenant.id.control_plane_namespace());
    let status = published.get("cpu-01").await.unwrap().status.unwrap();
    assert!(status.node.get("addresses").is_none() && status.node.get("images").is_none());
    assert!(status.resource_slices.is_empty());
    assert_eq!(status.node["nodeInfo"]["machineID"], "");
    let nodes: Api<Node> = Api::all(tenant.client.clone());
    let node = nodes.get("cpu-01").await.unwrap();
    assert_eq!(node.labels().get(labels::SHARED_POOL).map(String::as_str), Some("cpu"));
    assert!(node.labels().get(labels::NODE_GROUP).is_none());
}

/// A second team that has nothing but the shared pool.
fn sharing_cluster() -> TenantCluster {
    let mut cluster = cluster("other", &[]);
    cluster.spec.class_name = Some("sharing".into());
    cluster.spec.node_groups = vec![NodeGroup {
        name: "build".into(),
        pool_name: "cpu".into(),
        mode: NodeMode::Shared,
        ..NodeGroup::default()
    }];
    cluster
}

/// A node goes from the shared pool into one for single tenants: pods leave as their budgets allow, and whatever budgets say
/// when the time limit of the drain is over. The node is cleaned, and then another tenant gets it.
async fn next_owner_gets_a_clean_node(host: &TestCluster, before: &Tenant, after: &Tenant) {
    let pools: Api<HostNodePool> = Api::all(host.client.clone());
    let nodes: Api<Node> = Api::all(host.client.clone());
    let spec = json!({"nodeSelector": {"example.com/pool": "was-shared"}, "modes": ["Private"]});
    let pool = HostNodePool::new("was-shared", serde_json::from_value(spec).unwrap());
    pools.create(&PostParams::default(), &pool).await.unwrap();
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "not-now"},
        "spec": {"maxUnavailable": 0, "selector": {}}});
    let of_before = before.id.workload_namespace();
    apply(&host.client, &of_before, &budget).await.unwrap();
    let selector = "node.kubernetes.io/instance-type";
    let was = nodes.get("cpu-01").await.unwrap().labels()[selector].clone();
    let moved = json!({"metadata": {"labels": {selector: null, "example.com/pool": "was-shared"}}});
    let merge = Patch::Merge(&moved);
    nodes.patch("cpu-01", &PatchParams::default(), &merge).await.unwrap();

    let groups = json!({"nodeGroups": [{"name": "own", "poolName": "was-shared", "mode": "Private", "replicas": 1}]});
    let tenants = host.tenants("shared-other");
    host.patch_tenant("shared-other", "other", &groups).await;
    until("it waits for the node", SOON, async || {
        let status = tenants.get("other").await.unwrap().status.unwrap_or_default();
        let found = format!("{:?}", status.conditions);
        let node = nodes.get("cpu-01").await.unwrap();
        let waits = node.annotations().contains_key(labels::PREVIOUS_SHARED_POOL)
            && !node.labels().contains_key(labels::NODE_STATE)
            && !conditions::is_true(&status.conditions, conditions::NODES_READY);
        if waits { Ok(()) } else { Err(found) }
    })
    .await;
    assert_eq!(on_host(host, before, "cpu-01").await.len(), 1, "a budget holds");

    host.patch_pool("cpu", &json!({"timeouts": {"drain": "1s"}})).await;
    let events: Api<k8s_openapi::api::events::v1::Event> = Api::all(host.client.clone());
    let about = ListParams::default().fields("regarding.kind=Node,regarding.name=cpu-01");
    // The state itself may be over before it is read.
    until("it is cleaned because it was shared", SOON, async || {
        let events = events.list(&about).await.map_err(|error| error.to_string())?;
        let seen: Vec<_> = events
            .iter()
            .filter(|event| event.reason.as_deref() == Some("Scrubbing"))
            .filter_map(|event| event.note.as_deref())
            .collect();
        if seen.iter().any(|why| why.contains("it was shared in pool cpu")) {
            Ok(())
        } else {
            Err(format!("{seen:?}"))
        }
    })
    .await;
    assert!(on_host(host, before, "cpu-01").await.is_empty());
    let budgets: Api<k8s_openapi::api::policy::v1::PodDisruptionBudget> =
        Api::namespaced(host.client.clone(), &of_before);
    budgets.delete("not-now", &DeleteParams::default()).await.unwrap();
    until("the other one has it alone", SOON, async || {
        let node = nodes.get("cpu-01").await.unwrap();
        if node.labels().get(labels::TENANT).map(String::as_str) == Some(after.id.slug()) {
            Ok(())
        } else {
            Err(format!("{:?}", node.annotations()))
        }
    })
    .await;
    until("Events report the states", SOON, async || {
        let events = events.list(&about).await.unwrap();
        let reasons: Vec<_> = events.iter().filter_map(|event| event.reason.clone()).collect();
        let all = ["DrainForced", "Scrubbing", "Validating", "Free", "Assigned"];
        if all.iter().all(|wanted| reasons.iter().any(|reason| reason == wanted)) {
            Ok(())
        } else {
            Err(format!("{reasons:?}"))
        }
    })
    .await;

    // The node returns to the shared pool.
    host.patch_tenant("shared-other", "other", &json!({"nodeGroups": []}))
        .await;
    until_true("it is free", SOON, async || {
        let node = nodes.get("cpu-01").await.unwrap();
        !node.labels().contains_key(labels::NODE_STATE)
            && !node.annotations().contains_key(labels::PREVIOUS_SHARED_POOL)
    })
    .await;
    let back = json!({"metadata": {"labels": {selector: was, "example.com/pool": null}}});
    let merge = Patch::Merge(&back);
    nodes.patch("cpu-01", &PatchParams::default(), &merge).await.unwrap();
    pools.delete("was-shared", &DeleteParams::default()).await.unwrap();
}

pub(crate) async fn work_without_gpus_runs_side_by_side(host: Arc<TestCluster>) {
    let pools: Api<HostNodePool> = Api::all(host.client.clone());
    let classes: Api<TenantClass> = Api::all(host.client.clone());
    let nodes: Api<Node> = Api::all(host.client.clone());
    for pool in example::<HostNodePool>(EXAMPLE) {
        pools.create(&PostParams::default(), &pool).await.unwrap();
    }
    for class in example::<TenantClass>(EXAMPLE) {
        let made = classes.create(&PostParams::default(), &class).await.unwrap();
        assert_eq!(made.spec, class.spec, "nothing was pruned or defaulted");
    }
    until_pool_says(&pools, "tenants share 2 of 2 nodes").await;
    refuses_invalid_pools(&pools).await;

    let builds = example::<TenantCluster>(EXAMPLE).remove(0);
    let other = sharing_cluster();
    let (builds, other) = tokio::join!(
        Tenant::create(&host, "team-builds", &builds),
        Tenant::create(&host, "shared-other", &other)
    );

    schedules::a_stop_ends_pods_on_shared_nodes(&host, &other, &builds, "cpu-02").await;

    // One tenant's pods on its own GPU node and on a shared one; both tenants' pods on the same node.
    let own = nodes_of_tenant(&host.client, builds.id.slug()).await;
    assert_eq!(own.len(), 1, "shared nodes have no owner: {own:?}");
    assert_eq!(run(&builds.client, &gpu_pod("train", 8)).await, own[0]);
    assert_eq!(run(&builds.client, &pod_on("beside", "cpu-01")).await, "cpu-01");
    assert_eq!(run(&other.client, &pod_on("beside", "cpu-01")).await, "cpu-01");
    assert_eq!(run(&other.client, &pod_on("second", "cpu-02")).await, "cpu-02");
    let [pod] = on_host(&host, &builds, "cpu-01").await.try_into().unwrap();
    let spec = pod.spec.unwrap();
    assert_eq!(spec.host_users, Some(false), "as the class requires");
    assert_eq!(spec.containers[0].image_pull_policy.as_deref(), Some("Always"));
    sees_little(&host, &builds).await;
    sees_little(&host, &other).await;

    // A pod that requests GPUs is for own nodes only: this one has none and waits.
    let pods: Api<Pod> = Api::namespaced(other.client.clone(), "default");
    pods.create(&PostParams::default(), &gpu_pod("gpu", 1)).await.unwrap();
    let of_other: Api<Pod> = Api::namespaced(host.client.clone(), &other.id.workload_namespace());
    until_true("the host's scheduler finds no node for it", SOON, async || {
        let list = of_other.list(&ListParams::default()).await.unwrap();
        list.iter().any(|pod| {
            let spec = pod.spec.clone().unwrap();
            let conditions = pod
                .status
                .clone()
                .and_then(|status| status.conditions)
                .unwrap_or_default();
            spec.node_selector.unwrap_or_default().contains_key(labels::TENANT)
                && conditions.iter().any(|c| c.reason.as_deref() == Some("Unschedulable"))
        })
    })
    .await;
    pods.delete("gpu", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();

    // A node that gets a GPU is not shared any more, and its pods leave.
    label(&nodes, "cpu-02", "nvidia.com/gpu.present", "true".into()).await;
    until_pool_says(&pools, "cpu-02 (it has the label nvidia.com/gpu.present=true)").await;
    until_true("the pod has left it", SOON, async || {
        on_host(&host, &other, "cpu-02").await.is_empty()
    })
    .await;
    let left = nodes.get("cpu-02").await.unwrap();
    assert!(!left.labels().contains_key(labels::SHARED_POOL));
    assert_eq!(
        left.annotations().get(labels::PREVIOUS_SHARED_POOL).map(String::as_str),
        Some("cpu")
    );
    label(&nodes, "cpu-02", "nvidia.com/gpu.present", Value::Null).await;
    until_pool_says(&pools, "tenants share 2 of 2 nodes").await;

    // A tenant that does not request the pool any more leaves; the other one stays.
    host.patch_tenant("shared-other", "other", &json!({"nodeGroups": []}))
        .await;
    until_true("its pod has left", SOON, async || {
        on_host(&host, &other, "cpu-01").await.is_empty()
    })
    .await;
    let seen: Api<Node> = Api::all(other.client.clone());
    until_true("and it sees no nodes", SOON, async || {
        seen.list(&ListParams::default())
            .await
            .is_ok_and(|list| list.items.is_empty())
    })
    .await;
    assert_eq!(on_host(&host, &builds, "cpu-01").await.len(), 1);

    next_owner_gets_a_clean_node(&host, &builds, &other).await;
    tokio::join!(builds.delete(&host), other.delete(&host));
    pools.delete("cpu", &DeleteParams::default()).await.unwrap();
    for node in ["cpu-01", "cpu-02"] {
        until_true("the node is shared no longer", SOON, async || {
            !nodes
                .get(node)
                .await
                .unwrap()
                .labels()
                .contains_key(labels::SHARED_POOL)
        })
        .await;
    }
    classes.delete("sharing", &DeleteParams::default()).await.unwrap();
}
