//! Records which version of a tenant's control plane starts, before it does: the version of an upgrade, and the one that was chosen for a tenant whose
//! spec names none. What was started and is not in the status is recorded again.

use super::{
    context::TenantContext, error::TenantError, recorded_settings, settings::Settings, status, target::Tenant, version,
};
use crate::error::ReconcileError;
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

/// Records as the one that runs the version that a tenant was accepted with last, if its status says of none that it runs: somebody has removed the status,
/// or control ended between the start and the first status. Then neither a spec that names an older version by now, nor the class of one that names none,
/// decides on a tenant whose data another version has written. Returns whether something had to be recorded: the tenant is reconciled again as soon as the
/// watch shows it.
///
/// # Errors
/// [`TenantError::Settings`]: it is not known what the tenant was accepted with, and its spec names no version. Or the status cannot be written.
pub(super) async fn resume(context: &TenantContext, tenant: &Tenant) -> Result<bool, TenantError> {
    let before = tenant.cluster.status.clone().unwrap_or_default();
    if before.version.is_some() {
        return Ok(false);
    }
    let accepted = match recorded_settings::load(context, tenant).await {
        // A spec that is accepted writes the record again.
        Err(ReconcileError::Blocked { .. }) if tenant.cluster.spec.version.is_some() => None,
        loaded => loaded.map_err(TenantError::Settings)?,
    };
    let Some(accepted) = accepted else { return Ok(false) };
    let after = TenantClusterStatus {
        version: Some(accepted.version),
        // What was chosen before it was accepted with this version.
        upgrading_to: None,
        ..before
    };
    // Whatever the spec says by now: nothing of the tenant is applied before.
    status::write_unless_rewritten(context, &tenant.cluster, &after).await?;
    Ok(true)
}

/// Records the version that was `chosen` for a tenant whose spec names none, before anything of it runs: from then on it has this version, whatever its class
/// gives to new tenants and Berth can run. Comes after [`resume`]. Returns whether something had to be recorded: the tenant is reconciled again as soon as
/// the watch shows it.
///
/// # Errors
/// The host refuses or does not answer.
pub(super) async fn pin(context: &TenantContext, tenant: &Tenant, chosen: &str) -> Result<bool, TenantError> {
    if tenant.cluster.requested_version().is_some() {
        return Ok(false);
    }
    let after = TenantClusterStatus {
        upgrading_to: Some(chosen.to_owned()),
        ..tenant.cluster.status.clone().unwrap_or_default()
    };
    // The spec may name a version by now, or another class, which gives another one. With another finalizer it may have been accepted.
    let source = |cluster: &TenantCluster| {
        let (spec, metadata) = (&cluster.spec, &cluster.metadata);
        (
            spec.version.clone(),
            spec.class_name.clone(),
            metadata.finalizers.clone(),
        )
    };
    status::write_unless_changed(context, &tenant.cluster, &after, source).await?;
    Ok(true)
}
