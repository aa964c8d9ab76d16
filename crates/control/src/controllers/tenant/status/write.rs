//! Writes the status, and its Events.

use super::{
    super::{context::TenantContext, error::TenantError},
    events::events,
};
use crate::error::api;
use berth_api::{TenantCluster, TenantClusterStatus, labels};
use berth_runtime::watched::Watched;
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

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

/// As [`write`], only if the object was not changed since the watch showed it. Returns whether it was written.
///
/// # Errors
/// The host refuses or does not answer.
pub(in super::super) async fn write_unless_changed(
    context: &TenantContext,
    cluster: &TenantCluster,
    after: &TenantClusterStatus,
) -> Result<bool, TenantError> {
    let version = cluster.resource_version();
    match patch(context, cluster, after, version.as_deref()).await {
        Err(TenantError::Status(error)) if error.is_status(409) => Ok(false),
        written => written.map(|()| true),
    }
}

async fn patch(
    context: &TenantContext,
    cluster: &TenantCluster,
    after: &TenantClusterStatus,
    version: Option<&str>,
) -> Result<(), TenantError> {
    // `status.idle` has another field manager.
    let without_idle = |status: &TenantClusterStatus| TenantClusterStatus {
        idle: None,
        ..status.clone()
    };
    let before = cluster.status.as_ref().map(without_idle).unwrap_or_default();
    let after = &without_idle(after);
    if before == *after {
        return Ok(());
    }
    let namespace = cluster.namespace().unwrap_or_default();
    let clusters: Api<Watched<TenantCluster>> = Api::namespaced(context.client.clone(), &namespace);
    let mut body = json!({
        "apiVersion": TenantCluster::api_version(&()), "kind": TenantCluster::kind(&()),
        "metadata": {"name": cluster.name_any(), "uid": cluster.uid()}, "status": after,
    });
    if let Some(version) = version {
        body["metadata"]["resourceVersion"] = version.into();
    }
    let params = PatchParams::apply(labels::CONTROL_MANAGER).force();
    clusters
        .patch_status(&cluster.name_any(), &params, &Patch::Apply(&body))
        .await
        .map_err(api("write the status"))
        .map_err(TenantError::Status)?;
    for event in events(&before, after) {
        context.recorder.publish(&event, &cluster.object_ref(&())).await;
    }
    Ok(())
}
