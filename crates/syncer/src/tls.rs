//! TLS of the syncer's servers. Each has a certificate authority of its own for one purpose, and rejects clients that have
//! no certificate of it. Certificates are read again when their files change: in a cluster they are replaced in place.

use crate::serve::BUFFER;
use berth_runtime::locks::lock;
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

/// Time that a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Bytes that may wait to be sent. Inside of another TLS connection, a full buffer of a tunnel is longer by the overhead of
/// its records. The default of rustls is just a buffer: the outer connection would take all but the last bytes, and send
/// these as a record and a packet of their own.
const UNSENT: usize = 2 * BUFFER;
/// How long certificates are used before their files are read again.
const FRESH: Duration = Duration::from_secs(10);

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{0}: {1}")]
    File(PathBuf, #[source] std::io::Error),
    /// A certificate or key is damaged.
    #[error("cannot read the {0}: {1}")]
    Pem(&'static str, #[source] rustls::pki_types::pem::Error),
    /// Certificate, key and authority cannot be used together.
    #[error("cannot use the certificate: {0}")]
    Rustls(#[from] rustls::Error),
    /// The authority for clients cannot be used.
    #[error("cannot use the authority: {0}")]
    Clients(#[from] rustls::server::VerifierBuilderError),
}

/// Certificate, key and authority, PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// The server's certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
    /// Signed both the server's and its clients' certificates, and nothing else.
    pub authority: String,
}

impl Identity {
    /// TLS of a server with this identity.
    ///
    /// # Errors
    /// As [`TlsError`] says.
    pub fn server(&self) -> Result<ServerConfig, TlsError> {
        let mut authorities = RootCertStore::empty();
        for authority in certificates("authority", &self.authority)? {
            authorities.add(authority)?;
        }
        let clients = WebPkiClientVerifier::builder(Arc::new(authorities)).build()?;
        server(
            ServerConfig::builder().with_client_cert_verifier(clients),
            &self.certificate,
            &self.key,
        )
    }
}

/// TLS of a server that accepts every client: for connections that have shown a certificate already.
///
/// # Errors
/// As [`TlsError`] says.
pub fn open_server(certificate: &str, key: &str) -> Result<ServerConfig, TlsError> {
    server(ServerConfig::builder().with_no_client_auth(), certificate, key)
}

fn server(
    builder: rustls::ConfigBuilder<ServerConfig, rustls::server::WantsServerCert>,
    certificate: &str,
    key: &str,
) -> Result<ServerConfig, TlsError> {
    let chain = certificates("certificate", certificate)?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| TlsError::Pem("key", error))?;
    let mut config = builder.with_single_cert(chain, key)?;
    // Connections are kept, not resumed: a client that reconnects shows its certificate again.
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn certificates(name: &'static str, pem: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|error| TlsError::Pem(name, error))
}

/// Files with an [`Identity`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityFiles {
    /// The server's certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authority of both ends.
    pub authority: PathBuf,
}

impl IdentityFiles {
    /// What the files hold now.
    ///
    /// # Errors
    /// One cannot be read.
    pub fn read(&self) -> Result<Identity, TlsError> {
        let read = |path: &PathBuf| std::fs::read_to_string(path).map_err(|error| TlsError::File(path.clone(), error));
        Ok(Identity {
            certificate: read(&self.certificate)?,
            key: read(&self.key)?,
            authority: read(&self.authority)?,
        })
    }
}

/// Accepts TLS connections with the certificate that the files hold now.
pub struct Acceptor {
    files: IdentityFiles,
    current: Mutex<Current>,
}

struct Current {
    identity: Identity,
    config: Arc<ServerConfig>,
    checked_at: Instant,
}

impl Acceptor {
    /// An acceptor with the certificate in `files`.
    ///
    /// # Errors
    /// As [`TlsError`] says. Later on, files that cannot be used change nothing.
    pub fn new(files: IdentityFiles) -> Result<Self, TlsError> {
        let identity = files.read()?;
        let config = Arc::new(identity.server()?);
        let checked_at = Instant::now();
        Ok(Self {
            files,
            current: Mutex::new(Current {
                identity,
                config,
                checked_at,
            }),
        })
    }

    /// The authority that signs for both ends, PEM.
    pub fn authority(&self) -> String {
        let current = lock(&self.current);
        current.identity.authority.clone()
    }

    fn config(&self) -> Arc<ServerConfig> {
        let mut current = lock(&self.current);
        if current.checked_at.elapsed() >= FRESH {
            current.checked_at = Instant::now();
            current.reload(&self.files);
        }
        Arc::clone(&current.config)
    }

    /// The TLS side of a connection, or `None` if it was rejected.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> Option<TlsStream<S>> {
        accept(self.config(), stream).await
    }
}

impl Current {
    /// Loads the files if they can be used together: they are written one after the other.
    fn reload(&mut self, files: &IdentityFiles) {
        let result = files.read().and_then(|identity| {
            if identity == self.identity {
                return Ok(());
            }
            self.config = Arc::new(identity.server()?);
            self.identity = identity;
            tracing::info!(file = %files.certificate.display(), "certificate read again");
            Ok(())
        });
        if let Err(error) = result {
            tracing::warn!(%error, "cannot read a certificate again; the one before is still in use");
        }
    }
}

/// The TLS side of a connection, or `None` if it was rejected.
pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(config: Arc<ServerConfig>, stream: S) -> Option<TlsStream<S>> {
    let accepting = TlsAcceptor::from(config).accept_with(stream, |session| session.set_buffer_limit(Some(UNSENT)));
    match tokio::time::timeout(HANDSHAKE, accepting).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a connection was rejected");
            None
        }
        Err(_) => {
            tracing::debug!("a connection did not complete the handshake in time");
            None
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use berth_pki::{Certificate, CertificateAuthority, LeafRequest, Usage};
    use rustls::{ClientConfig, pki_types::ServerName};
    use std::{
        io::{self, IoSlice},
        pin::Pin,
        sync::atomic::{AtomicUsize, Ordering},
        task::{Context, Poll},
    };
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadBuf};
    use tokio_rustls::TlsConnector;

    pub const DAY: Duration = Duration::from_hours(24);

    /// A certificate for this machine, valid for a day.
    pub fn issue(authority: &CertificateAuthority, usage: Usage) -> Certificate {
        let mut request = LeafRequest::new(usage, DAY);
        request.common_name = "test".into();
        request.ip_addresses = vec![std::net::Ipv4Addr::LOCALHOST.into()];
        authority.issue(&request).unwrap()
    }

    /// What a client trusts and presents.
    pub fn client(authority: &CertificateAuthority, certificate: Option<&Certificate>) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_slice(authority.cert_pem().as_bytes()).unwrap();
        roots.add(root).unwrap();
        let config = ClientConfig::builder().with_root_certificates(roots);
        match certificate {
            None => config.with_no_client_auth(),
            Some(Certificate { cert_pem, key_pem }) => {
                let chain = vec![CertificateDer::from_pem_slice(cert_pem.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes()).unwrap();
                config.with_client_auth_cert(chain, key).unwrap()
            }
        }
    }

    fn identity(authority: &CertificateAuthority) -> Identity {
        let Certificate { cert_pem, key_pem } = issue(authority, Usage::Server);
        Identity {
            certificate: cert_pem,
            key: key_pem,
            authority: authority.cert_pem().to_owned(),
        }
    }

    /// Whether the server accepts a client with this certificate.
    async fn is_accepted(
        server: Arc<ServerConfig>,
        authority: &CertificateAuthority,
        certificate: Option<&Certificate>,
    ) -> bool {
        let (near, far) = tokio::io::duplex(64 << 10);
        let server = async {
            let mut stream = accept(server, far).await?;
            stream.write_all(b"hello").await.ok()?;
            stream.shutdown().await.ok()
        };
        let connector = TlsConnector::from(Arc::new(client(authority, certificate)));
        let client = async {
            let name = ServerName::try_from("127.0.0.1").unwrap();
            let mut stream = connector.connect(name, near).await.ok()?;
            let mut text = String::new();
            stream.read_to_string(&mut text).await.ok()?;
            Some(text)
        };
        let (_, text) = tokio::join!(server, client);
        text.as_deref() == Some("hello")
    }

    #[tokio::test]
    async fn only_client_certificates_of_the_authority_are_accepted() {
        berth_runtime::install_crypto();
        let authority = CertificateAuthority::create("admission", DAY).unwrap();
        let other = CertificateAuthority::create("client", DAY).unwrap();
        let server = Arc::new(identity(&authority).server().unwrap());
        let tries = async |cert: Option<&Certificate>| is_accepted(Arc::clone(&server), &authority, cert).await;
        assert!(tries(Some(&issue(&authority, Usage::Client))).await);
        assert!(!tries(None).await);
        assert!(!tries(Some(&issue(&other, Usage::Client))).await);
        assert!(!tries(Some(&issue(&authority, Usage::Server))).await);
    }

    /// A connection that counts how often something is written to it.
    struct Counted {
        stream: DuplexStream,
        writes: Arc<AtomicUsize>,
    }

    impl AsyncRead for Counted {
        fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_read(cx, buf)
        }
    }

    impl AsyncWrite for Counted {
        fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
            self.writes.fetch_add(1, Ordering::Relaxed);
            Pin::new(&mut self.stream).poll_write(cx, buf)
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bufs: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            self.writes.fetch_add(1, Ordering::Relaxed);
            Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
        }

        fn is_write_vectored(&self) -> bool {
            true
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_shutdown(cx)
        }
    }

    #[tokio::test]
    async fn a_full_buffer_of_a_tunnel_is_one_write_through_two_layers() {
        berth_runtime::install_crypto();
        let authority = CertificateAuthority::create("egress", DAY).unwrap();
        let config = Arc::new(identity(&authority).server().unwrap());
        let certificate = issue(&authority, Usage::Client);
        let connector = TlsConnector::from(Arc::new(client(&authority, Some(&certificate))));
        let (near, far) = tokio::io::duplex(4 * BUFFER);
        let writes = Arc::new(AtomicUsize::new(0));
        let far = Counted {
            stream: far,
            writes: Arc::clone(&writes),
        };
        let server = async {
            let outer = accept(Arc::clone(&config), far).await.unwrap();
            accept(Arc::clone(&config), outer).await.unwrap()
        };
        let client = async {
            let name = ServerName::try_from("127.0.0.1").unwrap();
            let outer = connector.connect(name.clone(), near).await.unwrap();
            connector.connect(name, outer).await.unwrap()
        };
        let (mut server, mut client) = tokio::join!(server, client);
        let before = writes.load(Ordering::Relaxed);
        let sent = vec![7; BUFFER];
        server.write_all(&sent).await.unwrap();
        server.flush().await.unwrap();
        assert_eq!(writes.load(Ordering::Relaxed) - before, 1);
        let mut received = vec![0; BUFFER];
        client.read_exact(&mut received).await.unwrap();
        assert_eq!(received, sent);
    }

    #[test]
    fn certificates_are_read_again_once_they_can_be_used() {
        berth_runtime::install_crypto();
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let files = IdentityFiles {
            certificate: path("tls.crt"),
            key: path("tls.key"),
            authority: path("ca.crt"),
        };
        let authority = CertificateAuthority::create("egress", DAY).unwrap();
        let (first, second) = (identity(&authority), identity(&authority));
        let write = |identity: &Identity| {
            std::fs::write(&files.certificate, &identity.certificate).unwrap();
            std::fs::write(&files.key, &identity.key).unwrap();
            std::fs::write(&files.authority, &identity.authority).unwrap();
        };
        write(&first);
        let acceptor = Acceptor::new(files.clone()).unwrap();
        let mut current = acceptor.current.into_inner().unwrap();
        let before = Arc::clone(&current.config);
        // In the middle of an update: a certificate with the key of another.
        std::fs::write(&files.certificate, &second.certificate).unwrap();
        current.reload(&files);
        assert!(Arc::ptr_eq(&before, &current.config) && current.identity == first);
        std::fs::remove_file(&files.key).unwrap();
        current.reload(&files);
        assert!(Arc::ptr_eq(&before, &current.config));
        write(&second);
        current.reload(&files);
        assert!(!Arc::ptr_eq(&before, &current.config) && current.identity == second);
        let after = Arc::clone(&current.config);
        current.reload(&files);
        assert!(Arc::ptr_eq(&after, &current.config), "nothing changed");
    }
}
