//! Upgrades of a tenant's control plane: what is recorded before one begins, and when it is over.

use super::{
    super::{context::TenantContext, error::TenantError, status, target::Tenant, version},
    Accepted,
};
use crate::{
    control_plane::{API_SERVER, Component},
    error::ReconcileError,
};
use berth_api::TenantClusterStatus;

/// Records that an API server of another version is about to start, before it does: from then on the definition of the `TenantCluster`
/// does not let `spec.version` go below it. Returns whether the status was to be written; the tenant is reconciled again then.
///
/// # Errors
/// The host refuses or does not answer.
pub(in super::super) async fn record_upgrade(
    context: &TenantContext,
    accepted: &Accepted,
) -> Result<bool, TenantError> {
    let cluster = &accepted.tenant.cluster;
    let before = cluster.status.clone().unwrap_or_default();
    if !version::is_unrecorded_upgrade(&before, &accepted.settings.version) {
        return Ok(false);
    }
    let after = TenantClusterStatus {
        upgrading_to: Some(accepted.settings.version.clone()),
        ..before
    };
    status::write_unless_changed(context, cluster, &after).await?;
    Ok(true)
}

/// Whether an upgrade that is recorded is over: every API server runs as it was rendered.
///
/// # Errors
/// The host refuses or does not answer.
pub(super) async fn has_rolled_out(
    context: &TenantContext,
    tenant: &Tenant,
    components: &[Component],
) -> Result<bool, ReconcileError> {
    let status = tenant.cluster.status.as_ref();
    let is_upgraded = status.is_some_and(|status| status.upgrading_to.is_some());
    let api_server = components.iter().find(|component| component.name == API_SERVER);
    match api_server.filter(|_| is_upgraded) {
        Some(api_server) => Ok(context.runtime.is_rolled_out(tenant.owner(), api_server).await?),
        None => Ok(false),
    }
}
