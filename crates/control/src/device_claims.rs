//! ResourceClaims of the host as its API server has them, for decisions for which the watch may be too late.

use crate::{
    apply::{delete_same, is_status},
    error::{ReconcileError, api},
};
use berth_node_lifecycle::devices::{ClaimSpec, ClaimStatus};
use berth_runtime::watched::Watched;
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject, GroupVersionKind},
    core::{Object, ObjectMeta},
};

/// A claim. Tenants fill claims: of each, the parts are parsed that count. The `spec` may be missing: of a deleted claim that cannot be read nothing but its
/// name is known.
pub(crate) type ClaimObject = Object<Option<ClaimSpec>, ClaimStatus>;

fn resource() -> ApiResource {
    let kind = GroupVersionKind::gvk("resource.k8s.io", "v1", "ResourceClaim");
    ApiResource::from_gvk_with_plural(&kind, "resourceclaims")
}

/// Reads a claim; none if it does not exist, or cannot be parsed.
pub(crate) async fn read_claim(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<Option<ClaimObject>, ReconcileError> {
    let claims: Api<Watched<ClaimObject>> = Api::namespaced_with(client.clone(), namespace, &resource());
    let found = claims.get_opt(name).await.map_err(api("read a claim of devices"))?;
    Ok(found.and_then(Watched::readable))
}

/// Deletes a claim as it was read. Nothing happens if it has changed meanwhile.
pub(crate) async fn delete_claim(client: &Client, claim: &ClaimObject) -> Result<(), ReconcileError> {
    let ObjectMeta {
        namespace,
        resource_version,
        ..
    } = claim.meta();
    let namespace = namespace.as_deref().unwrap_or_default();
    let claims: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource());
    match delete_same(&claims, claim.meta(), resource_version.clone()).await {
        Err(error) if is_status(&error, 409) => Ok(()),
        deleted => deleted.map(|_| ()).map_err(api("delete a claim of devices")),
    }
}
