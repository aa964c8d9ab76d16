//! Certificate authorities and the certificates they sign.

use std::net::IpAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SanType,
};
use time::OffsetDateTime;
use x509_parser::pem::{Pem, parse_x509_pem};

use crate::Error;
use crate::validity::Validity;

/// Letters of a line in PEM.
const PEM_LINE: usize = 64;

/// What a leaf certificate may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Usage {
    /// TLS client authentication.
    Client,
    /// TLS server authentication.
    Server,
    /// Both (etcd members are servers and clients of each other).
    Both,
}

/// The contents of a leaf certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafRequest {
    /// Subject common name: the user name for Kubernetes and etcd. 1 to 64 characters.
    pub common_name: String,
    /// Subject organizations: the groups for Kubernetes. At most two.
    pub organizations: Vec<String>,
    /// DNS names the certificate is valid for (servers).
    pub dns_names: Vec<String>,
    /// IP addresses the certificate is valid for (servers).
    pub ip_addresses: Vec<IpAddr>,
    /// Client, server or both.
    pub usage: Usage,
    /// Validity from now on, at most until the authority expires.
    pub validity: Duration,
}

impl LeafRequest {
    /// A request without names: fill in the rest with struct update syntax.
    ///
    /// `usage` is the purpose of the certificate, `validity` how long it is valid from now on.
    pub fn new(usage: Usage, validity: Duration) -> Self {
        Self {
            common_name: String::new(),
            organizations: Vec::new(),
            dns_names: Vec::new(),
            ip_addresses: Vec::new(),
            usage,
            validity,
        }
    }
}

/// A signed leaf certificate with its private key.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The certificate, PEM.
    pub cert_pem: String,
    /// The private key, PKCS#8 PEM. Secret.
    pub key_pem: String,
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Certificate")
            .field("cert_pem", &self.cert_pem)
            .finish_non_exhaustive()
    }
}

/// A self-signed authority: its certificate, and the key it signs with.
pub struct CertificateAuthority {
    cert_pem: String,
    key_pem: String,
    not_after: OffsetDateTime,
    issuer: Issuer<'static, KeyPair>,
}

impl std::fmt::Debug for CertificateAuthority {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("CertificateAuthority")
            .field("cert_pem", &self.cert_pem)
            .finish_non_exhaustive()
    }
}

impl CertificateAuthority {
    /// Creates a new self-signed authority named `common_name` that is valid for `validity` from now on.
    ///
    /// It may sign leaves but no further authorities (path length 0).
    ///
    /// # Errors
    /// [`Error::CommonName`] for an unusable name, [`Error::Validity`] for an impossible date, [`Error::Crypto`] when
    /// the library cannot create a key.
    pub fn create(common_name: &str, validity: Duration) -> Result<Self, Error> {
        let validity = Validity::starting_now(validity, None)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = distinguished_name(common_name, &[])?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        params.not_before = validity.not_before;
        params.not_after = validity.not_after;
        let key = generate_key()?;
        let certificate = params.self_signed(&key).map_err(|source| Error::Crypto {
            action: "sign the authority's own certificate",
            source,
        })?;
        Ok(Self {
            cert_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            not_after: validity.not_after,
            issuer: Issuer::new(params, key),
        })
    }

    /// Loads an authority that was stored as PEM text.
    ///
    /// # Errors
    /// [`Error::NotACertificate`], [`Error::NotAnAuthority`] or [`Error::KeyMismatch`] when the two texts are not a
    /// certificate authority and its key.
    pub fn from_pem(cert_pem: &str, key_pem: &str) -> Result<Self, Error> {
        let (_, pem) =
            parse_x509_pem(cert_pem.as_bytes()).map_err(|error| Error::NotACertificate(error.to_string()))?;
        let certificate = pem
            .parse_x509()
            .map_err(|error| Error::NotACertificate(error.to_string()))?;
        let subject = certificate.subject().to_string();
        if !certificate.is_ca() {
            return Err(Error::NotAnAuthority { subject });
        }
        let key = KeyPair::from_pem(key_pem).map_err(|source| Error::Crypto {
            action: "read the authority's private key",
            source,
        })?;
        if certificate.public_key().raw != key.subject_public_key_info() {
            return Err(Error::KeyMismatch { subject });
        }
        let not_after = certificate.validity().not_after.to_datetime();
        let issuer = Issuer::from_ca_cert_pem(cert_pem, key).map_err(|source| Error::Crypto {
            action: "read the authority's certificate",
            source,
        })?;
        Ok(Self {
            cert_pem: cert_pem.to_owned(),
            key_pem: key_pem.to_owned(),
            not_after,
            issuer,
        })
    }

    /// The authority's certificate, PEM.
    pub fn cert_pem(&self) -> &str {
        &self.cert_pem
    }

    /// The authority's private key, PKCS#8 PEM. Secret.
    pub fn key_pem(&self) -> &str {
        &self.key_pem
    }

    /// Signs a new leaf certificate for a new key.
    ///
    /// The certificate is valid from five minutes ago, at most until the authority expires.
    ///
    /// # Errors
    /// [`Error::CommonName`], [`Error::TooManyOrganizations`], [`Error::DnsName`] or [`Error::Validity`] for a request
    /// that cannot be expressed, [`Error::Expired`] when the authority's own certificate has expired, [`Error::Crypto`]
    /// when the library fails.
    pub fn issue(&self, request: &LeafRequest) -> Result<Certificate, Error> {
        let LeafRequest {
            common_name,
            organizations,
            dns_names,
            ip_addresses,
            usage,
            validity,
        } = request;
        let validity = Validity::starting_now(*validity, Some(self.not_after))?;
        let mut params = CertificateParams::default();
        params.distinguished_name = distinguished_name(common_name, organizations)?;
        for name in dns_names {
            let ascii = name.as_str().try_into().map_err(|_| Error::DnsName(name.clone()))?;
            params.subject_alt_names.push(SanType::DnsName(ascii));
        }
        params
            .subject_alt_names
            .extend(ip_addresses.iter().copied().map(SanType::IpAddress));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match usage {
            Usage::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
            Usage::Server => vec![ExtendedKeyUsagePurpose::ServerAuth],
            Usage::Both => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
        };
        params.use_authority_key_identifier_extension = true;
        params.not_before = validity.not_before;
        params.not_after = validity.not_after;
        let key = generate_key()?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(|source| Error::Crypto {
            action: "sign a leaf certificate",
            source,
        })?;
        Ok(Certificate {
            cert_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        })
    }
}

/// The number of certificates in a bundle of authorities (PEM). Other blocks are skipped, as API servers do.
///
/// # Errors
/// [`Error::NotACertificate`] when the bundle has none, or one that cannot be read.
pub fn count_certificates(bundle_pem: &str) -> Result<usize, Error> {
    Ok(read_certificates(bundle_pem)?.len())
}

/// The certificates (DER) in a bundle of authorities (PEM). Other blocks are skipped, as API servers do.
///
/// # Errors
/// [`Error::NotACertificate`] when the bundle has none, or one that cannot be read.
pub fn read_certificates(bundle_pem: &str) -> Result<Vec<Vec<u8>>, Error> {
    let mut all = Vec::new();
    for pem in Pem::iter_from_buffer(bundle_pem.as_bytes()) {
        let pem = pem.map_err(|error| Error::NotACertificate(error.to_string()))?;
        if pem.label == "CERTIFICATE" {
            pem.parse_x509()
                .map_err(|error| Error::NotACertificate(error.to_string()))?;
            all.push(pem.contents);
        }
    }
    if all.is_empty() {
        return Err(Error::NotACertificate("there is no block CERTIFICATE".into()));
    }
    Ok(all)
}

/// A bundle of authorities (PEM) with its certificates and nothing else: no key that somebody put beside them, and no text between them.
///
/// # Errors
/// [`Error::NotACertificate`] when the bundle has none, or one that cannot be read.
pub fn keep_certificates(bundle_pem: &str) -> Result<String, Error> {
    let mut kept = String::new();
    for certificate in read_certificates(bundle_pem)? {
        kept.push_str("-----BEGIN CERTIFICATE-----\n");
        for line in STANDARD.encode(certificate).as_bytes().chunks(PEM_LINE) {
            kept.extend(line.iter().map(|letter| char::from(*letter)));
            kept.push('\n');
        }
        kept.push_str("-----END CERTIFICATE-----\n");
    }
    Ok(kept)
}

/// Creates a P-256 key.
pub(crate) fn generate_key() -> Result<KeyPair, Error> {
    KeyPair::generate().map_err(|source| Error::Crypto {
        action: "generate a private key",
        source,
    })
}

/// Builds a subject from a user name and its groups.
///
/// rcgen keeps one value per attribute type, but Kubernetes reads a group from each organization. The attribute can
/// be written in two ways there (by name and by object identifier), which allows two organizations.
fn distinguished_name(common_name: &str, organizations: &[String]) -> Result<DistinguishedName, Error> {
    if common_name.is_empty() || common_name.chars().count() > 64 {
        return Err(Error::CommonName(common_name.to_owned()));
    }
    let spellings = [DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])];
    if organizations.len() > spellings.len() {
        return Err(Error::TooManyOrganizations(organizations.len()));
    }
    let mut name = DistinguishedName::new();
    for (spelling, organization) in spellings.into_iter().zip(organizations) {
        name.push(spelling, organization.as_str());
    }
    name.push(DnType::CommonName, common_name);
    Ok(name)
}

#[cfg(test)]
#[path = "authority_tests.rs"]
mod tests;
