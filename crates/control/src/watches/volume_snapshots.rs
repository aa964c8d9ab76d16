//! The watch of tenants' VolumeSnapshots on the host, for the storage that they keep when their claims are gone. A host that does not serve them has none.

use super::{
    follow::{Index, follow_if_served},
    of_tenants,
};
use crate::metered_use::{MeteredUse, VolumeSnapshot, snapshot_resource};
use kube::Client;
use std::collections::HashSet;
use tokio::{sync::oneshot, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// Watches the snapshots of tenants, if usage is recorded. The receiver resolves when the first list is complete, or the host does not serve the kind.
pub(super) fn start(
    client: &Client,
    metered: MeteredUse,
    tasks: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> oneshot::Receiver<()> {
    let (done, is_done) = oneshot::channel();
    if !metered.is_read() {
        return is_done;
    }
    let (client, stop) = (client.clone(), stop.clone());
    tasks.spawn(async move {
        let (resource, index) = (snapshot_resource(), SnapshotWatch { metered });
        follow_if_served::<VolumeSnapshot>(client, (&resource, of_tenants()), &index, done, &stop).await;
    });
    is_done
}

struct SnapshotWatch {
    metered: MeteredUse,
}

impl Index<VolumeSnapshot> for SnapshotWatch {
    fn put(&self, name: &str, snapshot: Option<&VolumeSnapshot>) {
        self.metered.put_snapshot(name, snapshot);
    }

    fn retain(&self, names: &HashSet<String>) {
        self.metered.retain_snapshots(names);
    }
}
