//! Writes which GPUs are idle into the status of a `TenantCluster`, and no other field of it.

use super::{IdleGpusContext, tenants::ObservedTenant};
use crate::{
    apply::is_status,
    error::{ReconcileError, api},
    status_write::{IDLE_FIELDS, StatusTarget, write_status},
};
use berth_api::{IdleStatus, TenantCluster, TenantClusterStatus};

/// Writes the report, or removes it. Nothing is written if it did not change.
///
/// # Errors
/// The host's API server refuses or does not answer.
pub(super) async fn write(
    context: &IdleGpusContext,
    tenant: &ObservedTenant,
    report: Option<&IdleStatus>,
) -> Result<(), ReconcileError> {
    if tenant.published() == report {
        return Ok(());
    }
    write_always(context, tenant, report).await.map(drop)
}

/// As [`write`], whatever the status says as far as the watch knows. Returns whether it was written: the tenant may be gone.
///
/// # Errors
/// The host's API server refuses or does not answer.
pub(super) async fn write_always(
    context: &IdleGpusContext,
    tenant: &ObservedTenant,
    report: Option<&IdleStatus>,
) -> Result<bool, ReconcileError> {
    let target = StatusTarget::of(&*tenant.cluster);
    let status = TenantClusterStatus {
        idle: report.cloned(),
        ..TenantClusterStatus::default()
    };
    match write_status::<TenantCluster>(&context.client, target, &IDLE_FIELDS, &status).await {
        Ok(()) => Ok(true),
        // It was deleted meanwhile.
        Err(error) if is_status(&error, 404) || is_status(&error, 409) => Ok(false),
        Err(error) => Err(api("write which GPUs are idle")(error)),
    }
}
