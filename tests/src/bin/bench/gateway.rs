//! What the gateway costs, beside HAProxy in TCP mode if that is installed: time added to a request, bytes against a direct connection,
//! memory of idle watches, and new TLS connections in a second.

use crate::{
    memory::Memory,
    report::{Report, figure_of, milliseconds, percentile},
};
use berth_gateway::routes::{API_SERVER, Backends};
use berth_process::free_port;
use berth_tests::{
    files::raise_file_limit,
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
/// For how many the memory is given. An API server on the same machine would need more than there is for so many.
const MANY_WATCHES: usize = 10_000;
/// New connections in a round, how many rounds, and how many at the same time.
const CONNECTIONS: usize = 800;
const CONNECTION_ROUNDS: usize = 5;
const AT_ONCE: usize = 16;
/// Time after which idle connections have settled.
const SETTLE: Duration = Duration::from_secs(5);
const LIMIT: Duration = Duration::from_secs(60);

/// A way to the API server, which is measured.
struct Way {
    name: &'static str,
    address: SocketAddr,
    /// The process that passes bytes on, if there is one.
    process: Option<u32>,
}

pub(crate) async fn run() {
    raise_file_limit();
    let host = TestCluster::without_control("cpu=1").await;
    let port = free_port().unwrap();
    host.start_control_with("first", &control_flags(port)).await;
    // All clients of the bench are one source.
    let flags = ["--max-connections-per-tenant-and-source=4000"];
    let gateway = Gateway::start(&host, port, &flags).await;
    let tenant = Tenant::create(&host, "bench-gateway", &cluster("gateway", &[])).await;
    let kubeconfig = gateway.kubeconfig(&tenant);
    let server = api_server(&host, &tenant).await;
    let mut report = Report::new("gateway");
    let way = |name, address, process| Way { name, address, process };
    let mut ways = vec![
        way("direct", server, None),
        way("through the gateway", gateway.address(), Some(gateway.id())),
    ];
    let haproxy = Haproxy::start(server, &host_name(&tenant)).await;
    match &haproxy {
        Some(haproxy) => ways.push(way("through HAProxy", haproxy.address, haproxy.process.id())),
        None => report.note("HAProxy is not installed (apt-get install haproxy), so there is no comparison with it."),
    }
    requests(&mut report, &kubeconfig, &ways).await;
    for way in &ways {
        watches(&mut report, &kubeconfig, way).await;
    }
    connections(&mut report, &ways, &tenant).await;
    report.note("Clients, gateway, HAProxy and API server share this machine's processors.");
    report.finish();
    drop(haproxy);
    tenant.delete(&host).await;
    assert!(gateway.stop().await.success());
}

/// Where the tenant's API server listens.
async fn api_server(host: &TestCluster, tenant: &Tenant) -> SocketAddr {
    let services: Api<Service> = Api::namespaced(host.client.clone(), &tenant.id.control_plane_namespace());
    let service = services.get(API_SERVER).await.unwrap();
    Backends::Loopback.address_of(&service).unwrap()
}

/// A client that goes this way. All ask for the same name.
async fn client_of(kubeconfig: &Kubeconfig, way: &Way) -> Client {
    let mut changed = kubeconfig.clone();
    for named in &mut changed.clusters {
        named.cluster.as_mut().unwrap().server = Some(format!("https://{}", way.address));
    }
    patient_with(changed).await
}

/// Time and throughput of requests on connections that are kept. The first way is what the others are compared with.
async fn requests(report: &mut Report, kubeconfig: &Kubeconfig, ways: &[Way]) {
    let mut clients = Vec::new();
    for way in ways {
        clients.push(client_of(kubeconfig, way).await);
    }
    let mut times = vec![Vec::new(); ways.len()];
    for _ in 0..REQUESTS {
        for (client, times) in clients.iter().zip(&mut times) {
            let start = Instant::now();
            client.apiserver_version().await.unwrap();
            times.push(milliseconds(start.elapsed()));
        }
    }
    for percent in [50.0, 99.0] {
        let direct = percentile(&times[0], percent);
        report.add(format!("request, direct, p{percent}"), direct, "ms");
        for (way, times) in ways.iter().zip(&times).skip(1) {
            let time = percentile(times, percent);
            report.add(format!("request, {}, p{percent}", way.name), time, "ms");
            report.add(format!("added {}, p{percent}", way.name), time - direct, "ms");
        }
    }
    let large = ConfigMap {
        metadata: ObjectMeta {
            name: Some("large".into()),
            ..ObjectMeta::default()
        },
        data: Some([("text".to_owned(), "x".repeat(LARGE - (8 << 10)))].into()),
        ..ConfigMap::default()
    };
    maps(&clients[0]).create(&PostParams::default(), &large).await.unwrap();
    let mut sums = vec![Duration::ZERO; ways.len()];
    for _ in 0..READS {
        for (client, sum) in clients.iter().zip(&mut sums) {
            let start = Instant::now();
            maps(client).get("large").await.unwrap();
            *sum += start.elapsed();
        }
    }
    let rate = |time: Duration| figure_of(READS * LARGE) / 1e6 / time.as_secs_f64();
    for (way, sum) in ways.iter().zip(&sums) {
        report.add(format!("reads of 1 MiB, {}", way.name), rate(*sum), "MB/s");
        if way.process.is_some() {
            let ratio = rate(*sum) / rate(sums[0]);
            report.add(format!("reads of 1 MiB, {} against direct", way.name), ratio, "x");
        }
    }
}

fn maps(client: &Client) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), "default")
}

/// Memory of what is between, for idle watches.
async fn watches(report: &mut Report, kubeconfig: &Kubeconfig, way: &Way) {
    let Some(process) = way.process else { return };
    let client = client_of(kubeconfig, way).await;
    let before = Memory::of(process);
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
    let after = Memory::of(process);
    let of_many = (after.private - before.private) * figure_of(MANY_WATCHES) / figure_of(WATCHES);
    report.add(
        format!("{MANY_WATCHES} idle watches {} (from {WATCHES}), private", way.name),
        of_many,
        "MiB",
    );
    report.add(
        format!("with {WATCHES} watches {}, resident", way.name),
        after.resident,
        "MiB",
    );
    drop(open);
}

/// Whole TLS handshakes in a second. All ways are measured in turn, several times.
async fn connections(report: &mut Report, ways: &[Way], tenant: &Tenant) {
    let config = tls_config(tenant);
    let mut rates = vec![Vec::new(); ways.len()];
    for round in 0..=CONNECTION_ROUNDS {
        for (way, rates) in ways.iter().zip(&mut rates) {
            let rate = connect_often(way.address, &config, &host_name(tenant)).await;
            // The first round warms up.
            if round > 0 {
                rates.push(rate);
            }
        }
    }
    let rates: Vec<f64> = rates.iter().map(|rates| percentile(rates, 50.0)).collect();
    for (way, rate) in ways.iter().zip(&rates) {
        report.add(format!("TLS connections, {}", way.name), *rate, "1/s");
    }
    if let [_, gateway, haproxy] = rates[..] {
        report.add("TLS connections, gateway against HAProxy", gateway / haproxy, "x");
    }
}

/// Opens [`CONNECTIONS`] connections, [`AT_ONCE`] at a time. Returns how many that is in a second.
async fn connect_often(address: SocketAddr, config: &Arc<ClientConfig>, name: &str) -> f64 {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let start = Instant::now();
    let each = (0..AT_ONCE).map(|_| {
        let (connector, name) = (TlsConnector::from(Arc::clone(config)), name.clone());
        async move {
            for _ in 0..CONNECTIONS / AT_ONCE {
                let stream = TcpStream::connect(address).await.unwrap();
                connector.connect(name.clone(), stream).await.unwrap();
            }
        }
    });
    join_all(each).await;
    figure_of(CONNECTIONS) / start.elapsed().as_secs_f64()
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
    process: Child,
    _folder: TempDir,
}

impl Haproxy {
    /// None if it is not installed.
    async fn start(server: SocketAddr, name: &str) -> Option<Self> {
        let folder = TempDir::with_prefix("berth-haproxy-").unwrap();
        let file = folder.path().join("haproxy.cfg");
        let address: SocketAddr = ([127, 0, 0, 1], free_port().unwrap()).into();
        let config = format!(
            "global\n maxconn 5000\ndefaults\n mode tcp\n timeout connect 5s\n timeout client 5m\n timeout server 5m\n\
             frontend all\n bind {address}\n tcp-request inspect-delay 5s\n tcp-request content accept if {{ req.ssl_hello_type 1 }}\n \
             use_backend tenant if {{ req.ssl_sni -i {name} }}\n\
             backend tenant\n server one {server}\n"
        );
        std::fs::write(&file, config).unwrap();
        // Debian has it where not every user's PATH leads.
        let process = ["haproxy", "/usr/sbin/haproxy"].into_iter().find_map(|program| {
            let mut command = Command::new(program);
            command.args(["-db", "-f"]).arg(&file).stdin(Stdio::null());
            command.kill_on_drop(true).spawn().ok()
        })?;
        until_true("HAProxy accepts connections", LIMIT, async || {
            TcpStream::connect(address).await.is_ok()
        })
        .await;
        Some(Self {
            address,
            process,
            _folder: folder,
        })
    }
}
