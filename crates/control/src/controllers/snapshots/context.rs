//! What snapshots are taken with.

use super::{
    deletions::Deletions,
    runs::{Pauses, Runs},
};
use crate::{
    clock::Clock, controllers::tenant::Tenants, datastore::TenantContents, events::EventRecorder, key::Key,
    metrics::SnapshotMetrics, stores::Stores,
};
use berth_api::TenantSnapshot;
use berth_runtime::{queue::Queue, watched::Watched};
use berth_snapshots::Store;
use kube::{Api, Client, ResourceExt};
use std::sync::Arc;

/// What snapshots are taken with. Cheap to clone.
#[derive(Clone)]
pub struct SnapshotsContext {
    /// The host's API server.
    pub client: Client,
    /// The host's objects, as watches know them.
    pub stores: Stores,
    /// The time.
    pub clock: Clock,
    /// The object store, if there is one.
    pub store: Option<Store>,
    /// The tenants' shared etcd.
    pub contents: Arc<dyn TenantContents>,
    /// Which tenants are restored.
    pub tenants: Arc<Tenants>,
    /// Objects that wait to be reconciled.
    pub queue: Queue<Key>,
    /// Counters.
    pub metrics: SnapshotMetrics,
    /// Writes Events.
    pub recorder: EventRecorder,
    /// Snapshots that are being taken.
    pub runs: Arc<Runs>,
    /// Which are not begun again yet.
    pub pauses: Arc<Pauses>,
    /// Deletions of their files that are under way.
    pub deletions: Arc<Deletions>,
}

impl SnapshotsContext {
    /// The snapshots beside this one.
    pub(super) fn beside(&self, snapshot: &TenantSnapshot) -> Api<Watched<TenantSnapshot>> {
        Api::namespaced(self.client.clone(), &snapshot.namespace().unwrap_or_default())
    }
}
