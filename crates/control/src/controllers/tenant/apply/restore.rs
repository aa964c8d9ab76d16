//! Sets a tenant back to a snapshot.
//!
//! That this has begun is recorded in etcd, and while the record is there nothing of the tenant is started: every start needs [`Prepared`], which needs this.
//! The namespace `kube-system`, by which etcd shows that it has the tenant's database, is deleted first and written last, together with the end of the record.
//!
//! | phase of the record | what is done | after a kill |
//! |---|---|---|
//! | none | the request is checked; the snapshot is read as a whole and compared | the same again |
//! | Saving | user and components of the tenant are stopped; a snapshot is taken of what is there | the same again |
//! | Replacing | all keys are deleted, and those of the snapshot are written | the same again, from the beginning |
//! | Replaced | the host records the database, and objects are to be rewritten; the last key is written, and the record deleted | the same again |
//!
//! docs/adr/XXXX says why it is done so.
//!
//! [`Prepared`]: super::Prepared

use super::{
    super::{
        context::TenantContext,
        restore::{Checked, Finding, Gone, Refusal, ended, new_record},
        target::Tenant,
    },
    Accepted,
    components::stop_components,
    datastore_identity, keys,
    restore_check::{RestoreFacts, check},
    restore_task::RestoreTask,
};
use crate::{
    apply::optional,
    control_plane::{Authorities, EncryptionStep},
    datastore::{DatastoreError, RestorePhase, RestoreRecord, StoredRestore},
    error::{ReconcileError, api},
    metrics::ResultLabels,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use berth_api::{EncryptionPhase, NetworkLimits, TenantCluster, TenantSnapshot, labels};
use berth_runtime::watched::Watched;
use berth_snapshots::{Entry, ReadError};
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
    runtime::reflector::ObjectRef,
};
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

/// The key by which etcd shows which database a tenant has.
const IDENTITY: &str = super::super::build::stored_namespace::PATH;
/// The reason while a restore keeps everything else from being done.
const RESTORING: &str = "Restoring";
/// Pause before it is looked again how far the comparison of a snapshot is.
const POLL: Duration = Duration::from_secs(1);
/// Pause before a restore that failed is tried again; it doubles with each try.
const RETRY: Duration = Duration::from_secs(5);
/// The longest.
const MOST_RETRY: Duration = Duration::from_secs(300);

/// Creates what the tenant needs in the datastore, as [`datastore_identity::prepare_datastore`] does, unless it is being set back to a snapshot: then it goes
/// on with that instead, and fails.
///
/// # Errors
/// A restore is under way, or the datastore or the host refuses or does not answer, or the database is another one.
pub(super) async fn prepare_datastore(
    context: &TenantContext,
    accepted: &Accepted,
    authorities: Option<&Authorities>,
    network: &NetworkLimits,
) -> Result<(), ReconcileError> {
    Box::pin(follow(context, accepted, authorities)).await?;
    datastore_identity::prepare_datastore(context, &accepted.tenant, network).await
}

/// Goes on with the restore that is recorded, or begins one that somebody asks for. Succeeds if there is none.
async fn follow(
    context: &TenantContext,
    accepted: &Accepted,
    authorities: Option<&Authorities>,
) -> Result<(), ReconcileError> {
    let tenant = &accepted.tenant;
    let uid = uid(tenant);
    let restores = context.tenants.restores();
    let stored = match context.contents.read_restore(&tenant.id, None).await {
        Ok(stored) => stored,
        // Nobody else begins one. What needs the datastore says that it does not answer.
        Err(_) if restores.knows_none(&uid) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    if let Some(stored) = stored {
        return go_on(context, tenant, authorities, &stored).await;
    }
    let now = context.clock.now();
    match restores.note_none(&uid) {
        Gone::Unknown => {
            if restores.finding(&uid).is_none()
                && let Some(finding) = ended(None, &tenant.cluster, now)
            {
                restores.note(&uid, finding);
            }
            consider(context, accepted, authorities).await
        }
        gone => {
            if let Gone::Ended(record) = gone {
                let finding = ended(Some(&record), &tenant.cluster, now).unwrap_or_else(Finding::interrupted);
                restores.note(&uid, finding);
            }
            if let Some(finding) = restores.finding(&uid) {
                count(context, &finding);
            }
            // All that is remembered of it is from before.
            context.tenants.renew(&uid, &context.client);
            context.queue.add(tenant.key());
            Err(blocked(
                "what the tenant stores is as in the snapshot; its control plane is started again".into(),
            ))
        }
    }
}

fn uid(tenant: &Tenant) -> String {
    tenant.cluster.uid().unwrap_or_default()
}

fn blocked(message: String) -> ReconcileError {
    ReconcileError::Blocked {
        reason: RESTORING,
        message,
    }
}

fn count(context: &TenantContext, finding: &Finding) {
    let condition = finding.condition();
    let result = if condition.is_true() { "ok" } else { condition.reason };
    context.restores.get_or_create(&ResultLabels { result }).inc();
}

/// Looks whether somebody asks for a restore. Fails only once one may have begun: until then the tenant goes on as it is.
async fn consider(
    context: &TenantContext,
    accepted: &Accepted,
    authorities: Option<&Authorities>,
) -> Result<(), ReconcileError> {
    let tenant = &accepted.tenant;
    let (uid, restores) = (uid(tenant), context.tenants.restores());
    let (Some(name), Some(authorities)) = (tenant.cluster.requested_restore(), authorities) else {
        if restores.forget_check(&uid) {
            restores.note(&uid, Finding::withdrawn());
        }
        return Ok(());
    };
    let database = match context.contents.read_database().await {
        Ok(database) => database,
        Err(error) => {
            tracing::warn!(tenant = tenant.id.slug(), %error, "a restore waits for the datastore");
            return Ok(());
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
        (Err(refusal), ..) => return refuse(context, tenant, name, refusal).await,
        (Ok(_), ..) => return Ok(()),
    };
    let snapshot_uid = snapshot.uid().unwrap_or_default();
    match restores.checked(&uid, &snapshot_uid).await {
        Checked::Running => {
            context.queue.add_after(tenant.key(), POLL);
            return Ok(());
        }
        Checked::Ended(Ok(())) => {}
        Checked::Ended(Err(refusal)) => return refuse(context, tenant, name, refusal).await,
        Checked::No => {
            restores.note(&uid, Finding::Checking(name.to_owned()));
            let (store, location, queue, key) =
                (store.clone(), snapshot.location(), context.queue.clone(), tenant.key());
            let comparison = async move {
                let compared = store.verify(&location, &written).await;
                queue.add(key);
                compared.map_err(|error| describe_damage(&error))
            };
            let task = AbortOnDropHandle::new(tokio::spawn(comparison));
            restores.keep_check(&uid, &snapshot_uid, task);
            return Ok(());
        }
    }
    let now = context.clock.now();
    let saves = !tenant.cluster.restores_without_saving();
    let saved_as = saves.then(|| format!("{}-before-{}", tenant.cluster.name_any(), now.strftime("%Y%m%d-%H%M%S")));
    let keys = { snapshot.status.as_ref() }.map(|status| status.encryption_keys.clone());
    let record = new_record(
        (name, &snapshot_uid, snapshot.location()),
        written,
        keys.unwrap_or_default(),
        saved_as,
        now,
    );
    begin(context, tenant, authorities, name, record).await
}

fn find_snapshot(context: &TenantContext, tenant: &Tenant, name: &str) -> Option<Arc<TenantSnapshot>> {
    let namespace = tenant.cluster.namespace().unwrap_or_default();
    context.stores.snapshots.get(&ObjectRef::new(name).within(&namespace))
}

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

/// Says why there is no restore, and takes the request back.
async fn refuse(context: &TenantContext, tenant: &Tenant, name: &str, refusal: Refusal) -> Result<(), ReconcileError> {
    let finding = Finding::Refused(refusal);
    match take_request(context, tenant, name).await {
        Ok(true) => count(context, &finding),
        Ok(false) => {}
        Err(error) => {
            tracing::warn!(tenant = tenant.id.slug(), %error, "cannot remove a request for a restore that is refused; trying again");
        }
    }
    context.tenants.restores().note(&uid(tenant), finding);
    Ok(())
}

/// Removes the request for a restore. Returns whether it was still there: a view that is late may show one that was carried out.
async fn take_request(context: &TenantContext, tenant: &Tenant, name: &str) -> Result<bool, ReconcileError> {
    let clusters = context.clusters_beside(&tenant.cluster);
    let live = optional(clusters.get(&tenant.cluster.name_any()).await).map_err(api("read a TenantCluster"))?;
    let is_asked = |live: &TenantCluster| live.uid() == tenant.cluster.uid() && live.requested_restore() == Some(name);
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

/// Takes the request back, records that the restore has begun, and goes on with it. A control that is killed between the two has changed nothing: somebody
/// has to ask again. The other order could carry out a request twice.
async fn begin(
    context: &TenantContext,
    tenant: &Tenant,
    authorities: &Authorities,
    name: &str,
    record: RestoreRecord,
) -> Result<(), ReconcileError> {
    match take_request(context, tenant, name).await {
        Ok(true) => {}
        Ok(false) => return Ok(()),
        Err(error) => {
            // It is compared once more.
            tracing::warn!(tenant = tenant.id.slug(), %error, "a restore waits until its request can be removed");
            return Ok(());
        }
    }
    tracing::info!(
        tenant = tenant.id.slug(),
        snapshot = name,
        "a tenant is set back to a snapshot"
    );
    let text = record.to_text();
    context.tenants.restores().note_record(&uid(tenant), record);
    let revision = context.contents.write_restore(&tenant.id, text.clone(), None).await?;
    go_on(context, tenant, Some(authorities), &StoredRestore { text, revision }).await
}

/// Does the next step of a restore that is recorded.
///
/// # Errors
/// Always: nothing else of the tenant may be done.
async fn go_on(
    context: &TenantContext,
    tenant: &Tenant,
    authorities: Option<&Authorities>,
    stored: &StoredRestore,
) -> Result<(), ReconcileError> {
    let (uid, restores) = (uid(tenant), context.tenants.restores());
    let record = RestoreRecord::parse(&stored.text).map_err(|error| {
        blocked(format!(
            "the record of a restore in the datastore cannot be read ({error}); run the version of Berth that has begun it"
        ))
    })?;
    restores.note_record(&uid, record.clone());
    if restores.is_running(&uid) {
        return Err(blocked(describe(context, &uid)));
    }
    if let Some(pause) = restores.pause(&uid, Instant::now()) {
        context.queue.add_after(tenant.key(), pause);
        return Err(blocked(describe(context, &uid)));
    }
    stop(context, tenant).await?;
    if record.phase == RestorePhase::Replaced {
        return end(context, tenant, authorities, &record, stored.revision).await;
    }
    let record = RestoreRecord {
        attempts: record.attempts.saturating_add(1),
        ..record
    };
    // From now on no other process writes for the restore.
    let revision = context
        .contents
        .write_restore(&tenant.id, record.to_text(), Some(stored.revision))
        .await?;
    let Some(store) = context.snapshot_store.clone() else {
        let why = "Berth has no object store for snapshots any more; the platform sets snapshots.url in the values of the chart";
        restores.note(&uid, Finding::Failing(record, why.into()));
        return Err(blocked(why.into()));
    };
    let pause = retry_pause(record.attempts);
    let (task, progress) = RestoreTask::new(context, tenant, store, record, revision).spawn(pause);
    restores.keep_task(&uid, task, progress);
    Err(blocked(describe(context, &uid)))
}

/// What people read of a restore under way.
fn describe(context: &TenantContext, uid: &str) -> String {
    let finding = context.tenants.restores().finding(uid);
    finding.map_or_else(
        || "the tenant is set back to a snapshot".into(),
        |finding| finding.condition().message,
    )
}

/// Pause before a restore is tried again that has been tried so often.
fn retry_pause(attempts: u32) -> Duration {
    let doublings = attempts.saturating_sub(1).min(16);
    RETRY.saturating_mul(1 << doublings).min(MOST_RETRY)
}

/// Keeps the API server of a tenant from the datastore, and ends everything that runs of it. Returns once nothing does.
async fn stop(context: &TenantContext, tenant: &Tenant) -> Result<(), ReconcileError> {
    // First: one that cannot be ended writes nothing any more, nor does one that is started after all.
    context.datastore.delete_user(&tenant.id).await?;
    let stopped = stop_components(context, tenant).await;
    if let Err(error) = &stopped {
        let finding = Finding::Stopping(error.to_string());
        context.tenants.restores().note(&uid(tenant), finding);
    }
    stopped
}

/// Says on the host which database the tenant has now, lets its objects be rewritten that are not encrypted as its class says, and ends the restore.
async fn end(
    context: &TenantContext,
    tenant: &Tenant,
    authorities: Option<&Authorities>,
    record: &RestoreRecord,
    revision: i64,
) -> Result<(), ReconcileError> {
    let identity = record.identity.as_ref().and_then(|text| STANDARD.decode(text).ok());
    let Some(identity) = identity else {
        return Err(blocked(format!(
            "the record of the restore in the datastore lacks {IDENTITY}; ask for help, with the log of control"
        )));
    };
    let Some(authorities) = authorities else {
        return Err(blocked("the keys of the tenant cannot be read".into()));
    };
    datastore_identity::record_restored(tenant, &identity).await?;
    rewrite_if_encrypted(context, tenant, authorities).await?;
    let last = Entry {
        key: IDENTITY.into(),
        value: identity,
    };
    match context.contents.end_restore(&tenant.id, last, revision).await {
        // The next reconcile reads what there is.
        Ok(()) | Err(DatastoreError::Superseded) => {}
        Err(error) => return Err(error.into()),
    }
    tracing::info!(
        tenant = tenant.id.slug(),
        snapshot = record.snapshot_name,
        "a tenant was set back to a snapshot"
    );
    context.queue.add(tenant.key());
    Err(blocked(
        "what the tenant stores is as in the snapshot; its control plane is started next".into(),
    ))
}

/// Objects of the snapshot may be stored otherwise than the class says by now, although all of before were stored so.
async fn rewrite_if_encrypted(
    context: &TenantContext,
    tenant: &Tenant,
    authorities: &Authorities,
) -> Result<(), ReconcileError> {
    let encryption = &authorities.encryption;
    let is_completed = encryption
        .state()
        .is_some_and(|state| state.phase == EncryptionPhase::Completed);
    if is_completed {
        let step = EncryptionStep::Enter(EncryptionPhase::Rewriting);
        keys::record_encryption(context, tenant, encryption, &step).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_have_a_greatest_length() {
        let seconds: Vec<u64> = (0..9).map(|attempts| retry_pause(attempts).as_secs()).collect();
        assert_eq!(seconds, [5, 5, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(retry_pause(u32::MAX), MOST_RETRY);
    }

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
