//! Writes the status, and its Events.

use super::{
    super::{context::TenantContext, error::TenantError},
    events::events,
};
use crate::{
    apply::optional,
    error::api,
    status_write::{StatusTarget, TENANT_FIELDS, write_status},
};
use berth_api::{TenantCluster, TenantClusterStatus};
use berth_runtime::watched::Watched;
use kube::{Resource, ResourceExt};

/// How often a write is tried whose object is changed at the same time.
const ATTEMPTS: usize = 5;

/// Writes `after` if it differs from the current status, and an Event for each change.
///
/// # Errors
/// The host refuses or does not answer.
pub(in super::super) async fn write(
    context: &TenantContext,
    cluster: &TenantCluster,
    after: &TenantClusterStatus,
) -> Result<(), TenantError> {
    patch(context, cluster, after, None).await
}

/// As [`write`], only if nobody has written the status since the watch showed it, and what `after` `follows_from` of the rest of the object is the same.
/// Who may change what is left, such as its team with an annotation, keeps it from being written only with a change between each of a few reads and the
/// write that follows. Returns whether it was written.
///
/// # Errors
/// The host refuses or does not answer.
pub(in super::super) async fn write_unless_changed<T: PartialEq>(
    context: &TenantContext,
    cluster: &TenantCluster,
    after: &TenantClusterStatus,
    follows_from: fn(&TenantCluster) -> T,
) -> Result<bool, TenantError> {
    let mut version = cluster.resource_version();
    for attempt in 1..=ATTEMPTS {
        match patch(context, cluster, after, version.as_deref()).await {
            Err(TenantError::Status(error)) if error.is_status(409) => {}
            written => return written.map(|()| true),
        }
        if attempt == ATTEMPTS {
            break;
        }
        match read_version(context, cluster, follows_from).await? {
            Some(newer) => version = Some(newer),
            None => break,
        }
    }
    Ok(false)
}

/// As [`write_unless_changed`], of what follows from nothing else of the object. If that changes before each try, and the status stays the same, it is
/// written in any case: who may change the object would keep it from being written otherwise.
///
/// # Errors
/// The host refuses or does not answer.
pub(in super::super) async fn write_unless_rewritten(
    context: &TenantContext,
    cluster: &TenantCluster,
    after: &TenantClusterStatus,
) -> Result<bool, TenantError> {
    if write_unless_changed(context, cluster, after, |_| ()).await? {
        return Ok(true);
    }
    if read_version(context, cluster, |_| ()).await?.is_none() {
        return Ok(false);
    }
    patch(context, cluster, after, None).await?;
    Ok(true)
}

/// The version that the object has by now. None: its status is another, or what the new one `follows_from`, or it is gone.
async fn read_version<T: PartialEq>(
    context: &TenantContext,
    cluster: &TenantCluster,
    follows_from: fn(&TenantCluster) -> T,
) -> Result<Option<String>, TenantError> {
    let now = optional(context.clusters_beside(cluster).get(&cluster.name_any()).await)
        .map_err(api("read the status"))
        .map_err(TenantError::Status)?;
    let now = now.and_then(Watched::readable);
    let is_same = |now: &TenantCluster| {
        now.uid() == cluster.uid()
            && own_status(now) == own_status(cluster)
            && follows_from(now) == follows_from(cluster)
    };
    let same = now.filter(is_same);
    Ok(same.and_then(|same| same.resource_version()))
}

/// What this controller has written into the status of an object.
fn own_status(cluster: &TenantCluster) -> TenantClusterStatus {
    cluster.status.as_ref().map(own_fields).unwrap_or_default()
}

/// A status without the fields that have other writers.
fn own_fields(status: &TenantClusterStatus) -> TenantClusterStatus {
    TenantClusterStatus {
        idle: None,
        monthly_usage: Vec::new(),
        ..status.clone()
    }
}

async fn patch(
    context: &TenantContext,
    cluster: &TenantCluster,
    after: &TenantClusterStatus,
    version: Option<&str>,
) -> Result<(), TenantError> {
    let (before, after) = (own_status(cluster), &own_fields(after));
    if before == *after {
        return Ok(());
    }
    let target = StatusTarget {
        only_version: version,
        ..StatusTarget::of(cluster)
    };
    write_status::<TenantCluster>(&context.client, target, &TENANT_FIELDS, after)
        .await
        .map_err(api("write the status"))
        .map_err(TenantError::Status)?;
    for event in events(&before, after) {
        context.recorder.publish(&event, &cluster.object_ref(&())).await;
    }
    Ok(())
}
