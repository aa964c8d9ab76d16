//! The part of a restore that may take minutes: a task of its own, beside the reconciles of the tenant.

use super::{
    super::{
        context::TenantContext,
        restore::{Finding, Progress, Refusal},
        target::Tenant,
    },
    restore::describe_damage,
    restore_replace::{ReplaceError, replace},
};
use crate::{
    apply::is_status,
    datastore::{DatastoreError, RestorePhase, RestoreRecord, TenantContents},
    error::{ReconcileError, api},
    key::Key,
    stores::Stores,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use berth_api::{SnapshotPhase, SnapshotTrigger, TenantSnapshot, conditions::COMPLETED, names::TenantId};
use berth_runtime::queue::Queue;
use berth_snapshots::Store;
use kube::{Api, Client, ResourceExt, api::PostParams, runtime::reflector::ObjectRef};
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

/// Pause before it is looked again whether a snapshot is completed.
const POLL: Duration = Duration::from_millis(500);
/// Time for the snapshot of what is there. The tenant does not run meanwhile.
const SAVED_WITHIN: Duration = Duration::from_secs(30 * 60);

/// A restore that this process works on.
pub(super) struct RestoreTask {
    client: Client,
    stores: Stores,
    contents: Arc<dyn TenantContents>,
    store: Store,
    queue: Queue<Key>,
    key: Key,
    tenant: TenantId,
    namespace: String,
    name: String,
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
            contents: Arc::clone(&context.contents),
            store,
            queue: context.queue.clone(),
            key: tenant.key(),
            tenant: tenant.id.clone(),
            namespace: tenant.cluster.namespace().unwrap_or_default(),
            name: tenant.cluster.name_any(),
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
            Err(TaskError::GiveUp(refusal)) => match self.contents.delete_restore(&self.tenant, self.revision).await {
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
            if let Some(name) = self.record.saved_as.clone()
                && self.contents.count_contents(&self.tenant).await? > 0
            {
                self.save(&name).await?;
            }
            // The last moment at which nothing is lost.
            let verified = self.store.verify(&self.record.location, &self.record.written()).await;
            verified.map_err(|error| TaskError::GiveUp(describe_damage(&error)))?;
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

    /// Records the next phase.
    async fn enter(&mut self, phase: RestorePhase, progress: &Progress) -> Result<(), TaskError> {
        let record = RestoreRecord {
            phase,
            ..self.record.clone()
        };
        let text = record.to_text();
        self.revision = self
            .contents
            .write_restore(&self.tenant, text, Some(self.revision))
            .await?;
        self.record = record;
        progress.set(Finding::UnderWay(self.record.clone()));
        Ok(())
    }

    /// Takes a snapshot of what is there, and waits until it is completed.
    async fn save(&self, name: &str) -> Result<(), TaskError> {
        let give_up = |message: String| {
            TaskError::GiveUp(Refusal {
                reason: "NotSaved",
                message: format!("no snapshot could be taken of what the tenant stores now: {message}"),
            })
        };
        let snapshots: Api<TenantSnapshot> = Api::namespaced(self.client.clone(), &self.namespace);
        let place = (self.namespace.as_str(), self.name.as_str());
        let snapshot = TenantSnapshot::of_berth(name, place, SnapshotTrigger::BeforeRestore);
        match snapshots.create(&PostParams::default(), &snapshot).await {
            Ok(_) => {}
            Err(error) if is_status(&error, 409) => {}
            Err(error) => {
                let error = api("create a TenantSnapshot")(error);
                let refusal = error.refusal().map(ToOwned::to_owned);
                return Err(refusal.map_or_else(|| TaskError::Host(error), give_up));
            }
        }
        let deadline = Instant::now() + SAVED_WITHIN;
        loop {
            let known = self.stores.snapshots.get(&ObjectRef::new(name).within(&self.namespace));
            match known.as_ref().map(|known| known.phase()) {
                Some(SnapshotPhase::Completed) => return Ok(()),
                Some(SnapshotPhase::Failed) => {
                    return Err(give_up(known.as_deref().map_or_else(String::new, describe)));
                }
                Some(SnapshotPhase::Pending | SnapshotPhase::Running) | None if Instant::now() < deadline => {
                    sleep(POLL).await;
                }
                Some(SnapshotPhase::Pending | SnapshotPhase::Running) | None => {
                    return Err(give_up(format!(
                        "it took longer than {} minutes",
                        SAVED_WITHIN.as_secs() / 60
                    )));
                }
            }
        }
    }
}

/// Why a snapshot has failed.
fn describe(snapshot: &TenantSnapshot) -> String {
    let conditions = snapshot.status.iter().flat_map(|status| &status.conditions);
    let mut completed = conditions.filter(|condition| condition.type_ == COMPLETED);
    completed
        .next()
        .map_or_else(String::new, |condition| condition.message.clone())
}
