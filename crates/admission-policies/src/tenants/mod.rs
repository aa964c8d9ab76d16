//! TenantClusters, and the namespaces that belong to them.

pub(super) mod allowed_namespaces;
pub(super) mod gateway;
pub(super) mod namespaces;
pub(super) mod snapshot_triggers;
pub(super) mod tenant_clusters;
