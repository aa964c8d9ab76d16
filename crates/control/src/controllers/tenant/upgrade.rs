//! Records which version of a tenant's control plane starts, before it does: the version of an upgrade, and the one that was chosen for a tenant whose
//! spec names none.

use super::{
    context::TenantContext, error::TenantError, recorded_settings, settings::Settings, status, target::Tenant, version,
};
use berth_api::{TenantCluster, TenantClusterStatus};

/// Records that an API server of another version is about to start, before it does: from then on the definition of the `TenantCluster`
/// does not let `spec.version` go below it. Returns whether the tenant waits for that: until the watch shows the record, `settings` have the version
/// that was started last.
pub(super) async fn record(context: &TenantContext, tenant: &Tenant, settings: &mut Settings) -> bool {
    let before = tenant.cluster.status.clone().unwrap_or_default();
    if !version::is_unrecorded_upgrade(&before, &settings.version) {
        return false;
    }
    let started = before.started_version().map(ToOwned::to_owned);
    let after = TenantClusterStatus {
        upgrading_to: Some(settings.version.clone()),
        ..before
    };
    // An upgrade that is recorded cannot be taken back.
    let version = |cluster: &TenantCluster| cluster.spec.version.clone();
    if let Err(error) = status::write_unless_changed(context, &tenant.cluster, &after, version).await {
        let (namespace, name) = (&tenant.cluster.metadata.namespace, &tenant.cluster.metadata.name);
        tracing::warn!(namespace, name, %error, "cannot record an upgrade, which waits for that");
    }
    settings.version = started.unwrap_or_else(|| settings.version.clone());
    true
}

/// Records the version that was `chosen` for a tenant whose spec names none, before anything of it runs: from then on it has this version, whatever its class
/// gives to new tenants and Berth can run. If the tenant was accepted before, and its status does not say so, it is the version that it was accepted with.
/// Returns whether something had to be recorded: the tenant is reconciled again as soon as the watch shows it.
///
/// # Errors
/// The host refuses or does not answer, or what the tenant was accepted with cannot be read.
pub(super) async fn pin(context: &TenantContext, tenant: &Tenant, chosen: &str) -> Result<bool, TenantError> {
    if tenant.cluster.requested_version().is_some() {
        return Ok(false);
    }
    let accepted = recorded_settings::load(context, tenant).await;
    let accepted = accepted
        .map_err(TenantError::Settings)?
        .map(|accepted| accepted.version);
    let after = TenantClusterStatus {
        upgrading_to: Some(accepted.unwrap_or_else(|| chosen.to_owned())),
        ..tenant.cluster.status.clone().unwrap_or_default()
    };
    // The spec may name a version by now, or another class, which gives another one.
    let source = |cluster: &TenantCluster| (cluster.spec.version.clone(), cluster.spec.class_name.clone());
    status::write_unless_changed(context, &tenant.cluster, &after, source).await?;
    Ok(true)
}
