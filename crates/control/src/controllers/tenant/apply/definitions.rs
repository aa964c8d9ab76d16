//! CustomResourceDefinitions in the tenant.

use super::super::build::definitions::tenant_definition;
use crate::{
    apply::{Applier, optional},
    controllers::tenant_class::KnownKinds,
    error::{FirstError, ReconcileError, api},
};
use berth_api::{labels, sync_policy::SyncedKind};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, ResourceExt};

/// The definitions for tenants of those `synced` kinds that the host has.
///
/// # Errors
/// The host refuses or does not answer.
pub(super) async fn find_definitions(
    kinds: &KnownKinds,
    synced: &[SyncedKind],
) -> Result<Vec<CustomResourceDefinition>, ReconcileError> {
    let mut found = Vec::new();
    for kind in synced {
        if let Some(theirs) = kinds.definition(kind).await? {
            found.extend(tenant_definition(&theirs, &kind.version));
        }
    }
    Ok(found)
}

/// Applies those of the `definitions` that the tenant has not.
///
/// # Errors
/// The tenant refuses one or does not answer. The others are applied all the same.
pub(super) async fn apply_definitions(
    tenant: &Applier,
    definitions: &[CustomResourceDefinition],
) -> Result<(), ReconcileError> {
    let mut failed = FirstError::default();
    for definition in definitions {
        if failed.note(is_free(tenant, &definition.name_any()).await) == Some(true) {
            failed.note(tenant.apply(definition).await);
        }
    }
    failed.into_result()
}

/// Whether the tenant has no definition of this name, or one that control created.
async fn is_free(tenant: &Applier, name: &str) -> Result<bool, ReconcileError> {
    let definitions: Api<CustomResourceDefinition> = Api::all(tenant.client().clone());
    let existing = optional(definitions.get_metadata(name).await).map_err(api("get a definition in the tenant"))?;
    Ok(existing.is_none_or(|existing| {
        existing.labels().get(labels::MANAGED_BY).map(String::as_str) == Some(labels::MANAGED_BY_CONTROL)
    }))
}
