//! Writes which GPUs are idle into the status of a `TenantCluster`, as a field manager of its own.

use super::{IdleGpusContext, tenants::ObservedTenant};
use crate::{
    apply::is_status,
    error::{ReconcileError, api},
};
use berth_api::{IdleStatus, TenantCluster, labels};
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
    let status = tenant.cluster.status.as_ref();
    if status.and_then(|status| status.idle.as_ref()) == report {
        return Ok(());
    }
    let (namespace, name) = tenant.names();
    let clusters: Api<TenantCluster> = Api::namespaced(context.client.clone(), &namespace);
    let body = json!({
        "apiVersion": TenantCluster::api_version(&()), "kind": TenantCluster::kind(&()),
        "metadata": {"name": name, "uid": tenant.uid},
        "status": report.map_or_else(|| json!({}), |report| json!({"idle": report})),
    });
    let params = PatchParams::apply(labels::IDLE_MANAGER).force();
    match clusters.patch_status(&name, &params, &Patch::Apply(&body)).await {
        Ok(_) => Ok(()),
        // It was deleted meanwhile.
        Err(error) if is_status(&error, 404) || is_status(&error, 409) => Ok(()),
        Err(error) => Err(api("write which GPUs are idle")(error)),
    }
}
