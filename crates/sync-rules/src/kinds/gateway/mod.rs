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
mod grants;
pub mod parents;
pub mod route;
mod status;

#[cfg(test)]
mod tests;

use crate::{
    model::{Kind, resource::Resource, store::WatchSpec},
    translation::metadata,
};
use grants::trim_grant;

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
    Kind::read_only(WatchSpec::own(resource("v1beta1", "ReferenceGrant", "referencegrants")).trimmed(trim_grant))
        .extension();
