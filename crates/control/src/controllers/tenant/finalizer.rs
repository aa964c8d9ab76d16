//! The finalizer of `TenantCluster`s: it keeps the object until the clean-up is complete.
//!
//! kube's own helper treats a clean-up that returns as finished and has no precondition on the UID; here a clean-up takes many
//! reconciles, none of which is an error.

use super::{context::TenantContext, error::TenantError};
use crate::{apply::is_status, error::api};
use berth_api::{TenantCluster, labels};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;

pub(super) fn is_set(cluster: &TenantCluster) -> bool {
    cluster.finalizers().iter().any(|name| name == labels::FINALIZER)
}

/// Adds the finalizer: from here on the object stays until everything created for it is gone.
pub(super) async fn add(context: &TenantContext, cluster: &TenantCluster) -> Result<(), TenantError> {
    if is_set(cluster) {
        return Ok(());
    }
    let mut finalizers = cluster.finalizers().to_vec();
    finalizers.push(labels::FINALIZER.into());
    let added = patch(context, cluster, &finalizers).await;
    added.map_err(api("add the finalizer")).map_err(TenantError::Finalizer)
}

/// Removes the finalizer: everything created for the tenant is gone.
pub(super) async fn remove(context: &TenantContext, cluster: &TenantCluster) -> Result<(), TenantError> {
    let mut finalizers = cluster.finalizers().to_vec();
    finalizers.retain(|name| name != labels::FINALIZER);
    match patch(context, cluster, &finalizers).await {
        Err(error) if !is_status(&error, 404) => Err(TenantError::Finalizer(api("remove the finalizer")(error))),
        _ => Ok(()),
    }
}

/// The UID protects another object of the same name, the resource version protects other finalizers.
async fn patch(context: &TenantContext, cluster: &TenantCluster, finalizers: &[String]) -> kube::Result<()> {
    let namespace = cluster.namespace().unwrap_or_default();
    let clusters: Api<TenantCluster> = Api::namespaced(context.client.clone(), &namespace);
    let body = json!({"metadata": {
        "uid": cluster.uid(), "resourceVersion": cluster.resource_version(), "finalizers": finalizers,
    }});
    clusters
        .patch(&cluster.name_any(), &PatchParams::default(), &Patch::Merge(&body))
        .await
        .map(drop)
}
