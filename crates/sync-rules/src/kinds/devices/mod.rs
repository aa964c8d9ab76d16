//! Devices by dynamic resource allocation (`resource.k8s.io/v1`). The host's scheduler allocates them because it places
//! the pods; the tenant requests them and sees the allocation as on a cluster of its own.
//!
//! | kind | direction | where |
//! |---|---|---|
//! | DeviceClass | mirrored: what the class lists | `class` |
//! | ResourceSlice | mirrored: of the tenant's nodes, as control publishes them | `slice` |
//! | ResourceClaim | to the host | `claim`, `spec`, `status` |
//! | ResourceClaimTemplate | to the host | `template`, `spec` |
//! | ResourceClaims that the host makes, of templates and for extended resources | mirrored, as the pod's own | `generated`, `claims_of_pods` |
//!
//! Isolation: claims are satisfied by devices that the pod's node can reach, and a tenant's pods run on its own nodes
//! only. Devices that several nodes can reach are isolated only by the device classes that each tenant's class lists.

pub mod allocation;
pub mod claim;
pub mod claims_of_pods;
pub mod class;
pub mod generated;
pub mod slice;
mod spec;
mod status;
pub mod template;
pub mod user_claims;

use crate::model::{Cache, KindId, references::Target, resource::Resource};

const fn resource(kind: &'static str, plural: &'static str) -> Resource {
    Resource::new("resource.k8s.io", "v1", kind, plural)
}

/// Finalizer of claims that have devices.
const PROTECTION: &str = "resource.kubernetes.io/delete-protection";
/// Why a claim or template of the tenant is denied; `None` if it does not exist or is not denied.
pub fn denied(cache: &Cache, target: &Target) -> Option<Vec<crate::model::DeniedField>> {
    if !matches!(target.kind, KindId::ResourceClaim | KindId::ResourceClaimTemplate) {
        return None;
    }
    let stored = cache.stores.tenant(target.kind).get(&target.name)?;
    let rules = cache.rules_to_host(target.kind)?;
    rules.translate(cache, &target.name, &stored.object()).err()
}
