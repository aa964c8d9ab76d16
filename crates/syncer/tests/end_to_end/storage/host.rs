//! What the host of the test offers.

use super::{
    ATTRIBUTES_CLASS, CLASS, CSI_DRIVER, SNAPSHOT, SNAPSHOT_CLASS, SNAPSHOT_CONTENT, api, make, provisioner::DRIVER,
};
use crate::{
    objects::{create, eventually},
    setup::Clusters,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, api::ListParams};
use serde_json::json;

/// The kinds of snapshots, as far as the test needs them.
async fn define_snapshots(client: &Client) {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    for (kind, scope) in [
        (SNAPSHOT, "Namespaced"),
        (SNAPSHOT_CLASS, "Cluster"),
        (SNAPSHOT_CONTENT, "Cluster"),
    ] {
        let singular = kind.2.to_lowercase();
        let plural = if singular.ends_with('s') {
            format!("{singular}es")
        } else {
            format!("{singular}s")
        };
        let schema = json!({"type": "object", "properties": {"spec": open, "status": open,
            "driver": {"type": "string"}, "deletionPolicy": {"type": "string"}, "parameters": open}});
        let annotations =
            json!({"api-approved.kubernetes.io": "https://github.com/kubernetes-csi/external-snapshotter/pull/814"});
        let crd = json!({"metadata": {"name": format!("{plural}.{}", kind.0), "annotations": annotations}, "spec": {
            "group": kind.0, "scope": scope, "names": {"kind": kind.2, "plural": plural, "singular": singular},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": schema}}]}});
        create(&crds, crd).await;
        let objects = api(client, kind, "");
        eventually("snapshots are served", async || {
            objects.list(&ListParams::default()).await.is_ok()
        })
        .await;
    }
}

/// Creates what the host offers, and more.
pub(super) async fn prepare(clusters: &Clusters) {
    let host = &clusters.host_admin;
    for (name, mode) in [
        ("fast", "Immediate"),
        ("late", "WaitForFirstConsumer"),
        ("hidden", "Immediate"),
    ] {
        let default = (name == "fast").to_string();
        let class = json!({"metadata": {"name": name, "annotations": {"storageclass.kubernetes.io/is-default-class": default}},
            "provisioner": DRIVER, "parameters": {"server": "10.0.0.1"}, "volumeBindingMode": mode, "allowVolumeExpansion": true});
        make(&api(host, CLASS, ""), CLASS, class).await;
    }
    let gold = json!({"metadata": {"name": "gold"}, "driverName": DRIVER, "parameters": {"iops": "4000"}});
    make(&api(host, ATTRIBUTES_CLASS, ""), ATTRIBUTES_CLASS, gold).await;
    let driver = json!({"metadata": {"name": DRIVER},
        "spec": {"attachRequired": false, "volumeLifecycleModes": ["Persistent", "Ephemeral"]}});
    make(&api(host, CSI_DRIVER, ""), CSI_DRIVER, driver).await;
    for client in [host, &clusters.tenant_admin] {
        define_snapshots(client).await;
    }
    let default = json!({"snapshot.storage.kubernetes.io/is-default-class": "true"});
    let daily =
        json!({"metadata": {"name": "daily", "annotations": default}, "driver": DRIVER, "deletionPolicy": "Delete"});
    make(&api(host, SNAPSHOT_CLASS, ""), SNAPSHOT_CLASS, daily).await;
}
