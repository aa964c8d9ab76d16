//! The request to set a tenant back to a snapshot: whether it can be carried out, and how it is taken back.

use super::{
    super::{
        context::TenantContext,
        restore::{Checked, Refusal, new_record},
        target::Tenant,
    },
    Accepted,
    restore_check::{RestoreFacts, check},
};
use crate::{
    apply::optional,
    control_plane::Authorities,
    datastore::RestoreRecord,
    error::{ReconcileError, api},
};
use berth_api::{TenantCluster, TenantSnapshot, labels};
use berth_runtime::watched::Watched;
use berth_snapshots::{ReadError, Store, Written};
use jiff::Timestamp;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
    runtime::reflector::ObjectRef,
};
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tokio_util::task::AbortOnDropHandle;

/// Pause before it is looked again how far the comparison of a snapshot is.
const POLL: Duration = Duration::from_secs(1);

/// A snapshot that was compared with what was written.
pub(super) struct Source {
    name: String,
    uid: String,
    location: String,
    written: Written,
    encryption_keys: Vec<String>,
}

impl Source {
    /// The record of a restore to it that begins.
    pub(super) fn record(self, saved_as: Option<String>, started_at: Timestamp) -> RestoreRecord {
        let names = (self.name.as_str(), self.uid.as_str(), self.location);
        new_record(names, self.written, self.encryption_keys, saved_as, started_at)
    }
}

/// Whether a tenant can be set back to a snapshot.
pub(super) enum Compared {
    /// Its file is compared from now on with what was written.
    Begun,
    /// That goes on, or something does not answer.
    Waits,
    /// It cannot, for a reason.
    Refused(Refusal),
    /// It can.
    Same(Box<Source>),
}

/// Looks whether a tenant can be set back to the snapshot of this name.
pub(super) async fn compare(
    context: &TenantContext,
    accepted: &Accepted,
    authorities: &Authorities,
    name: &str,
) -> Compared {
    let tenant = &accepted.tenant;
    let (uid, restores) = (tenant.cluster.uid().unwrap_or_default(), context.tenants.restores());
    let database = match context.contents.read_database().await {
        Ok(database) => database,
        Err(error) => {
            tracing::warn!(tenant = tenant.id.slug(), %error, "a restore waits for the datastore");
            return Compared::Waits;
        }
    };
    let snapshot = find_snapshot(context, tenant, name);
    let keys = authorities.encryption.key_names();
    let checked = check(&RestoreFacts {
        tenant: &tenant.cluster.name_any(),
        uid: &uid,
        version: &accepted.settings.version,
        keys: &keys,
        has_store: context.snapshot_store.is_some(),
        name,
        snapshot: snapshot.as_deref(),
        database: &database,
        namespace: &tenant.id.control_plane_namespace(),
    });
    let (written, snapshot, store) = match (checked, snapshot, &context.snapshot_store) {
        (Ok(written), Some(snapshot), Some(store)) => (written, snapshot, store),
        (Err(refusal), ..) => return Compared::Refused(refusal),
        (Ok(_), ..) => return Compared::Waits,
    };
    let snapshot_uid = snapshot.uid().unwrap_or_default();
    match restores.checked(&uid, &snapshot_uid).await {
        Checked::Running => {
            context.queue.add_after(tenant.key(), POLL);
            Compared::Waits
        }
        Checked::Ended(Err(refusal)) => Compared::Refused(refusal),
        Checked::No => {
            let task = spawn_comparison(context, tenant, store, snapshot.location(), written);
            restores.keep_check(&uid, &snapshot_uid, task);
            Compared::Begun
        }
        Checked::Ended(Ok(())) => {
            let keys = { snapshot.status.as_ref() }.map(|status| status.encryption_keys.clone());
            Compared::Same(Box::new(Source {
                name: name.to_owned(),
                uid: snapshot_uid,
                location: snapshot.location(),
                written,
                encryption_keys: keys.unwrap_or_default(),
            }))
        }
    }
}

fn spawn_comparison(
    context: &TenantContext,
    tenant: &Tenant,
    store: &Store,
    location: String,
    written: Written,
) -> AbortOnDropHandle<Result<(), Refusal>> {
    let (store, queue, key) = (store.clone(), context.queue.clone(), tenant.key());
    let turns = Arc::clone(&context.tenants.restores().comparisons);
    AbortOnDropHandle::new(tokio::spawn(async move {
        // Nobody closes them.
        let turn = turns.acquire_owned().await;
        let compared = store.verify(&location, &written).await;
        drop(turn);
        queue.add(key);
        compared.map_err(|error| describe_damage(&error))
    }))
}

fn find_snapshot(context: &TenantContext, tenant: &Tenant, name: &str) -> Option<Arc<TenantSnapshot>> {
    let namespace = tenant.cluster.namespace().unwrap_or_default();
    context.stores.snapshots.get(&ObjectRef::new(name).within(&namespace))
}

/// Why a snapshot that cannot be read is not restored.
pub(super) fn describe_damage(error: &ReadError) -> Refusal {
    let reason = match error {
        ReadError::NotFound | ReadError::Damaged(_) => "SnapshotDamaged",
        ReadError::NewerFormat(_) => "SnapshotOfNewerBerth",
        ReadError::Store(_) => "StoreError",
    };
    Refusal {
        reason,
        message: format!("the snapshot cannot be restored: {error}"),
    }
}

/// Takes back a request that is refused. Returns whether it was there; what fails is tried again with the next reconcile.
pub(super) async fn withdraw(context: &TenantContext, tenant: &Tenant, name: &str) -> bool {
    take_request(context, tenant, name).await.unwrap_or_else(|error| {
        tracing::warn!(tenant = tenant.id.slug(), %error, "cannot remove a request for a restore that is refused; trying again");
        false
    })
}

/// Removes the request for a restore. Returns whether it was still there as it was seen: a view that is late may show one that was carried out, or one that loses
/// what is there although somebody wants it to be saved by now, or a version that is not the last one that was started.
///
/// # Errors
/// The host refuses or does not answer.
pub(super) async fn take_request(context: &TenantContext, tenant: &Tenant, name: &str) -> Result<bool, ReconcileError> {
    let clusters = context.clusters_beside(&tenant.cluster);
    let live = optional(clusters.get(&tenant.cluster.name_any()).await).map_err(api("read a TenantCluster"))?;
    // An upgrade that the view does not show yet: the snapshot was compared with the version before.
    let started = |cluster: &TenantCluster| {
        let status = cluster.status.as_ref();
        status.and_then(|status| status.started_version().map(ToOwned::to_owned))
    };
    let is_asked = |live: &TenantCluster| {
        live.uid() == tenant.cluster.uid()
            && live.requested_restore() == Some(name)
            && live.restores_without_saving() == tenant.cluster.restores_without_saving()
            && started(live) == started(&tenant.cluster)
    };
    let Some(live) = live.and_then(Watched::readable).filter(is_asked) else {
        return Ok(false);
    };
    let patch = json!({"metadata": {
        "uid": live.uid(),
        "resourceVersion": live.resource_version(),
        "annotations": {labels::RESTORE_SNAPSHOT: null, labels::RESTORE_WITHOUT_SAVING: null},
    }});
    let patched = clusters
        .patch(&live.name_any(), &PatchParams::default(), &Patch::Merge(&patch))
        .await;
    patched.map(|_| true).map_err(api("remove the request for a restore"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_differs_from_a_store_that_does_not_answer() {
        let reason = |error: &ReadError| describe_damage(error).reason;
        assert_eq!(reason(&ReadError::Damaged("a checksum".into())), "SnapshotDamaged");
        assert_eq!(reason(&ReadError::NotFound), "SnapshotDamaged");
        assert_eq!(reason(&ReadError::NewerFormat(7)), "SnapshotOfNewerBerth");
        let store = berth_snapshots::StoreError::Unreachable("no answer".into());
        assert_eq!(reason(&ReadError::Store(store)), "StoreError");
    }
}
