//! The one error type of this crate.

/// Why a key, certificate or kubeconfig could not be made or read.
///
/// No variant carries key material, so every message may be logged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Key generation, signing or encoding failed in the cryptographic library.
    #[error("cannot {action}: {source}")]
    Crypto {
        /// What was being done, as an infinitive ("sign a certificate").
        action: &'static str,
        /// The library's own error.
        source: rcgen::Error,
    },
    /// The text is not a PEM encoded X.509 certificate.
    #[error("not a PEM certificate: {0}")]
    NotACertificate(String),
    /// The certificate of an authority may not sign others (basic constraints lack `CA:TRUE`).
    #[error("certificate of {subject:?} is not a certificate authority")]
    NotAnAuthority {
        /// The subject of the certificate.
        subject: String,
    },
    /// The private key does not belong to the certificate.
    #[error("private key does not belong to the certificate of {subject:?}")]
    KeyMismatch {
        /// The subject of the certificate.
        subject: String,
    },
    /// A common name is empty or longer than the 64 characters that X.520 allows.
    #[error("common name {0:?} must have 1 to 64 characters")]
    CommonName(String),
    /// More groups were requested than a certificate can carry here.
    #[error("a certificate carries at most two organizations, {0} were requested")]
    TooManyOrganizations(usize),
    /// A DNS name has characters that a certificate cannot carry.
    #[error("{0:?} cannot be a DNS name in a certificate")]
    DnsName(String),
    /// The validity does not fit into a date.
    #[error("a validity of {0:?} is too long for a certificate")]
    Validity(std::time::Duration),
    /// The authority has expired, so that no certificate of it is valid.
    #[error("the certificate of the authority that signs has expired at {0}")]
    Expired(String),
    /// The cryptographic library gives no random bytes.
    #[error("cannot get random bytes for a key")]
    Random,
    /// A key of an unknown type was asked for.
    #[error("unknown key type {0:?}")]
    KeyType(String),
    /// A kubeconfig could not be written as YAML.
    #[error("cannot write the kubeconfig as YAML: {0}")]
    Yaml(String),
}
