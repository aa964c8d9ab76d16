//! Who may ask the tenant's API server without saying who they are: whoever wants to know whether it is well, as the
//! kubelet does that runs it. Everything else needs a name.

use serde_json::json;

/// File of the API server with its authentication configuration.
pub(super) const FILE: &str = "authentication.json";
/// Path that fails when only a restart helps.
pub(super) const LIVE: &str = "/livez";
/// Path that fails while the API server cannot be used.
pub(super) const READY: &str = "/readyz";

pub(super) fn configuration() -> String {
    json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthenticationConfiguration",
        "anonymous": {"enabled": true, "conditions": [{"path": LIVE}, {"path": READY}]},
    })
    .to_string()
}
