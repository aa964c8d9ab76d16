//! The finalizer of `TenantCluster`s: it keeps the object until the clean-up is complete.
//!
//! kube's own helper treats a clean-up that returns as finished and has no precondition on the UID; here a clean-up takes many
//! reconciles, none of which is an error.

use super::{context::TenantContext, error::TenantError};
use crate::{apply::is_status, error::api, finalizers};
use berth_api::{TenantCluster, labels};

pub(super) fn is_set(cluster: &TenantCluster) -> bool {
    finalizers::is_set(cluster, labels::FINALIZER)
}

/// Adds the finalizer: from here on the object stays until everything created for it is gone.
pub(super) async fn add(context: &TenantContext, cluster: &TenantCluster) -> Result<(), TenantError> {
    if is_set(cluster) {
        return Ok(());
    }
    let added = finalizers::add(&context.clusters_beside(cluster), cluster, labels::FINALIZER).await;
    added.map_err(api("add the finalizer")).map_err(TenantError::Finalizer)
}

/// Removes the finalizer: everything created for the tenant is gone.
pub(super) async fn remove(context: &TenantContext, cluster: &TenantCluster) -> Result<(), TenantError> {
    match finalizers::remove(&context.clusters_beside(cluster), cluster, labels::FINALIZER).await {
        Err(error) if !is_status(&error, 404) => Err(TenantError::Finalizer(api("remove the finalizer")(error))),
        _ => Ok(()),
    }
}
