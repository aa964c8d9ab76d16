//! What the status of a TenantCluster says that several controllers go by. Only control writes the status, so that nobody can pretend anything of it.

use berth_api::TenantCluster;

/// Whether anything was created for a tenant.
pub(crate) fn is_created(cluster: &TenantCluster) -> bool {
    let status = cluster.status.as_ref();
    status.is_some_and(|status| status.control_plane_namespace.is_some())
}
