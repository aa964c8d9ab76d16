//! What leads into a tenant and out of it: Services, endpoints, Ingresses, routes and NetworkPolicies.

pub(super) mod endpoints;
pub(super) mod ingresses_and_routes;
pub(super) mod network_policies;
pub(super) mod services;
