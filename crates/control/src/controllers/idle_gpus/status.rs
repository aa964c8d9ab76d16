//! Writes which GPUs are idle into the status of a `TenantCluster`, as a field manager of its own.

use super::{IdleGpusContext, tenants::ObservedTenant};
use crate::{
    apply::is_status,
    error::{ReconcileError, api},
};
use berth_api::{IdleStatus, TenantCluster, labels};
use berth_runtime::watched::Watched;
use kube::{
    Api, Resource,
    api::{Patch, PatchParams},
};
use serde_json::json;

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
    let (namespace, name) = tenant.names();
    let clusters: Api<Watched<TenantCluster>> = Api::namespaced(context.client.clone(), &namespace);
    let body = json!({
        "apiVersion": TenantCluster::api_version(&()), "kind": TenantCluster::kind(&()),
        "metadata": {"name": name, "uid": tenant.uid},
        "status": report.map_or_else(|| json!({}), |report| json!({"idle": report})),
    });
    let params = PatchParams::apply(labels::IDLE_MANAGER).force();
    match clusters.patch_status(&name, &params, &Patch::Apply(&body)).await {
        Ok(_) => Ok(true),
        // It was deleted meanwhile.
        Err(error) if is_status(&error, 404) || is_status(&error, 409) => Ok(false),
        Err(error) => Err(api("write which GPUs are idle")(error)),
    }
}
