//! The credentials of a kubelet and of the agents of a node: who is root on a node of a tenant has them.

use super::{dry_run, expect_denied, rbac};
use crate::shared::attacker;
use berth_api::labels;
use berth_tests::{
    objects::{apply, nodes_of_tenant},
    tenant::patient,
    test_cluster::TestCluster,
    token,
    wait::{SOON, until},
};
use k8s_openapi::api::{
    core::v1::{Node, Pod, Service, ServiceAccount},
    resource::v1::ResourceSlice,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) async fn a_stolen_kubelet_credential_reaches_no_other_tenant(host: Arc<TestCluster>) {
    let tenant = attacker(&host).await;
    let node = nodes_of_tenant(&host.client, tenant.id.slug()).await.remove(0);
    let kubelet = kubelet_of(&host, &node).await;
    let nodes: Api<Node> = Api::all(host.client.clone());
    let mirror = mirror_pod(&nodes.get(&node).await.unwrap());
    for namespace in [&tenant.id.control_plane_namespace(), "berth-system"] {
        let pods: Api<Pod> = Api::namespaced(kubelet.clone(), namespace);
        expect_denied("a kubelet may create no pods", pods.create(&dry_run(), &mirror).await);
    }
    // Several policies deny it there, and any of them may answer.
    let of_workloads: Api<Pod> = Api::namespaced(kubelet.clone(), &tenant.id.workload_namespace());
    expect_denied("", of_workloads.create(&dry_run(), &mirror).await);
    // The platform has static pods elsewhere.
    let of_platform: Api<Pod> = Api::namespaced(kubelet.clone(), "default");
    let in_network_of_node = on_network_of_node(&mirror);
    of_platform.create(&dry_run(), &in_network_of_node).await.unwrap();
    // It does not say that a syncer made it.
    let mut of_syncer = in_network_of_node.clone();
    of_syncer.labels_mut().extend([
        (labels::TENANT.to_owned(), tenant.id.slug().to_owned()),
        (labels::MANAGED_BY.to_owned(), labels::MANAGED_BY_SYNCER.to_owned()),
    ]);
    let created = of_platform.create(&dry_run(), &of_syncer).await;
    expect_denied("only pods in the workload namespaces of tenants", created);
    // NetworkPolicies would take any other for a pod of the platform.
    let admitted = of_platform.create(&dry_run(), &mirror).await;
    expect_denied("no static pod without hostNetwork", admitted);
    services_of_the_platform(&host, &of_platform, &in_network_of_node).await;
    labels_of_nodes(&host, &kubelet, &node).await;
    networks_of_pods(&host).await;
    room_in_objects(&host, &kubelet, (&node, &tenant.id.workload_namespace())).await;
    full_nodes(&host, &kubelet, &node).await;

    let slices: Api<ResourceSlice> = Api::all(kubelet);
    for pool in ["gpu-l40s-01".to_owned(), "n".to_owned(), format!("{node}-b")] {
        let created = slices.create(&dry_run(), &slice(&node, &pool)).await;
        expect_denied("must be in a pool with the name of the node", created);
    }
    for pool in [node.clone(), format!("{node}/imex")] {
        slices.create(&dry_run(), &slice(&node, &pool)).await.unwrap();
    }
}

/// The host's own DNS, or a webhook of the platform, would get this pod as an endpoint.
async fn services_of_the_platform(host: &TestCluster, kubelet: &Api<Pod>, mirror: &Pod) {
    let service = |annotations: Value| {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "host-dns", "annotations": annotations},
            "spec": {"selector": {"app.kubernetes.io/name": "coredns"}, "ports": [{"port": 53}]},
        })
    };
    let of_others = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "others"},
        "spec": {"selector": {"app.kubernetes.io/name": "coredns", "tier": "host"}, "ports": [{"port": 53}]},
    });
    let without_selector = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "without-selector"}, "spec": {"ports": [{"port": 53}]},
    });
    for service in [&of_others, &without_selector, &service(json!({}))] {
        apply(&host.client, "default", service).await.unwrap();
    }
    // An API server learns of parameters by a watch.
    let denied = "no static pod that a Service selects";
    until("the Service counts", SOON, async || {
        match kubelet.create(&dry_run(), mirror).await {
            Err(error) if error.to_string().contains(denied) => Ok(()),
            other => Err(other),
        }
    })
    .await;
    // Those of the host's control plane, by a binding that control keeps.
    let master = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "master-1", "labels": {"node-role.kubernetes.io/control-plane": ""}},
    });
    apply(&host.client, "", &master).await.unwrap();
    let nodes: Api<Node> = Api::all(host.client.clone());
    let of_master = mirror_pod(&nodes.get("master-1").await.unwrap());
    let pods: Api<Pod> = Api::namespaced(kubelet_of(host, "master-1").await, "default");
    until("control knows the node", SOON, async || {
        pods.create(&dry_run(), &of_master).await
    })
    .await;
    nodes.delete("master-1", &DeleteParams::default()).await.unwrap();
    // And what the platform permits.
    let permitted = service(json!({"berth.dev/allow-static-pods": "true"}));
    apply(&host.client, "default", &permitted).await.unwrap();
    until("the Service permits it", SOON, async || {
        kubelet.create(&dry_run(), mirror).await
    })
    .await;
    let services: Api<Service> = Api::namespaced(host.client.clone(), "default");
    for name in ["host-dns", "others", "without-selector"] {
        services.delete(name, &DeleteParams::default()).await.unwrap();
    }
}

/// Pools select nodes by labels that kubelets may set.
async fn labels_of_nodes(host: &TestCluster, kubelet: &Client, node: &str) {
    let params = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let labels = |labels: Value| Patch::Merge(json!({"metadata": {"labels": labels}}));
    let nodes: Api<Node> = Api::all(kubelet.clone());
    for patch in [
        json!({"pool": "other"}),
        json!({"node.kubernetes.io/instance-type": "p5.48xlarge"}),
        json!({"kubernetes.io/os": "plan9"}),
        json!({"kubernetes.io/hostname": null}),
    ] {
        let patch = labels(patch);
        let denied = "may not change the labels of a node that tenants use";
        expect_denied(denied, nodes.patch(node, &params, &patch).await);
        expect_denied(denied, nodes.patch_status(node, &params, &patch).await);
    }
    let newer = labels(json!({"kubelet.kubernetes.io/feature": "x"}));
    nodes.patch(node, &params, &newer).await.unwrap();
    let free = free_node(host).await.name_any();
    let nodes: Api<Node> = Api::all(kubelet_of(host, &free).await);
    nodes
        .patch(&free, &params, &labels(json!({"rack": "7"})))
        .await
        .unwrap();
}

/// What a Node names for its pods is closed to all tenants.
async fn networks_of_pods(host: &TestCluster) {
    const NAME: &str = "joins-now";
    let nodes: Api<Node> = Api::all(kubelet_of(host, NAME).await);
    let joining =
        |spec: Value| -> Node { serde_json::from_value(json!({"metadata": {"name": NAME}, "spec": spec})).unwrap() };
    let plain = joining(json!({"providerID": "test://joins-now"}));
    nodes.create(&dry_run(), &plain).await.unwrap();
    let closes_everything = joining(json!({"podCIDR": "0.0.0.0/0", "podCIDRs": ["0.0.0.0/0", "::/0"]}));
    let denied = "may not choose the networks of the pods of its node";
    expect_denied(denied, nodes.create(&dry_run(), &closes_everything).await);
    // As one that joins and names them later.
    let of_host: Api<Node> = Api::all(host.client.clone());
    of_host.create(&PostParams::default(), &plain).await.unwrap();
    let params = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let patch = |network: &str| Patch::Merge(json!({"spec": {"podCIDR": network, "podCIDRs": [network]}}));
    expect_denied(denied, nodes.patch(NAME, &params, &patch("10.20.0.0/16")).await);
    // As the controllers of the host.
    of_host.patch(NAME, &params, &patch("10.244.77.0/24")).await.unwrap();
    of_host.delete(NAME, &DeleteParams::default()).await.unwrap();
}

/// A Node or a pod that is full could not be drained, released or deleted.
async fn room_in_objects(host: &TestCluster, kubelet: &Client, (node, namespace): (&str, &str)) {
    let params = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let too_large = "may not write an object of this size";
    let images = |count: usize| {
        let all = (0..count).map(|n| json!({"names": [format!("{n}{}", "a".repeat(1000))], "sizeBytes": 1}));
        Patch::Merge(json!({"status": {"images": all.collect::<Vec<_>>()}}))
    };
    let nodes: Api<Node> = Api::all(kubelet.clone());
    nodes.patch_status(node, &params, &images(600)).await.unwrap();
    expect_denied(too_large, nodes.patch_status(node, &params, &images(900)).await);

    let of_host: Api<Pod> = Api::namespaced(host.client.clone(), namespace);
    let pod = serde_json::from_value(json!({
        "metadata": {"name": "full"},
        "spec": {"nodeName": node, "tolerations": [{"operator": "Exists"}], "containers": [{"name": "c", "image": "i"}]},
    }));
    let pod = of_host.create(&PostParams::default(), &pod.unwrap()).await.unwrap();
    let message = |length: usize| Patch::Merge(json!({"status": {"message": "a".repeat(length)}}));
    let pods: Api<Pod> = Api::namespaced(kubelet.clone(), namespace);
    pods.patch_status(&pod.name_any(), &params, &message(1_000_000))
        .await
        .unwrap();
    let filled = pods.patch_status(&pod.name_any(), &params, &message(1_500_000)).await;
    expect_denied(too_large, filled);
    of_host
        .delete(&pod.name_any(), &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
}

/// A Node with tens of thousands of annotations could not be changed by anybody, because to look at all of them costs an API server too much. It would
/// stay its tenant's.
async fn full_nodes(host: &TestCluster, kubelet: &Client, node: &str) {
    let params = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let annotations = |count: usize| -> Value {
        let all = (0..count).map(|number| (format!("{number:x}"), Value::from("")));
        all.collect::<serde_json::Map<_, _>>().into()
    };
    let nodes: Api<Node> = Api::all(kubelet.clone());
    let annotate = |count: usize| Patch::Merge(json!({"metadata": {"annotations": annotations(count)}}));
    nodes.patch(node, &params, &annotate(500)).await.unwrap();
    let denied = "at most 1,000 labels and 1,000 annotations";
    expect_denied(denied, nodes.patch(node, &params, &annotate(1001)).await);
    expect_denied(denied, nodes.patch_status(node, &params, &annotate(1001)).await);
    // One from before the policy: the platform could release it.
    let full = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "full", "annotations": annotations(45_000)},
    });
    let of_host: Api<Node> = Api::all(host.client.clone());
    let full = serde_json::from_value(full).unwrap();
    of_host.create(&PostParams::default(), &full).await.unwrap();
    let taint = json!({"key": labels::TENANT, "value": labels::RECYCLING, "effect": "NoSchedule"});
    let release = Patch::Merge(json!({"spec": {"taints": [taint]}}));
    of_host.patch("full", &params, &release).await.unwrap();
    of_host.delete("full", &DeleteParams::default()).await.unwrap();
}

pub(super) async fn kubelet_of(host: &TestCluster, node: &str) -> Client {
    let kubeconfig = host.kubeconfig_for(&format!("system:node:{node}"), &["system:nodes"]);
    patient(&kubeconfig.unwrap()).await
}

/// A node that no tenant uses.
async fn free_node(host: &TestCluster) -> Node {
    let nodes: Api<Node> = Api::all(host.client.clone());
    let all = nodes.list(&ListParams::default()).await.unwrap();
    let marks = [labels::NODE_STATE, labels::SHARED_POOL];
    let is_free = |node: &Node| !marks.iter().any(|key| node.labels().contains_key(*key));
    all.into_iter().find(is_free).expect("a node is free")
}

/// A DRA driver may write the slices of all nodes, but its tokens say on which node it is.
pub(crate) async fn a_stolen_token_of_a_node_agent_offers_no_devices_of_others(host: Arc<TestCluster>) {
    let tenant = attacker(&host).await;
    let node = nodes_of_tenant(&host.client, tenant.id.slug()).await.remove(0);
    let rules = json!([{"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": ["*"]}]);
    rbac::grant(
        &host.client,
        "",
        "dra-agent",
        &rbac::service_account("default", "dra-agent"),
        &rules,
    )
    .await;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "dra-agent"}});
    apply(&host.client, "default", &account).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(host.client.clone(), "default");
    let agent = serde_json::from_value(json!({
        "metadata": {"name": "dra-agent"},
        "spec": {
            "serviceAccountName": "dra-agent", "nodeName": node, "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "c", "image": "i"}],
        },
    }));
    let agent = pods.create(&PostParams::default(), &agent.unwrap()).await.unwrap();
    let client = token::client(
        &host.kubeconfig_for("nobody", &[]).unwrap(),
        &token_of(&host.client, &agent).await,
    )
    .await;
    let slices: Api<ResourceSlice> = Api::all(client);
    until("the agent has rights", SOON, async || {
        slices.create(&dry_run(), &slice(&node, &node)).await
    })
    .await;
    expect_denied(
        "devices of this node only",
        slices.create(&dry_run(), &slice("gpu-l40s-01", "gpu-l40s-01")).await,
    );
    let mut of_all = slice(&node, "gpu-l40s-01");
    (of_all.spec.node_name, of_all.spec.all_nodes) = (None, Some(true));
    expect_denied("devices of this node only", slices.create(&dry_run(), &of_all).await);
    expect_denied(
        "must be in a pool with the name of the node",
        slices.create(&dry_run(), &slice(&node, "gpu-l40s-01")).await,
    );
    deletions_of_slices(&host, &slices, &node).await;
    let now = DeleteParams::default().grace_period(0);
    pods.delete("dra-agent", &now).await.unwrap();
}

async fn deletions_of_slices(host: &TestCluster, agent: &Api<ResourceSlice>, node: &str) {
    let of_host: Api<ResourceSlice> = Api::all(host.client.clone());
    let all_nodes = |name: &str| {
        let mut slice = slice(name, name);
        (slice.spec.node_name, slice.spec.all_nodes) = (None, Some(true));
        slice
    };
    for slice in [slice(node, node), slice("elsewhere", "elsewhere"), all_nodes("all")] {
        of_host.create(&PostParams::default(), &slice).await.unwrap();
    }
    let denied = "may delete slices of devices of this node only";
    for name in ["elsewhere-forged", "all-forged"] {
        expect_denied(denied, agent.delete(name, &DeleteParams::default()).await);
    }
    let (now, forged) = (DeleteParams::default(), ListParams::default().labels("forged=yes"));
    expect_denied(denied, agent.delete_collection(&now, &forged).await);
    for name in ["elsewhere-forged", "all-forged"] {
        of_host.delete(name, &now).await.unwrap();
    }
    agent.delete_collection(&now, &forged).await.unwrap();
    assert!(of_host.get_opt(&format!("{node}-forged")).await.unwrap().is_none());
}

/// A token as the kubelet gives it to a pod.
async fn token_of(host: &Client, pod: &Pod) -> String {
    let accounts: Api<ServiceAccount> = Api::namespaced(host.clone(), "default");
    let created = accounts
        .create_token_request("dra-agent", &PostParams::default(), &token::request_of(pod))
        .await;
    created.unwrap().status.unwrap().token.unwrap()
}

/// A static pod that takes the place of a tenant's DNS, as the kubelet of a node shows it.
pub(super) fn mirror_pod(node: &Node) -> Pod {
    let name = node.name_any();
    let pod: Value = json!({
        "metadata": {
            "name": format!("coredns-{name}"), "labels": {"app.kubernetes.io/name": "coredns"},
            "annotations": {
                "kubernetes.io/config.mirror": "1", "kubernetes.io/config.hash": "1", "kubernetes.io/config.source": "file",
            },
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": node.uid(), "controller": true}],
        },
        "spec": {
            "nodeName": name,
            "securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "c", "image": "i", "securityContext": {
                "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
            }}],
        },
    });
    serde_json::from_value(pod).unwrap()
}

/// The same pod in the network of its node.
pub(super) fn on_network_of_node(pod: &Pod) -> Pod {
    let mut pod = pod.clone();
    if let Some(spec) = &mut pod.spec {
        spec.host_network = Some(true);
    }
    pod
}

fn slice(node: &str, pool: &str) -> ResourceSlice {
    let slice = json!({
        "metadata": {"name": format!("{node}-forged"), "labels": {"forged": "yes"}},
        "spec": {
            "driver": "gpu.example.com", "nodeName": node, "devices": [{"name": "d0"}],
            "pool": {"name": pool, "generation": 99, "resourceSliceCount": 1},
        },
    });
    serde_json::from_value(slice).unwrap()
}
