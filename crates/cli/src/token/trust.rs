//! Which certificates an issuer is verified with.

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_pki::read_certificates;
use kube::Config;

use super::OidcArguments;
use super::provider::SignInError;

/// The authorities that sign the server certificate of an issuer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// Those of the system.
    System,
    /// Those in a file (PEM).
    File(PathBuf),
    /// These (DER), and no others.
    Certificates(Vec<Vec<u8>>),
}

impl Trust {
    /// What the arguments say.
    pub(super) fn read(arguments: &OidcArguments) -> Result<Self, SignInError> {
        match (&arguments.ca_data, &arguments.ca_file) {
            (Some(data), _) => {
                let invalid =
                    |why: String| SignInError::Local(format!("--ca-data is no base64 of certificates in PEM: {why}"));
                let pem = STANDARD.decode(data).map_err(|error| invalid(error.to_string()))?;
                let pem = String::from_utf8(pem).map_err(|error| invalid(error.to_string()))?;
                let certificates = read_certificates(&pem).map_err(|error| invalid(error.to_string()))?;
                Ok(Self::Certificates(certificates))
            }
            (None, Some(file)) => Ok(Self::File(file.clone())),
            (None, None) => Ok(Self::System),
        }
    }

    /// Lets a client trust these.
    pub(super) fn configure(&self, config: &mut Config) {
        // Those of the system are read otherwise, and not every machine has any.
        let (certificates, file) = match self {
            Self::System => (None, None),
            Self::File(file) => (Some(Vec::new()), Some(file.clone())),
            Self::Certificates(certificates) => (Some(certificates.clone()), None),
        };
        config.root_cert = certificates;
        config.root_cert_file = file;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_pki::CertificateAuthority;
    use std::time::Duration;

    fn read(data: &str) -> Result<Trust, SignInError> {
        Trust::read(&OidcArguments {
            ca_data: Some(data.into()),
            ..OidcArguments::default()
        })
    }

    #[test]
    fn certificates_are_taken_from_the_arguments_and_nothing_else_with_them() {
        let authority = CertificateAuthority::create("issuer", Duration::from_secs(3600)).unwrap();
        let Trust::Certificates(read_ones) = read(&STANDARD.encode(authority.cert_pem())).unwrap() else {
            panic!("not these certificates")
        };
        assert_eq!(read_ones, read_certificates(authority.cert_pem()).unwrap());
        let key = STANDARD.encode(authority.key_pem());
        for bad in ["", "%", "////", &key] {
            let error = read(bad).unwrap_err().to_string();
            assert!(error.contains("--ca-data"), "{error}");
        }
    }

    #[test]
    fn a_client_trusts_the_system_only_if_nothing_else_is_named() {
        let configured = |trust: Trust| {
            let mut config = Config::new("https://id.example.com".parse().unwrap());
            trust.configure(&mut config);
            (config.root_cert, config.root_cert_file)
        };
        assert_eq!(configured(Trust::System), (None, None));
        let file = PathBuf::from("/etc/ca.pem");
        assert_eq!(configured(Trust::File(file.clone())), (Some(Vec::new()), Some(file)));
        let certificates = vec![vec![1]];
        assert_eq!(
            configured(Trust::Certificates(certificates.clone())),
            (Some(certificates), None)
        );
    }
}
