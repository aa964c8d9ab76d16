//! Snapshots of what tenants store: takes them, creates those of schedules, and deletes those whose time is over.
//!
//! One pass looks at all snapshots, as watches know them. What to do about those of one tenant is decided by a pure function, `decide`. A snapshot is taken
//! by a task of its own, as that may take longer than a reconcile, and its files are deleted by one. docs/adr/0066 says which rules were chosen, and why.

mod begin;
mod context;
mod decide;
mod deletions;
mod runs;
mod store_check;
mod take;
mod tries;

pub use context::SnapshotsContext;
pub use deletions::Deletions;
pub use runs::{Pauses, Runs};
pub use store_check::StoreCheck;

use crate::{
    apply::{delete_same, is_status, optional},
    controllers::tenant::RestoreUnderWay,
    error::{FirstError, ReconcileError, api},
    metrics::{SnapshotPhaseLabels, TenantLabels},
};
use begin::{SnapshotTenant, begin, next_status, publish, write};
use berth_api::{
    ClassSnapshots, SleepState, SnapshotPhase, SnapshotTrigger, TenantCluster, TenantSnapshot, TenantSnapshotStatus,
    conditions::{COMPLETED, ConditionUpdate},
    names::{self, TenantId},
    quantity,
};
use berth_runtime::watched::Watched;
use decide::{
    Action, Decision, Facts, RestoreFacts, ScheduleState, TenantFacts, decide, silent_since, unchanged_since,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Api, Resource, ResourceExt, api::PostParams, runtime::reflector::ObjectRef};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::time::Instant;
use tries::STORE_ERROR;

/// Time between two passes: classes and tenants may have changed.
const INTERVAL: Duration = Duration::from_secs(60);
/// Pause before a pass goes on that had more to do than is done at once.
const GO_ON: Duration = Duration::from_secs(1);
/// Writes for the snapshots of one namespace in one pass: who creates thousands delays nobody else.
const MOST_WRITES_OF_NAMESPACE: usize = 20;

/// Time after which a pass begins nothing more. It is given up after 100 seconds.
const PASS: Duration = Duration::from_secs(30);

/// A tenant, by its namespace and name.
type Place = (String, String);

/// A snapshot that may begin.
struct Waiting {
    snapshot: Arc<TenantSnapshot>,
    tenant: Arc<TenantCluster>,
    /// Whether a restore of the tenant waits for it: while one is under way, no other snapshot of the tenant may begin.
    is_awaited: bool,
}

/// What a pass has written in a namespace.
#[derive(Default)]
struct Writes {
    actions: usize,
    has_failed: bool,
    /// Whether something is left.
    is_cut: bool,
}

/// Looks at the snapshots of all tenants. Returns when to do it again.
///
/// # Errors
/// The host refuses or does not answer. What could not be done for one snapshot keeps nothing else. Tasks say in the status of their snapshot why they fail.
pub async fn reconcile(context: &SnapshotsContext) -> Result<Option<Duration>, ReconcileError> {
    let (running, now) = (context.runs.running(), context.clock.now());
    let (paused, pause) = context.pauses.paused(Instant::now());
    let postponed = context.pauses.postponed(Instant::now());
    let mut failed = FirstError::<ReconcileError>::default();
    let (mut starts, mut deleted, mut others) = (Vec::new(), Vec::new(), Vec::new());
    let mut next = [pause, postponed.map(|(_, pause)| pause)].into_iter().flatten().min();
    let mut schedules = Vec::new();
    let may_delete = context.clock.is_confirmed();
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
            postponed: postponed.map(|(failure, _)| failure),
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
                Action::CleanUp(snapshot) => deleted.push(snapshot),
                // By a clock that is ahead, backups would be over that are not.
                Action::Delete(_) if !may_delete => {}
                action => others.push((place.clone(), action)),
            }
        }
    }
    report(context, &schedules);
    context.deletions.begin(context, deleted);
    start(context, starts, &mut failed).await;
    let is_cut = carry_out_some(context, others, &mut failed).await;
    match failed.into_result() {
        // It may be a single namespace whose quota is used up. What is left elsewhere does not wait as long as a pass that failed.
        Err(error) if is_cut => tracing::warn!(%error, "a pass over the snapshots goes on after a failure"),
        result => result?,
    }
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
    let sleeping = status.filter(|_| tenant.sleep_state() == SleepState::Sleeping);
    let sleeps_since = sleeping.and_then(silent_since);
    let restore = context.tenants.restore_under_way(&uid);
    Some(TenantFacts {
        created: { tenant.metadata.creation_timestamp.as_ref() }.map_or(Timestamp::UNIX_EPOCH, |created| created.0),
        has_run: status.is_some_and(|status| status.version.is_some()),
        is_deleting: tenant.metadata.deletion_timestamp.is_some(),
        rules: class.map_or_else(ClassSnapshots::default, |class| class.spec.snapshots.clone()),
        unchanged_since: unchanged_since(sleeps_since, status.and_then(|status| status.restore.as_ref())),
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

/// Carries out what is done with writes to the host: a number for each namespace, and for a time. First what schedules create: who creates many snapshots in a
/// namespace must not keep them back. Returns whether something is left in a namespace in which nothing has failed: what fails is not tried each second.
async fn carry_out_some(
    context: &SnapshotsContext,
    mut actions: Vec<(Place, Action)>,
    failed: &mut FirstError<ReconcileError>,
) -> bool {
    let begun = Instant::now();
    let mut namespaces: BTreeMap<String, Writes> = BTreeMap::new();
    actions.sort_by_key(|(_, action)| !matches!(action, Action::Create(_)));
    for (place, action) in actions {
        let writes = namespaces.entry(place.0.clone()).or_default();
        if writes.actions >= MOST_WRITES_OF_NAMESPACE || begun.elapsed() >= PASS {
            writes.is_cut = true;
            continue;
        }
        writes.actions += 1;
        let done = failed.note(carry_out(context, &place, action).await);
        writes.has_failed |= done.is_none();
    }
    namespaces.values().any(|writes| writes.is_cut && !writes.has_failed)
}

async fn carry_out(context: &SnapshotsContext, place: &Place, action: Action) -> Result<(), ReconcileError> {
    let now = context.clock.now();
    match action {
        Action::Fail(snapshot, reason, message) => {
            let condition = ConditionUpdate::mark_false(COMPLETED, reason, message);
            let status = next_status(&snapshot, SnapshotPhase::Failed, &condition, now);
            write_known(context, &snapshot, &status).await
        }
        Action::Postpone(snapshot, failure) => {
            let condition = ConditionUpdate::mark_false(COMPLETED, STORE_ERROR, failure.describe_untaken());
            let status = next_status(&snapshot, snapshot.phase(), &condition, now);
            write_known(context, &snapshot, &status).await
        }
        Action::DescribeSize(snapshot) => {
            let before = snapshot.status.clone().unwrap_or_default();
            let status = TenantSnapshotStatus {
                size: before.bytes.map(quantity::format_size),
                ..before
            };
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
        Action::Create(name) => create(context, place, &name).await,
        // These have tasks of their own: see `reconcile`.
        Action::Start(_) | Action::CleanUp(_) => Ok(()),
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
