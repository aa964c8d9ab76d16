//! What people and Argo CD lost while no API server ran is taken out of the datastore before one starts.
//!
//! While a tenant sleeps, its spec changes and the bindings that it stores do not. An API server that starts with them would give somebody
//! who was removed the role until control has applied them, and clients connect as soon as it listens. docs/adr/0052 says why it is done here.

use super::{
    super::{
        build::{
            access_bindings::{access_bindings, issuer_discovery_binding},
            argo_cd::admin_binding,
            stored_binding::{gives_more, path},
        },
        context::TenantContext,
    },
    Accepted, Prepared, argo_cd,
};
use crate::{control_plane::has_public_discovery, error::ReconcileError};
use futures::future::try_join_all;
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;

/// Deletes each stored binding that gives a role to a subject that is not to have it, unless the API server answers: then control applies the
/// bindings there. Those who keep the role have it again once control has applied it.
///
/// # Errors
/// The datastore refuses or does not answer. No API server may start then.
pub(super) async fn revoke_stored_access(
    context: &TenantContext,
    prepared: &Prepared<'_>,
) -> Result<(), ReconcileError> {
    let tenant = &prepared.accepted.tenant;
    if tenant.memory.connection.applier().is_some() {
        return Ok(());
    }
    let wanted = revocable_bindings(context, prepared);
    let paths: Vec<String> = wanted
        .iter()
        .map(|binding| path(binding.metadata.name.as_deref().unwrap_or_default()))
        .collect();
    let reads = paths.iter().map(|path| context.datastore.read_key(&tenant.id, path));
    let stored = try_join_all(reads).await?;
    for ((binding, path), stored) in wanted.iter().zip(&paths).zip(stored) {
        if !stored.is_some_and(|stored| gives_more(&stored, binding)) {
            continue;
        }
        context.datastore.delete_key(&tenant.id, path).await?;
        // It may be remembered as applied.
        tenant.memory.connection.close();
        tracing::info!(
            tenant = tenant.id.slug(),
            path,
            "a binding with somebody who lost the role is deleted before the API server starts"
        );
    }
    Ok(())
}

/// The bindings of which something can be taken away, as they are to be.
fn revocable_bindings(context: &TenantContext, prepared: &Prepared<'_>) -> Vec<ClusterRoleBinding> {
    let Accepted {
        tenant: _,
        settings,
        schedule: _,
        ceilings: _,
    } = prepared.accepted;
    let of_argo_cd = ClusterRoleBinding {
        subjects: admin_binding()
            .subjects
            .filter(|_| argo_cd::is_registered(context, settings)),
        ..admin_binding()
    };
    let is_public = has_public_discovery(&settings.authentication.rules, &prepared.endpoints);
    let of_spec = access_bindings(&settings.access).into_iter();
    of_spec
        .chain([issuer_discovery_binding(is_public), of_argo_cd])
        .collect()
}
