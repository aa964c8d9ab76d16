//! The connections from the API server to everything else: to the syncer's egress broker, and through it to the kubelets
//! that the syncer stands in for. Each has an authority of its own. The syncer holds the key of the one for kubelets,
//! because it signs a certificate for each node that the tenant has.

use super::{
    certificates::{Authorities, CertificateError, Leaf, LeafStore},
    component::{FILES, file_flag, flag},
    input::ControlPlaneInput,
};
use berth_pki::Usage;
use serde_json::json;
use std::collections::BTreeMap;

/// Name of the certificate and key files of the broker's connections, on both ends.
const CERTIFICATE: &str = "egress";
/// File with the authority of both ends.
const AUTHORITY: &str = "egress-ca.crt";
/// File with the authority for kubelets.
const KUBELET_AUTHORITY: &str = "kubelet-ca.crt";

/// The API server's end: its files and flags.
pub(super) fn for_api_server(
    input: &ControlPlaneInput<'_>,
    authorities: &Authorities,
    leaves: &mut LeafStore,
    files: &mut BTreeMap<String, String>,
) -> Result<Vec<String>, CertificateError> {
    let leaf = Leaf::new("kube-apiserver", Usage::Client);
    leaves
        .issue(&authorities.egress, "egress-client", &leaf)?
        .put(files, CERTIFICATE);
    leaves
        .issue(&authorities.kubelet, "kubelet-client", &leaf)?
        .put(files, "kubelet-client");
    files.insert(AUTHORITY.into(), authorities.egress.cert_pem().into());
    files.insert(KUBELET_AUTHORITY.into(), authorities.kubelet.cert_pem().into());
    let connection = json!({
        "proxyProtocol": "HTTPConnect",
        "transport": {"tcp": {
            "url": input.endpoints.egress.https_url(),
            "tlsConfig": {
                "caBundle": format!("{FILES}/{AUTHORITY}"),
                "clientCert": format!("{FILES}/{CERTIFICATE}.crt"),
                "clientKey": format!("{FILES}/{CERTIFICATE}.key"),
            },
        }},
    });
    // Webhooks by URL are `controlplane`, all else but the datastore is `cluster`. What is not named is not proxied.
    let selections = ["cluster", "controlplane"].map(|name| json!({"name": name, "connection": connection}));
    let configuration = json!({
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": selections,
    });
    files.insert("egress.conf".into(), configuration.to_string());
    Ok(vec![
        file_flag("egress-selector-config-file", "egress.conf"),
        file_flag("kubelet-certificate-authority", KUBELET_AUTHORITY),
        file_flag("kubelet-client-certificate", "kubelet-client.crt"),
        file_flag("kubelet-client-key", "kubelet-client.key"),
        // An address needs no DNS lookup before the broker is called.
        flag("kubelet-preferred-address-types", "InternalIP,Hostname"),
    ])
}

/// The syncer's end: its files and flags.
pub(super) fn for_syncer(
    input: &ControlPlaneInput<'_>,
    authorities: &Authorities,
    leaves: &mut LeafStore,
    files: &mut BTreeMap<String, String>,
) -> Result<Vec<String>, CertificateError> {
    let leaf = Leaf::new("syncer", Usage::Server).hosts([input.endpoints.egress.host.as_str()]);
    leaves
        .issue(&authorities.egress, "egress-server", &leaf)?
        .put(files, CERTIFICATE);
    files.insert(AUTHORITY.into(), authorities.egress.cert_pem().into());
    files.insert(KUBELET_AUTHORITY.into(), authorities.kubelet.cert_pem().into());
    files.insert("kubelet-ca.key".into(), authorities.kubelet.key_pem().into());
    Ok(vec![
        flag("egress-address", input.endpoints.egress.listen),
        file_flag("egress-cert", &format!("{CERTIFICATE}.crt")),
        file_flag("egress-key", &format!("{CERTIFICATE}.key")),
        file_flag("egress-ca", AUTHORITY),
        file_flag("kubelet-ca", KUBELET_AUTHORITY),
        file_flag("kubelet-ca-key", "kubelet-ca.key"),
    ])
}
