//! Certificate signing requests.

use crate::Error;
use rcgen::{
    CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384,
    PKCS_ECDSA_P521_SHA512, PKCS_ED25519, PKCS_RSA_SHA256, RsaKeySize,
};

/// A new key and a request for a certificate of it.
#[derive(Clone, PartialEq, Eq)]
pub struct CertificateRequest {
    /// Private key, PKCS#8 PEM. Secret.
    pub key_pem: String,
    /// PKCS#10 request, DER. It names nobody: it only proves that its maker has the key.
    pub request_der: Vec<u8>,
}

impl std::fmt::Debug for CertificateRequest {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("CertificateRequest").finish_non_exhaustive()
    }
}

impl CertificateRequest {
    /// Creates a key of a type that Kubernetes names in `PodCertificateProjection.keyType`, for example `ECDSAP256`, and the request.
    /// RSA keys take up to seconds of computing.
    ///
    /// # Errors
    /// [`Error::KeyType`] for another type, [`Error::Crypto`] when the library cannot create a key or sign the request.
    pub fn create(key_type: &str) -> Result<Self, Error> {
        let key = match key_type {
            "RSA3072" => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_3072),
            "RSA4096" => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_4096),
            "ECDSAP256" => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256),
            "ECDSAP384" => KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384),
            "ECDSAP521" => KeyPair::generate_for(&PKCS_ECDSA_P521_SHA512),
            "ED25519" => KeyPair::generate_for(&PKCS_ED25519),
            _ => return Err(Error::KeyType(key_type.to_owned())),
        };
        let key = key.map_err(|source| Error::Crypto {
            action: "create a key",
            source,
        })?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&key).map_err(|source| Error::Crypto {
            action: "sign a certificate signing request",
            source,
        })?;
        Ok(Self {
            key_pem: key.serialize_pem(),
            request_der: request.der().to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use x509_parser::{certification_request::X509CertificationRequest, prelude::FromDer as _};

    #[test]
    fn every_key_type_gives_a_request_without_a_name() {
        for key_type in ["RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"] {
            let made = CertificateRequest::create(key_type).unwrap();
            assert!(made.key_pem.starts_with("-----BEGIN PRIVATE KEY-----"), "{key_type}");
            let (rest, parsed) = X509CertificationRequest::from_der(&made.request_der).unwrap();
            assert!(rest.is_empty());
            assert_eq!(parsed.certification_request_info.subject.to_string(), "", "{key_type}");
            let key = KeyPair::from_pem(&made.key_pem).unwrap();
            let public = parsed.certification_request_info.subject_pki.subject_public_key.data;
            assert_eq!(&*public, key.public_key_raw(), "{key_type}");
        }
    }

    #[test]
    fn an_unknown_key_type_is_an_error() {
        let error = CertificateRequest::create("DSA").unwrap_err();
        assert_eq!(error.to_string(), "unknown key type \"DSA\"");
    }
}
