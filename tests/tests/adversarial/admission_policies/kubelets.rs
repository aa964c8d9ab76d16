//! The credentials of a kubelet and of the agents of a node: who is root on a node of a tenant has them.

use super::{dry_run, expect_denied};
use crate::shared::attacker;
use berth_tests::{
    objects::{apply, nodes_of_tenant},
    tenant::patient,
    test_cluster::TestCluster,
    token,
    wait::{SOON, until},
};
use k8s_openapi::api::{
    core::v1::{Node, Pod, ServiceAccount},
    resource::v1::ResourceSlice,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, PostParams},
};
use serde_json::{Value, json};
use std::sync::Arc;

pub(crate) async fn a_stolen_kubelet_credential_reaches_no_other_tenant(host: Arc<TestCluster>) {
    let tenant = attacker(&host).await;
    let node = nodes_of_tenant(&host.client, tenant.id.slug()).await.remove(0);
    let kubeconfig = host.kubeconfig_for(&format!("system:node:{node}"), &["system:nodes"]);
    let kubelet = patient(&kubeconfig.unwrap()).await;
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
    of_platform.create(&dry_run(), &mirror).await.unwrap();

    let slices: Api<ResourceSlice> = Api::all(kubelet);
    for pool in ["gpu-l40s-01".to_owned(), "n".to_owned(), format!("{node}-b")] {
        let created = slices.create(&dry_run(), &slice(&node, &pool)).await;
        expect_denied("must be in a pool with the name of the node", created);
    }
    for pool in [node.clone(), format!("{node}/imex")] {
        slices.create(&dry_run(), &slice(&node, &pool)).await.unwrap();
    }
}

/// A DRA driver may write the slices of all nodes, but its tokens say on which node it is.
pub(crate) async fn a_stolen_token_of_a_node_agent_offers_no_devices_of_others(host: Arc<TestCluster>) {
    let tenant = attacker(&host).await;
    let node = nodes_of_tenant(&host.client, tenant.id.slug()).await.remove(0);
    let rights = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "dra-agent"},
        "rules": [{"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": ["*"]}]});
    let bound = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "dra-agent"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "dra-agent"},
        "subjects": [{"kind": "ServiceAccount", "name": "dra-agent", "namespace": "default"}]});
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "dra-agent"}});
    for (namespace, object) in [("", &rights), ("", &bound), ("default", &account)] {
        apply(&host.client, namespace, object).await.unwrap();
    }
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
        "devices of another node",
        slices.create(&dry_run(), &slice("gpu-l40s-01", "gpu-l40s-01")).await,
    );
    expect_denied(
        "must be in a pool with the name of the node",
        slices.create(&dry_run(), &slice(&node, "gpu-l40s-01")).await,
    );
    let now = DeleteParams::default().grace_period(0);
    pods.delete("dra-agent", &now).await.unwrap();
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
fn mirror_pod(node: &Node) -> Pod {
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

fn slice(node: &str, pool: &str) -> ResourceSlice {
    let slice = json!({
        "metadata": {"name": format!("{node}-forged")},
        "spec": {
            "driver": "gpu.example.com", "nodeName": node, "devices": [{"name": "d0"}],
            "pool": {"name": pool, "generation": 99, "resourceSliceCount": 1},
        },
    });
    serde_json::from_value(slice).unwrap()
}
