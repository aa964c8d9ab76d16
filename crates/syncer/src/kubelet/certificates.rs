//! Certificates for the servers behind the broker, signed by the one authority whose key the syncer holds: the tenant's
//! API server trusts it for its kubelets and for the syncer's own servers, and for nothing else.

use crate::tls::{Identity, TlsError, open_server};
use berth_pki::{Certificate, CertificateAuthority, LeafRequest, Usage};
use berth_runtime::locks::lock;
use rustls::ServerConfig;
use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// Life of a certificate, and the age at which another takes its place.
const VALIDITY: Duration = Duration::from_hours(7 * 24);
const RENEWAL: Duration = Duration::from_hours(3 * 24);
/// Certificates that are kept: more nodes than a tenant has.
const MOST: usize = 4096;

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// It cannot be made.
    #[error("cannot make a certificate: {0}")]
    Pki(#[from] berth_pki::Error),
    /// It cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// The server that a certificate is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A kubelet; its clients have to show a certificate of the same authority.
    Kubelet { node: String, addresses: Vec<IpAddr> },
    /// One of the syncer's own servers. It accepts any client, because only the broker reaches it.
    Local {
        /// Its DNS name.
        name: String,
    },
}

/// The authority, and what it has signed.
pub struct Certificates {
    authority: CertificateAuthority,
    issued: Mutex<HashMap<Subject, (Instant, Arc<ServerConfig>)>>,
}

impl Certificates {
    /// Nothing signed yet.
    pub fn new(authority: CertificateAuthority) -> Self {
        Self {
            authority,
            issued: Mutex::default(),
        }
    }

    /// TLS of a server with a certificate for `subject`.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn server(&self, subject: Subject) -> Result<Arc<ServerConfig>, CertificateError> {
        let mut issued = lock(&self.issued);
        if let Some((at, config)) = issued.get(&subject)
            && at.elapsed() < RENEWAL
        {
            return Ok(Arc::clone(config));
        }
        if issued.len() >= MOST {
            issued.clear();
        }
        let config = Arc::new(self.issue(&subject)?);
        issued.insert(subject, (Instant::now(), Arc::clone(&config)));
        Ok(config)
    }

    fn issue(&self, subject: &Subject) -> Result<ServerConfig, CertificateError> {
        let mut request = LeafRequest::new(Usage::Server, VALIDITY);
        match subject {
            Subject::Kubelet { node, addresses } => {
                request.common_name = "kubelet".into();
                request.dns_names = vec![node.clone()];
                request.ip_addresses.clone_from(addresses);
            }
            Subject::Local { name } => {
                request.common_name = "syncer".into();
                request.dns_names = vec![name.clone()];
            }
        }
        let Certificate { cert_pem, key_pem } = self.authority.issue(&request)?;
        Ok(match subject {
            Subject::Local { .. } => open_server(&cert_pem, &key_pem)?,
            Subject::Kubelet { .. } => Identity {
                certificate: cert_pem,
                key: key_pem,
                authority: self.authority.cert_pem().to_owned(),
            }
            .server()?,
        })
    }
}
