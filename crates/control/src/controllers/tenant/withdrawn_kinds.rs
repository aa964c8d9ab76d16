//! Objects of further kinds (`sync.kinds`) that the class does not list any more.
//!
//! The syncer of now does not know the kind, and may not delete its objects. They would lead traffic as before, also to what the team makes later under the
//! same names. Control knows the kind from the record of what the tenant was accepted with. It notes it there as withdrawn before the settings of now take
//! its place, takes the syncer's rights away, and deletes the objects. Only when it has found none is the note removed: it may be killed at any point.

use super::{
    build::host_objects,
    context::TenantContext,
    recorded_kinds::{RecordedKinds, WithdrawnKinds},
    recorded_settings,
    settings::Settings,
    target::Tenant,
};
use crate::{
    apply::{delete_several, is_status},
    error::{FirstError, ReconcileError, api},
};
use berth_api::{labels, sync_policy::SyncedKind};
use berth_runtime::locks::lock;
use futures::future::join_all;
use kube::{
    Api,
    api::{ApiResource, DynamicObject, ListParams},
};
use std::{sync::MutexGuard, time::Duration};
use tokio::time::timeout;

/// Reason if control may not delete the objects.
const NOT_PERMITTED: &str = "WithdrawnKindsNotPermitted";
/// Reason if the host does not answer in time.
const SLOW: &str = "WithdrawnKindsSlow";
/// Time for a tenant's objects of a kind in its turn. What serves a kind, or converts its objects, may be gone from the host with the entry in the class, and
/// never answer.
const LIMIT: Duration = Duration::from_secs(5);
/// The same with the time in which it waits for its turn.
const LIMIT_WITH_WAIT: Duration = Duration::from_secs(15);
/// Time for all kinds, of which each has its own.
const LIMIT_OF_ALL: Duration = Duration::from_secs(20);
/// Objects of which the names are listed at a time.
const PAGE: u32 = 500;
/// Pause before control looks whether all of them are gone.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Whether all objects were deleted of the kinds that were withdrawn.
pub(super) type Deleted = Result<(), ReconcileError>;

/// Records what the tenant is accepted with, and deletes the objects of kinds that it had before and has no more.
///
/// # Errors
/// The record cannot be read or written. The inner result says whether the objects were deleted: nothing else depends on that.
pub(super) async fn record_and_delete(
    context: &TenantContext,
    tenant: &Tenant,
    settings: &Settings,
) -> Result<Deleted, ReconcileError> {
    let known = known_kinds(tenant).clone();
    let recorded = match known {
        Some(recorded) => recorded,
        None => recorded_settings::load_kinds(context, tenant).await?,
    };
    let withdrawn = WithdrawnKinds::of(&recorded, &settings.sync.kinds);
    record(tenant, settings, withdrawn.all(), false).await?;
    if withdrawn.all().is_empty() {
        return Ok(Ok(()));
    }
    if let Err(error) = revoke(context, tenant, settings).await {
        return Ok(Err(error));
    }
    let (left, deleted) = delete_all(context, tenant, withdrawn).await;
    record(tenant, settings, left, true).await?;
    Ok(deleted)
}

/// The kinds in the record, as this process has written them last; none if it does not know.
fn known_kinds(tenant: &Tenant) -> MutexGuard<'_, Option<RecordedKinds>> {
    lock(&tenant.memory.recorded_kinds)
}

async fn record(
    tenant: &Tenant,
    settings: &Settings,
    withdrawn: Vec<SyncedKind>,
    is_revoked: bool,
) -> Result<(), ReconcileError> {
    // What a request has done that failed is not known.
    *known_kinds(tenant) = None;
    recorded_settings::record(tenant, settings, &withdrawn).await?;
    *known_kinds(tenant) = Some(RecordedKinds {
        listed: settings.sync.kinds.clone(),
        withdrawn,
        is_revoked,
    });
    Ok(())
}

/// Takes the rights on kinds away from the syncer that its class does not list: it would make again what is deleted.
async fn revoke(context: &TenantContext, tenant: &Tenant, settings: &Settings) -> Result<(), ReconcileError> {
    let rules = context.kinds.syncer_rules(&settings.sync).await?;
    let (_, [(role, _), _]) = host_objects::syncer_identity(&tenant.cluster, &tenant.id, &rules);
    Ok(tenant.memory.host.apply(&role).await?)
}

/// Deletes the objects of these kinds, of all of them at the same time: one that never answers keeps no other one on the host. Others have the slot
/// meanwhile. Returns the kinds of which the host may have objects even so.
async fn delete_all(context: &TenantContext, tenant: &Tenant, withdrawn: WithdrawnKinds) -> (Vec<SyncedKind>, Deleted) {
    let WithdrawnKinds { newly, earlier } = withdrawn;
    let newly = newly.into_iter().map(|kind| (kind, true));
    let kinds: Vec<(SyncedKind, bool)> = newly.chain(earlier.into_iter().map(|kind| (kind, false))).collect();
    let deletions: Vec<_> = { kinds.iter() }
        .map(|(kind, _)| delete_in_turn(context, tenant, kind))
        .collect();
    let all_found = tenant.slot.lend(LIMIT_OF_ALL, Box::pin(join_all(deletions))).await;
    let all_found = all_found.unwrap_or_else(|| kinds.iter().map(|_| None).collect());
    let mut failed = FirstError::<ReconcileError>::default();
    let mut looks_again = kinds.iter().any(|(_, is_new)| *is_new);
    let (mut left, mut late) = (Vec::new(), Vec::new());
    for ((kind, is_new), found) in kinds.into_iter().zip(all_found) {
        let found = if let Some(found) = found {
            failed.note(found)
        } else {
            late.push(format!("{}.{}", kind.resource, kind.group));
            None
        };
        looks_again |= matches!(found, Some(Found::Deleted));
        if is_new || !matches!(found, Some(Found::Nothing)) {
            left.push(kind);
        }
    }
    if looks_again {
        context.queue.add_after(tenant.key(), LOOK_AGAIN);
    }
    if !late.is_empty() {
        let late = describe_late(&late, &tenant.id.workload_namespace());
        failed.note::<(), ReconcileError>(Err(late));
    }
    (left, failed.into_result())
}

/// As [`delete_objects`], in the turn of the kind and in limited time. None: the time has passed. One that gets no turn is late as well: with kinds that do
/// not answer, the condition of the tenant would change from one reconcile to the next.
async fn delete_in_turn(
    context: &TenantContext,
    tenant: &Tenant,
    kind: &SyncedKind,
) -> Option<Result<Found, ReconcileError>> {
    let deletion = async {
        // It fails if the semaphore is closed, which nothing does.
        let _turn = context.tenants.kind_deletions.0.acquire().await.ok();
        timeout(LIMIT, Box::pin(delete_objects(context, tenant, kind)))
            .await
            .ok()
    };
    timeout(LIMIT_WITH_WAIT, deletion).await.ok().flatten()
}

fn describe_late(kinds: &[String], namespace: &str) -> ReconcileError {
    ReconcileError::Blocked {
        reason: SLOW,
        message: format!(
            "the host did not list and delete in time all objects of kinds that the class does not list any more: {}; objects of the tenant that are \
             left in {namespace} stay in effect. Look whether what serves these kinds on the host, or converts their objects, answers",
            kinds.join(", ")
        ),
    }
}

/// What the host has of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    /// Objects that were being deleted already: finalizers of their controller keep them.
    Ending,
    /// Objects that were deleted now. There may be more.
    Deleted,
}

/// Deletes objects of a kind that a syncer has made: those of one page, so that a tenant with many keeps no other one waiting.
async fn delete_objects(context: &TenantContext, tenant: &Tenant, kind: &SyncedKind) -> Result<Found, ReconcileError> {
    let namespace = tenant.id.workload_namespace();
    // A host refuses control without rights in the same way whether or not it serves the kind. And it may serve the objects in another version than the class
    // has listed.
    let Some(version) = context.kinds.served_version(kind).await? else {
        return Ok(Found::Nothing);
    };
    let resource = ApiResource {
        group: kind.group.clone(),
        api_version: format!("{}/{version}", kind.group),
        version,
        kind: kind.kind.clone(),
        plural: kind.resource.clone(),
    };
    let objects: Api<DynamicObject> = Api::namespaced_with(context.client.clone(), &namespace, &resource);
    let ours = format!("{}={}", labels::MANAGED_BY, labels::MANAGED_BY_SYNCER);
    let mut params = ListParams::default().labels(&ours).limit(PAGE);
    let mut found = Found::Nothing;
    loop {
        let page = match objects.list_metadata(&params).await {
            Ok(page) => page,
            // The host has just stopped serving the kind.
            Err(error) if is_status(&error, 404) => return Ok(found),
            Err(error) => return Err(explain(error, kind, &namespace)),
        };
        let next = page.metadata.continue_.filter(|token| !token.is_empty());
        let (ending, here): (Vec<_>, Vec<_>) =
            { page.items.into_iter() }.partition(|object| object.metadata.deletion_timestamp.is_some());
        if !ending.is_empty() {
            found = Found::Ending;
        }
        let is_enough = !here.is_empty();
        let (_, deleted) = delete_several(&objects, here.into_iter().map(|object| object.metadata)).await;
        deleted.map_err(|error| explain(error, kind, &namespace))?;
        if is_enough {
            return Ok(Found::Deleted);
        }
        let Some(token) = next else { return Ok(found) };
        params = params.continue_token(&token);
    }
}

/// An error of the host, with what to do if control has no rights.
fn explain(error: kube::Error, kind: &SyncedKind, namespace: &str) -> ReconcileError {
    if !is_status(&error, 403) {
        return api("delete objects of a kind that the class does not list any more")(error);
    }
    ReconcileError::Blocked {
        reason: NOT_PERMITTED,
        message: format!(
            "Berth may not list and delete {0}.{1}, which the class does not list any more: objects of the tenant that are left in {namespace} stay in \
             effect. Give it the rights on {0}.{1} again, with a ClusterRole that carries the label {2}: \"true\", until this message is gone",
            kind.resource,
            kind.group,
            labels::AGGREGATE_TO_CONTROL
        ),
    }
}
