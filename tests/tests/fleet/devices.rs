//! Claims of devices bring nodes. There is no driver: the test publishes slices as one would, and the host's scheduler
//! allocates.

use crate::setup::{SOON, Team, until_all_free};
use berth_api::{HostNodePool, NodeGroup};
use berth_tests::{objects::apply, test_cluster::TestCluster, wait::until, wait::until_true};
use k8s_openapi::api::{
    core::v1::Node,
    resource::v1::{DeviceClass, ResourceSlice},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};
use std::sync::Arc;

const CLASS: &str = "gpu.example.com";
/// Devices of each node.
const DEVICES: u32 = 2;

/// Installs a class: every node of the pool has some devices of it, and some of another kind.
async fn install_driver(host: &TestCluster) {
    let selector = format!("device.driver == '{CLASS}' && device.attributes['{CLASS}'].type == 'gpu'");
    let class = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": CLASS},
        "spec": {"selectors": [{"cel": {"expression": selector}}]},
    });
    apply(&host.client, "", &class).await.unwrap();
    let nodes: Api<Node> = Api::all(host.client.clone());
    let of_pool = ListParams::default().labels("nvidia.com/gpu.product");
    for node in nodes.list(&of_pool).await.unwrap() {
        let name = node.name_any();
        let device = |index: u32, kind: &str| json!({"name": format!("{kind}-{index}"), "attributes": {"type": {"string": kind}}});
        let gpus = (0..DEVICES).map(|index| device(index, "gpu"));
        let devices: Vec<Value> = gpus.chain((0..4).map(|index| device(index, "nic"))).collect();
        let slice = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": format!("fleet-{name}")},
            "spec": {
                "driver": CLASS, "nodeName": name, "devices": devices,
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            },
        });
        apply(&host.client, "", &slice).await.unwrap();
    }
}

async fn remove_driver(host: &TestCluster) {
    let slices: Api<ResourceSlice> = Api::all(host.client.clone());
    for slice in slices.list(&ListParams::default()).await.unwrap() {
        let name = slice.name_any();
        if name.starts_with("fleet-") {
            slices.delete(&name, &DeleteParams::default()).await.unwrap();
        }
    }
    let classes: Api<DeviceClass> = Api::all(host.client.clone());
    classes.delete(CLASS, &DeleteParams::default()).await.unwrap();
}

/// The fields of a pod with a claim.
fn with_claim(claim: &Value) -> Value {
    let mut named = json!({"name": "gpu"});
    named
        .as_object_mut()
        .unwrap()
        .extend(claim.as_object().unwrap().clone());
    let container = json!({"name": "main", "image": "train:1", "resources": {"claims": [{"name": "gpu"}]}});
    json!({"spec": {"resourceClaims": [named], "containers": [container]}})
}

pub(crate) async fn pool_learns_gpu_products_from_devices(host: Arc<TestCluster>) {
    let nodes: Api<Node> = Api::all(host.client.clone());
    let unlabelled = ListParams::default().labels("!nvidia.com/gpu.product");
    let node = nodes.list(&unlabelled).await.unwrap().items.remove(0).name_any();
    let pool = json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "HostNodePool", "metadata": {"name": "claimed"},
        "spec": {"nodeSelector": {"kubernetes.io/hostname": node}, "sharing": "DRA"},
    });
    apply(&host.client, "", &pool).await.unwrap();
    let pools: Api<HostNodePool> = Api::all(host.client.clone());
    let until_status = async |what: &str, product: Option<&str>, sharing: Option<&str>| {
        until(what, SOON, async || {
            let status = pools.get("claimed").await.unwrap().status.unwrap_or_default();
            let is_counted = status.nodes.is_some_and(|nodes| nodes.total == 1);
            if is_counted && status.product.as_deref() == product && status.sharing.as_deref() == sharing {
                Ok(())
            } else {
                Err(format!("{status:?}"))
            }
        })
        .await;
    };
    until_status("the node is counted", None, None).await;
    let slice = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "fleet-claimed"},
        "spec": {
            "driver": CLASS, "nodeName": node, "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-0", "attributes": {"productName": {"string": "Example G1"}}}],
        },
    });
    apply(&host.client, "", &slice).await.unwrap();
    until_status("its devices name the product", Some("Example G1"), Some("DRA")).await;
    let slices: Api<ResourceSlice> = Api::all(host.client.clone());
    slices.delete("fleet-claimed", &DeleteParams::default()).await.unwrap();
    until_status("no device names a product", None, None).await;
    pools.delete("claimed", &DeleteParams::default()).await.unwrap();
}

pub(crate) async fn claims_of_devices_bring_nodes(host: Arc<TestCluster>) {
    install_driver(&host).await;
    let team = Team::create(&host, "claims", None, vec![NodeGroup::dynamic("burst", "h100", 0, 4)]).await;
    let namespace = team.id.workload_namespace();
    let request = |count: u32| json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": CLASS, "count": count}}]}});
    let template = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "both"},
        "spec": {"spec": request(DEVICES)},
    });
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "one"}, "spec": request(1),
    });
    apply(&host.client, &namespace, &template).await.unwrap();
    apply(&host.client, &namespace, &claim).await.unwrap();

    // Each takes all GPUs of a node.
    for name in ["a", "b"] {
        team.run(name, 0, &with_claim(&json!({"resourceClaimTemplateName": "both"})))
            .await;
    }
    let until_running = async |number: usize| {
        until(&format!("{number} pods run"), SOON, async || {
            let running = team.running().await;
            if running == number {
                Ok(())
            } else {
                Err(format!("{running} run; {:?}", team.group().await))
            }
        })
        .await;
    };
    until_running(2).await;
    assert_eq!(team.held().await, 2);
    // These share one GPU, and with it a node.
    for name in ["c", "d"] {
        team.run(name, 0, &with_claim(&json!({"resourceClaimName": "one"})))
            .await;
    }
    until_running(4).await;
    assert_eq!(team.held().await, 3, "two pods share one claim");
    // More than any node has.
    let huge = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "huge"},
        "spec": request(DEVICES + 1),
    });
    apply(&host.client, &namespace, &huge).await.unwrap();
    team.run("e", 0, &with_claim(&json!({"resourceClaimName": "huge"})))
        .await;
    for name in ["a", "b"] {
        team.stop(name).await;
    }
    until_true("only the node in use stays", SOON, async || team.held().await == 1).await;
    assert_eq!(team.running().await, 2);
    for name in ["c", "d", "e"] {
        team.stop(name).await;
    }
    until_all_free(&host).await;
    team.delete(&host).await;
    remove_driver(&host).await;
}
