//! A gateway between TLS clients and servers of tenants.

use berth_api::names::TenantId;
use berth_gateway::{
    hold::HoldLimits,
    metrics::Metrics,
    routes::{API_SERVER, Backends, Key, RoutingTable},
    server::{Gateway, Limits, Timeouts},
    sleep_state::SleepState,
    wake::RequestWake,
};
use berth_pki::{CertificateAuthority, LeafRequest, Usage};
use futures::future::{BoxFuture, FutureExt, ready};
use ipnet::IpNet;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use prometheus_client::{encoding::text::encode, registry::Registry};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use serde_json::json;
use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, TlsConnector, client::TlsStream};
use tokio_util::sync::CancellationToken;

/// Time for what takes milliseconds.
pub(crate) const SOON: Duration = Duration::from_secs(30);
/// Connections at the same time.
pub(crate) const MANY: usize = 200;

/// The gateway with the API servers of the tenants `vision` and `speech` of the namespace `team-a`.
pub(crate) struct Setup {
    pub(crate) address: SocketAddr,
    pub(crate) table: Arc<RoutingTable>,
    pub(crate) stop: CancellationToken,
    pub(crate) served: JoinHandle<()>,
    pub(crate) requests: Arc<Requests>,
    registry: Registry,
    roots: RootCertStore,
    authority: CertificateAuthority,
}

/// Keeps the names of the tenants that the gateway asks to wake.
#[derive(Default)]
pub(crate) struct Requests(Mutex<Vec<String>>);

impl Requests {
    /// The names, in order of the alphabet.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names = self.0.lock().unwrap().clone();
        names.sort();
        names
    }
}

impl RequestWake for Requests {
    fn request_wake(&self, namespace: &str, name: &str, _: Timestamp) -> BoxFuture<'static, Result<(), String>> {
        assert_eq!(namespace, "team-a");
        self.0.lock().unwrap().push(name.to_owned());
        ready(Ok(())).boxed()
    }
}

pub(crate) fn limits() -> Limits {
    Limits {
        connections: 10_000,
        handshakes: 10_000,
        of_tenant: 10_000,
        of_tenant_source: 10_000,
        of_source: 10_000,
        stalled: 10_000,
        held: HoldLimits {
            all: 10_000,
            of_tenant: 10_000,
            of_tenant_source: 10_000,
            of_source: 10_000,
        },
    }
}

pub(crate) fn timeouts() -> Timeouts {
    Timeouts {
        handshake: SOON,
        connect: SOON,
        backend: SOON,
        wake: SOON,
        stall: SOON,
        drain: SOON,
    }
}

pub(crate) fn key(name: &str) -> Key {
    ("team-a".into(), name.into())
}

pub(crate) fn host_name(name: &str) -> String {
    format!("{name}.team-a.example.com")
}

/// A TLS server that says its name and then repeats what it receives.
pub(crate) async fn start_server(name: &str, authority: &CertificateAuthority) -> SocketAddr {
    let mut request = LeafRequest::new(Usage::Server, Duration::from_hours(1));
    request.common_name = name.into();
    request.dns_names = vec![host_name(name)];
    let issued = authority.issue(&request).unwrap();
    let chain = vec![CertificateDer::from_pem_slice(issued.cert_pem.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(issued.key_pem.as_bytes()).unwrap();
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let name = name.to_owned();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (acceptor, name) = (acceptor.clone(), name.clone());
            tokio::spawn(async move {
                let mut stream = acceptor.accept(stream).await?;
                stream.write_all(name.as_bytes()).await?;
                let (mut reader, mut writer) = tokio::io::split(stream);
                tokio::io::copy(&mut reader, &mut writer).await?;
                writer.shutdown().await
            });
        }
    });
    address
}

/// A Service as control writes it where API servers are processes.
pub(crate) fn service(address: SocketAddr) -> Service {
    let port = json!({"name": API_SERVER, "port": 443, "targetPort": address.port()});
    serde_json::from_value(json!({"spec": {"clusterIP": "10.96.0.49", "ports": [port]}})).unwrap()
}

pub(crate) fn add_tenant(table: &RoutingTable, name: &str, uid: &str, server: SocketAddr) {
    table.put_tenant(key(name), uid, SleepState::default());
    add_service(table, name, uid, server);
}

/// Adds the Service of a tenant's API server.
pub(crate) fn add_service(table: &RoutingTable, name: &str, uid: &str, server: SocketAddr) {
    let namespace = TenantId::new(name, uid).control_plane_namespace();
    table.put_service(&namespace, &service(server));
}

pub(crate) async fn start(limits: Limits, timeouts: Timeouts, proxies: Vec<IpNet>) -> Setup {
    berth_runtime::install_crypto();
    let maximum = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    let authority = CertificateAuthority::create("servers", Duration::from_hours(1)).unwrap();
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_slice(authority.cert_pem().as_bytes()).unwrap();
    roots.add(root).unwrap();
    let mut registry = Registry::default();
    let metrics = Metrics::new(&mut registry);
    let (stop, closed) = (CancellationToken::new(), CancellationToken::new());
    let table = Arc::new(RoutingTable::new(
        "example.com".parse().unwrap(),
        Backends::Loopback,
        metrics.clone(),
        closed.clone(),
    ));
    add_tenant(&table, "vision", "1", start_server("vision", &authority).await);
    add_tenant(&table, "speech", "2", start_server("speech", &authority).await);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let requests = Arc::new(Requests::default());
    let gateway = Gateway::new(limits, timeouts, proxies, Arc::clone(&table), metrics, requests.clone());
    let gateway = Arc::new(gateway);
    let served = tokio::spawn(gateway.serve(listener, stop.clone(), closed));
    Setup {
        address,
        table,
        stop,
        served,
        requests,
        registry,
        roots,
        authority,
    }
}

impl Setup {
    /// A TLS connection by way of the gateway. The certificate must be valid for the name.
    pub(crate) async fn connect(&self, host: &str) -> io::Result<TlsStream<TcpStream>> {
        self.connect_over(TcpStream::connect(self.address).await?, host).await
    }

    fn client_config(&self) -> Arc<ClientConfig> {
        let config = ClientConfig::builder().with_root_certificates(self.roots.clone());
        Arc::new(config.with_no_client_auth())
    }

    /// The first bytes of a client that asks for this host.
    pub(crate) fn client_hello(&self, host: &str) -> Vec<u8> {
        let name = ServerName::try_from(host.to_owned()).unwrap();
        let mut connection = ClientConnection::new(self.client_config(), name).unwrap();
        let mut bytes = Vec::new();
        connection.write_tls(&mut bytes).unwrap();
        bytes
    }

    /// Starts the API server of a tenant.
    pub(crate) async fn start_server(&self, name: &str) -> SocketAddr {
        start_server(name, &self.authority).await
    }

    pub(crate) async fn connect_over(&self, stream: TcpStream, host: &str) -> io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).unwrap();
        let connector = TlsConnector::from(self.client_config());
        timeout(SOON, connector.connect(name, stream)).await?
    }

    /// A connection whose server has said its name.
    pub(crate) async fn connect_to(&self, name: &str) -> TlsStream<TcpStream> {
        let mut stream = self.connect(&host_name(name)).await.unwrap();
        read_name(&mut stream, name).await;
        stream
    }

    fn metrics(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        text
    }

    /// Waits until the metrics have this line.
    pub(crate) async fn until_metric(&self, line: &str) {
        let start = Instant::now();
        while !self.metrics().lines().any(|found| found == line) {
            assert!(start.elapsed() < SOON, "{line} is missing in {}", self.metrics());
            sleep(Duration::from_millis(10)).await;
        }
    }
}

pub(crate) async fn read_name(stream: &mut TlsStream<TcpStream>, name: &str) {
    let mut said = vec![0; name.len()];
    timeout(SOON, stream.read_exact(&mut said)).await.unwrap().unwrap();
    assert_eq!(said, name.as_bytes());
}

pub(crate) async fn echo(stream: &mut TlsStream<TcpStream>, bytes: &[u8]) {
    let mut answer = vec![0; bytes.len()];
    let (mut reader, mut writer) = tokio::io::split(stream);
    let both = async { tokio::try_join!(writer.write_all(bytes), reader.read_exact(&mut answer)) };
    timeout(SOON, both).await.unwrap().unwrap();
    assert!(answer == bytes, "other bytes came back");
}

/// Whether the other side closes the connection soon.
pub(crate) async fn is_closed(stream: &mut (impl AsyncReadExt + Unpin)) -> bool {
    let mut rest = Vec::new();
    timeout(SOON, stream.read_to_end(&mut rest)).await.is_ok()
}
