//! What Berth publishes to a tenant about its nodes.

use berth_api::{TenantNode, TenantNodeStatus};
use berth_tests::{
    objects::{apply, nodes_of_tenant},
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    wait::{SOON, until},
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, api::DeleteParams};
use serde_json::{Value, json};
use std::sync::Arc;

async fn until_status(
    host: &TestCluster,
    tenant: &Tenant,
    node: &str,
    what: &str,
    is: impl Fn(&TenantNodeStatus) -> bool,
) {
    let nodes: Api<TenantNode> = Api::namespaced(host.client.clone(), &tenant.id.control_plane_namespace());
    until(what, SOON, async || {
        let status = nodes.get(node).await.map_err(|error| error.to_string())?.status;
        let status = status.unwrap_or_default();
        if is(&status) {
            Ok(())
        } else {
            Err(format!("{status:?}"))
        }
    })
    .await;
}

pub(crate) async fn available_capacity_and_devices_are_published(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, "node-view", &cluster("view", &[("serve", "l40s", 1)])).await;
    let owned = nodes_of_tenant(&host.client, tenant.id.slug()).await;
    let node = owned.first().unwrap();
    let nodes: Api<Node> = Api::all(host.client.clone());
    let status = serde_json::to_value(nodes.get(node).await.unwrap().status.unwrap()).unwrap();
    let cpus: u64 = status["allocatable"]["cpu"].as_str().unwrap().parse().unwrap();
    let pods: u64 = status["allocatable"]["pods"].as_str().unwrap().parse().unwrap();

    // An agent of the platform, as a DaemonSet would put it there.
    let agent = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "view-agent"},
        "spec": {
            "nodeName": node, "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "agent", "image": "agent", "resources": {"requests": {"cpu": "2"}}}],
        },
    });
    apply(&host.client, "default", &agent).await.unwrap();
    let free = |text: &Value| text.as_str().and_then(|text| text.parse::<u64>().ok());
    until_status(&host, &tenant, node, "the agent's share is subtracted", |status| {
        free(&status.node["allocatable"]["cpu"]) == Some(cpus - 2)
            && free(&status.node["allocatable"]["pods"]) == Some(pods - 1)
            && free(&status.node["capacity"]["cpu"]).is_some_and(|all| all >= cpus)
    })
    .await;
    let agents: Api<Pod> = Api::namespaced(host.client.clone(), "default");
    let now = DeleteParams::default().grace_period(0);
    agents.delete("view-agent", &now).await.unwrap();
    until_status(&host, &tenant, node, "and added again", |status| {
        free(&status.node["allocatable"]["cpu"]) == Some(cpus)
    })
    .await;

    let slice = |name: &str, place: Value| {
        let mut spec = json!({
            "driver": "gpu.example.com", "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0", "attributes": {"model": {"string": "L40S"}}}],
        });
        spec.as_object_mut().unwrap().extend(place.as_object().unwrap().clone());
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec})
    };
    for object in [
        slice("view-own", json!({"nodeName": node})),
        slice("view-other", json!({"nodeName": "elsewhere"})),
        slice("view-all", json!({"allNodes": true})),
    ] {
        apply(&host.client, "", &object).await.unwrap();
    }
    until_status(&host, &tenant, node, "the node's devices are published", |status| {
        matches!(&status.resource_slices[..], [one] if one.name == "view-own"
            && one.spec["devices"][0]["attributes"]["model"]["string"] == "L40S")
    })
    .await;
    let slices: Api<k8s_openapi::api::resource::v1::ResourceSlice> = Api::all(host.client.clone());
    for name in ["view-own", "view-other", "view-all"] {
        slices.delete(name, &DeleteParams::default()).await.unwrap();
    }
    until_status(&host, &tenant, node, "and removed again", |status| {
        status.resource_slices.is_empty()
    })
    .await;
    tenant.delete(&host).await;
}
