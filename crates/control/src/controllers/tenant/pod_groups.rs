//! PodGroups that their finalizer alone holds in the namespace of a tenant that is deleted.
//!
//! API servers of the host add the finalizer, and its kube-controller-manager removes it, each with a feature gate of its own. Without the latter nothing
//! would. The tenant's pods, for which the finalizer keeps a group, are gone before their namespace is deleted.

use super::{context::TenantContext, remaining};
use crate::{
    apply::{is_status, remove_finalizers},
    error::{ReconcileError, api},
};
use berth_api::host_finalizers::POD_GROUP_PROTECTION;
use berth_runtime::watched::{Watched, list_page};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams},
    core::PartialObjectMeta,
};

/// The versions in which hosts serve them.
const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha2"];
/// Groups that one pass looks at. The others follow once these are gone.
const PER_PASS: u32 = 100;

/// Takes the finalizer off the groups, if the host says that it keeps the namespace.
///
/// # Errors
/// The host refuses or does not answer.
pub(super) async fn release(context: &TenantContext, namespace: &Namespace) -> Result<(), ReconcileError> {
    if !remaining::is_held_by(namespace, POD_GROUP_PROTECTION, context.clock.now()) {
        return Ok(());
    }
    for version in VERSIONS {
        let resource = ApiResource {
            group: "scheduling.k8s.io".into(),
            version: version.into(),
            api_version: format!("scheduling.k8s.io/{version}"),
            kind: "PodGroup".into(),
            plural: "podgroups".into(),
        };
        let name = namespace.name_any();
        let read: Api<Watched<PartialObjectMeta<DynamicObject>>> =
            Api::namespaced_with(context.client.clone(), &name, &resource);
        let groups: Api<DynamicObject> = Api::namespaced_with(context.client.clone(), &name, &resource);
        let listed = match list_page(&read, &mut ListParams::default().limit(PER_PASS)).await {
            // The host does not serve this version.
            Err(error) if is_status(&error, 404) => continue,
            listed => listed.map_err(api("list PodGroups that keep a namespace"))?,
        };
        for group in listed.items.into_iter().filter_map(Watched::readable) {
            let is_held = group.finalizers() == [POD_GROUP_PROTECTION] && group.metadata.deletion_timestamp.is_some();
            if is_held {
                let released = remove_finalizers(&groups, &group.metadata).await;
                released.map_err(api("take its finalizer off a PodGroup"))?;
                tracing::warn!(
                    namespace = name,
                    group = group.name_any(),
                    "the finalizer held a PodGroup of a deleted tenant, and nothing took it off"
                );
            }
        }
    }
    Ok(())
}
