//! Anonymous requests to the tenant's API server: only its health endpoints accept them, for the probes of the kubelet.

use serde_json::json;

/// File of the API server with its authentication configuration.
pub(super) const FILE: &str = "authentication.conf";
/// Path of the liveness probe.
pub(super) const LIVE: &str = "/livez";
/// Path of the readiness probe.
pub(super) const READY: &str = "/readyz";

pub(super) fn configuration() -> String {
    json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthenticationConfiguration",
        "anonymous": {"enabled": true, "conditions": [{"path": LIVE}, {"path": READY}]},
    })
    .to_string()
}
