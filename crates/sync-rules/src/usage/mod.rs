//! The tenant's metrics API: how its objects are selected and made from the host's.

pub mod selection;
pub mod table;
pub mod translate;

/// Name of the Service in the tenant that stands for this API, in `kube-system`.
pub const SERVICE: &str = "berth-metrics";
/// Namespace of the Service.
pub const NAMESPACE: &str = "kube-system";
/// Host that the Service names; only the egress broker knows it.
pub const HOST: &str = "metrics.berth.internal";
/// DNS name that the certificate is for: the aggregator knows the server under it.
pub const DNS_NAME: &str = "berth-metrics.kube-system.svc";
