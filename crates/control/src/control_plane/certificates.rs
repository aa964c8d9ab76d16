//! Certificate authorities of a tenant, one for each purpose, and the leaf certificates issued by them.
//!
//! Authorities live as long as the tenant, but for that of client certificates, which may be [replaced](super::client_authority).
//! Leaves are short-lived and renewed after two thirds of their life; they are kept in a [`LeafStore`] so that rendering again gives the
//! same bytes and no process restarts without need.

use super::{
    client_authority::{Rotation, trusted_bundle},
    component::FILES,
    encryption::{Encryption, EncryptionError},
};
use berth_pki::{
    Certificate, CertificateAuthority, Error as PkiError, LeafRequest, ServiceAccountKey, Usage,
    kubeconfig::{Credential, KubeconfigRequest, kubeconfig},
    not_before, renew_at,
};
use jiff::Timestamp;
use std::{collections::BTreeMap, net::IpAddr, time::Duration};

/// Life of a certificate authority: ten years, as kubeadm does.
pub(super) const AUTHORITY_VALIDITY: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Life of a leaf certificate: 90 days, renewed after 60.
const LEAF_VALIDITY: Duration = Duration::from_secs(90 * 24 * 3600);

/// The user that control is in tenants. Nobody there can impersonate it.
pub const CONTROL_USER: &str = berth_api::PLATFORM_USER;
/// The user that Argo CD is in tenants. Nobody there can impersonate it either: what it reads does not keep a tenant awake, and audit logs
/// tell by its name what comes from the platform.
pub const ARGO_CD_USER: &str = "berth:argocd";
/// The user that the syncer is in its tenant.
pub const TENANT_USER: &str = "berth:syncer";

/// Why certificates could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// Making or reading a key or a certificate failed.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// A stored part of the PKI is missing.
    #[error(
        "the stored PKI lacks {0}; restore the Secret `pki` of the control-plane namespace, or recreate the tenant"
    )]
    Missing(String),
    /// What is stored of the rotation of the authority of client certificates is damaged.
    #[error(
        "the state of the rotation in the Secret `pki` of the control-plane namespace cannot be read ({0}); remove its key \
         client-rotation.json, and ask for another rotation"
    )]
    Rotation(String),
    /// What is stored of the encryption of the tenant's objects is damaged.
    #[error(transparent)]
    Encryption(#[from] EncryptionError),
}

/// The certificate authorities of a tenant. Their private keys stay in the control-plane namespace, and with the
/// components that must have them.
#[derive(Debug)]
pub struct Authorities {
    /// Signs what the API server serves with; clients trust it.
    pub server: CertificateAuthority,
    /// Signs the client certificates that the API server accepts.
    pub client: CertificateAuthority,
    /// Certificates (PEM) of the authorities whose client certificates the API server accepts: that of `client`, and during a rotation
    /// another one.
    pub trusted_clients: String,
    /// The last rotation of `client`.
    pub rotation: Option<Rotation>,
    /// How the tenant's objects are encrypted where they are stored.
    pub encryption: Encryption,
    /// Signs the API server's own certificate towards aggregated API servers.
    pub front_proxy: CertificateAuthority,
    /// Signs both ends between the API server and the syncer's admission server: it signs no other certificates.
    pub admission: CertificateAuthority,
    /// Signs both ends between the API server and the syncer's egress broker.
    pub egress: CertificateAuthority,
    /// Signs both ends between the API server and the kubelets that the syncer stands in for. The syncer has its key.
    pub kubelet: CertificateAuthority,
    /// Signs client certificates of the datastore. Belongs to the platform, not to the tenant.
    pub datastore: CertificateAuthority,
    /// Signs the tenant's service-account tokens.
    pub service_account: ServiceAccountKey,
}

/// Authorities that tenants of earlier versions lack.
const ADDED_LATER: [&str; 3] = ["admission", "egress", "kubelet"];

impl Authorities {
    /// Makes the authorities of a new tenant as stored data.
    ///
    /// # Errors
    /// No key can be made.
    pub fn create(tenant: &str) -> Result<BTreeMap<String, String>, CertificateError> {
        let mut stored = BTreeMap::new();
        for purpose in ["server", "client", "front-proxy"] {
            add_authority(&mut stored, tenant, purpose)?;
        }
        stored.extend(Self::missing(tenant, &stored)?);
        stored.insert("service-account.key".into(), ServiceAccountKey::create()?.private_pem);
        Ok(stored)
    }

    /// The authorities that the stored data of a tenant of an earlier version lacks.
    ///
    /// # Errors
    /// No key can be made.
    pub fn missing(
        tenant: &str,
        stored: &BTreeMap<String, String>,
    ) -> Result<BTreeMap<String, String>, CertificateError> {
        let mut added = BTreeMap::new();
        for purpose in ADDED_LATER {
            if !stored.contains_key(&format!("{purpose}-ca.crt")) {
                add_authority(&mut added, tenant, purpose)?;
            }
        }
        Ok(added)
    }

    /// Reads authorities from what [`Authorities::create`] made, and the datastore's CA from the platform's files.
    ///
    /// # Errors
    /// A part is missing or damaged.
    pub fn load(
        stored: &BTreeMap<String, String>,
        datastore_ca_cert: &str,
        datastore_ca_key: &str,
    ) -> Result<Self, CertificateError> {
        let part = |name: &str| stored.get(name).ok_or_else(|| CertificateError::Missing(name.into()));
        let authority = |purpose: &str| -> Result<CertificateAuthority, CertificateError> {
            let (cert, key) = (part(&format!("{purpose}-ca.crt"))?, part(&format!("{purpose}-ca.key"))?);
            Ok(CertificateAuthority::from_pem(cert, key)?)
        };
        Ok(Self {
            server: authority("server")?,
            client: authority("client")?,
            trusted_clients: trusted_bundle(stored),
            rotation: Rotation::read(stored)?,
            encryption: Encryption::read(stored)?,
            front_proxy: authority("front-proxy")?,
            admission: authority("admission")?,
            egress: authority("egress")?,
            kubelet: authority("kubelet")?,
            datastore: CertificateAuthority::from_pem(datastore_ca_cert, datastore_ca_key)?,
            service_account: ServiceAccountKey::from_private_pem(part("service-account.key")?)?,
        })
    }

    /// A kubeconfig for the tenant that names the client certificate `client.crt`/`client.key` beside it.
    ///
    /// # Errors
    /// The text cannot be written.
    pub fn kubeconfig_from_files(&self, server: &str) -> Result<String, CertificateError> {
        self.kubeconfig(
            server,
            "tenant",
            Credential::ClientCertificateFiles {
                cert: format!("{FILES}/client.crt").into(),
                key: format!("{FILES}/client.key").into(),
            },
        )
    }

    /// A kubeconfig for the tenant's API server at `server`, its context called `name`.
    ///
    /// # Errors
    /// The text cannot be written.
    pub fn kubeconfig(&self, server: &str, name: &str, user: Credential) -> Result<String, CertificateError> {
        Ok(kubeconfig(&KubeconfigRequest {
            cluster_name: name.into(),
            server: server.into(),
            ca_pem: self.server.cert_pem().into(),
            user,
            namespace: None,
        })?)
    }

    /// A kubeconfig for control itself: member of `system:masters`, valid for an hour, kept in memory only.
    ///
    /// # Errors
    /// The certificate cannot be made.
    pub fn control_kubeconfig(&self, server: &str) -> Result<String, CertificateError> {
        let mut request = LeafRequest::new(Usage::Client, Duration::from_secs(3600));
        request.common_name = CONTROL_USER.into();
        request.organizations = vec!["system:masters".into()];
        let Certificate { cert_pem, key_pem } = self.client.issue(&request)?;
        self.kubeconfig(server, "control", Credential::ClientCertificate { cert_pem, key_pem })
    }
}

fn add_authority(stored: &mut BTreeMap<String, String>, tenant: &str, purpose: &str) -> Result<(), CertificateError> {
    let authority = CertificateAuthority::create(&format!("berth:{tenant}:{purpose}"), AUTHORITY_VALIDITY)?;
    stored.insert(format!("{purpose}-ca.crt"), authority.cert_pem().to_owned());
    stored.insert(format!("{purpose}-ca.key"), authority.key_pem().to_owned());
    Ok(())
}

/// The contents of a leaf certificate.
#[derive(Clone, Debug)]
pub struct Leaf {
    common_name: String,
    organizations: Vec<String>,
    dns_names: Vec<String>,
    ip_addresses: Vec<IpAddr>,
    usage: Usage,
}

impl Leaf {
    /// A certificate for `common_name`.
    pub fn new(common_name: &str, usage: Usage) -> Self {
        Self {
            common_name: common_name.into(),
            organizations: Vec::new(),
            dns_names: Vec::new(),
            ip_addresses: Vec::new(),
            usage,
        }
    }

    /// With these groups.
    #[must_use]
    pub fn organizations(mut self, organizations: Vec<String>) -> Self {
        self.organizations = organizations;
        self
    }

    /// Valid for these names.
    #[must_use]
    pub fn dns_names(mut self, dns_names: Vec<String>) -> Self {
        self.dns_names = dns_names;
        self
    }

    /// Valid for this name as well.
    #[must_use]
    pub fn dns_name(mut self, name: &str) -> Self {
        if !self.dns_names.iter().any(|known| known == name) {
            self.dns_names.push(name.to_owned());
        }
        self
    }

    /// Valid for this address as well.
    #[must_use]
    pub fn ip_address(mut self, address: IpAddr) -> Self {
        if !self.ip_addresses.contains(&address) {
            self.ip_addresses.push(address);
        }
        self
    }

    /// Text that changes with the contents of the certificate and with the authority.
    fn fingerprint(&self, authority: &CertificateAuthority) -> String {
        berth_api::names::hash(&[&format!("{self:?}"), authority.cert_pem()])
    }
}

/// A certificate and its key, ready to be put among a component's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issued {
    /// Certificate, PEM.
    pub cert_pem: String,
    /// Key, PEM.
    pub key_pem: String,
}

impl Issued {
    /// Puts the pair among `files` as `<name>.crt` and `<name>.key`.
    pub fn put(self, files: &mut BTreeMap<String, String>, name: &str) {
        files.insert(format!("{name}.crt"), self.cert_pem);
        files.insert(format!("{name}.key"), self.key_pem);
    }
}

/// Whether a certificate is valid now, and not due for renewal. One that is valid later was made while the clock of a control was ahead: nobody
/// accepts it, and it would be replaced after two thirds of its life only.
fn is_to_be_kept(cert_pem: &str, now: Timestamp) -> bool {
    not_before(cert_pem).is_ok_and(|from| from <= now) && renew_at(cert_pem).is_ok_and(|at| at > now)
}

/// Leaf certificates that were issued before, as they are stored, and those that a rendering used.
#[derive(Clone, Debug)]
pub struct LeafStore {
    stored: BTreeMap<String, String>,
    used: BTreeMap<String, String>,
    now: Timestamp,
}

impl LeafStore {
    /// The time for which it renews.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// A store of what was saved by [`LeafStore::into_data`]; `now` decides what has to be renewed.
    pub fn new(stored: BTreeMap<String, String>, now: Timestamp) -> Self {
        Self {
            stored,
            used: BTreeMap::new(),
            now,
        }
    }

    /// The certificate called `name`: the stored one if it has the same contents, comes from the same authority, is valid already and not
    /// due for renewal, else a new one.
    ///
    /// # Errors
    /// A new certificate cannot be made.
    pub fn issue(
        &mut self,
        authority: &CertificateAuthority,
        name: &str,
        leaf: &Leaf,
    ) -> Result<Issued, CertificateError> {
        let (cert_name, key_name, mark_name) = (format!("{name}.crt"), format!("{name}.key"), format!("{name}.mark"));
        let mark = leaf.fingerprint(authority);
        let earlier = match (self.stored.get(&cert_name), self.stored.get(&key_name)) {
            (Some(cert), Some(key)) if self.stored.get(&mark_name) == Some(&mark) && is_to_be_kept(cert, self.now) => {
                Some(Issued {
                    cert_pem: cert.clone(),
                    key_pem: key.clone(),
                })
            }
            _ => None,
        };
        let issued = if let Some(issued) = earlier {
            issued
        } else {
            let mut request = LeafRequest::new(leaf.usage, LEAF_VALIDITY);
            request.common_name.clone_from(&leaf.common_name);
            request.organizations.clone_from(&leaf.organizations);
            request.dns_names.clone_from(&leaf.dns_names);
            request.ip_addresses.clone_from(&leaf.ip_addresses);
            let Certificate { cert_pem, key_pem } = authority.issue(&request)?;
            Issued { cert_pem, key_pem }
        };
        self.used.insert(cert_name, issued.cert_pem.clone());
        self.used.insert(key_name, issued.key_pem.clone());
        self.used.insert(mark_name, mark);
        Ok(issued)
    }

    /// When the first certificate in use must be renewed.
    pub fn renew_at(&self) -> Option<Timestamp> {
        self.used
            .iter()
            .filter(|(name, _)| std::path::Path::new(name).extension().is_some_and(|end| end == "crt"))
            .filter_map(|(_, cert)| renew_at(cert).ok())
            .min()
    }

    /// The certificates that were used, to be stored. Those no longer used are dropped.
    pub fn into_data(self) -> BTreeMap<String, String> {
        self.used
    }
}
