//! The class of a VolumeSnapshot may change until the snapshot is taken.

use super::{StolenCredential, expect_denied, wait_until_served};
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

/// Name of the snapshot that waits.
const NAME: &str = "waiting";

fn snapshots(credential: &StolenCredential) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshot");
    let resource = ApiResource::from_gvk(&kind);
    Api::namespaced_with(credential.client.clone(), &credential.namespace, &resource)
}

async fn change(credential: &StolenCredential, patch: &Value) -> kube::Result<DynamicObject> {
    let params = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    snapshots(credential).patch(NAME, &params, &Patch::Merge(patch)).await
}

fn named(class: &Value) -> Value {
    json!({"spec": {"volumeSnapshotClassName": class}})
}

/// What an intact syncer changes, also if the class of the snapshot is no longer listed.
async fn expect_metadata_may_change(credential: &StolenCredential) {
    let labelled = json!({"metadata": {"labels": {"berth.dev/x": "y"}}});
    change(credential, &labelled).await.unwrap();
}

/// Makes a snapshot that waits, and leaves it for [`class_that_is_withdrawn`].
pub(super) async fn class_of_one_that_waits(credential: &StolenCredential) {
    let more = json!({"metadata": {"name": NAME}, "spec": {
        "source": {"persistentVolumeClaimName": "c"}, "volumeSnapshotClassName": "daily"}});
    let snapshot = credential.object("snapshot.storage.k8s.io/v1", "VolumeSnapshot", &more);
    wait_until_served(credential, &snapshot).await;
    snapshots(credential)
        .create(&PostParams::default(), &serde_json::from_value(snapshot).unwrap())
        .await
        .unwrap();
    for class in [json!("other"), json!(""), Value::Null] {
        expect_denied("volumeSnapshotClassName", change(credential, &named(&class)).await);
    }
    change(credential, &named(&json!("daily"))).await.unwrap();
    expect_metadata_may_change(credential).await;
}

/// The tenant's class no longer lists any class of snapshots: the snapshot keeps its own and can be deleted.
pub(super) async fn class_that_is_withdrawn(credential: &StolenCredential) {
    expect_metadata_may_change(credential).await;
    expect_denied(
        "volumeSnapshotClassName",
        change(credential, &named(&Value::Null)).await,
    );
    snapshots(credential)
        .delete(NAME, &DeleteParams::default())
        .await
        .unwrap();
}
