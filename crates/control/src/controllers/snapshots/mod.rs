//! Snapshots of what tenants store: takes them, creates those of schedules, and deletes those whose time is over.
//!
//! One pass looks at all snapshots, as watches know them. What to do about those of one tenant is decided by a pure function, `decide`. A snapshot is taken
//! by a task of its own, as that may take longer than a reconcile. docs/adr/0066 says which rules were chosen, and why.

mod begin;
mod context;
mod decide;
mod runs;
mod store_check;
mod take;

pub use context::SnapshotsContext;
pub use runs::{Deletions, Pauses, Runs};
pub use store_check::StoreCheck;

use crate::{
    apply::{delete_same, is_status, optional},
    controllers::tenant::RestoreUnderWay,
    datastore::RestoreRecord,
    error::{FirstError, ReconcileError, api},
    finalizers,
    metrics::{SnapshotPhaseLabels, TenantLabels},
};
use begin::{SnapshotTenant, begin, is_gone_or_changed, next_status, publish, write};
use berth_api::{
    ClassSnapshots, SleepState, SnapshotPhase, SnapshotTrigger, TenantCluster, TenantSnapshot, TenantSnapshotStatus,
    conditions::{COMPLETED, ConditionUpdate, DELETING},
    labels,
    names::{self, TenantId},
};
use berth_runtime::watched::Watched;
use berth_snapshots::{Store, StoreError};
use decide::{Action, Decision, Facts, RestoreFacts, ScheduleState, TenantFacts, decide};
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{
    Api, Resource, ResourceExt,
    api::PostParams,
    runtime::{
        events::{Event, EventType},
        reflector::ObjectRef,
    },
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::time::Instant;

/// Time between two passes: classes and tenants may have changed.
const INTERVAL: Duration = Duration::from_secs(60);
/// Pause before a pass goes on that had more to do than is done at once.
const GO_ON: Duration = Duration::from_secs(1);
/// Writes for the snapshots of one namespace in one pass: who creates thousands delays nobody else.
const MOST_WRITES_OF_NAMESPACE: usize = 20;

/// Time after which a pass begins nothing more. It is given up after 100 seconds, and a store that does not answer takes its time.
const PASS: Duration = Duration::from_secs(30);

/// Time for the deletion of a file.
const DELETED_WITHIN: Duration = Duration::from_secs(20);

/// Reason of a file that the object store does not delete.
const STORE_ERROR: &str = "StoreError";

/// A tenant, by its namespace and name.
type Place = (String, String);

/// A snapshot that may begin.
struct Waiting {
    snapshot: Arc<TenantSnapshot>,
    tenant: Arc<TenantCluster>,
    /// Whether a restore of the tenant waits for it: while one is under way, no other snapshot of the tenant may begin.
    is_awaited: bool,
}

/// Looks at the snapshots of all tenants. Returns when to do it again.
///
/// # Errors
/// The host, etcd or the store refuses or does not answer. What could not be done for one snapshot keeps nothing else.
pub async fn reconcile(context: &SnapshotsContext) -> Result<Option<Duration>, ReconcileError> {
    let (running, now) = (context.runs.running(), context.clock.now());
    let (paused, pause) = context.pauses.paused(Instant::now());
    let mut failed = FirstError::<ReconcileError>::default();
    let (mut starts, mut others) = (Vec::new(), Vec::new());
    let mut next = pause;
    let mut schedules = Vec::new();
    for (place, snapshots) in by_tenant(context) {
        let tenant = find_tenant(context, &place);
        let facts = tenant.as_deref().and_then(|tenant| observe(context, tenant));
        let Decision {
            actions,
            next: due,
            schedule,
        } = decide(&Facts {
            now,
            name: &place.1,
            has_store: context.store.is_some(),
            tenant: facts.as_ref(),
            snapshots: &snapshots,
            running: &running,
            paused: &paused,
        });
        schedules.extend(schedule.map(|schedule| (place.clone(), schedule)));
        next = [next, due.and_then(|due| until(due, now))].into_iter().flatten().min();
        for action in actions {
            match action {
                Action::Start(snapshot) => starts.extend(tenant.clone().map(|tenant| Waiting {
                    snapshot,
                    tenant,
                    is_awaited: facts.as_ref().is_some_and(|facts| facts.restore.is_some()),
                })),
                action => others.push((place.clone(), action)),
            }
        }
    }
    report(context, &schedules);
    start(context, starts, &mut failed).await;
    let is_cut = carry_out_some(context, others, &mut failed).await;
    failed.into_result()?;
    let pause = if is_cut { GO_ON } else { INTERVAL };
    Ok(Some(next.map_or(pause, |next| next.clamp(GO_ON, pause.max(GO_ON)))))
}

/// The snapshots of each tenant, with tenants that have none.
fn by_tenant(context: &SnapshotsContext) -> BTreeMap<Place, Vec<Arc<TenantSnapshot>>> {
    let mut all: BTreeMap<Place, Vec<Arc<TenantSnapshot>>> = BTreeMap::new();
    for tenant in context.stores.tenants.state() {
        all.entry((tenant.namespace().unwrap_or_default(), tenant.name_any()))
            .or_default();
    }
    for snapshot in context.stores.snapshots.state() {
        let place = (
            snapshot.namespace().unwrap_or_default(),
            snapshot.spec.tenant_cluster_name.clone(),
        );
        all.entry(place).or_default().push(snapshot);
    }
    all
}

fn find_tenant(context: &SnapshotsContext, (namespace, name): &Place) -> Option<Arc<TenantCluster>> {
    context.stores.tenants.get(&ObjectRef::new(name).within(namespace))
}

/// What is known of a tenant.
fn observe(context: &SnapshotsContext, tenant: &TenantCluster) -> Option<TenantFacts> {
    let uid = tenant.uid()?;
    let status = tenant.status.as_ref();
    let class = status.and_then(|status| status.class_name.as_deref());
    let class = class.and_then(|class| context.stores.classes.get(&ObjectRef::new(class)));
    let sleep = status.and_then(|status| status.sleep.as_ref());
    let sleeps = tenant.sleep_state() == SleepState::Sleeping;
    let restore = context.tenants.restore_under_way(&uid);
    Some(TenantFacts {
        created: { tenant.metadata.creation_timestamp.as_ref() }.map_or(Timestamp::UNIX_EPOCH, |created| created.0),
        has_run: status.is_some_and(|status| status.version.is_some()),
        is_deleting: tenant.metadata.deletion_timestamp.is_some(),
        rules: class.map_or_else(ClassSnapshots::default, |class| class.spec.snapshots.clone()),
        sleeps_since: sleep
            .filter(|_| sleeps)
            .and_then(|sleep| sleep.since.as_ref())
            .map(|since| since.0),
        restore: restore.map(|restore| {
            let RestoreUnderWay { snapshot_uid, saved_as } = restore;
            RestoreFacts { snapshot_uid, saved_as }
        }),
        uid,
    })
}

/// How long it takes until then; none if that is over.
fn until(due: Timestamp, now: Timestamp) -> Option<Duration> {
    Duration::try_from(due.duration_since(now)).ok()
}

/// Begins as many snapshots as may be taken at the same time: first those that a restore waits for. The one that ends wakes this for the others.
async fn start(context: &SnapshotsContext, mut starts: Vec<Waiting>, failed: &mut FirstError<ReconcileError>) {
    let Some(store) = &context.store else { return };
    starts.sort_by_key(|waiting| turn(&waiting.snapshot, waiting.is_awaited));
    for Waiting {
        snapshot,
        tenant,
        is_awaited: _,
    } in starts
    {
        if !context.runs.has_room() {
            return;
        }
        let uid = tenant.uid().unwrap_or_default();
        let status = tenant.status.as_ref();
        let tenant = SnapshotTenant {
            id: TenantId::new(&tenant.name_any(), &uid),
            version: status.and_then(|status| status.started_version().map(ToOwned::to_owned)),
            uid,
        };
        failed.note(begin(context, store, &snapshot, tenant).await);
    }
}

/// The place of a snapshot among those that may begin: after those that a restore waits for, by the time since which it waits. Teams decide about labels, and
/// how often they create a snapshot, so neither comes before a snapshot of another tenant, nor before a second try of it.
fn turn(snapshot: &TenantSnapshot, is_awaited: bool) -> (bool, Option<Timestamp>) {
    let begun = { snapshot.status.as_ref() }.and_then(|status| status.started_at.as_ref());
    let created = snapshot.metadata.creation_timestamp.as_ref();
    let waits_since = begun.map(|at| at.0).max(created.map(|at| at.0));
    (!is_awaited, waits_since)
}

/// Carries out what is not to begin a snapshot: a number for each namespace, and for a time. Files are deleted last, as the store may not answer. Returns whether
/// something is left.
async fn carry_out_some(
    context: &SnapshotsContext,
    mut actions: Vec<(Place, Action)>,
    failed: &mut FirstError<ReconcileError>,
) -> bool {
    let begun = Instant::now();
    let mut writes: BTreeMap<String, usize> = BTreeMap::new();
    let mut is_cut = false;
    sort(context, &mut actions);
    for (place, action) in actions {
        let done = writes.entry(place.0.clone()).or_default();
        if *done >= MOST_WRITES_OF_NAMESPACE || begun.elapsed() >= PASS {
            is_cut = true;
            continue;
        }
        *done += 1;
        failed.note(carry_out(context, &place, action).await);
    }
    is_cut
}

/// Puts what schedules create before everything else: who creates many snapshots in a namespace must not keep them back. Puts deletions of files behind
/// everything else, and of these first what was not tried for the longest time: the store may never answer, and may do so for some files only.
fn sort(context: &SnapshotsContext, actions: &mut [(Place, Action)]) {
    let file = |action: &Action| match action {
        Action::CleanUp(snapshot) => Some(snapshot.uid().unwrap_or_default()),
        _ => None,
    };
    let uids = { actions.iter() }.filter_map(|(_, action)| file(action)).collect();
    context.deletions.forget_others(&uids);
    actions.sort_by_cached_key(|(_, action)| {
        let uid = file(action);
        let is_of_schedule = matches!(action, Action::Create(_));
        (
            !is_of_schedule,
            uid.is_some(),
            uid.and_then(|uid| context.deletions.tried_at(&uid)),
        )
    });
}

async fn carry_out(context: &SnapshotsContext, place: &Place, action: Action) -> Result<(), ReconcileError> {
    let now = context.clock.now();
    match action {
        Action::Fail(snapshot, reason, message) => {
            let condition = ConditionUpdate::mark_false(COMPLETED, reason, message);
            let status = next_status(&snapshot, SnapshotPhase::Failed, &condition, now);
            write_known(context, &snapshot, &status).await
        }
        Action::Expire(snapshot, at) => {
            let before = snapshot.status.clone().unwrap_or_default();
            let status = TenantSnapshotStatus {
                expires_at: at.map(Time),
                ..before
            };
            write_known(context, &snapshot, &status).await
        }
        Action::Delete(snapshot) => {
            let version = snapshot.resource_version();
            match delete_same(&context.beside(&snapshot), snapshot.meta(), version).await {
                Err(error) if is_status(&error, 409) => Ok(()),
                deleted => deleted.map(drop).map_err(api("delete a TenantSnapshot")),
            }
        }
        Action::CleanUp(snapshot) => {
            let uid = snapshot.uid().unwrap_or_default();
            context.deletions.note_tried(&uid, Instant::now());
            clean_up(context, &snapshot).await
        }
        Action::Create(name) => create(context, place, &name).await,
        // Others come first: see `start`.
        Action::Start(_) => Ok(()),
    }
}

/// Writes a status that follows from what was read, only if nobody has changed the object since then.
async fn write_known(
    context: &SnapshotsContext,
    snapshot: &TenantSnapshot,
    status: &TenantSnapshotStatus,
) -> Result<(), ReconcileError> {
    let version = snapshot.resource_version();
    match write(context, snapshot, version.as_deref(), status).await {
        // The watch shows it.
        Err(error) if error.is_status(409) || error.is_status(404) => Ok(()),
        Ok(()) => {
            let was_over = snapshot.phase() == status.phase.unwrap_or_default();
            if !was_over {
                publish(context, snapshot, status).await;
            }
            Ok(())
        }
        written => written,
    }
}

/// Creates the snapshot of a schedule. That it exists is no error. Somebody may have created another one of its name before, as the name says nothing but
/// the time: then it gets a name that nobody knows before.
async fn create(context: &SnapshotsContext, place: &Place, name: &str) -> Result<(), ReconcileError> {
    if create_named(context, place, name).await? {
        return Ok(());
    }
    let other = names::hash(&[name, &context.clock.now().to_string()]);
    create_named(context, place, &format!("{name}-{other}")).await.map(drop)
}

/// Creates the snapshot of a schedule with this name. Returns whether it is there then, and not another one.
async fn create_named(
    context: &SnapshotsContext,
    (namespace, tenant): &Place,
    name: &str,
) -> Result<bool, ReconcileError> {
    let snapshot = TenantSnapshot::of_berth(name, (namespace, tenant), SnapshotTrigger::Schedule);
    let objects: Api<TenantSnapshot> = Api::namespaced(context.client.clone(), namespace);
    match objects.create(&PostParams::default(), &snapshot).await {
        Err(error) if is_status(&error, 409) => {}
        created => return created.map(|_| true).map_err(api("create a TenantSnapshot")),
    }
    let objects: Api<Watched<TenantSnapshot>> = Api::namespaced(context.client.clone(), namespace);
    let Some(found) = optional(objects.get(name).await).map_err(api("read a TenantSnapshot"))? else {
        // It was deleted meanwhile: the next pass creates it.
        return Ok(true);
    };
    let is_of_schedule = |found: TenantSnapshot| {
        found.trigger() == SnapshotTrigger::Schedule && found.spec.tenant_cluster_name == *tenant
    };
    Ok(found.readable().is_some_and(is_of_schedule))
}

/// Deletes what is in the store of a snapshot that is being deleted, and lets the object go. Not while its tenant is set back to it.
async fn clean_up(context: &SnapshotsContext, snapshot: &TenantSnapshot) -> Result<(), ReconcileError> {
    let deleted = delete_stored(context, snapshot).await;
    if !matches!(deleted, Ok(true)) {
        let reported = report_kept(context, snapshot, &deleted).await;
        return deleted.and(reported);
    }
    match finalizers::remove(&context.beside(snapshot), snapshot, labels::SNAPSHOT_FINALIZER).await {
        Err(error) if is_gone_or_changed(&error) => Ok(()),
        removed => removed.map_err(api("remove the finalizer of a TenantSnapshot")),
    }
}

/// Says why an object is kept that somebody has deleted: it may hold up the deletion of a namespace, in which no Event can be written any more.
async fn report_kept(
    context: &SnapshotsContext,
    snapshot: &TenantSnapshot,
    deleted: &Result<bool, ReconcileError>,
) -> Result<(), ReconcileError> {
    let (reason, message) = match deleted {
        Ok(_) => (
            "Restoring",
            format!(
                "TenantCluster {} is set back to this snapshot, or has nothing but it of what it stored before; its file is deleted when the restore is over",
                snapshot.spec.tenant_cluster_name
            ),
        ),
        Err(error) if error.category() == STORE_ERROR => (
            STORE_ERROR,
            format!(
                "{error}; Berth tries again. To let the object go without that, remove its finalizer {}, and delete the file yourself",
                labels::SNAPSHOT_FINALIZER
            ),
        ),
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
    if deleted.is_err() {
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

/// Deletes what is in the store of a snapshot that is being deleted. Returns false while its tenant needs it.
async fn delete_stored(context: &SnapshotsContext, snapshot: &TenantSnapshot) -> Result<bool, ReconcileError> {
    if is_being_restored(context, snapshot).await? {
        return Ok(false);
    }
    context.runs.end(&snapshot.uid().unwrap_or_default()).await;
    if let Some(store) = &context.store {
        delete_files(store, snapshot).await?;
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
    Ok(true)
}

/// Deletes what all attempts have written into the store. One that does not answer soon is asked again in another pass.
async fn delete_files(store: &Store, snapshot: &TenantSnapshot) -> Result<(), ReconcileError> {
    let failed = |why: String| ReconcileError::Blocked {
        reason: STORE_ERROR,
        message: format!("cannot delete {} in the object store: {why}", snapshot.location()),
    };
    let files = snapshot.all_locations();
    let deleting = join_all(files.map(|location| async move { store.delete(&location).await }));
    match tokio::time::timeout(DELETED_WITHIN, deleting).await {
        Ok(deleted) => {
            // The first of these errors, and not that of the fastest answer: the text stays the same.
            let deleted: Result<(), StoreError> = deleted.into_iter().collect();
            deleted.map_err(|error| failed(error.to_string()))
        }
        Err(_) => Err(failed(format!("it took longer than {} s", DELETED_WITHIN.as_secs()))),
    }
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

/// Sets the metrics.
fn report(context: &SnapshotsContext, schedules: &[(Place, ScheduleState)]) {
    let mut counts: BTreeMap<SnapshotPhase, i64> = SnapshotPhase::ALL.into_iter().map(|phase| (phase, 0)).collect();
    for snapshot in context.stores.snapshots.state() {
        *counts.entry(snapshot.phase()).or_default() += 1;
    }
    let phases = counts
        .into_iter()
        .map(|(phase, count)| (SnapshotPhaseLabels { phase: phase.name() }, count));
    context.metrics.snapshots.set_all(phases);
    let labels = |(namespace, name): &Place| TenantLabels {
        tenant_namespace: namespace.clone(),
        tenant: name.clone(),
    };
    let completed = { schedules.iter() }.map(|(place, state)| {
        let at = state.completed_at.map_or(0, Timestamp::as_second);
        (labels(place), at)
    });
    context.metrics.scheduled_completed.set_all(completed);
    let overdue = { schedules.iter() }.map(|(place, state)| (labels(place), i64::from(state.is_overdue)));
    context.metrics.scheduled_overdue.set_all(overdue);
}

#[cfg(test)]
mod tests;
