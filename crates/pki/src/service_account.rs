//! The key pair that signs service-account tokens.

use rcgen::KeyPair;

use crate::Error;
use crate::authority::generate_key;

/// An ECDSA P-256 key pair for service-account tokens (kube-apiserver signs with ES256).
#[derive(Clone, PartialEq, Eq)]
pub struct ServiceAccountKey {
    /// Private key, PKCS#8 PEM, for `--service-account-signing-key-file` and the controller manager's
    /// `--service-account-private-key-file`. Secret.
    pub private_pem: String,
    /// Public key, PKIX PEM, for `--service-account-key-file`.
    pub public_pem: String,
}

impl std::fmt::Debug for ServiceAccountKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("ServiceAccountKey")
            .field("public_pem", &self.public_pem)
            .finish_non_exhaustive()
    }
}

impl ServiceAccountKey {
    /// Creates a new key pair.
    ///
    /// # Errors
    /// [`Error::Crypto`] when the library cannot create a key.
    pub fn create() -> Result<Self, Error> {
        Ok(Self::of(&generate_key()?))
    }

    /// Loads a key pair from its stored private half.
    ///
    /// # Errors
    /// [`Error::Crypto`] when `private_pem` is not a private key in PKCS#8 PEM.
    pub fn from_private_pem(private_pem: &str) -> Result<Self, Error> {
        let key = KeyPair::from_pem(private_pem).map_err(|source| Error::Crypto {
            action: "read the service-account key",
            source,
        })?;
        Ok(Self::of(&key))
    }

    fn of(key: &KeyPair) -> Self {
        Self {
            private_pem: key.serialize_pem(),
            public_pem: key.public_key_pem(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_half_is_derived_from_the_private_half() {
        let created = ServiceAccountKey::create().unwrap();
        assert!(created.private_pem.starts_with("-----BEGIN PRIVATE KEY-----"));
        assert!(created.public_pem.starts_with("-----BEGIN PUBLIC KEY-----"));
        assert_eq!(
            ServiceAccountKey::from_private_pem(&created.private_pem).unwrap(),
            created
        );
    }

    #[test]
    fn debug_output_hides_the_private_half() {
        let key = ServiceAccountKey::create().unwrap();
        assert!(!format!("{key:?}").contains("PRIVATE"));
    }
}
