//! Snapshots of a tenant: restored, and counted.

use super::{CLAIM, SNAPSHOT, SNAPSHOT_CONTENT, claim, field, is_bound, make, on_host, provisioner::DRIVER, tenants};
use crate::{
    limits::{count_on_host, until_beyond},
    objects::{events, eventually},
    setup::Clusters,
};
use berth_api::TenantLimits;
use kube::{ResourceExt, api::DeleteParams};
use serde_json::json;

pub(super) async fn a_snapshot_is_restored(clusters: &Clusters) {
    let snapshots = tenants(clusters, SNAPSHOT);
    let source = json!({"persistentVolumeClaimName": "data-db-1"});
    let monday = json!({"metadata": {"name": "monday"}, "spec": {"source": source}});
    make(&snapshots, SNAPSHOT, monday).await;
    eventually("the snapshot is taken", async || {
        field(&snapshots, "monday", "/status/readyToUse").await == Some(true.into())
    })
    .await;
    let class = field(&snapshots, "monday", "/spec/volumeSnapshotClassName").await;
    assert_eq!(class, Some("daily".into()));
    let content = field(&snapshots, "monday", "/status/boundVolumeSnapshotContentName").await;
    assert_eq!(content, None);
    let source = json!({"apiGroup": SNAPSHOT.0, "kind": SNAPSHOT.2, "name": "monday"});
    let restored = claim("restored", &json!({"dataSource": source}));
    make(&tenants(clusters, CLAIM), CLAIM, restored).await;
    eventually("the restored volume is bound", async || {
        is_bound(clusters, "restored").await
    })
    .await;
    let host = on_host(clusters, CLAIM, "restored").await.unwrap();
    let snapshot = on_host(clusters, SNAPSHOT, "monday").await.unwrap();
    assert_eq!(host.data["spec"]["dataSource"]["name"], snapshot.name_any());

    let content = json!({"metadata": {"name": "own"}, "spec": {"driver": DRIVER}});
    make(&tenants(clusters, SNAPSHOT_CONTENT), SNAPSHOT_CONTENT, content).await;
    eventually("an Event reports the team's own content", async || {
        let messages = events(clusters, "own", "NotSynced").await;
        messages.iter().any(|text| text.contains("Contents of snapshots"))
    })
    .await;
}

/// There is one.
pub(super) async fn snapshots_are_counted_on_the_host(clusters: &Clusters) {
    let limits = TenantLimits {
        volume_snapshots: 1,
        ..TenantLimits::default()
    };
    let counted = "count/volumesnapshots.snapshot.storage.k8s.io";
    let quotas = count_on_host(clusters, counted, &limits).await;
    let snapshots = tenants(clusters, SNAPSHOT);
    let source = json!({"persistentVolumeClaimName": "data-db-1"});
    let tuesday = json!({"metadata": {"name": "tuesday"}, "spec": {"source": source}});
    make(&snapshots, SNAPSHOT, tuesday).await;
    until_beyond(clusters, "tuesday", "spec.limits.volumeSnapshots").await;
    assert!(on_host(clusters, SNAPSHOT, "tuesday").await.is_none());
    quotas.delete("berth-limits", &DeleteParams::default()).await.unwrap();
    eventually("the snapshot is taken once there is room", async || {
        field(&snapshots, "tuesday", "/status/readyToUse").await == Some(true.into())
    })
    .await;
    snapshots.delete("tuesday", &DeleteParams::default()).await.unwrap();
}
