//! The server that the tenant's API server asks. Whoever cannot show a certificate of the tenant's own authority for
//! this purpose does not get past the handshake.

use super::{
    configuration::{self, configuration},
    review::{Denial, Request, Verdict},
    services,
};
use crate::{
    engine::{Engine, api::Api},
    metrics::AdmissionLabels,
};
use axum::{Json, Router, extract::DefaultBodyLimit, extract::State, http::StatusCode, routing::post};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use serde_json::Value;
use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

/// Connections at a time. The API server keeps a few and reuses them.
const CONNECTIONS: usize = 64;
/// Time that a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Time that an answer may take: less than the API server waits, so that the tenant is told what is the matter.
const ANSWER: Duration = Duration::from_secs(8);
/// Largest question: an object and what it was before, each up to what etcd stores.
const LARGEST: usize = 8 << 20;
/// Pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// Why there is no admission server.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    /// The address cannot be listened on.
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, #[source] std::io::Error),
    /// A certificate or key is damaged.
    #[error("cannot read the {0}: {1}")]
    Pem(&'static str, #[source] rustls::pki_types::pem::Error),
    /// Certificate, key and authority cannot be used together.
    #[error("cannot use the certificate: {0}")]
    Tls(#[from] rustls::Error),
    /// The authority for clients cannot be used.
    #[error("cannot use the authority: {0}")]
    Clients(#[from] rustls::server::VerifierBuilderError),
}

/// Certificate, key and authority, PEM.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    /// What the server shows.
    pub certificate: &'a str,
    /// The key of it.
    pub key: &'a str,
    /// Signed both the server's and the API server's certificate, and nothing else.
    pub authority: &'a str,
}

/// An admission server that listens and does not answer yet.
pub struct Admission {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    configuration: MutatingWebhookConfiguration,
}

impl Admission {
    /// Listens on `address`. The API server is told to ask at `authority` (`host:port`), or at the address.
    ///
    /// # Errors
    /// As [`AdmissionError`] says.
    pub async fn listen(
        address: SocketAddr,
        authority: Option<&str>,
        identity: Identity<'_>,
    ) -> Result<Self, AdmissionError> {
        let tls = tls(identity)?;
        let fail = |error| AdmissionError::Listen(address, error);
        let listener = TcpListener::bind(address).await.map_err(fail)?;
        let authority = match authority {
            Some(authority) => authority.to_owned(),
            None => listener.local_addr().map_err(fail)?.to_string(),
        };
        Ok(Self {
            listener,
            acceptor: TlsAcceptor::from(Arc::new(tls)),
            configuration: configuration(&authority, identity.authority),
        })
    }

    /// Answers, and keeps the tenant's webhook configuration as it should be, until it is dropped.
    pub(crate) async fn serve(self, engine: Arc<Engine>, tenant: Api) {
        let Self {
            listener,
            acceptor,
            configuration,
        } = self;
        tokio::join!(
            accept(listener, acceptor, router(engine)),
            configuration::keep(tenant, &configuration)
        );
    }
}

fn tls(identity: Identity<'_>) -> Result<ServerConfig, AdmissionError> {
    let certificates = |name, pem: &str| -> Result<Vec<CertificateDer<'static>>, AdmissionError> {
        CertificateDer::pem_slice_iter(pem.as_bytes())
            .collect::<Result<_, _>>()
            .map_err(|error| AdmissionError::Pem(name, error))
    };
    let mut authorities = RootCertStore::empty();
    for authority in certificates("authority", identity.authority)? {
        authorities.add(authority)?;
    }
    let chain = certificates("certificate", identity.certificate)?;
    let key =
        PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).map_err(|error| AdmissionError::Pem("key", error))?;
    let clients = WebPkiClientVerifier::builder(Arc::new(authorities)).build()?;
    Ok(ServerConfig::builder()
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, key)?)
}

fn router(engine: Arc<Engine>) -> Router {
    Router::new()
        .route(configuration::PATH, post(answer))
        .layer(DefaultBodyLimit::max(LARGEST))
        .with_state(engine)
}

/// Accepts connections for ever, each in a task of its own.
async fn accept(listener: TcpListener, acceptor: TlsAcceptor, router: Router) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else {
            return;
        };
        let stream = tokio::select! {
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            },
        };
        let (acceptor, router) = (acceptor.clone(), router.clone());
        connections.spawn(async move {
            connection(stream, &acceptor, router).await;
            drop(place);
        });
    }
}

async fn connection(stream: TcpStream, acceptor: &TlsAcceptor, router: Router) {
    let stream = match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%error, "a connection for admission was turned away");
            return;
        }
        Err(_) => return,
    };
    let served = auto::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection for admission ended");
    }
}

async fn answer(
    State(engine): State<Arc<Engine>>,
    Json(review): Json<Value>,
) -> Result<Json<Value>, (StatusCode, &'static str)> {
    let start = Instant::now();
    let request = Request::read(review).map_err(|why| (StatusCode::BAD_REQUEST, why))?;
    let answer = tokio::time::timeout(ANSWER, services::answer(&engine, &request)).await;
    let verdict = answer.unwrap_or_else(|_| {
        Verdict::Deny(Denial::unavailable(
            "the platform did not give an address in time; try again",
        ))
    });
    engine.metrics().admission(
        &AdmissionLabels {
            operation: request.operation.name(),
            result: verdict.name(),
        },
        start.elapsed(),
    );
    Ok(Json(verdict.answer(&request.uid)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_pki::{Certificate, CertificateAuthority, LeafRequest, Usage};
    use rustls::{ClientConfig, pki_types::ServerName};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_rustls::TlsConnector;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn issue(authority: &CertificateAuthority, usage: Usage) -> Certificate {
        let mut request = LeafRequest::new(usage, DAY);
        request.common_name = "test".into();
        request.ip_addresses = vec![std::net::Ipv4Addr::LOCALHOST.into()];
        authority.issue(&request).unwrap()
    }

    /// Whether the server talks to a client that shows this certificate.
    async fn is_let_in(authority: &CertificateAuthority, shown: Option<&Certificate>) -> bool {
        let server = issue(authority, Usage::Server);
        let identity = Identity {
            certificate: &server.cert_pem,
            key: &server.key_pem,
            authority: authority.cert_pem(),
        };
        let acceptor = TlsAcceptor::from(Arc::new(tls(identity).unwrap()));
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(authority.cert_pem().as_bytes()).unwrap())
            .unwrap();
        let config = ClientConfig::builder().with_root_certificates(roots);
        let config = match shown {
            None => config.with_no_client_auth(),
            Some(Certificate { cert_pem, key_pem }) => {
                let chain = vec![CertificateDer::from_pem_slice(cert_pem.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).unwrap();
                config.with_client_auth_cert(chain, key).unwrap()
            }
        };
        let (near, far) = tokio::io::duplex(64 << 10);
        let server = async {
            let mut stream = acceptor.accept(far).await.ok()?;
            stream.write_all(b"hello").await.ok()?;
            stream.shutdown().await.ok()
        };
        let client = async {
            let name = ServerName::try_from("127.0.0.1").unwrap();
            let mut stream = TlsConnector::from(Arc::new(config)).connect(name, near).await.ok()?;
            let mut text = String::new();
            stream.read_to_string(&mut text).await.ok()?;
            Some(text)
        };
        let (_, text) = tokio::join!(server, client);
        text.as_deref() == Some("hello")
    }

    #[tokio::test]
    async fn only_certificates_of_the_one_authority_for_clients_are_let_in() {
        berth_runtime::install_crypto();
        let authority = CertificateAuthority::create("admission", DAY).unwrap();
        let other = CertificateAuthority::create("client", DAY).unwrap();
        assert!(is_let_in(&authority, Some(&issue(&authority, Usage::Client))).await);
        assert!(!is_let_in(&authority, None).await);
        assert!(!is_let_in(&authority, Some(&issue(&other, Usage::Client))).await);
        assert!(!is_let_in(&authority, Some(&issue(&authority, Usage::Server))).await);
    }
}
