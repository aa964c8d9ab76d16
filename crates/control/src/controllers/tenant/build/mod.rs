//! The objects of a tenant, on the host and in its own API server: pure functions.

pub mod access_bindings;
pub mod api_server_endpoints;
pub mod argo_cd;
pub mod bootstrap;
pub mod definitions;
pub mod dns;
pub mod external_service;
pub mod flow_schemas;
pub mod host_objects;
pub mod limits;
pub mod metrics_api;
pub mod service_range;
pub mod stored_binding;
pub mod stored_namespace;
mod stored_object;
pub mod team_roles;
pub mod tenant_nodes;
