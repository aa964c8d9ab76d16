//! Begins to take a snapshot, and records how that ends.
//!
//! That it has begun is recorded before anything is written into the store, and that it is completed after everything is there. A control that is killed in
//! between leaves one that is Running, and the next control begins anew.

use super::{
    context::SnapshotsContext,
    take::{TakeError, Taken, take},
};
use crate::{
    apply::{is_status, optional},
    clock::whole_seconds,
    error::{ReconcileError, api},
    finalizers,
    key::Key,
    metrics::ResultLabels,
    status_write::{StatusTarget, write_status},
};
use berth_api::{
    MOST_SNAPSHOT_ATTEMPTS as MOST_ATTEMPTS, SnapshotPhase, TenantSnapshot, TenantSnapshotStatus,
    conditions::{self, COMPLETED, ConditionUpdate},
    crd, labels,
    names::TenantId,
    quantity,
};
use berth_runtime::watched::Watched;
use berth_snapshots::Store;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{
    Resource, ResourceExt,
    runtime::events::{Event, EventType},
};
use std::{
    collections::BTreeSet,
    sync::{Arc, LazyLock},
    time::Duration,
};
use tokio_util::task::AbortOnDropHandle;

/// All fields of the status.
static FIELDS: LazyLock<BTreeSet<String>> = LazyLock::new(crd::status_fields::<TenantSnapshot>);
/// How often the end of a snapshot is written that cannot be written.
const MOST_WRITES: u32 = 5;
/// Pause between two of these tries, and for each attempt before that before a snapshot is begun again.
const PAUSE: Duration = Duration::from_secs(30);

/// The tenant of a snapshot that begins.
#[derive(Clone, Debug)]
pub(super) struct SnapshotTenant {
    pub(super) id: TenantId,
    pub(super) uid: String,
    /// Kubernetes version of its API server, the newer one during an upgrade.
    pub(super) version: Option<String>,
}

/// Begins to take a snapshot, as it was read: not if it was changed since then, as another control may have completed it.
///
/// # Errors
/// The host refuses or does not answer.
pub(super) async fn begin(
    context: &SnapshotsContext,
    store: &Store,
    snapshot: &TenantSnapshot,
    tenant: SnapshotTenant,
) -> Result<(), ReconcileError> {
    let snapshots = context.beside(snapshot);
    if !finalizers::is_set(snapshot, labels::SNAPSHOT_FINALIZER) {
        let added = finalizers::add(&snapshots, snapshot, labels::SNAPSHOT_FINALIZER).await;
        // The watch shows it, and the next pass goes on.
        return unless_changed(added.map_err(api("add a finalizer to a TenantSnapshot")));
    }
    let before = snapshot.status.clone().unwrap_or_default();
    let attempt = before.attempts.unwrap_or_default() + 1;
    let now = context.clock.now();
    let status = TenantSnapshotStatus {
        started_at: Some(Time(whole_seconds(now))),
        attempts: Some(attempt),
        tenant_uid: Some(tenant.uid.clone()),
        version: tenant.version.clone(),
        location: Some(snapshot.location_of(attempt)),
        ..next_status(
            snapshot,
            SnapshotPhase::Running,
            &ConditionUpdate::mark_false(
                COMPLETED,
                "Running",
                "what the tenant stores is written into the object store",
            ),
            now,
        )
    };
    let version = snapshot.resource_version();
    let written = write(context, snapshot, version.as_deref(), &status).await;
    if let Err(error) = written {
        return unless_changed(Err(error));
    }
    let uid = snapshot.uid().unwrap_or_default();
    let begun = TenantSnapshot {
        status: Some(status),
        ..snapshot.clone()
    };
    // It must not keep itself alive, also not by deletions, which end runs: it ends when the others let go of the list.
    let of_task = SnapshotsContext {
        runs: Arc::default(),
        deletions: Arc::default(),
        ..context.clone()
    };
    let task = Box::pin(run(of_task, store.clone(), begun, tenant));
    context.runs.add(&uid, AbortOnDropHandle::new(tokio::spawn(task)));
    Ok(())
}

/// That somebody has changed the object, or deleted it, is no error: the watch shows it.
fn unless_changed(written: Result<(), ReconcileError>) -> Result<(), ReconcileError> {
    match written {
        Err(error) if error.is_status(409) || error.is_status(404) => Ok(()),
        written => written,
    }
}

async fn run(context: SnapshotsContext, store: Store, snapshot: TenantSnapshot, tenant: SnapshotTenant) {
    let (name, location) = (snapshot.name_any(), snapshot.location());
    let taken = take(&context.contents, &store, &tenant.id, (&name, &location)).await;
    let result = taken.as_ref().map_or_else(TakeError::reason, |_| "ok");
    context.metrics.attempts.get_or_create(&ResultLabels { result }).inc();
    match taken.as_ref().map_err(TakeError::store_failure) {
        Ok(_) => context.pauses.note_store(None),
        Err(Some(failure)) => context.pauses.note_store(Some(failure)),
        // It says nothing of the store.
        Err(None) => {}
    }
    let status = match taken {
        Ok(taken) => completed_status(&snapshot, taken, context.clock.now()),
        Err(error) => {
            tracing::warn!(namespace = snapshot.namespace(), name, %error, "a snapshot could not be taken");
            let attempts = { snapshot.status.as_ref() }
                .and_then(|status| status.attempts)
                .unwrap_or(1);
            let status = failed_status(&snapshot, &error, attempts, context.clock.now());
            if status.phase == Some(SnapshotPhase::Pending) {
                let uid = snapshot.uid().unwrap_or_default();
                context.pauses.pause(&uid, PAUSE * attempts);
            }
            status
        }
    };
    for tried in 1..=MOST_WRITES {
        match write_end(&context, &snapshot, &status).await {
            Ok(false) => break,
            Err(error) if error.is_status(404) => break,
            Err(error) if tried < MOST_WRITES => {
                tracing::warn!(namespace = snapshot.namespace(), name, %error, "cannot write how a snapshot ended; trying again");
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => {
                // It is Running, and begins anew.
                tracing::error!(namespace = snapshot.namespace(), name, %error, "cannot write how a snapshot ended");
            }
            Ok(true) => {
                publish(&context, &snapshot, &status).await;
                break;
            }
        }
    }
    context.queue.add(Key::Snapshots);
}

/// Writes how an attempt ended, unless the object is another one or another control has begun it again: what is in the store may be from there. Returns
/// whether it was written.
///
/// # Errors
/// The host refuses or does not answer; status 409 if somebody has changed the object meanwhile.
pub(super) async fn write_end(
    context: &SnapshotsContext,
    snapshot: &TenantSnapshot,
    status: &TenantSnapshotStatus,
) -> Result<bool, ReconcileError> {
    let live = optional(context.beside(snapshot).get(&snapshot.name_any()).await);
    let live = live.map_err(api("read a TenantSnapshot"))?.and_then(Watched::readable);
    let attempts = |snapshot: &TenantSnapshot| snapshot.status.as_ref().and_then(|status| status.attempts);
    let is_same = |live: &TenantSnapshot| live.uid() == snapshot.uid() && attempts(live) == attempts(snapshot);
    let Some(live) = live.filter(is_same) else {
        return Ok(false);
    };
    let version = live.resource_version();
    write(context, snapshot, version.as_deref(), status)
        .await
        .map(|()| true)
}

/// The status of a snapshot that is in the store.
fn completed_status(snapshot: &TenantSnapshot, taken: Taken, now: Timestamp) -> TenantSnapshotStatus {
    let Taken {
        written,
        revision,
        encryption_keys,
    } = taken;
    let condition = ConditionUpdate::mark_true(
        COMPLETED,
        "Completed",
        format!("{} objects are in the object store", written.objects),
    );
    TenantSnapshotStatus {
        completed_at: Some(Time(whole_seconds(now))),
        revision: Some(revision),
        objects: Some(written.objects),
        bytes: Some(written.bytes),
        size: Some(quantity::format_size(written.bytes)),
        stored_bytes: Some(written.stored_bytes),
        checksum: Some(written.checksum),
        encryption_keys: encryption_keys.into_iter().collect(),
        ..next_status(snapshot, SnapshotPhase::Completed, &condition, now)
    }
}

/// The status of a snapshot that could not be taken: it waits for another try, or has failed for good.
fn failed_status(snapshot: &TenantSnapshot, error: &TakeError, attempts: u32, now: Timestamp) -> TenantSnapshotStatus {
    let is_last = attempts >= MOST_ATTEMPTS || !error.is_temporary();
    let (phase, message) = if is_last {
        (SnapshotPhase::Failed, error.to_string())
    } else {
        (SnapshotPhase::Pending, format!("{error}; Berth tries again"))
    };
    let condition = ConditionUpdate::mark_false(COMPLETED, error.reason(), message);
    next_status(snapshot, phase, &condition, now)
}

/// The status with this phase and condition, and what it said before of the rest.
pub(super) fn next_status(
    snapshot: &TenantSnapshot,
    phase: SnapshotPhase,
    condition: &ConditionUpdate,
    now: Timestamp,
) -> TenantSnapshotStatus {
    let before = snapshot.status.clone().unwrap_or_default();
    let generation = snapshot.metadata.generation;
    TenantSnapshotStatus {
        phase: Some(phase),
        conditions: conditions::merge(&before.conditions, std::slice::from_ref(condition), generation, now),
        ..before
    }
}

/// Writes the whole status: only to this version of the object, if there is one.
///
/// # Errors
/// The host refuses or does not answer; status 404 if the object is gone, 409 if it is another one or of another version.
pub(super) async fn write(
    context: &SnapshotsContext,
    snapshot: &TenantSnapshot,
    only_version: Option<&str>,
    status: &TenantSnapshotStatus,
) -> Result<(), ReconcileError> {
    let target = StatusTarget {
        only_version,
        ..StatusTarget::of(snapshot)
    };
    let written = write_status::<TenantSnapshot>(&context.client, target, &FIELDS, status).await;
    written.map_err(api("write the status of a TenantSnapshot"))
}

/// Publishes how a snapshot ended, if it did.
pub(super) async fn publish(context: &SnapshotsContext, snapshot: &TenantSnapshot, status: &TenantSnapshotStatus) {
    let type_ = match status.phase {
        Some(SnapshotPhase::Completed) => EventType::Normal,
        Some(SnapshotPhase::Failed) => EventType::Warning,
        Some(SnapshotPhase::Pending | SnapshotPhase::Running) | None => return,
    };
    let Some(condition) = { status.conditions.iter() }.find(|condition| condition.type_ == COMPLETED) else {
        return;
    };
    let event = Event {
        type_,
        reason: condition.reason.clone(),
        note: Some(condition.message.clone()),
        action: "TakeSnapshot".into(),
        secondary: None,
    };
    context.recorder.publish(&event, &snapshot.object_ref(&())).await;
}

/// Whether an answer says that the object is gone or was changed.
pub(super) fn is_gone_or_changed(error: &kube::Error) -> bool {
    is_status(error, 404) || is_status(error, 409)
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_snapshots::StoreError;
    use serde_json::json;

    fn snapshot() -> TenantSnapshot {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantSnapshot",
            "metadata": {"name": "a", "namespace": "team", "uid": "77aa", "generation": 2},
            "spec": {"tenantClusterName": "vision"},
            "status": {"phase": "Running", "tenantUID": "6f2c", "startedAt": "2026-11-30T12:00:00Z", "attempts": 1, "expiresAt": "2026-12-30T12:00:00Z"},
        }))
        .unwrap()
    }

    fn now() -> Timestamp {
        "2026-11-30T12:00:05.5Z".parse().unwrap()
    }

    #[test]
    fn a_completed_snapshot_says_everything_that_a_restore_compares() {
        let taken = Taken {
            written: berth_snapshots::Written {
                objects: 7,
                bytes: 70,
                stored_bytes: 30,
                checksum: "ab".into(),
            },
            revision: 99,
            encryption_keys: BTreeSet::from(["encryption-key-a".to_owned()]),
        };
        let status = serde_json::to_value(completed_status(&snapshot(), taken, now())).unwrap();
        for (field, expected) in [
            ("phase", json!("Completed")),
            ("tenantUID", json!("6f2c")),
            ("completedAt", json!("2026-11-30T12:00:05Z")),
            ("revision", json!(99)),
            ("objects", json!(7)),
            ("bytes", json!(70)),
            ("size", json!("70")),
            ("storedBytes", json!(30)),
            ("checksum", json!("ab")),
            ("encryptionKeys", json!(["encryption-key-a"])),
            ("expiresAt", json!("2026-12-30T12:00:00Z")),
        ] {
            assert_eq!(status[field], expected, "{field}");
        }
        assert_eq!(status["conditions"][0]["status"], "True");
        assert_eq!(status["conditions"][0]["observedGeneration"], 2);
    }

    #[test]
    fn what_may_pass_is_tried_again_and_the_last_try_fails() {
        let phase = |error: &TakeError, attempts| failed_status(&snapshot(), error, attempts, now()).phase.unwrap();
        let store = TakeError::Store(StoreError::Unreachable("it does not answer".into()));
        assert_eq!(phase(&store, 1), SnapshotPhase::Pending);
        assert_eq!(phase(&store, MOST_ATTEMPTS - 1), SnapshotPhase::Pending);
        assert_eq!(phase(&store, MOST_ATTEMPTS), SnapshotPhase::Failed);
        assert_eq!(phase(&TakeError::NoDatabase, 1), SnapshotPhase::Failed);
        let status = failed_status(&snapshot(), &store, 1, now());
        assert_eq!(status.conditions[0].reason, "StoreError");
        assert!(status.conditions[0].message.ends_with("Berth tries again"));
        assert_eq!((status.checksum, status.completed_at), (None, None));
    }
}
