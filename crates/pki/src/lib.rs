//! Certificates, keys and kubeconfig text for host and tenant control planes.
//!
//! Everything here is computed in memory: callers decide where PEM text is stored and with which permissions. Keys are
//! ECDSA P-256, certificates are X.509 v3 as kube-apiserver, etcd and client-go expect them.
//!
//! ```
//! use std::time::Duration;
//! use berth_pki::{CertificateAuthority, LeafRequest, Usage};
//!
//! let year = Duration::from_secs(365 * 24 * 3600);
//! let ca = CertificateAuthority::create("example-ca", 10 * year)?;
//! let admin = ca.issue(&LeafRequest {
//!     common_name: "admin".into(),
//!     organizations: vec!["platform:admins".into()],
//!     ..LeafRequest::new(Usage::Client, year)
//! })?;
//! assert!(admin.cert_pem.starts_with("-----BEGIN CERTIFICATE-----"));
//! # Ok::<(), berth_pki::Error>(())
//! ```

mod authority;
mod error;
pub mod kubeconfig;
mod request;
mod service_account;
mod symmetric;
mod validity;

pub use authority::{
    Certificate, CertificateAuthority, LeafRequest, Usage, count_certificates, keep_certificates, read_certificates,
};
pub use error::Error;
pub use request::CertificateRequest;
pub use service_account::ServiceAccountKey;
pub use symmetric::create_symmetric_key;
pub use validity::{not_after, not_before, renew_at};
