//! How long a team waits for its cluster, against what a bare kube-apiserver needs to start on the same machine.

use crate::report::{Report, percentile};
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
use berth_tests::{
    objects::gpu_pod,
    tenant::{cluster, ensure_namespace, until_gone},
    test_cluster::TestCluster,
    wait::until_true,
};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

const ROUNDS: usize = 5;
const LIMIT: Duration = Duration::from_secs(120);
const HOUR: Duration = Duration::from_secs(3600);

pub(crate) async fn run() {
    let host = TestCluster::start("h100=1,cpu=1").await;
    ensure_namespace(&host.client, "bench").await;
    let (mut bare, mut tenants) = (Vec::new(), Vec::new());
    // The first of each warms the disk cache and is not counted.
    for round in 0..=ROUNDS {
        let own = bare_start(&host, round).await;
        let tenant = tenant_start(&host, round, LIMIT).await;
        if round > 0 {
            bare.push(own.as_secs_f64());
            tenants.push(tenant.as_secs_f64());
        }
    }
    let (bare, tenant) = (percentile(&bare, 50.0), percentile(&tenants, 50.0));
    let mut report = Report::new("tenant-ready");
    report.add("bare kube-apiserver to /readyz, median of 5", bare, "s");
    report.add("TenantCluster applied to a pod accepted, median of 5", tenant, "s");
    report.add("ratio", tenant / bare, "x");
    report.finish();
}

/// Starts a kube-apiserver on an empty key range of the same etcd, with nothing of Berth, until `/readyz` answers.
async fn bare_start(host: &TestCluster, round: usize) -> Duration {
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
    let serving = leaf(&ca, "kube-apiserver", Usage::Server, &[]);
    let admin = leaf(&ca, "admin", Usage::Client, &["system:masters"]);
    let key = ServiceAccountKey::create().unwrap();
    let port = free_port().unwrap();
    let mut spec = ProcessSpec::new(
        "kube-apiserver",
        find(Binary::KubeApiserver, KUBERNETES_DEFAULT).unwrap(),
        dir.path().join("log"),
    );
    let flags = [
        ("etcd-servers", datastore.endpoint),
        ("etcd-prefix", format!("/bench-{round}")),
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
    let client = berth_runtime::client::from_text(&text).await.unwrap();
    let begun = Instant::now();
    supervisor.ensure(spec).await.unwrap();
    while !is_ready(&client).await {
        assert!(begun.elapsed() < LIMIT, "{}", tail(&dir.path().join("log")));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let took = begun.elapsed();
    supervisor.stop("kube-apiserver", Some(Duration::ZERO)).await.unwrap();
    supervisor.shutdown(true).await.unwrap();
    took
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines().rev().take(20).collect::<Vec<_>>().join("\n")
}

async fn is_ready(client: &kube::Client) -> bool {
    let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
    client.request_text(request).await.is_ok()
}

/// Applies a TenantCluster and waits until its kubeconfig answers `/readyz` and a pod is accepted, `limit` at most.
pub(crate) async fn tenant_start(host: &TestCluster, round: usize, limit: Duration) -> Duration {
    let name = format!("bench-{round}");
    let tenants = host.tenants("bench");
    let secrets: Api<Secret> = Api::namespaced(host.client.clone(), "bench");
    let begun = Instant::now();
    tenants
        .create(&PostParams::default(), &cluster(&name, &[]))
        .await
        .unwrap();
    let client = loop {
        assert!(begun.elapsed() < limit, "no kubeconfig");
        if let Ok(Some(secret)) = secrets.get_opt(&format!("{name}-kubeconfig")).await {
            let text = String::from_utf8(secret.data.unwrap()["kubeconfig"].0.clone()).unwrap();
            break berth_runtime::client::from_text(&text).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    until_true("the tenant accepts a pod", limit, async || {
        is_ready(&client).await && pods.create(&PostParams::default(), &gpu_pod("first", 0)).await.is_ok()
    })
    .await;
    let took = begun.elapsed();
    tenants.delete(&name, &DeleteParams::default()).await.unwrap();
    until_gone(host, "bench", &name).await;
    took
}
