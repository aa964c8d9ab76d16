//! Servers of tests that speak TLS.

use axum::serve::Listener;
use berth_pki::{Certificate, CertificateAuthority, LeafRequest, Usage};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

const DAY: Duration = Duration::from_secs(24 * 3600);
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Listens for axum.
pub(crate) struct TlsListener {
    tcp: TcpListener,
    tls: TlsAcceptor,
}

impl TlsListener {
    /// Listens with a certificate of [`server_certificate`]; on a free port, if that of the address is 0.
    pub(crate) async fn bind(address: SocketAddr, leaf: &Certificate) -> Self {
        let certificate = CertificateDer::from_pem_slice(leaf.cert_pem.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(leaf.key_pem.as_bytes()).unwrap();
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        Self {
            tcp: TcpListener::bind(address).await.unwrap(),
            tls: TlsAcceptor::from(Arc::new(config)),
        }
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let Ok((stream, address)) = self.tcp.accept().await else {
                continue;
            };
            if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, self.tls.accept(stream)).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

/// An address of this machine that is not loopback, as egress brokers connect to no other. Nothing is sent.
pub(crate) fn machine_address() -> IpAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket
        .connect("198.51.100.1:9")
        .expect("this machine has a network interface with a default route");
    socket.local_addr().unwrap().ip()
}

/// A certificate for a server at this address, and that of the authority (PEM) that it is verified with.
pub(crate) fn server_certificate(address: IpAddr) -> (String, Certificate) {
    let ca = CertificateAuthority::create("servers", DAY).unwrap();
    let request = LeafRequest {
        common_name: "server".into(),
        ip_addresses: vec![address],
        ..LeafRequest::new(Usage::Server, DAY)
    };
    (ca.cert_pem().to_owned(), ca.issue(&request).unwrap())
}
