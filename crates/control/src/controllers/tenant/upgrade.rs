//! Records that a tenant's control plane is upgraded, before it is.

use super::{context::TenantContext, error::TenantError, settings::Settings, status, target::Tenant, version};
use berth_api::TenantClusterStatus;

/// Records that an API server of another version is about to start, before it does: from then on the definition of the `TenantCluster`
/// does not let `spec.version` go below it. Returns whether the status was to be written; the tenant is reconciled again then.
///
/// # Errors
/// The host refuses or does not answer.
pub(super) async fn record(context: &TenantContext, tenant: &Tenant, settings: &Settings) -> Result<bool, TenantError> {
    let before = tenant.cluster.status.clone().unwrap_or_default();
    if !version::is_unrecorded_upgrade(&before, &settings.version) {
        return Ok(false);
    }
    let after = TenantClusterStatus {
        upgrading_to: Some(settings.version.clone()),
        ..before
    };
    status::write_unless_changed(context, &tenant.cluster, &after).await?;
    Ok(true)
}
