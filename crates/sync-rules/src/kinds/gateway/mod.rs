//! The Gateway API. The platform has the Gateways, tenants attach routes to those that their class lists.
//!
//! | kind | direction |
//! |---|---|
//! | HTTPRoute, GRPCRoute, TLSRoute | to the host, status back; see `route` |
//! | GatewayClass | those that the class lists are mirrored, see `class` |
//! | Gateway | the tenant's stay in the tenant, for its own controllers; routes name those of the host by name, from any namespace |
//! | ReferenceGrant | stays in the tenant, where it decides which namespaces routes may lead to: on the host they are all one namespace |
//!
//! The kinds are extensions. A kind that an API server does not serve is off.

pub mod checks;
pub mod class;
pub mod filters;
pub mod parents;
pub mod route;
mod status;

#[cfg(test)]
mod tests;

use crate::{
    model::{
        Cache, Kind, KindId, json,
        resource::{Name, Resource},
        store::WatchSpec,
    },
    translation::metadata,
};
use serde_json::Value;

/// The API group.
pub const GROUP: &str = "gateway.networking.k8s.io";

const fn resource(version: &'static str, kind: &'static str, plural: &'static str) -> Resource {
    Resource::new(GROUP, version, kind, plural)
}

/// Gateways of the tenant's own controllers.
pub const GATEWAY: Kind = Kind::read_only(
    WatchSpec::own(resource("v1", "Gateway", "gateways"))
        .metadata_only()
        .trimmed(metadata::only),
)
.extension();
/// Permissions of routes to lead to other namespaces.
pub const REFERENCE_GRANT: Kind =
    Kind::read_only(WatchSpec::own(resource("v1beta1", "ReferenceGrant", "referencegrants"))).extension();

/// Whether a route of this kind and namespace may lead to a Service of the tenant.
fn is_granted(cache: &Cache, (kind, namespace): (&str, &str), service: &Name) -> bool {
    if *service.namespace == *namespace {
        return true;
    }
    let text = |value: &Value, field: &str| json::text(value, &[field]).unwrap_or_default().to_owned();
    cache
        .stores
        .tenant(KindId::ReferenceGrant)
        .all()
        .into_iter()
        .any(|(name, stored)| {
            if name.namespace != service.namespace {
                return false;
            }
            let grant = stored.object();
            let from = json::items(&grant, &["spec", "from"]).iter().any(|from| {
                text(from, "group") == GROUP && text(from, "kind") == kind && text(from, "namespace") == namespace
            });
            let to = json::items(&grant, &["spec", "to"]).iter().any(|to| {
                let named = text(to, "name");
                text(to, "group").is_empty()
                    && text(to, "kind") == "Service"
                    && (named.is_empty() || named == *service.name)
            });
            from && to
        })
}
