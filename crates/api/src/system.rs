//! Names of Berth's own objects on the host cluster, as opposed to those of a tenant ([`names`](crate::names)).

/// Namespace that Berth is installed in: control, the datastore, and the pods that control starts on nodes.
pub const NAMESPACE: &str = "berth-system";
/// Name of control's ClusterRole, ClusterRoleBinding and Lease.
pub const CONTROL: &str = "berth-control";
/// ServiceAccount, ClusterRole and Service of the gateway.
pub const GATEWAY: &str = "berth-gateway";
/// User of the gateway on the host, which an admission policy confines.
pub const GATEWAY_USER: &str = "system:serviceaccount:berth-system:berth-gateway";
/// ServiceAccount, Role and CronJob of the Jobs that make and renew the certificates of Berth's etcd.
pub const CERTIFICATES: &str = "berth-certificates";
/// ServiceAccount of the Jobs that scrub and validate nodes. It has no rights, and no token of it is mounted.
pub const SCRUB_SERVICE_ACCOUNT: &str = "berth-scrub";
/// PriorityClass of placeholder pods, which show demand to autoscalers.
pub const PLACEHOLDER_PRIORITY_CLASS: &str = "berth-placeholder";
/// Value of [`PLACEHOLDER_PRIORITY_CLASS`]: below every workload, and not below -10, from where on Cluster Autoscaler
/// ignores pods.
pub const PLACEHOLDER_PRIORITY: i32 = -10;
