//! The gateway between real TLS clients and servers of two tenants.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use berth_api::names::TenantId;
use berth_gateway::{
    metrics::Metrics,
    routes::{API_SERVER, Backends, Key, RoutingTable},
    server::{Gateway, Limits, Timeouts},
};
use berth_pki::{CertificateAuthority, LeafRequest, Usage};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Service;
use prometheus_client::{encoding::text::encode, registry::Registry};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use serde_json::json;
use std::{io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, TlsConnector, client::TlsStream};
use tokio_util::sync::CancellationToken;

/// Time for what takes milliseconds.
const SOON: Duration = Duration::from_secs(30);
/// Connections at the same time.
const MANY: usize = 200;

/// The gateway with the API servers of the tenants `vision` and `speech` of the namespace `team-a`.
struct Setup {
    address: SocketAddr,
    table: Arc<RoutingTable>,
    registry: Registry,
    stop: CancellationToken,
    served: JoinHandle<()>,
    roots: RootCertStore,
}

fn limits() -> Limits {
    Limits {
        connections: 10_000,
        of_tenant: 10_000,
        of_source: 10_000,
    }
}

fn timeouts() -> Timeouts {
    Timeouts {
        handshake: SOON,
        connect: SOON,
        backend: SOON,
        drain: SOON,
    }
}

fn key(name: &str) -> Key {
    ("team-a".into(), name.into())
}

fn host_name(name: &str) -> String {
    format!("{name}.team-a.example.com")
}

/// A TLS server that says its name and then repeats what it receives.
async fn start_server(name: &'static str, authority: &CertificateAuthority) -> SocketAddr {
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
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
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
fn service(address: SocketAddr) -> Service {
    let port = json!({"name": API_SERVER, "port": 443, "targetPort": address.port()});
    serde_json::from_value(json!({"spec": {"clusterIP": "10.96.0.49", "ports": [port]}})).unwrap()
}

fn add_tenant(table: &RoutingTable, name: &str, uid: &str, server: SocketAddr) {
    table.put_tenant(key(name), uid);
    let namespace = TenantId::new(name, uid).control_plane_namespace();
    table.put_service(&namespace, &service(server));
}

async fn start(limits: Limits, timeouts: Timeouts, proxies: Vec<IpNet>) -> Setup {
    berth_runtime::install_crypto();
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
    let gateway = Arc::new(Gateway::new(limits, timeouts, proxies, Arc::clone(&table), metrics));
    let served = tokio::spawn(gateway.serve(listener, stop.clone(), closed));
    Setup {
        address,
        table,
        registry,
        stop,
        served,
        roots,
    }
}

impl Setup {
    /// A TLS connection by way of the gateway. The certificate must be valid for the name.
    async fn connect(&self, host: &str) -> io::Result<TlsStream<TcpStream>> {
        self.connect_over(TcpStream::connect(self.address).await?, host).await
    }

    async fn connect_over(&self, stream: TcpStream, host: &str) -> io::Result<TlsStream<TcpStream>> {
        let config = ClientConfig::builder()
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth();
        let name = ServerName::try_from(host.to_owned()).unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        timeout(SOON, connector.connect(name, stream)).await?
    }

    /// A connection whose server has said its name.
    async fn connect_to(&self, name: &str) -> TlsStream<TcpStream> {
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
    async fn until_metric(&self, line: &str) {
        let start = Instant::now();
        while !self.metrics().lines().any(|found| found == line) {
            assert!(start.elapsed() < SOON, "{line} is missing in {}", self.metrics());
            sleep(Duration::from_millis(10)).await;
        }
    }
}

async fn read_name(stream: &mut TlsStream<TcpStream>, name: &str) {
    let mut said = vec![0; name.len()];
    timeout(SOON, stream.read_exact(&mut said)).await.unwrap().unwrap();
    assert_eq!(said, name.as_bytes());
}

async fn echo(stream: &mut TlsStream<TcpStream>, bytes: &[u8]) {
    let mut answer = vec![0; bytes.len()];
    let (mut reader, mut writer) = tokio::io::split(stream);
    let both = async { tokio::try_join!(writer.write_all(bytes), reader.read_exact(&mut answer)) };
    timeout(SOON, both).await.unwrap().unwrap();
    assert!(answer == bytes, "other bytes came back");
}

/// Whether the other side closes the connection soon.
async fn is_closed(stream: &mut (impl AsyncReadExt + Unpin)) -> bool {
    let mut rest = Vec::new();
    timeout(SOON, stream.read_to_end(&mut rest)).await.is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_connections_reach_the_server_that_they_name() {
    let setup = Arc::new(start(limits(), timeouts(), Vec::new()).await);
    let mut clients = JoinSet::new();
    for index in 0..MANY {
        let setup = Arc::clone(&setup);
        clients.spawn(async move {
            let name = ["vision", "speech"][index % 2];
            let mut stream = setup.connect_to(name).await;
            let bytes = vec![u8::try_from(index % 256).unwrap(); 100_000];
            echo(&mut stream, &bytes).await;
            stream
        });
    }
    let open = clients.join_all().await;
    setup
        .until_metric("berth_gateway_open_connections{tenant_namespace=\"team-a\",tenant=\"vision\"} 100")
        .await;
    drop(open);
    setup
        .until_metric("berth_gateway_open_connections{tenant_namespace=\"team-a\",tenant=\"vision\"} 0")
        .await;
    setup
        .until_metric("berth_gateway_connections_total{tenant_namespace=\"team-a\",tenant=\"speech\"} 100")
        .await;
}

#[tokio::test]
async fn unknown_and_missing_names_are_refused_with_an_alert() {
    let setup = start(limits(), timeouts(), Vec::new()).await;
    for host in ["vision.team-b.example.com", "example.com", "127.0.0.1"] {
        let error = setup.connect(host).await.unwrap_err();
        assert!(error.to_string().contains("UnrecognisedName"), "{host}: {error}");
    }
    for (reason, count) in [("unknown-server-name", 2), ("no-server-name", 1)] {
        let labels = format!("tenant_namespace=\"\",tenant=\"\",reason=\"{reason}\"");
        setup
            .until_metric(&format!("berth_gateway_refusals_total{{{labels}}} {count}"))
            .await;
    }
    // The name decides which server answers, and its certificate says so: a wrong name never reaches another tenant.
    setup.connect_to("vision").await;
}

#[tokio::test]
async fn silent_and_wrong_clients_are_dropped() {
    let short = Timeouts {
        handshake: Duration::from_secs(1),
        ..timeouts()
    };
    let setup = start(limits(), short, Vec::new()).await;
    let mut silent = TcpStream::connect(setup.address).await.unwrap();
    let mut half = TcpStream::connect(setup.address).await.unwrap();
    half.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap();
    let mut http = TcpStream::connect(setup.address).await.unwrap();
    http.write_all(b"GET /version HTTP/1.1\r\n\r\n").await.unwrap();
    for stream in [&mut silent, &mut half, &mut http] {
        assert!(is_closed(stream).await);
    }
    for (reason, count) in [("handshake-timeout", 2), ("invalid-client-hello", 1)] {
        let labels = format!("tenant_namespace=\"\",tenant=\"\",reason=\"{reason}\"");
        setup
            .until_metric(&format!("berth_gateway_refusals_total{{{labels}}} {count}"))
            .await;
    }
    // One that is through is not dropped.
    let mut stream = setup.connect_to("vision").await;
    sleep(2 * short.handshake).await;
    echo(&mut stream, b"still here").await;
}

#[tokio::test]
async fn a_tenant_with_too_many_connections_disturbs_no_other() {
    let one = Limits {
        of_tenant: 1,
        ..limits()
    };
    let setup = start(one, timeouts(), Vec::new()).await;
    let first = setup.connect_to("vision").await;
    let error = setup.connect(&host_name("vision")).await.unwrap_err();
    assert!(error.to_string().contains("InternalError"), "{error}");
    setup.connect_to("speech").await;
    drop(first);
    setup
        .until_metric("berth_gateway_open_connections{tenant_namespace=\"team-a\",tenant=\"vision\"} 0")
        .await;
    setup.connect_to("vision").await;
}

#[tokio::test]
async fn sources_are_limited_by_the_address_that_the_load_balancer_names() {
    let one = Limits {
        of_source: 1,
        ..limits()
    };
    let setup = start(one, timeouts(), vec!["127.0.0.0/8".parse().unwrap()]).await;
    let from = async |last: u8| {
        let mut stream = TcpStream::connect(setup.address).await.unwrap();
        let header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02";
        stream.write_all(header).await.unwrap();
        stream.write_all(&[last, 10, 0, 0, 1, 1, 1, 1, 187]).await.unwrap();
        setup.connect_over(stream, &host_name("vision")).await
    };
    let mut first = from(1).await.unwrap();
    assert!(from(1).await.is_err(), "a second connection of the same address");
    let mut other = from(2).await.unwrap();
    for stream in [&mut first, &mut other] {
        read_name(stream, "vision").await;
    }
    // Without a header nothing is believed.
    assert!(setup.connect(&host_name("vision")).await.is_err());
    let labels = "tenant_namespace=\"\",tenant=\"\",reason=\"invalid-proxy-header\"";
    setup
        .until_metric(&format!("berth_gateway_refusals_total{{{labels}}} 1"))
        .await;
}

#[tokio::test]
async fn the_connections_of_a_deleted_tenant_are_closed() {
    let setup = start(limits(), timeouts(), Vec::new()).await;
    let (mut gone, mut other) = (setup.connect_to("vision").await, setup.connect_to("speech").await);
    setup.table.delete_tenant(&key("vision"));
    assert!(is_closed(&mut gone).await);
    assert!(setup.connect(&host_name("vision")).await.is_err());
    echo(&mut other, b"still here").await;
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_an_alert() {
    let setup = start(limits(), timeouts(), Vec::new()).await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    add_tenant(&setup.table, "broken", "3", closed);
    let error = setup.connect(&host_name("broken")).await.unwrap_err();
    assert!(error.to_string().contains("InternalError"), "{error}");
    let labels = "tenant_namespace=\"team-a\",tenant=\"broken\",reason=\"backend-unavailable\"";
    setup
        .until_metric(&format!("berth_gateway_refusals_total{{{labels}}} 1"))
        .await;
}

#[tokio::test]
async fn connections_go_on_while_the_gateway_drains_and_are_closed_then() {
    let short = Timeouts {
        drain: Duration::from_secs(4),
        ..timeouts()
    };
    let setup = start(limits(), short, Vec::new()).await;
    let mut stream = setup.connect_to("vision").await;
    setup.stop.cancel();
    let start = Instant::now();
    while TcpStream::connect(setup.address).await.is_ok() {
        assert!(start.elapsed() < SOON, "connections are still accepted");
        sleep(Duration::from_millis(10)).await;
    }
    echo(&mut stream, b"still here").await;
    assert!(is_closed(&mut stream).await);
    timeout(SOON, setup.served).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_gateway_without_connections_ends_at_once() {
    let setup = start(limits(), timeouts(), Vec::new()).await;
    drop(setup.connect_to("vision").await);
    let start = Instant::now();
    setup.stop.cancel();
    timeout(SOON, setup.served).await.unwrap().unwrap();
    assert!(start.elapsed() < SOON / 2);
}
