//! The admission plugins of the API server: how many Events it takes, who may change the platform's objects, who
//! created each pod, how fast it takes large objects, and whether it takes
//! anything once the tenant's share of the datastore is full.
//!
//! And the connection from the API server to the syncer's admission server: certificates for both ends, and the configuration
//! by which the API server presents its own. Other programs on the machine have no certificate and are rejected.

pub(super) mod created_by;
mod datastore_limit;
mod flow_control;
mod own_apis;
mod own_object_changes;
pub(super) mod own_objects;
pub(super) mod platform_objects;
mod platform_requests;
mod self_calls;
mod static_policies;
mod write_pace;

use super::{
    certificates::{Authorities, CertificateError, Leaf, LeafStore},
    component::FILES,
    input::ControlPlaneInput,
};
use berth_kubernetes_versions::features;
use berth_pki::Usage;
use serde_json::json;
use std::collections::BTreeMap;

/// Events that a tenant may write in a second, and at once before that counts: each costs the shared etcd a write, and stays for
/// an hour. A thousand pods that start have about four thousand.
const EVENTS: (u32, u32) = (50, 5000);

/// File of the API server with its admission configuration.
pub(super) const CONFIGURATION: &str = "admission.conf";
/// File of the API server by which it presents its certificate to the syncer's admission server.
const KUBECONFIG: &str = "webhooks.kubeconfig";
/// The admission plugin that limits Events. It is not on by default.
pub(super) const EVENT_RATE_LIMIT: &str = "EventRateLimit";
/// Name of the certificate and key files, on both ends.
pub(super) const CERTIFICATE: &str = "admission";
/// File of the syncer with the authority that signed the API server's certificate.
pub(super) const AUTHORITY: &str = "admission-ca.crt";

/// The API server's end. It presents the certificate to this one address only.
pub(super) fn for_api_server(
    input: &ControlPlaneInput<'_>,
    authorities: &Authorities,
    leaves: &mut LeafStore,
    files: &mut BTreeMap<String, String>,
) -> Result<(), CertificateError> {
    let leaf = Leaf::new("kube-apiserver", Usage::Client);
    leaves
        .issue(&authorities.admission, "admission-client", &leaf)?
        .put(files, CERTIFICATE);
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "users": [{
            "name": input.endpoints.admission.authority(),
            "user": {
                "client-certificate": format!("{FILES}/{CERTIFICATE}.crt"),
                "client-key": format!("{FILES}/{CERTIFICATE}.key"),
            },
        }],
    });
    files.insert(KUBECONFIG.into(), kubeconfig.to_string());
    let plugin = json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "WebhookAdmissionConfiguration",
        "kubeConfigFile": format!("{FILES}/{KUBECONFIG}"),
    });
    let (qps, burst) = EVENTS;
    let events = json!({
        "apiVersion": "eventratelimit.admission.k8s.io/v1alpha1",
        "kind": "Configuration",
        "limits": [{"type": "Server", "qps": qps, "burst": burst}],
    });
    let mut plugins = vec![
        json!({"name": "MutatingAdmissionWebhook", "configuration": plugin}),
        json!({"name": EVENT_RATE_LIMIT, "configuration": events}),
    ];
    if features::static_admission_policies(input.version) {
        platform_objects::for_api_server(files);
        platform_requests::for_api_server(files);
        own_apis::for_api_server(files);
        own_object_changes::for_api_server(files);
        flow_control::for_api_server(files);
        created_by::for_api_server(files);
        self_calls::for_api_server(files);
        datastore_limit::for_api_server(input.datastore_usage, files);
        let pace = write_pace::for_api_server(input, authorities, KUBECONFIG, files);
        plugins.extend([static_policies::plugin(), static_policies::mutating_plugin(), pace]);
    }
    let configuration = json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": plugins,
    });
    files.insert(CONFIGURATION.into(), configuration.to_string());
    Ok(())
}

/// The syncer's end.
pub(super) fn for_syncer(
    input: &ControlPlaneInput<'_>,
    authorities: &Authorities,
    leaves: &mut LeafStore,
    files: &mut BTreeMap<String, String>,
) -> Result<(), CertificateError> {
    let leaf = Leaf::new("syncer", Usage::Server).hosts([input.endpoints.admission.host.as_str()]);
    leaves
        .issue(&authorities.admission, "admission-server", &leaf)?
        .put(files, CERTIFICATE);
    files.insert(AUTHORITY.into(), authorities.admission.cert_pem().into());
    Ok(())
}
