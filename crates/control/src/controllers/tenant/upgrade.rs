//! Records that a tenant's control plane is upgraded, before it is.

use super::{context::TenantContext, settings::Settings, status, target::Tenant, version};
use berth_api::{TenantCluster, TenantClusterStatus};

/// Records that an API server of another version is about to start, before it does: from then on the definition of the `TenantCluster`
/// does not let `spec.version` go below it. Returns whether the tenant waits for that: until the watch shows the record, `settings` have the version
/// that was started last.
pub(super) async fn record(context: &TenantContext, tenant: &Tenant, settings: &mut Settings) -> bool {
    let before = tenant.cluster.status.clone().unwrap_or_default();
    if !version::is_unrecorded_upgrade(&before, &settings.version) {
        return false;
    }
    let started = version::started(&before).map(ToOwned::to_owned);
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
