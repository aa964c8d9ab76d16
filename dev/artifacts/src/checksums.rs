//! SHA256SUMS, and its signature.

use std::fs;
use std::path::Path;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_local::images::file_digest;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;

use crate::Error;

/// The checksums of all files of a folder by name, as `sha256sum` prints and checks them.
pub(crate) fn sums(folder: &Path) -> Result<String, Error> {
    let failed = Error::file("read", folder);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(&failed)? {
        names.push(entry.map_err(&failed)?.file_name());
    }
    names.sort();
    let mut lines = Vec::new();
    for name in names {
        let digest = file_digest(&folder.join(&name))?;
        let sum = digest.trim_start_matches("sha256:");
        lines.push(format!("{sum}  {}\n", name.to_string_lossy()));
    }
    Ok(lines.concat())
}

/// A signature of `text` (ECDSA with P-256 and SHA-256, in base64) with a key in a PEM file (PKCS #8). `cosign verify-blob` and
/// `openssl dgst -verify` check it. It differs each time.
pub(crate) fn sign(text: &[u8], key_file: &Path) -> Result<String, Error> {
    let failed = |reason: String| Error::Key {
        path: key_file.to_owned(),
        reason,
    };
    let pem = fs::read(key_file).map_err(Error::file("read", key_file))?;
    let key = PrivatePkcs8KeyDer::from_pem_slice(&pem)
        .map_err(|error| failed(format!("no private key in PEM form without a password: {error}")))?;
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, key.secret_pkcs8_der())
        .map_err(|error| failed(format!("no key of the curve P-256: {error}")))?;
    let signature = key
        .sign(&SystemRandom::new(), text)
        .map_err(|error| failed(format!("cannot sign: {error}")))?;
    Ok(STANDARD.encode(signature) + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, KeyPair as _, UnparsedPublicKey};
    use tempfile::TempDir;

    #[test]
    fn sums_are_sorted_and_have_the_form_of_sha256sum() {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("b"), "").unwrap();
        fs::write(dir.path().join("a"), "abc").unwrap();
        // The test vectors of FIPS 180-2.
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  a\n\
                        e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  b\n";
        assert_eq!(sums(dir.path()).unwrap(), expected);
    }

    #[test]
    fn a_signature_is_verified_with_the_public_key() {
        let dir = TempDir::new().unwrap();
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new()).unwrap();
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, document.as_ref()).unwrap();
        let file = dir.path().join("key.pem");
        let pem = STANDARD.encode(document.as_ref());
        fs::write(
            &file,
            format!("-----BEGIN PRIVATE KEY-----\n{pem}\n-----END PRIVATE KEY-----\n"),
        )
        .unwrap();

        let signature = STANDARD.decode(sign(b"text", &file).unwrap().trim()).unwrap();
        let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, key.public_key().as_ref());
        assert!(public.verify(b"text", &signature).is_ok());
        assert!(public.verify(b"other", &signature).is_err());
    }

    #[test]
    fn a_file_without_a_key_is_rejected_with_advice() {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("key.pem");
        fs::write(&file, "text").unwrap();
        let message = sign(b"text", &file).unwrap_err().to_string();
        assert!(message.contains("openssl genpkey"), "{message}");
    }
}
