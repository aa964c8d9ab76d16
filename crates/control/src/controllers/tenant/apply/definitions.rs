//! CustomResourceDefinitions in the tenant.

use super::super::build::definitions::tenant_definition;
use crate::{
    apply::{Applier, optional},
    controllers::tenant_class::KnownKinds,
    error::{ReconcileError, api},
};
use berth_api::{labels, sync_policy::SyncedKind};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, ResourceExt};

/// Applies the definitions of the `synced` kinds that the host has and the tenant has not.
///
/// # Errors
/// The host or the tenant refuses or does not answer.
pub(super) async fn apply_definitions(
    kinds: &KnownKinds,
    tenant: &Applier,
    synced: &[SyncedKind],
) -> Result<(), ReconcileError> {
    for kind in synced {
        let Some(theirs) = kinds.definition(kind).await? else {
            continue;
        };
        let Some(ours) = tenant_definition(&theirs, &kind.version) else {
            continue;
        };
        if is_free(tenant, &ours.name_any()).await? {
            tenant.apply(&ours).await?;
        }
    }
    Ok(())
}

/// Whether the tenant has no definition of this name, or one that control created.
async fn is_free(tenant: &Applier, name: &str) -> Result<bool, ReconcileError> {
    let definitions: Api<CustomResourceDefinition> = Api::all(tenant.client().clone());
    let existing = optional(definitions.get_metadata(name).await).map_err(api("get a definition in the tenant"))?;
    Ok(existing.is_none_or(|existing| {
        existing.labels().get(labels::MANAGED_BY).map(String::as_str) == Some(labels::MANAGED_BY_CONTROL)
    }))
}
