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
    restore_saved::{Expected, Saved, is_of_restore, judge},
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
use berth_api::{
    SnapshotTrigger, TenantSnapshot, labels,
    names::{self, TenantId},
};
use berth_runtime::{queue::Queue, watched::Watched};
use berth_snapshots::Store;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::PostParams,
    core::{NamespaceResourceScope, PartialObjectMeta},
    runtime::reflector::ObjectRef,
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
/// Time within which a watch shows a snapshot that was created. Then it is read whether somebody has deleted it meanwhile.
const SEEN_WITHIN: Duration = Duration::from_secs(30);
/// Names that are tried for it. Those after the first are known to nobody before they are chosen.
const MOST_NAMES: u32 = 3;

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
    /// UID of the snapshot of what is there, once it was created.
    saved_uid: Option<String>,
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
            saved_uid: None,
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
            self.save_all(progress).await?;
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
    async fn save_all(&mut self, progress: &Progress) -> Result<(), TaskError> {
        let Some(mut name) = self.record.saved_as.clone() else {
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
        for _ in 0..MOST_NAMES {
            self.saved_uid = self.create_saved(&name, after).await?;
            if self.saved_uid.is_some() {
                return self.wait_until_saved(&name, after).await;
            }
            name = self.choose_other_name(&name, progress).await?;
        }
        Err(not_saved("others have created TenantSnapshots of the names for it"))
    }

    /// The last moment at which nothing is lost: looks whether everything is there that is needed from now on.
    async fn check_once_more(&self) -> Result<(), TaskError> {
        if let (Some(name), Some(after)) = (&self.record.saved_as, self.record.saved_after)
            && judge(&self.expected(after), self.known_saved(name).as_deref(), true) != Saved::Yes
        {
            return Err(not_saved("the TenantSnapshot was deleted"));
        }
        // From its deletion on, its file may be deleted by somebody who has not seen the record yet.
        let snapshots = self.snapshots::<TenantSnapshot>();
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

    fn expected(&self, after: i64) -> Expected<'_> {
        Expected {
            tenant: &self.name,
            uid: &self.uid,
            after,
        }
    }

    /// The snapshot of what is there, as the watch shows it. It may still show another one of its name, that was deleted before.
    fn known_saved(&self, name: &str) -> Option<Arc<TenantSnapshot>> {
        let known = self.stores.snapshots.get(&ObjectRef::new(name).within(&self.namespace));
        known.filter(|known| known.uid() == self.saved_uid)
    }

    fn snapshots<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Creates the snapshot of what is there, unless it exists. Returns its UID; none if another snapshot has its name.
    async fn create_saved(&self, name: &str, after: i64) -> Result<Option<String>, TaskError> {
        let place = (self.namespace.as_str(), self.name.as_str());
        let snapshot = TenantSnapshot::of_berth(name, place, SnapshotTrigger::BeforeRestore);
        let created = self
            .snapshots::<TenantSnapshot>()
            .create(&PostParams::default(), &snapshot)
            .await;
        let error = match created {
            Ok(created) => return Ok(Some(created.uid().unwrap_or_default())),
            Err(error) if is_status(&error, 409) => error,
            Err(error) => {
                let error = api("create a TenantSnapshot")(error);
                let refusal = error.refusal().map(ToOwned::to_owned);
                return Err(refusal.map_or_else(|| TaskError::Host(error), |why| not_saved(&why)));
            }
        };
        let found = optional(self.snapshots::<Watched<TenantSnapshot>>().get(name).await);
        let Some(found) = found.map_err(api("read a TenantSnapshot"))? else {
            // It was deleted just now, or the host has only to count its quotas again.
            return Err(TaskError::Host(api("create a TenantSnapshot")(error)));
        };
        let expected = self.expected(after);
        let ours = { found.readable() }.filter(|found| is_of_restore(&expected, found));
        Ok(ours.map(|found| found.uid().unwrap_or_default()))
    }

    /// Chooses another name for the snapshot of what is there. It is recorded before anything of this name is created: nothing else of the tenant may be read
    /// meanwhile, and its file is not deleted.
    async fn choose_other_name(&mut self, name: &str, progress: &Progress) -> Result<String, TaskError> {
        let other = names::hash(&[name, &self.clock.now().to_string()]);
        let other = format!("{name}-{other}");
        tracing::warn!(
            tenant = self.tenant.slug(),
            name,
            other,
            "another TenantSnapshot has the name of that of a restore, which gets another one"
        );
        self.record.saved_as = Some(other.clone());
        self.write().await?;
        progress.set(Finding::UnderWay(self.record.clone()));
        // The reconcile notes which snapshot is waited for.
        self.queue.add(self.key.clone());
        Ok(other)
    }

    /// Waits until the snapshot of what is there is completed.
    async fn wait_until_saved(&self, name: &str, after: i64) -> Result<(), TaskError> {
        let begun = Instant::now();
        let (mut looked_at, mut was_seen) = (begun, false);
        loop {
            let known = self.known_saved(name);
            was_seen |= known.is_some();
            if !was_seen && looked_at.elapsed() >= SEEN_WITHIN {
                looked_at = Instant::now();
                let found = optional(self.snapshots::<TenantSnapshot>().get_metadata(name).await);
                let found = found.map_err(api("read a TenantSnapshot"))?;
                was_seen = found.and_then(|found| found.uid()) != self.saved_uid;
            }
            match judge(&self.expected(after), known.as_deref(), was_seen) {
                Saved::Yes => return Ok(()),
                Saved::Never(why) => return Err(not_saved(&why)),
                Saved::Waits if begun.elapsed() < SAVED_WITHIN => sleep(POLL).await,
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
