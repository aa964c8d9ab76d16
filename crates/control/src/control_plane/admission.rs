//! The connection from the API server to the syncer's admission server: certificates for both ends, and the configuration
//! by which the API server presents its own. Other programs on the machine have no certificate and are rejected.

use super::{
    certificates::{Authorities, CertificateError, Leaf, LeafStore},
    component::FILES,
    input::ControlPlaneInput,
};
use berth_pki::Usage;
use serde_json::json;
use std::collections::BTreeMap;

/// File of the API server with its admission configuration.
pub(super) const CONFIGURATION: &str = "admission.json";
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
    files.insert("webhooks.kubeconfig".into(), kubeconfig.to_string());
    let plugin = json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "WebhookAdmissionConfiguration",
        "kubeConfigFile": format!("{FILES}/webhooks.kubeconfig"),
    });
    let configuration = json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": [{"name": "MutatingAdmissionWebhook", "configuration": plugin}],
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
