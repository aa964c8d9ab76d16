//! What control does for admission in production: certificates for both ends, and an API server that shows its own.

use berth_pki::{CertificateAuthority, LeafRequest, Usage};
use berth_syncer::{admission::Admission, tls::IdentityFiles};
use serde_json::json;
use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};
use tempfile::TempDir;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The address at which a tenant's API server reaches its syncer, and the certificates of both.
pub struct AdmissionFiles {
    dir: TempDir,
    address: SocketAddr,
}

impl AdmissionFiles {
    pub fn new() -> Self {
        let dir = TempDir::with_prefix("berth-admission-").unwrap();
        // Not a port that an outgoing connection may get before the syncer listens, or while it is restarted.
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, berth_process::free_port().unwrap()));
        let authority = CertificateAuthority::create("admission", DAY).unwrap();
        let issue = |name: &str, usage| {
            let mut request = LeafRequest::new(usage, DAY);
            request.common_name = name.into();
            request.ip_addresses = vec![address.ip()];
            authority.issue(&request).unwrap()
        };
        let client = issue("kube-apiserver", Usage::Client);
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let user = json!({
            "client-certificate": write("client.crt", &client.cert_pem),
            "client-key": write("client.key", &client.key_pem),
        });
        let users = json!([{"name": address.to_string(), "user": user}]);
        let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "users": users});
        let plugin = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "WebhookAdmissionConfiguration",
            "kubeConfigFile": write("webhooks.kubeconfig", &kubeconfig.to_string())});
        let configuration = json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration",
            "plugins": [{"name": "MutatingAdmissionWebhook", "configuration": plugin}]});
        write("admission.json", &configuration.to_string());
        let server = issue("syncer", Usage::Server);
        write("server.crt", &server.cert_pem);
        write("server.key", &server.key_pem);
        write("ca.crt", authority.cert_pem());
        Self { dir, address }
    }

    /// The flag of the API server.
    pub fn flag(&self) -> String {
        let path = self.dir.path().join("admission.json");
        format!("--admission-control-config-file={}", path.display())
    }

    /// The syncer's end.
    pub async fn listen(&self) -> Admission {
        let path = |name: &str| self.dir.path().join(name);
        let identity = IdentityFiles {
            certificate: path("server.crt"),
            key: path("server.key"),
            authority: path("ca.crt"),
        };
        let rate = berth_api::TenantLimits::default().write_rate();
        Admission::listen(self.address, None, identity, rate).await.unwrap()
    }
}
