//! The part of a restore that may take minutes: a task of its own, beside the reconciles of the tenant.

use super::{
    super::{
        context::TenantContext,
        restore::{Finding, Progress, Refusal},
        target::Tenant,
    },
    restore_check::check_room,
    restore_replace::{ReplaceError, replace},
    restore_request::describe_damage,
    restore_saved::{Expected, Saved, judge},
};
use crate::{
    apply::{is_status, optional},
    clock::Clock,
    datastore::{DatastoreError, RestoreEnd, RestorePhase, RestoreRecord, TenantContents},
    error::{ReconcileError, api},
    key::Key,
    stores::Stores,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use berth_api::{SnapshotTrigger, TenantSnapshot, labels, names::TenantId};
use berth_runtime::queue::Queue;
use berth_snapshots::Store;
use kube::{
    Api, Client, Resource, ResourceExt, api::PostParams, core::PartialObjectMeta, runtime::reflector::ObjectRef,
};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep},
};
use tokio_util::task::AbortOnDropHandle;

/// Pause before it is looked again whether a snapshot is completed.
const POLL: Duration = Duration::from_millis(500);
/// Time for the snapshot of what is there. The tenant does not run meanwhile.
const SAVED_WITHIN: Duration = Duration::from_secs(30 * 60);

/// A restore that this process works on.
pub(super) struct RestoreTask {
    client: Client,
    stores: Stores,
    clock: Clock,
    contents: Arc<dyn TenantContents>,
    store: Store,
    queue: Queue<Key>,
    key: Key,
    tenant: TenantId,
    namespace: String,
    name: String,
    uid: String,
    /// Its turn to replace something.
    turn: Arc<Semaphore>,
    record: RestoreRecord,
    /// Revision of the record.
    revision: i64,
}

/// Why a restore did not come further.
#[derive(Debug, thiserror::Error)]
enum TaskError {
    /// Nothing was replaced, and nothing will be.
    #[error("{}", .0.message)]
    GiveUp(Refusal),
    /// etcd.
    #[error(transparent)]
    Datastore(#[from] DatastoreError),
    /// Replacing what is there.
    #[error(transparent)]
    Replace(#[from] ReplaceError),
    /// The host.
    #[error(transparent)]
    Host(#[from] ReconcileError),
}

impl RestoreTask {
    pub(super) fn new(
        context: &TenantContext,
        tenant: &Tenant,
        store: Store,
        record: RestoreRecord,
        revision: i64,
    ) -> Self {
        Self {
            client: context.client.clone(),
            stores: context.stores.clone(),
            clock: context.clock.clone(),
            contents: Arc::clone(&context.contents),
            store,
            queue: context.queue.clone(),
            key: tenant.key(),
            tenant: tenant.id.clone(),
            namespace: tenant.cluster.namespace().unwrap_or_default(),
            name: tenant.cluster.name_any(),
            uid: tenant.cluster.uid().unwrap_or_default(),
            turn: Arc::clone(&context.tenants.restores().replacements),
            record,
            revision,
        }
    }

    /// Begins. If it fails, nothing is tried again for `pause`.
    pub(super) fn spawn(self, pause: Duration) -> (AbortOnDropHandle<()>, Arc<Progress>) {
        let progress = Progress::new(Finding::UnderWay(self.record.clone()));
        let of_task = Arc::clone(&progress);
        let task = tokio::spawn(Box::pin(self.run(of_task, pause)));
        (AbortOnDropHandle::new(task), progress)
    }

    async fn run(mut self, progress: Arc<Progress>, pause: Duration) {
        match self.go_on(&progress).await {
            Ok(()) => self.queue.add(self.key.clone()),
            Err(TaskError::GiveUp(refusal)) => match self.give_up().await {
                Ok(()) => {
                    tracing::warn!(
                        tenant = self.tenant.slug(),
                        why = refusal.message,
                        "a restore is given up"
                    );
                    progress.set(Finding::Refused(refusal));
                    self.queue.add(self.key.clone());
                }
                Err(error) => self.fail(&progress, &error.to_string(), pause),
            },
            Err(error) => self.fail(&progress, &error.to_string(), pause),
        }
    }

    /// Ends a restore that has replaced nothing.
    async fn give_up(&self) -> Result<(), DatastoreError> {
        let end = RestoreEnd::new(self.clock.now(), 0);
        self.contents.delete_restore(&self.tenant, self.revision, &end).await
    }

    fn fail(&self, progress: &Progress, why: &str, pause: Duration) {
        tracing::warn!(tenant = self.tenant.slug(), why, retry_in = ?pause, "a restore failed");
        progress.fail(
            Finding::Failing(self.record.clone(), why.to_owned()),
            Instant::now() + pause,
        );
        self.queue.add_after(self.key.clone(), pause);
    }

    async fn go_on(&mut self, progress: &Progress) -> Result<(), TaskError> {
        let is_continued = self.record.phase == RestorePhase::Replacing;
        if self.record.phase == RestorePhase::Saving {
            self.save_all().await?;
        }
        // Nobody closes it.
        let _turn = Arc::clone(&self.turn).acquire_owned().await;
        if self.record.phase == RestorePhase::Saving {
            self.check_once_more().await?;
            self.enter(RestorePhase::Replacing, progress).await?;
        }
        if self.record.phase == RestorePhase::Replacing {
            if is_continued {
                // What cannot be read replaces nothing: what is left stays.
                let verified = self.store.verify(&self.record.location, &self.record.written()).await;
                verified.map_err(ReplaceError::Read)?;
            }
            let replaced = replace(
                self.contents.as_ref(),
                &self.store,
                &self.tenant,
                &self.record,
                self.revision,
            );
            let identity = replaced.await?;
            self.record.identity = Some(STANDARD.encode(identity));
            self.enter(RestorePhase::Replaced, progress).await?;
        }
        Ok(())
    }

    /// Takes a snapshot of what is there, if it is to be saved and there is something.
    async fn save_all(&mut self) -> Result<(), TaskError> {
        let Some(name) = self.record.saved_as.clone() else {
            return Ok(());
        };
        if self.contents.count_contents(&self.tenant).await? == 0 {
            self.record.saved_as = None;
            return Ok(());
        }
        let after = if let Some(after) = self.record.saved_after {
            after
        } else {
            // The record was written after everything had ended.
            let after = self.revision;
            self.record.saved_after = Some(after);
            self.write().await?;
            after
        };
        self.save(&name, after).await
    }

    /// The last moment at which nothing is lost: looks whether everything is there that is needed from now on.
    async fn check_once_more(&self) -> Result<(), TaskError> {
        if let (Some(name), Some(after)) = (&self.record.saved_as, self.record.saved_after)
            && self.find_saved(name, after, true) != Saved::Yes
        {
            return Err(not_saved("the TenantSnapshot was deleted"));
        }
        // From its deletion on, its file may be deleted by somebody who has not seen the record yet.
        let snapshots: Api<TenantSnapshot> = Api::namespaced(self.client.clone(), &self.namespace);
        let source = optional(snapshots.get_metadata(&self.record.snapshot_name).await);
        let source = source.map_err(api("read a TenantSnapshot"))?;
        let is_there = |source: &PartialObjectMeta<TenantSnapshot>| {
            source.uid().as_ref() == Some(&self.record.snapshot_uid) && source.meta().deletion_timestamp.is_none()
        };
        if !source.as_ref().is_some_and(is_there) {
            return Err(TaskError::GiveUp(Refusal {
                reason: "SnapshotNotFound",
                message: format!("the TenantSnapshot {} was deleted", self.record.snapshot_name),
            }));
        }
        let verified = self.store.verify(&self.record.location, &self.record.written()).await;
        verified.map_err(|error| TaskError::GiveUp(describe_damage(&error)))?;
        let room = check_room(&self.contents.read_database().await?, self.record.bytes);
        room.map_err(TaskError::GiveUp)
    }

    /// Records the next phase.
    async fn enter(&mut self, phase: RestorePhase, progress: &Progress) -> Result<(), TaskError> {
        let before = std::mem::replace(&mut self.record.phase, phase);
        if let Err(error) = self.write().await {
            self.record.phase = before;
            return Err(error.into());
        }
        progress.set(Finding::UnderWay(self.record.clone()));
        Ok(())
    }

    /// Writes the record. If that fails, nothing else is done with it.
    async fn write(&mut self) -> Result<(), DatastoreError> {
        let written = self
            .contents
            .write_restore(&self.tenant, self.record.to_text(), Some(self.revision));
        self.revision = written.await?;
        Ok(())
    }

    fn find_saved(&self, name: &str, after: i64, was_seen: bool) -> Saved {
        let expected = Expected {
            tenant: &self.name,
            uid: &self.uid,
            after,
        };
        let known = self.stores.snapshots.get(&ObjectRef::new(name).within(&self.namespace));
        judge(&expected, known.as_deref(), was_seen)
    }

    /// Takes a snapshot of what is there, and waits until it is completed.
    async fn save(&self, name: &str, after: i64) -> Result<(), TaskError> {
        let snapshots: Api<TenantSnapshot> = Api::namespaced(self.client.clone(), &self.namespace);
        let place = (self.namespace.as_str(), self.name.as_str());
        let snapshot = TenantSnapshot::of_berth(name, place, SnapshotTrigger::BeforeRestore);
        match snapshots.create(&PostParams::default(), &snapshot).await {
            Ok(_) => {}
            Err(error) if is_status(&error, 409) => {}
            Err(error) => {
                let error = api("create a TenantSnapshot")(error);
                let refusal = error.refusal().map(ToOwned::to_owned);
                return Err(refusal.map_or_else(|| TaskError::Host(error), |why| not_saved(&why)));
            }
        }
        let (deadline, mut was_seen) = (Instant::now() + SAVED_WITHIN, false);
        loop {
            let place = ObjectRef::new(name).within(&self.namespace);
            was_seen |= self.stores.snapshots.get(&place).is_some();
            match self.find_saved(name, after, was_seen) {
                Saved::Yes => return Ok(()),
                Saved::Never(why) => return Err(not_saved(&why)),
                Saved::Waits if Instant::now() < deadline => sleep(POLL).await,
                Saved::Waits => {
                    let minutes = SAVED_WITHIN.as_secs() / 60;
                    return Err(not_saved(&format!("it took longer than {minutes} minutes")));
                }
            }
        }
    }
}

/// That nothing is replaced, because what is there could not be saved.
fn not_saved(why: &str) -> TaskError {
    TaskError::GiveUp(Refusal {
        reason: "NotSaved",
        message: format!(
            "no snapshot could be taken of what the tenant stores now: {why}. To lose it, ask with the annotation {}={}",
            labels::RESTORE_WITHOUT_SAVING,
            labels::RESTORE_WITHOUT_SAVING_WANTED
        ),
    })
}
