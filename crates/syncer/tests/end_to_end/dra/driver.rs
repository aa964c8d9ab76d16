//! The part of a driver, and helpers for the tests.

use crate::{
    objects::{create, eventually, is_phase, pod},
    setup::{CONTROL_PLANE, Clusters},
};
use berth_api::{NodeResourceSlice, TenantNode};
use k8s_openapi::api::{
    core::v1::Pod,
    resource::v1::{DeviceClass, ResourceClaim, ResourceSlice},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};

pub const CLASS: &str = "gpu.example.com";
pub const NODES: [&str; 2] = ["gpu-h100-01", "gpu-h100-02"];
/// Devices of each node.
pub const DEVICES: usize = 4;
pub const PROTECTION: &str = "resource.kubernetes.io/delete-protection";

/// Classes, the driver's slices, and control's publication of them.
pub async fn install_driver(clusters: &Clusters) {
    let classes: Api<DeviceClass> = Api::all(clusters.host_admin.clone());
    let driver = json!([{"cel": {"expression": format!("device.driver == '{CLASS}'")}}]);
    let class =
        json!({"metadata": {"name": CLASS}, "spec": {"selectors": driver, "extendedResourceName": "example.com/gpu"}});
    create(&classes, class).await;
    create(
        &classes,
        json!({"metadata": {"name": "secret.example.com"}, "spec": {}}),
    )
    .await;
    let slices: Api<ResourceSlice> = Api::all(clusters.host_admin.clone());
    let published: Api<TenantNode> = Api::namespaced(clusters.host_admin.clone(), CONTROL_PLANE);
    for node in NODES {
        let devices: Vec<Value> = (0..DEVICES)
            .map(|index| json!({"name": format!("gpu-{index}"), "attributes": {"model": {"string": "H100"}}, "capacity": {"memory": {"value": "80Gi"}}}))
            .collect();
        let slice = json!({"metadata": {"name": format!("{node}-slice")}, "spec": {"driver": CLASS, "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}, "devices": devices}});
        let slice = create(&slices, slice).await;
        let mut publish = published.get(node).await.unwrap();
        publish.status.as_mut().unwrap().resource_slices = vec![NodeResourceSlice {
            name: slice.metadata.name.unwrap(),
            spec: serde_json::to_value(slice.spec).unwrap(),
        }];
        published
            .replace_status(node, &PostParams::default(), &publish)
            .await
            .unwrap();
    }
}

/// One device of a class.
pub fn request(class: &str) -> Value {
    json!({"requests": [{"name": "gpu", "exactly": {"deviceClassName": class}}]})
}

/// A pod with one claim, which its container uses.
pub fn with_claim(name: &str, source: &Value) -> Value {
    let mut claim = json!({"name": "gpu"});
    claim
        .as_object_mut()
        .unwrap()
        .extend(source.as_object().unwrap().clone());
    let container = json!({"name": "main", "image": "app:1", "resources": {"claims": [{"name": "gpu"}]}});
    pod(name, &json!({"resourceClaims": [claim], "containers": [container]}))
}

/// The devices of a claim: (request, driver, pool).
pub fn allocated(claim: &ResourceClaim) -> Vec<(String, String, String)> {
    let devices = claim
        .status
        .as_ref()
        .and_then(|status| status.allocation.as_ref()?.devices.as_ref()?.results.clone());
    devices
        .unwrap_or_default()
        .into_iter()
        .map(|result| (result.request, result.driver, result.pool))
        .collect()
}

/// The pods that a claim is reserved for: (name, UID).
pub fn reserved(claim: &ResourceClaim) -> Vec<(String, String)> {
    let consumers = claim.status.as_ref().and_then(|status| status.reserved_for.clone());
    let mut pods: Vec<_> = consumers
        .unwrap_or_default()
        .into_iter()
        .map(|consumer| (consumer.name, consumer.uid))
        .collect();
    pods.sort();
    pods
}

/// Waits until a pod runs.
pub async fn running(clusters: &Clusters, name: &str) -> Pod {
    let pods = clusters.tenant_api::<Pod>();
    eventually(&format!("{name} runs"), async || is_phase(&pods, name, "Running").await).await;
    pods.get(name).await.unwrap()
}

/// Deletes pods and waits until they are gone.
pub async fn delete_pods(clusters: &Clusters, names: &[&str]) {
    let pods = clusters.tenant_api::<Pod>();
    for name in names {
        pods.delete(name, &DeleteParams::default()).await.unwrap();
    }
    eventually("the pods are gone", async || {
        let left = pods.list(&ListParams::default()).await.unwrap();
        !left
            .iter()
            .any(|pod| names.contains(&pod.metadata.name.as_deref().unwrap()))
    })
    .await;
}

/// Waits until neither side has a claim.
pub async fn gone(clusters: &Clusters, what: &str) {
    eventually(&format!("{what} is gone on both sides"), async || {
        let list = ListParams::default();
        let tenant = clusters.tenant_api::<ResourceClaim>().list(&list).await.unwrap();
        let host = clusters.host_api::<ResourceClaim>().list(&list).await.unwrap();
        tenant.items.is_empty() && host.items.is_empty()
    })
    .await;
}
