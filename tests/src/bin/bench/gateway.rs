//! What the gateway costs: time added to a request, bytes against a direct connection, memory of idle watches, and new TLS
//! connections in a second, beside HAProxy if that is installed.

use crate::{
    memory::Memory,
    report::{Report, milliseconds, percentile},
};
use berth_gateway::routes::{API_SERVER, Backends};
use berth_process::free_port;
use berth_tests::{
    gateway::{Gateway, control_flags, host_name},
    tenant::{Tenant, cluster, patient_with},
    test_cluster::TestCluster,
    wait::until_true,
};
use futures::{StreamExt, future::join_all, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams, WatchParams},
    config::Kubeconfig,
};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use std::{
    net::SocketAddr,
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio::{
    net::TcpStream,
    process::{Child, Command},
};
use tokio_rustls::TlsConnector;

/// Requests of each kind, taken in turn so that the machine's other work meets both.
const REQUESTS: usize = 1000;
/// Size of the object that is read for the throughput, in bytes; etcd takes at most 1.5 MiB.
const LARGE: usize = 1 << 20;
/// How often it is read.
const READS: usize = 200;
/// Watches that are idle.
const WATCHES: usize = 1000;
/// New connections, and how many at the same time.
const CONNECTIONS: usize = 2000;
const AT_ONCE: usize = 16;
/// Time after which idle connections have settled.
const SETTLE: Duration = Duration::from_secs(5);
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) async fn run() {
    let host = TestCluster::without_control("cpu=1").await;
    let port = free_port().unwrap();
    host.start_control_with("first", &control_flags(port)).await;
    let gateway = Gateway::start(&host, port, &[]).await;
    let tenant = Tenant::create(&host, "bench-gateway", &cluster("gateway", &[])).await;
    let through = gateway.kubeconfig(&tenant);
    let server = api_server(&host, &tenant).await;
    let direct = with_server(&through, server);
    let mut report = Report::new("gateway");
    requests(&mut report, &through, &direct).await;
    watches(&mut report, &gateway, &through).await;
    connections(&mut report, &gateway, server, &tenant).await;
    report.note("Client, gateway and API server share this machine's processors.");
    report.finish();
    tenant.delete(&host).await;
    assert!(gateway.stop().await.success());
}

/// Where the tenant's API server listens.
async fn api_server(host: &TestCluster, tenant: &Tenant) -> SocketAddr {
    let services: Api<Service> = Api::namespaced(host.client.clone(), &tenant.id.control_plane_namespace());
    let service = services.get(API_SERVER).await.unwrap();
    Backends::Loopback.address_of(&service).unwrap()
}

/// The same kubeconfig with another address.
fn with_server(kubeconfig: &Kubeconfig, server: SocketAddr) -> Kubeconfig {
    let mut changed = kubeconfig.clone();
    for named in &mut changed.clusters {
        named.cluster.as_mut().unwrap().server = Some(format!("https://{server}"));
    }
    changed
}

/// Time and throughput of requests on connections that are kept.
async fn requests(report: &mut Report, through: &Kubeconfig, direct: &Kubeconfig) {
    let (through, direct) = (patient_with(through.clone()).await, patient_with(direct.clone()).await);
    let (mut by_gateway, mut by_itself) = (Vec::new(), Vec::new());
    for _ in 0..REQUESTS {
        for (client, times) in [(&direct, &mut by_itself), (&through, &mut by_gateway)] {
            let start = Instant::now();
            client.apiserver_version().await.unwrap();
            times.push(milliseconds(start.elapsed()));
        }
    }
    for percent in [50.0, 99.0] {
        let (own, gateway) = (percentile(&by_itself, percent), percentile(&by_gateway, percent));
        report.add(format!("request, direct, p{percent}"), own, "ms");
        report.add(format!("request, through the gateway, p{percent}"), gateway, "ms");
        report.add(format!("added, p{percent}"), gateway - own, "ms");
    }
    let large = ConfigMap {
        metadata: ObjectMeta {
            name: Some("large".into()),
            ..ObjectMeta::default()
        },
        data: Some([("text".to_owned(), "x".repeat(LARGE - (8 << 10)))].into()),
        ..ConfigMap::default()
    };
    maps(&direct).create(&PostParams::default(), &large).await.unwrap();
    let (mut of_direct, mut of_gateway) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..READS {
        for (client, sum) in [(&direct, &mut of_direct), (&through, &mut of_gateway)] {
            let start = Instant::now();
            maps(client).get("large").await.unwrap();
            *sum += start.elapsed();
        }
    }
    #[allow(clippy::cast_precision_loss)]
    let rate = |time: Duration| (READS * LARGE) as f64 / 1e6 / time.as_secs_f64();
    report.add("reads of 1 MiB, direct", rate(of_direct), "MB/s");
    report.add("reads of 1 MiB, through the gateway", rate(of_gateway), "MB/s");
    report.add("ratio", rate(of_gateway) / rate(of_direct), "x");
}

fn maps(client: &Client) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), "default")
}

/// Memory of the gateway for each idle watch.
async fn watches(report: &mut Report, gateway: &Gateway, through: &Kubeconfig) {
    let client = patient_with(through.clone()).await;
    let before = Memory::of(gateway.id());
    let open = stream::iter(0..WATCHES)
        .map(|_| {
            let maps = maps(&client);
            async move {
                let params = WatchParams::default().fields("metadata.name=none").timeout(290);
                maps.watch(&params, "0").await.unwrap().boxed()
            }
        })
        .buffer_unordered(AT_ONCE)
        .collect::<Vec<_>>()
        .await;
    tokio::time::sleep(SETTLE).await;
    let after = Memory::of(gateway.id());
    #[allow(clippy::cast_precision_loss)]
    let each = |before: f64, after: f64| (after - before) * 1024.0 / WATCHES as f64;
    report.add(
        format!("gateway with {WATCHES} watches, resident"),
        after.resident,
        "MiB",
    );
    report.add(
        "for each idle watch, private",
        each(before.private, after.private),
        "KiB",
    );
    drop(open);
}

/// Whole TLS handshakes in a second, direct, through the gateway and through HAProxy.
async fn connections(report: &mut Report, gateway: &Gateway, server: SocketAddr, tenant: &Tenant) {
    let mut ways = vec![("direct", server), ("through the gateway", gateway.address())];
    let haproxy = Haproxy::start(server, &host_name(tenant)).await;
    match &haproxy {
        Some(haproxy) => ways.push(("through HAProxy", haproxy.address)),
        None => report.note("HAProxy is not installed (Debian: haproxy), so there is no comparison with it."),
    }
    let config = tls_config(tenant);
    for (way, address) in ways {
        let name = ServerName::try_from(host_name(tenant)).unwrap();
        let start = Instant::now();
        let each = (0..AT_ONCE).map(|_| {
            let (connector, name) = (TlsConnector::from(Arc::clone(&config)), name.clone());
            async move {
                for _ in 0..CONNECTIONS / AT_ONCE {
                    let stream = TcpStream::connect(address).await.unwrap();
                    connector.connect(name.clone(), stream).await.unwrap();
                }
            }
        });
        join_all(each).await;
        #[allow(clippy::cast_precision_loss)]
        let rate = CONNECTIONS as f64 / start.elapsed().as_secs_f64();
        report.add(format!("TLS connections, {way}"), rate, "1/s");
    }
}

/// TLS without sessions that are resumed. The certificate of the API server must be valid.
fn tls_config(tenant: &Tenant) -> Arc<ClientConfig> {
    let kubeconfig = Kubeconfig::from_yaml(&tenant.kubeconfig).unwrap();
    let cluster = kubeconfig.clusters[0].cluster.clone().unwrap();
    let encoded = cluster.certificate_authority_data.unwrap();
    let pem = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, encoded).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&pem).unwrap()).unwrap();
    let mut config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.resumption = rustls::client::Resumption::disabled();
    Arc::new(config)
}

/// HAProxy that routes by server name, with one name.
struct Haproxy {
    address: SocketAddr,
    _process: Child,
    _folder: TempDir,
}

impl Haproxy {
    /// None if it is not installed.
    async fn start(server: SocketAddr, name: &str) -> Option<Self> {
        let folder = TempDir::with_prefix("berth-haproxy-").unwrap();
        let file = folder.path().join("haproxy.cfg");
        let address: SocketAddr = ([127, 0, 0, 1], free_port().unwrap()).into();
        let config = format!(
            "defaults\n mode tcp\n timeout connect 5s\n timeout client 5m\n timeout server 5m\n\
             frontend all\n bind {address}\n tcp-request inspect-delay 5s\n tcp-request content accept if {{ req.ssl_hello_type 1 }}\n \
             use_backend tenant if {{ req.ssl_sni -i {name} }}\n\
             backend tenant\n server one {server}\n"
        );
        std::fs::write(&file, config).unwrap();
        let process = Command::new("haproxy")
            .args(["-db", "-f"])
            .arg(&file)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .ok()?;
        until_true("HAProxy accepts connections", LIMIT, async || {
            TcpStream::connect(address).await.is_ok()
        })
        .await;
        Some(Self {
            address,
            _process: process,
            _folder: folder,
        })
    }
}
