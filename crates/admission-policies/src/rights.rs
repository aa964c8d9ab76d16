//! Rights of the host's RBAC that exist only for these policies.

/// Resource of the API group `berth.dev` that exists only for the right to [`BYPASS`] the policies.
pub const RESOURCE: &str = "admissionpolicies";
/// Verb of the right to make requests that the policies would reject.
pub const BYPASS: &str = "bypass";
/// Resource of the API group `berth.dev` that exists only for the right to [`SERVE`].
pub const MIRROR_PODS: &str = "mirrorpods";
/// Verb of the right of a kubelet to create mirror pods that Services and NetworkPolicies select.
pub const SERVE: &str = "serve";
