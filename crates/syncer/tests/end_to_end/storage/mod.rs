//! Claims, volumes, classes and snapshots, on a host whose storage the test simulates.

mod claims;
mod classes;
mod host;
mod provisioner;
mod snapshots;

use crate::{
    objects::{create, eventually},
    setup::{Clusters, WORKLOADS},
};
use berth_api::{SchedulingMode, SyncPolicy, sync_policy::StoragePolicy};
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use provisioner::{DRIVER, Provisioner};
use serde_json::{Value, json};

/// Group, version and kind.
type Kind = (&'static str, &'static str, &'static str);
const CLAIM: Kind = ("", "v1", "PersistentVolumeClaim");
const VOLUME: Kind = ("", "v1", "PersistentVolume");
const CLASS: Kind = ("storage.k8s.io", "v1", "StorageClass");
const ATTRIBUTES_CLASS: Kind = ("storage.k8s.io", "v1", "VolumeAttributesClass");
const CSI_DRIVER: Kind = ("storage.k8s.io", "v1", "CSIDriver");
const SNAPSHOT: Kind = ("snapshot.storage.k8s.io", "v1", "VolumeSnapshot");
const SNAPSHOT_CLASS: Kind = ("snapshot.storage.k8s.io", "v1", "VolumeSnapshotClass");
const SNAPSHOT_CONTENT: Kind = ("snapshot.storage.k8s.io", "v1", "VolumeSnapshotContent");

/// Objects of a kind as JSON; `namespace` is empty for cluster-scoped kinds.
fn api(client: &Client, (group, version, kind): Kind, namespace: &str) -> Api<DynamicObject> {
    let mut resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    if kind.ends_with("Class") {
        resource.plural = format!("{}es", kind.to_lowercase());
    }
    if namespace.is_empty() {
        Api::all_with(client.clone(), &resource)
    } else {
        Api::namespaced_with(client.clone(), namespace, &resource)
    }
}

fn tenants(clusters: &Clusters, kind: Kind) -> Api<DynamicObject> {
    let is_namespaced = [CLAIM, SNAPSHOT].contains(&kind);
    api(&clusters.tenant_admin, kind, if is_namespaced { "default" } else { "" })
}

async fn make(api: &Api<DynamicObject>, (group, version, kind): Kind, mut object: Value) {
    object["apiVersion"] = format!("{group}/{version}").trim_start_matches('/').into();
    object["kind"] = kind.into();
    create(api, object).await;
}

async fn field(api: &Api<DynamicObject>, name: &str, pointer: &str) -> Option<Value> {
    api.get_opt(name).await.unwrap()?.data.pointer(pointer).cloned()
}

async fn merge(api: &Api<DynamicObject>, name: &str, patch: Value) {
    let patch = Patch::Merge(patch);
    api.patch(name, &PatchParams::default(), &patch).await.unwrap();
}

async fn remove(api: &Api<DynamicObject>, name: &str) {
    api.delete(name, &DeleteParams::default()).await.unwrap();
}

async fn count(api: &Api<DynamicObject>) -> usize {
    api.list(&ListParams::default()).await.unwrap().items.len()
}

/// The host's object for one of the tenant's.
async fn on_host(clusters: &Clusters, kind: Kind, name: &str) -> Option<DynamicObject> {
    let all = api(&clusters.host_admin, kind, WORKLOADS)
        .list(&ListParams::default())
        .await
        .unwrap();
    all.into_iter().find(|object| {
        object
            .annotations()
            .get("berth.dev/origin-name")
            .is_some_and(|origin| origin == name)
    })
}

fn claim(name: &str, spec: &Value) -> Value {
    let mut claim = json!({"metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}}});
    for (key, value) in spec.as_object().unwrap() {
        claim["spec"][key] = value.clone();
    }
    claim
}

fn mounting(volume: &Value) -> Value {
    json!({"volumes": [volume], "containers": [{"name": "main", "image": "app:1",
        "volumeMounts": [{"name": volume["name"], "mountPath": "/data"}]}]})
}

async fn is_bound(clusters: &Clusters, claim: &str) -> bool {
    field(&tenants(clusters, CLAIM), claim, "/status/phase").await == Some("Bound".into())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes() {
    let policy = SyncPolicy {
        storage: StoragePolicy {
            classes: vec!["fast".into(), "late".into()],
            attributes_classes: vec!["gold".into()],
            inline_drivers: vec![DRIVER.into()],
            snapshot_classes: vec!["daily".into()],
        },
        ..SyncPolicy::default()
    };
    let mut clusters = Clusters::start_with(policy, SchedulingMode::Host).await;
    host::prepare(&clusters).await;
    let provisioner = Provisioner::start(clusters.host_admin.clone());
    let syncer = clusters.syncer().await;
    classes::classes_are_mirrored(&clusters).await;
    claims::a_stateful_set_has_its_volumes(&clusters).await;
    claims::a_volume_grows(&clusters).await;
    claims::a_block_device_is_one(&clusters).await;
    snapshots::a_snapshot_is_restored(&clusters).await;
    snapshots::snapshots_are_counted_on_the_host(&clusters).await;
    claims::an_ephemeral_volume_comes_and_goes_with_its_pod(&clusters).await;
    claims::a_node_that_is_not_the_tenants_alone_is_reported(&clusters).await;
    classes::classes_that_are_not_offered_are_reported(&clusters).await;
    claims::a_claim_in_use_stays(&clusters).await;
    let syncer = classes::a_class_is_taken_back_and_offered_again(&mut clusters, syncer).await;
    let syncer = classes::attributes_and_a_driver_are_taken_back_and_offered_again(&mut clusters, syncer).await;
    claims::a_claim_whose_volume_is_gone_is_lost(&clusters).await;
    nothing_is_left(&clusters).await;
    syncer.stop().await;
    drop(provisioner);
}

async fn nothing_is_left(clusters: &Clusters) {
    remove(&tenants(clusters, VOLUME), "disk").await;
    remove(&tenants(clusters, SNAPSHOT), "monday").await;
    let sets = clusters.tenant_api::<StatefulSet>();
    sets.delete("db", &DeleteParams::default()).await.unwrap();
    let claims = tenants(clusters, CLAIM);
    claims
        .delete_collection(&DeleteParams::default(), &ListParams::default())
        .await
        .unwrap();
    eventually("nothing is left on either side", async || {
        let host = &clusters.host_admin;
        count(&claims).await == 0
            && count(&tenants(clusters, VOLUME)).await == 0
            && count(&tenants(clusters, SNAPSHOT)).await == 0
            && count(&api(host, CLAIM, WORKLOADS)).await == 0
            && count(&api(host, VOLUME, "")).await == 0
            && count(&api(host, SNAPSHOT, WORKLOADS)).await == 0
    })
    .await;
}
