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
//! | Replaced | the status says so; the host records the database, and objects are to be rewritten; the last key is written, and the record deleted | the same again |
//!
//! docs/adr/0066 says why it is done so.
//!
//! [`Prepared`]: super::Prepared

use super::{
    super::{
        context::TenantContext,
        own_endpoints,
        restore::{Finding, Gone, Refusal, ended, is_published},
        target::Tenant,
    },
    Accepted,
    components::stop_components,
    datastore_identity, keys,
    restore_check::no_store,
    restore_pause::{RETRY, find_pause, retry_pause},
    restore_request::{Compared, compare, take_request, withdraw},
    restore_task::RestoreTask,
};
use crate::{
    control_plane::{Authorities, EncryptionStep},
    datastore::{DatastoreError, RestoreEnd, RestorePhase, RestoreRecord, StoredRestore},
    error::ReconcileError,
    key::Key,
    metrics::ResultLabels,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use berth_api::{EncryptionPhase, NetworkLimits, RestoreStatus};
use berth_snapshots::Entry;
use kube::ResourceExt;
use tokio::time::Instant;

/// The key by which etcd shows which database a tenant has.
const IDENTITY: &str = super::super::build::stored_namespace::PATH;
/// The reason while a restore keeps everything else from being done.
const RESTORING: &str = "Restoring";

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
    Box::pin(follow(context, accepted, authorities, network)).await?;
    datastore_identity::prepare_datastore(context, &accepted.tenant, network).await
}

/// Goes on with the restore that is recorded, or begins one that somebody asks for. Succeeds if there is none.
async fn follow(
    context: &TenantContext,
    accepted: &Accepted,
    authorities: Option<&Authorities>,
    network: &NetworkLimits,
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
        return go_on(context, accepted, authorities, network, &stored).await;
    }
    match restores.note_none(&uid) {
        Gone::Unknown => {
            if restores.finding(&uid).is_none() && note_end(context, tenant, None).await? {
                // The status says so before it says what becomes of the next request.
                context.queue.add(tenant.key());
                return Ok(());
            }
            return consider(context, accepted, authorities, network).await;
        }
        Gone::Ended(record) => {
            note_end(context, tenant, Some(&record)).await?;
        }
        // Nothing was written.
        Gone::GivenUp => restores.note_ended(&uid, 0, Instant::now()),
    }
    if let Some(finding) = restores.finding(&uid) {
        count(context, &finding);
    }
    // All that is remembered of it is from before.
    context.tenants.renew(&uid, &context.client);
    context.queue.add(tenant.key());
    Err(blocked(describe(context, &uid)))
}

/// Notes how a restore ended of which there is no record any more. `known` is the last one, if this process knows it. Returns whether one that has replaced
/// something is over, or is lost: the status may not say so yet.
///
/// # Errors
/// The datastore or the host refuses or does not answer: it is found out with the next reconcile.
async fn note_end(
    context: &TenantContext,
    tenant: &Tenant,
    known: Option<&RestoreRecord>,
) -> Result<bool, ReconcileError> {
    let (uid, restores) = (uid(tenant), context.tenants.restores());
    let finding = match ended(known, &tenant.cluster, context.clock.now()) {
        Some(Finding::Done(status)) => match datastore_identity::has_recorded(context, tenant).await {
            Ok(true) => Finding::Done(status),
            Ok(false) => Finding::Lost(RestoreStatus {
                completed_at: None,
                ..status
            }),
            Err(error) => {
                if let Some(record) = known {
                    restores.note_record(&uid, record.clone());
                }
                return Err(error);
            }
        },
        Some(finding) => finding,
        None if known.is_some() => Finding::interrupted(),
        None => return Ok(false),
    };
    // After one that was lost nothing of the tenant runs. Of one that ended before this process began, etcd says when that was.
    if let Some(record) = known.filter(|_| !matches!(finding, Finding::Lost(_))) {
        let has_written = record.phase != RestorePhase::Saving;
        let bytes = if has_written { record.bytes } else { 0 };
        restores.note_ended(&uid, bytes, Instant::now());
    }
    let has_replaced = matches!(finding, Finding::Done(_) | Finding::Lost(_));
    restores.note(&uid, finding);
    Ok(has_replaced)
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
    network: &NetworkLimits,
) -> Result<(), ReconcileError> {
    let tenant = &accepted.tenant;
    let (uid, restores) = (uid(tenant), context.tenants.restores());
    let Some(name) = tenant.cluster.requested_restore() else {
        if restores.forget_check(&uid) {
            restores.note(&uid, Finding::withdrawn());
        }
        return Ok(());
    };
    // The reconcile fails for the same reason, and is tried again.
    let Some(authorities) = authorities else { return Ok(()) };
    match find_pause(context, accepted).await {
        Ok(None) => {}
        Ok(Some(pause)) => {
            context.queue.add_after(tenant.key(), pause);
            restores.note(&uid, Finding::Waiting(name.to_owned()));
            return Ok(());
        }
        Err(error) => {
            tracing::warn!(tenant = tenant.id.slug(), %error, "a restore waits for the datastore");
            return Ok(());
        }
    }
    match compare(context, accepted, authorities, name).await {
        Compared::Waits => Ok(()),
        Compared::Begun => {
            restores.note(&uid, Finding::Checking(name.to_owned()));
            Ok(())
        }
        Compared::Refused(refusal) => {
            let finding = Finding::Refused(refusal);
            if withdraw(context, tenant, name).await {
                count(context, &finding);
            }
            restores.note(&uid, finding);
            Ok(())
        }
        Compared::Same(source) => {
            let now = context.clock.now();
            let saves = !tenant.cluster.restores_without_saving();
            let saved_as =
                saves.then(|| format!("{}-before-{}", tenant.cluster.name_any(), now.strftime("%Y%m%d-%H%M%S")));
            begin(context, accepted, authorities, network, source.record(saved_as, now)).await
        }
    }
}

/// Takes the request back, records that the restore has begun, and goes on with it. A control that is killed between the two has changed nothing: somebody
/// has to ask again. The other order could carry out a request twice.
async fn begin(
    context: &TenantContext,
    accepted: &Accepted,
    authorities: &Authorities,
    network: &NetworkLimits,
    record: RestoreRecord,
) -> Result<(), ReconcileError> {
    let tenant = &accepted.tenant;
    match take_request(context, tenant, &record.snapshot_name).await {
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
        snapshot = record.snapshot_name,
        "a tenant is set back to a snapshot"
    );
    let text = record.to_text();
    context.tenants.restores().note_record(&uid(tenant), record);
    let revision = context.contents.write_restore(&tenant.id, text.clone(), None).await?;
    let stored = StoredRestore { text, revision };
    go_on(context, accepted, Some(authorities), network, &stored).await
}

/// Does the next step of a restore that is recorded.
///
/// # Errors
/// Always: nothing else of the tenant may be done.
async fn go_on(
    context: &TenantContext,
    accepted: &Accepted,
    authorities: Option<&Authorities>,
    network: &NetworkLimits,
    stored: &StoredRestore,
) -> Result<(), ReconcileError> {
    let tenant = &accepted.tenant;
    let (uid, restores) = (uid(tenant), context.tenants.restores());
    let record = RestoreRecord::parse(&stored.text).map_err(|error| {
        blocked(format!(
            "the record of a restore in the datastore cannot be read ({error}); run the version of Berth that has begun it"
        ))
    })?;
    if restores.note_record(&uid, record.clone()) {
        // It may begin now.
        context.queue.add(Key::Snapshots);
    }
    if restores.is_running(&uid) {
        return Err(blocked(describe(context, &uid)));
    }
    if let Some(authorities) = authorities
        && follow_request(context, accepted, authorities, (&record, stored.revision)).await?
    {
        return Err(blocked(describe(context, &uid)));
    }
    if let Some(pause) = restores.pause(&uid, Instant::now()) {
        context.queue.add_after(tenant.key(), pause);
        return Err(blocked(describe(context, &uid)));
    }
    stop(context, tenant, network).await?;
    restores.note_stopped(&uid, &record);
    if record.phase == RestorePhase::Replaced {
        if !is_published(&tenant.cluster, &record) {
            restores.note(&uid, Finding::UnderWay(record));
            context.queue.add_after(tenant.key(), RETRY);
            return Err(blocked(describe(context, &uid)));
        }
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
        return Err(without_store(context, tenant, record, revision).await?);
    };
    let pause = retry_pause(record.attempts);
    let (task, progress) = RestoreTask::new(context, tenant, store, record, revision).spawn(pause);
    restores.keep_task(&uid, task, progress);
    Err(blocked(describe(context, &uid)))
}

/// Takes another snapshot for a restore that does not come further, if somebody asks for it: the file of the first one may be lost for good. Returns whether
/// that keeps it from being gone on with now.
async fn follow_request(
    context: &TenantContext,
    accepted: &Accepted,
    authorities: &Authorities,
    (record, revision): (&RestoreRecord, i64),
) -> Result<bool, ReconcileError> {
    let tenant = &accepted.tenant;
    let (uid, restores) = (uid(tenant), context.tenants.restores());
    let Some(name) = tenant.cluster.requested_restore() else {
        restores.forget_check(&uid);
        return Ok(false);
    };
    // One that has just begun may still be asked for in a view that is late. Once all is replaced, the request is another restore.
    if record.attempts == 0 || record.phase == RestorePhase::Replaced {
        return Ok(false);
    }
    let source = match compare(context, accepted, authorities, name).await {
        Compared::Waits => return Ok(true),
        Compared::Begun => {
            restores.forget_refused(&uid);
            return Ok(true);
        }
        Compared::Refused(Refusal { reason, message }) => {
            let refused = format!("the TenantSnapshot {name} cannot be used instead ({reason}): {message}");
            let is_withdrawn = withdraw(context, tenant, name).await;
            restores.note_refused(&uid, record, refused);
            if let Some(finding) = restores.finding(&uid).filter(|_| is_withdrawn) {
                count(context, &finding);
            }
            // For the condition to say so.
            return Ok(true);
        }
        Compared::Same(source) => source,
    };
    if !take_request(context, tenant, name).await? {
        return Ok(false);
    }
    let saves = record.phase != RestorePhase::Saving || !tenant.cluster.restores_without_saving();
    let redirected = RestoreRecord {
        phase: record.phase,
        saved_after: record.saved_after,
        ..source.record(record.saved_as.clone().filter(|_| saves), record.started_at)
    };
    tracing::info!(
        tenant = tenant.id.slug(),
        from = record.snapshot_name,
        to = name,
        "a restore goes on with another snapshot"
    );
    let text = redirected.to_text();
    context.contents.write_restore(&tenant.id, text, Some(revision)).await?;
    restores.forget_task(&uid);
    restores.note(&uid, Finding::UnderWay(redirected));
    context.queue.add(tenant.key());
    Ok(true)
}

/// Gives up a restore that has replaced nothing, as there is no store any more: the tenant starts again. Otherwise it waits for the store. Returns what the
/// reconcile fails with.
///
/// # Errors
/// The datastore does not answer.
async fn without_store(
    context: &TenantContext,
    tenant: &Tenant,
    record: RestoreRecord,
    revision: i64,
) -> Result<ReconcileError, ReconcileError> {
    let restores = context.tenants.restores();
    let finding = if record.phase == RestorePhase::Saving {
        let end = RestoreEnd::new(context.clock.now(), 0);
        context.contents.delete_restore(&tenant.id, revision, &end).await?;
        context.queue.add(tenant.key());
        Finding::Refused(no_store())
    } else {
        Finding::Failing(record, no_store().message)
    };
    restores.note(&uid(tenant), finding);
    Ok(blocked(no_store().message))
}

/// What people read of a restore under way.
fn describe(context: &TenantContext, uid: &str) -> String {
    let finding = context.tenants.restores().finding(uid);
    finding.map_or_else(
        || "the tenant is set back to a snapshot".into(),
        |finding| finding.condition().message,
    )
}

/// Keeps the API server of a tenant from the datastore, and ends everything that runs of it. Succeeds once nothing does, and the host starts nothing of it.
async fn stop(context: &TenantContext, tenant: &Tenant, network: &NetworkLimits) -> Result<(), ReconcileError> {
    // First: one that cannot be ended writes nothing any more, nor does one that is started after all.
    context.datastore.delete_user(&tenant.id).await?;
    let stopped = match stop_components(context, tenant).await {
        Ok(()) => context
            .runtime
            .check_stopped(&tenant.id)
            .await
            .map_err(ReconcileError::from),
        failed => failed,
    };
    // Its pods run on, and nobody takes those that end out of its own endpoints any more.
    let closed = own_endpoints::delete_of_pods(&context.client, &tenant.id, network).await;
    if let Err(error) = closed.result {
        tracing::warn!(tenant = tenant.id.slug(), %error, "cannot delete the endpoints of a tenant that is set back to a snapshot");
    }
    stopped.map_err(|error| {
        // The datastore is as it should be: it is the restore that waits.
        let finding = Finding::Stopping(error.to_string());
        let message = finding.condition().message;
        context.tenants.restores().note(&uid(tenant), finding);
        blocked(message)
    })
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
    let end = RestoreEnd::new(context.clock.now(), record.bytes);
    match context.contents.end_restore(&tenant.id, last, revision, &end).await {
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
        let after = keys::record_encryption(context, tenant, encryption, &step).await?;
        // Somebody has changed the keys since they were read.
        if after.is_some_and(|state| state.phase == EncryptionPhase::Completed) {
            return Err(blocked(
                "the keys of the tenant were changed; Berth reads them again".into(),
            ));
        }
    }
    Ok(())
}
