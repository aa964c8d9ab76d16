//! A kube-apiserver with nothing of Berth, with which the start of a tenant's is compared.

use berth_kubernetes_versions::KUBERNETES_DEFAULT;
use berth_pki::{
    CertificateAuthority, LeafRequest, ServiceAccountKey, Usage,
    kubeconfig::{Credential, KubeconfigRequest, kubeconfig},
};
use berth_process::{
    ProcessSpec, Supervisor, SupervisorConfig,
    binaries::{Binary, find},
    free_port, write_atomic,
};
use berth_tests::test_cluster::TestCluster;
use kube::Client;
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};
use tempfile::TempDir;

const NAME: &str = "kube-apiserver";
const LIMIT: Duration = Duration::from_secs(120);
const HOUR: Duration = Duration::from_secs(3600);
/// Pause before a server is asked again whether it is ready.
pub(crate) const POLL: Duration = Duration::from_millis(20);

/// An API server on a key range of the host's etcd, which may be started several times.
pub(crate) struct BareApiServer {
    /// Its administrator.
    pub(crate) client: Client,
    spec: ProcessSpec,
    supervisor: Supervisor,
    dir: TempDir,
}

impl BareApiServer {
    /// Writes its keys and certificates. Nothing is started yet.
    pub(crate) async fn prepare(host: &TestCluster, prefix: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            write_atomic(&path, text.as_bytes(), 0o600).unwrap();
            path.display().to_string()
        };
        let datastore = host.datastore();
        let etcd_ca = CertificateAuthority::from_pem(
            &fs::read_to_string(&datastore.ca_cert).unwrap(),
            &fs::read_to_string(&datastore.ca_key).unwrap(),
        )
        .unwrap();
        let ca = CertificateAuthority::create("bench", HOUR).unwrap();
        let leaf = |ca: &CertificateAuthority, name: &str, usage: Usage, groups: &[&str]| {
            let mut request = LeafRequest::new(usage, HOUR);
            request.common_name = name.into();
            request.organizations = groups.iter().map(ToString::to_string).collect();
            request.ip_addresses = vec![std::net::Ipv4Addr::LOCALHOST.into()];
            ca.issue(&request).unwrap()
        };
        let etcd = leaf(&etcd_ca, "root", Usage::Client, &[]);
        let serving = leaf(&ca, NAME, Usage::Server, &[]);
        let admin = leaf(&ca, "admin", Usage::Client, &["system:masters"]);
        let key = ServiceAccountKey::create().unwrap();
        let port = free_port().unwrap();
        let program = find(Binary::KubeApiserver, KUBERNETES_DEFAULT).unwrap();
        let mut spec = ProcessSpec::new(NAME, program, dir.path().join("log"));
        let flags = [
            ("etcd-servers", datastore.endpoint),
            ("etcd-prefix", prefix.to_owned()),
            ("etcd-cafile", datastore.ca_cert.display().to_string()),
            ("etcd-certfile", file("etcd.crt", &etcd.cert_pem)),
            ("etcd-keyfile", file("etcd.key", &etcd.key_pem)),
            ("bind-address", "127.0.0.1".into()),
            ("secure-port", port.to_string()),
            ("endpoint-reconciler-type", "none".into()),
            ("tls-cert-file", file("tls.crt", &serving.cert_pem)),
            ("tls-private-key-file", file("tls.key", &serving.key_pem)),
            ("client-ca-file", file("ca.crt", ca.cert_pem())),
            ("authorization-mode", "RBAC".into()),
            ("service-cluster-ip-range", "10.0.0.0/24".into()),
            ("service-account-issuer", "https://bench".into()),
            ("service-account-key-file", file("sa.pub", &key.public_pem)),
            ("service-account-signing-key-file", file("sa.key", &key.private_pem)),
        ];
        spec.args = flags.iter().map(|(name, value)| format!("--{name}={value}")).collect();
        let supervisor = Supervisor::open(SupervisorConfig {
            dir: dir.path().join("run"),
            die_with_parent: true,
        })
        .await
        .unwrap();
        let text = kubeconfig(&KubeconfigRequest {
            cluster_name: "bench".into(),
            server: format!("https://127.0.0.1:{port}"),
            ca_pem: ca.cert_pem().into(),
            user: Credential::ClientCertificate {
                cert_pem: admin.cert_pem,
                key_pem: admin.key_pem,
            },
            namespace: None,
        })
        .unwrap();
        Self {
            client: berth_runtime::client::from_text(&text).await.unwrap(),
            spec,
            supervisor,
            dir,
        }
    }

    /// Starts it. Returns the time until `/readyz` answers.
    pub(crate) async fn start(&self) -> Duration {
        let begun = Instant::now();
        self.supervisor.ensure(self.spec.clone()).await.unwrap();
        while !is_ready(&self.client).await {
            assert!(begun.elapsed() < LIMIT, "{}", tail(&self.dir.path().join("log")));
            tokio::time::sleep(POLL).await;
        }
        begun.elapsed()
    }

    /// Ends the process. It can be started again.
    pub(crate) async fn pause(&self) {
        self.supervisor.stop(NAME, Some(Duration::ZERO)).await.unwrap();
    }

    /// Ends it for good.
    pub(crate) async fn stop(self) {
        self.pause().await;
        self.supervisor.shutdown(true).await.unwrap();
    }
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines().rev().take(20).collect::<Vec<_>>().join("\n")
}

/// Whether `/readyz` of an API server answers.
pub(crate) async fn is_ready(client: &Client) -> bool {
    let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
    client.request_text(request).await.is_ok()
}
