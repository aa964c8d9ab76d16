//! Deletes the files of snapshots that are being deleted, and lets their objects go.
//!
//! Each is a task of its own, as the object store may answer late or never, and may do so for some files only. No pass waits for it. Some are deleted at the
//! same time, and few of one namespace: who deletes thousands does not keep others from their turn. Once several in a row have failed, those that wait for their
//! turn are not tried before a pause is over. So each object says soon why it stays, and the store is not asked all the time, however many there are.

use super::{
    begin::{is_gone_or_changed, next_status},
    context::SnapshotsContext,
    tries::{DELETED_WITHIN, Failure, RETRY, STORE_ERROR, Tries, has_store_error, uid},
    write_known,
};
use crate::{
    datastore::RestoreRecord,
    error::{ReconcileError, api},
    finalizers,
    key::Key,
};
use berth_api::{
    SnapshotPhase, TenantSnapshot,
    conditions::{ConditionUpdate, DELETING},
    labels,
    names::TenantId,
};
use berth_runtime::locks::lock;
use berth_snapshots::{Store, StoreError};
use futures::future::join_all;
use kube::{
    Resource, ResourceExt,
    runtime::{
        events::{Event, EventType},
        reflector::ObjectRef,
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{sync::Semaphore, time::Instant};
use tokio_util::task::AbortOnDropHandle;

/// Time for all that is done in a turn: the host may not answer either.
pub(super) const TURN: Duration = Duration::from_secs(100);
/// Snapshots whose files are deleted at the same time.
const MOST_AT_ONCE: usize = 16;
/// The same of one namespace.
pub(super) const MOST_OF_NAMESPACE: usize = 4;
/// Time within which a store carries out what was sent to it before.
const ARRIVES_WITHIN: Duration = Duration::from_secs(30);

/// Deletions of files that are under way or wait for their turn, by UIDs of snapshots. They end with this.
#[derive(Debug, Default)]
pub struct Deletions {
    tasks: Mutex<BTreeMap<String, AbortOnDropHandle<()>>>,
    shared: Arc<Shared>,
}

/// How far the deletion of a snapshot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// Its files are gone for good.
    Done,
    /// Its tenant is set back to it, or has nothing else of what it stored before.
    Needed,
    /// Its files are gone, and what was sent before may still arrive in the store.
    MayArrive,
    /// It was not tried, as others have failed.
    Postponed(Failure),
}

/// What these tasks share.
#[derive(Debug)]
struct Shared {
    turns: Arc<Semaphore>,
    of_namespaces: Mutex<BTreeMap<String, Arc<Semaphore>>>,
    tries: Mutex<Tries>,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            turns: Arc::new(Semaphore::new(MOST_AT_ONCE)),
            of_namespaces: Mutex::default(),
            tries: Mutex::default(),
        }
    }
}

impl Deletions {
    /// Begins to delete the files of these snapshots, all that are being deleted. First those that were not tried for the longest time. Does nothing about
    /// those that are tried now, or could not go a moment ago.
    pub(super) fn begin(&self, context: &SnapshotsContext, snapshots: Vec<Arc<TenantSnapshot>>) {
        self.shared.forget_others(&snapshots);
        let mut tasks = lock(&self.tasks);
        tasks.retain(|_, task| !task.is_finished());
        let snapshots = lock(&self.shared.tries).in_turn(snapshots, Instant::now());
        // It must not keep itself alive: tasks end when the others let go of the list.
        let of_tasks = Arc::new(SnapshotsContext {
            deletions: Arc::default(),
            ..context.clone()
        });
        for snapshot in snapshots {
            let uid = uid(&snapshot);
            tasks.entry(uid).or_insert_with(|| {
                let task = tokio::spawn(run(Arc::clone(&of_tasks), Arc::clone(&self.shared), snapshot));
                AbortOnDropHandle::new(task)
            });
        }
    }
}

impl Shared {
    fn forget_others(&self, snapshots: &[Arc<TenantSnapshot>]) {
        let uids = { snapshots.iter() }.map(|snapshot| uid(snapshot)).collect();
        lock(&self.tries).forget_others(&uids);
        let namespaces: BTreeSet<String> = { snapshots.iter() }
            .filter_map(|snapshot| snapshot.namespace())
            .collect();
        lock(&self.of_namespaces).retain(|namespace, _| namespaces.contains(namespace));
    }

    fn turns_of(&self, namespace: &str) -> Arc<Semaphore> {
        let mut all = lock(&self.of_namespaces);
        let turns = all
            .entry(namespace.to_owned())
            .or_insert_with(|| Arc::new(Semaphore::new(MOST_OF_NAMESPACE)));
        Arc::clone(turns)
    }
}

async fn run(context: Arc<SnapshotsContext>, shared: Arc<Shared>, snapshot: Arc<TenantSnapshot>) {
    // At once: it keeps another snapshot from being taken, and what it writes is deleted in any case.
    context.runs.end(&uid(&snapshot)).await;
    lock(&shared.tries).note_ended(&uid(&snapshot), Instant::now());
    // Nobody closes them. That of the namespace first: those of another namespace wait for few of this one.
    let of_namespace = shared.turns_of(&snapshot.namespace().unwrap_or_default());
    let _of_namespace = of_namespace.acquire_owned().await;
    let _turn = Arc::clone(&shared.turns).acquire_owned().await;
    // It may have waited for long: somebody may have changed it meanwhile.
    let Some(snapshot) = find_again(&context, &snapshot) else {
        return;
    };
    // Those that wait need little memory.
    let why = match tokio::time::timeout(TURN, Box::pin(clean_up(&context, &shared, &snapshot))).await {
        Ok(Ok(Progress::Done)) => return,
        Ok(Ok(Progress::Needed | Progress::MayArrive | Progress::Postponed(_))) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("it takes longer than {} s", TURN.as_secs())),
    };
    if let Some(why) = why {
        let (namespace, name) = (snapshot.namespace(), snapshot.name_any());
        tracing::debug!(namespace, name, why, retry_in = ?RETRY, "a snapshot that is being deleted stays");
    }
    lock(&shared.tries)
        .paused_until
        .insert(uid(&snapshot), Instant::now() + RETRY);
    context.queue.add_after(Key::Snapshots, RETRY);
}

/// A snapshot as the watch shows it now; none if it is gone.
fn find_again(context: &SnapshotsContext, snapshot: &TenantSnapshot) -> Option<Arc<TenantSnapshot>> {
    let namespace = snapshot.namespace().unwrap_or_default();
    let place = ObjectRef::new(&snapshot.name_any()).within(&namespace);
    let found = context.stores.snapshots.get(&place);
    found.filter(|found| found.uid() == snapshot.uid())
}

/// Deletes what is in the store of a snapshot that is being deleted, and lets the object go if that is done.
async fn clean_up(
    context: &SnapshotsContext,
    shared: &Shared,
    snapshot: &TenantSnapshot,
) -> Result<Progress, ReconcileError> {
    let deleted = delete_stored(context, shared, snapshot).await;
    if !matches!(deleted, Ok(Progress::Done)) {
        let reported = report_kept(context, snapshot, &deleted).await;
        return deleted.and_then(|progress| reported.map(|()| progress));
    }
    match finalizers::remove(&context.beside(snapshot), snapshot, labels::SNAPSHOT_FINALIZER).await {
        // The watch shows it.
        Err(error) if is_gone_or_changed(&error) => Ok(Progress::Done),
        removed => removed
            .map(|()| Progress::Done)
            .map_err(api("remove the finalizer of a TenantSnapshot")),
    }
}

/// Says why an object is kept that somebody has deleted: it may hold up the deletion of a namespace, in which no Event can be written any more.
async fn report_kept(
    context: &SnapshotsContext,
    snapshot: &TenantSnapshot,
    deleted: &Result<Progress, ReconcileError>,
) -> Result<(), ReconcileError> {
    let (reason, message) = match deleted {
        Ok(Progress::Done) => return Ok(()),
        Ok(Progress::MayArrive) => (
            "UploadInterrupted",
            format!(
                "an attempt to take the snapshot was interrupted; what it has sent to the object store may still arrive there, and is deleted once more \
                 after {} s",
                ARRIVES_WITHIN.as_secs()
            ),
        ),
        Ok(Progress::Needed) => (
            "Restoring",
            format!(
                "TenantCluster {} is set back to this snapshot, or has nothing but it of what it stored before; its file is deleted when the restore is over",
                snapshot.spec.tenant_cluster_name
            ),
        ),
        // What it says of its own try stays.
        Ok(Progress::Postponed(_)) if has_store_error(snapshot, DELETING) => return Ok(()),
        Ok(Progress::Postponed(failure)) => (
            STORE_ERROR,
            describe_store_error(&store_error(snapshot, &failure.describe())),
        ),
        Err(error) if error.category() == STORE_ERROR => (STORE_ERROR, describe_store_error(error)),
        // The tenant may have nothing but this file. The text of the error, which the log has, may be another one each time, and is no reason to write again.
        Err(error) => (
            error.category(),
            format!(
                "the datastore does not say whether TenantCluster {} is set back to this snapshot; Berth tries again, and deletes the file only then",
                snapshot.spec.tenant_cluster_name
            ),
        ),
    };
    let condition = ConditionUpdate::mark_true(DELETING, reason, message.clone());
    let status = next_status(snapshot, snapshot.phase(), &condition, context.clock.now());
    if snapshot.status.as_ref() == Some(&status) {
        return Ok(());
    }
    write_known(context, snapshot, &status).await?;
    if matches!(deleted, Err(_) | Ok(Progress::Postponed(_))) {
        // Once, and not with each try: there may be thousands of them.
        let (namespace, name) = (snapshot.namespace(), snapshot.name_any());
        let why = deleted
            .as_ref()
            .err()
            .map_or_else(|| message.clone(), ToString::to_string);
        tracing::warn!(namespace, name, why, "a snapshot that is being deleted stays");
        let event = Event {
            type_: EventType::Warning,
            reason: "SnapshotNotDeleted".into(),
            note: Some(message),
            action: "DeleteSnapshot".into(),
            secondary: None,
        };
        context.recorder.publish(&event, &snapshot.object_ref(&())).await;
    }
    Ok(())
}

/// Deletes what is in the store of a snapshot that is being deleted, unless its tenant needs it.
async fn delete_stored(
    context: &SnapshotsContext,
    shared: &Shared,
    snapshot: &TenantSnapshot,
) -> Result<Progress, ReconcileError> {
    if is_being_restored(context, snapshot).await? {
        return Ok(Progress::Needed);
    }
    if let Some(store) = &context.store {
        // Before they are deleted: what arrives meanwhile may arrive too late for that.
        let ended_for = lock(&shared.tries).ended_for(&uid(snapshot), Instant::now());
        if let Some(failure) = delete_files(store, shared, snapshot).await? {
            return Ok(Progress::Postponed(failure));
        }
        if may_arrive(snapshot, ended_for) {
            return Ok(Progress::MayArrive);
        }
    } else {
        let location = snapshot.location();
        let note = format!("Berth has no object store any more: {location} is not deleted there");
        let event = Event {
            type_: EventType::Warning,
            reason: "SnapshotLeftInStore".into(),
            note: Some(note),
            action: "DeleteSnapshot".into(),
            secondary: None,
        };
        context.recorder.publish(&event, &snapshot.object_ref(&())).await;
    }
    Ok(Progress::Done)
}

/// Whether something of an attempt may still arrive in the store that was not completed: it may have sent everything before it was ended, and nothing writes since
/// `ended_for`. A file of which nobody knows would stay for ever.
fn may_arrive(snapshot: &TenantSnapshot, ended_for: Duration) -> bool {
    let attempts = snapshot.status.as_ref().and_then(|status| status.attempts);
    let completed = u32::from(snapshot.phase() == SnapshotPhase::Completed);
    attempts.unwrap_or_default() > completed && ended_for < ARRIVES_WITHIN
}

fn store_error(snapshot: &TenantSnapshot, why: &str) -> ReconcileError {
    ReconcileError::Blocked {
        reason: STORE_ERROR,
        message: format!("cannot delete {} in the object store: {why}", snapshot.location()),
    }
}

/// What people read of a snapshot whose files are not deleted.
fn describe_store_error(error: &ReconcileError) -> String {
    format!(
        "{error}; Berth tries again. To let the object go without that, the platform team can remove its finalizer {}, and delete the file",
        labels::SNAPSHOT_FINALIZER
    )
}

/// Deletes what all attempts have written into the store. One that does not answer soon is asked again after a pause. Returns why it was not tried, if it was not.
async fn delete_files(
    store: &Store,
    shared: &Shared,
    snapshot: &TenantSnapshot,
) -> Result<Option<Failure>, ReconcileError> {
    {
        let (mut tries, now) = (lock(&shared.tries), Instant::now());
        if let Some((failure, _)) = tries.failures.postponed(now) {
            return Ok(Some(failure));
        }
        tries.tried_at.insert(uid(snapshot), now);
    }
    let files = snapshot.all_locations();
    let deleting = join_all(files.map(|location| async move { store.delete(&location).await }));
    let deleted = tokio::time::timeout(DELETED_WITHIN, deleting).await;
    // The first of these errors, and not that of the fastest answer: the text stays the same.
    let deleted = deleted.map(|deleted| deleted.into_iter().collect::<Result<(), StoreError>>());
    let (failure, why) = match deleted {
        Ok(Ok(())) => {
            lock(&shared.tries).failures.note(None, Instant::now());
            return Ok(None);
        }
        Ok(Err(error)) => (Failure::Refused, error.to_string()),
        // The same text whether this one was tried or others.
        Err(_) => (Failure::Silent, Failure::Silent.describe()),
    };
    lock(&shared.tries).failures.note(Some(failure), Instant::now());
    Err(store_error(snapshot, &why))
}

/// Whether its tenant is set back to a snapshot now, or has nothing but this snapshot of what it stored before that.
async fn is_being_restored(context: &SnapshotsContext, snapshot: &TenantSnapshot) -> Result<bool, ReconcileError> {
    let of_tenant = { snapshot.status.as_ref() }.and_then(|status| status.tenant_uid.as_deref());
    let Some(uid) = of_tenant else { return Ok(false) };
    let tenant = TenantId::new(&snapshot.spec.tenant_cluster_name, uid);
    let Some(stored) = context.contents.read_restore(&tenant, None).await? else {
        return Ok(false);
    };
    // Of one that cannot be read nobody knows which snapshot it needs.
    let record = RestoreRecord::parse(&stored.text);
    Ok(record.map_or(true, |record| {
        Some(record.snapshot_uid) == snapshot.uid() || record.saved_as == Some(snapshot.name_any())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_was_sent_before_an_attempt_was_ended_is_waited_for() {
        let arrives = |phase: &str, attempts: Option<u32>, ended_for: u64| {
            let snapshot = json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "TenantSnapshot",
                "metadata": {"name": "a", "namespace": "team"}, "spec": {"tenantClusterName": "vision"},
                "status": {"phase": phase, "attempts": attempts},
            });
            let found: TenantSnapshot = serde_json::from_value(snapshot).unwrap();
            may_arrive(&found, Duration::from_secs(ended_for))
        };
        for phase in ["Running", "Pending", "Failed"] {
            assert!(arrives(phase, Some(1), 29), "{phase}");
            assert!(!arrives(phase, Some(1), 30), "{phase}");
            assert!(!arrives(phase, None, 0), "{phase}: nothing was sent");
        }
        assert!(!arrives("Completed", Some(1), 0));
        // The first one was interrupted.
        assert!(arrives("Completed", Some(2), 29));
        assert!(!arrives("Completed", Some(2), 30));
    }
}
