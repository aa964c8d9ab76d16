//! The certificates of the datastore that the chart installs. For clients: a certificate authority, with which control signs the
//! tenants' certificates, and a certificate for the members of etcd. For the members among themselves: an authority that
//! signs nothing else, so that a tenant's certificate opens no peer port, and another certificate. All are Secrets. They
//! change only if one is missing, about to expire, or has other names than it should have. etcd reads certificates again
//! for every connection.

use super::{MANAGED_BY, PART_OF};
use crate::{
    apply::{is_status, optional},
    control_plane::{CertificateError, Leaf, LeafStore},
    secret_texts::read_texts,
};
use berth_pki::{CertificateAuthority, Usage};
use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::core::v1::{Secret, Service},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use std::{collections::BTreeMap, net::IpAddr, time::Duration};

/// Life of the authority: ten years, as kubeadm does.
const AUTHORITY_VALIDITY: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Name of the certificate in the Secret of the one that clients see.
const SERVER: &str = "server";
/// Name of the certificate in the Secret of the one that members show each other.
const PEER: &str = "peer";
/// Files of the authority's Secret, as those of type `kubernetes.io/tls` are called.
const AUTHORITY_FILES: [&str; 2] = ["tls.crt", "tls.key"];
/// Field manager.
const MANAGER: &str = "berth-control-certificates";

/// Why the certificates could not be created.
#[derive(Debug, thiserror::Error)]
pub enum CertificatesError {
    /// The host rejects a request or does not answer.
    #[error("cannot {what}: {source}")]
    Api {
        /// What was tried.
        what: String,
        /// The answer.
        source: Box<kube::Error>,
    },
    /// Keys and certificates.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The Secret exists and is not a certificate authority.
    #[error(
        "Secret {name} exists and is not a certificate authority (tls.crt, tls.key): {why}; delete it, or use another name"
    )]
    Damaged {
        /// Its name.
        name: String,
        /// What is wrong with it.
        why: String,
    },
}

fn failed(what: impl Into<String>) -> impl FnOnce(kube::Error) -> CertificatesError {
    let what = what.into();
    move |source| CertificatesError::Api {
        what,
        source: Box::new(source),
    }
}

/// The datastore that needs certificates.
#[derive(Clone, Debug)]
pub struct Datastore {
    /// Namespace of the Secrets and Services.
    pub namespace: String,
    /// Service that clients connect to; its addresses are in the certificate.
    pub service: String,
    /// Headless Service of the members; the names of all of them are in the certificate.
    pub peers: String,
    /// Secret of the authority of clients, and of the certificate that they see.
    pub authority: String,
    /// Secret of the certificate that clients see.
    pub server: String,
    /// Secret of the authority of members among themselves.
    pub peer_authority: String,
    /// Secret of the certificate that members show each other.
    pub peer: String,
}

/// A certificate of the members, and where it is stored.
struct MemberCertificate<'a> {
    /// Secret of its authority.
    authority: &'a str,
    /// Common name of the authority.
    authority_name: &'static str,
    /// Secret of the certificate.
    secret: &'a str,
    /// Its name in the Secret.
    name: &'static str,
    /// What it says.
    leaf: Leaf,
}

impl Datastore {
    /// All certificates of the members, if these are the addresses of the Service.
    fn certificates(&self, addresses: &[IpAddr]) -> [MemberCertificate<'_>; 2] {
        [
            MemberCertificate {
                authority: &self.authority,
                authority_name: "berth-datastore",
                secret: &self.server,
                name: SERVER,
                leaf: self.server_certificate(addresses),
            },
            MemberCertificate {
                authority: &self.peer_authority,
                authority_name: "berth-datastore-peers",
                secret: &self.peer,
                name: PEER,
                leaf: self.peer_certificate(),
            },
        ]
    }

    /// The certificate that members show each other. A member looks up the names in it for the address that connects: the
    /// name of the headless Service has the addresses of all members. A member that is alone connects to 127.0.0.1.
    fn peer_certificate(&self) -> Leaf {
        let Self { namespace, peers, .. } = self;
        Leaf::new("etcd-peer", Usage::Both)
            .dns_names(vec![
                format!("{peers}.{namespace}.svc"),
                format!("*.{peers}.{namespace}.svc"),
            ])
            .ip_address(IpAddr::from([127, 0, 0, 1]))
    }

    /// The certificate that clients see.
    fn server_certificate(&self, addresses: &[IpAddr]) -> Leaf {
        let Self {
            namespace,
            service,
            peers,
            ..
        } = self;
        let leaf = Leaf::new("etcd", Usage::Both)
            .dns_names(vec![
                "localhost".into(),
                service.clone(),
                format!("{service}.{namespace}"),
                format!("{service}.{namespace}.svc"),
                format!("*.{peers}.{namespace}.svc"),
            ])
            .ip_address(IpAddr::from([127, 0, 0, 1]));
        addresses.iter().fold(leaf, |leaf, address| leaf.ip_address(*address))
    }
}

/// Creates or renews all Secrets.
///
/// # Errors
/// The host refuses or does not answer, or the existing Secret is not an authority.
pub async fn apply_certificates(
    client: &Client,
    datastore: &Datastore,
    now: Timestamp,
) -> Result<(), CertificatesError> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &datastore.namespace);
    let services: Api<Service> = Api::namespaced(client.clone(), &datastore.namespace);
    let service = optional(services.get(&datastore.service).await).map_err(failed("read the datastore's Service"))?;
    let addresses = service.map(|service| service_addresses(&service)).unwrap_or_default();
    for certificate in datastore.certificates(&addresses) {
        apply_certificate(&secrets, &certificate, now).await?;
    }
    Ok(())
}

/// Creates or renews one certificate, and its authority if there is none.
async fn apply_certificate(
    secrets: &Api<Secret>,
    certificate: &MemberCertificate<'_>,
    now: Timestamp,
) -> Result<(), CertificatesError> {
    let name = certificate.secret;
    let authority = load_or_create_authority(secrets, certificate.authority, certificate.authority_name).await?;
    let stored = optional(secrets.get(name).await).map_err(failed("read the datastore's certificate"))?;
    let before = stored.map(read_texts).unwrap_or_default();
    let after = leaves(&authority, before.clone(), certificate.name, &certificate.leaf, now)?;
    if before == after {
        tracing::info!(secret = name, "the datastore's certificate is up to date");
        return Ok(());
    }
    let secret = secret(name, "Opaque", after);
    secrets
        .patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&secret))
        .await
        .map_err(failed("store the datastore's certificate"))?;
    tracing::info!(secret = name, "the datastore has a new certificate");
    Ok(())
}

/// The stored authority, or a new one, which is stored before it signs anything.
async fn load_or_create_authority(
    secrets: &Api<Secret>,
    name: &str,
    common_name: &str,
) -> Result<CertificateAuthority, CertificatesError> {
    let mut stored = optional(secrets.get(name).await).map_err(failed("read the datastore's authority"))?;
    if stored.is_none() {
        let new = CertificateAuthority::create(common_name, AUTHORITY_VALIDITY).map_err(CertificateError::from)?;
        let data = AUTHORITY_FILES.map(str::to_owned).into_iter();
        let data = data
            .zip([new.cert_pem().to_owned(), new.key_pem().to_owned()])
            .collect();
        match secrets
            .create(&PostParams::default(), &secret(name, "kubernetes.io/tls", data))
            .await
        {
            Ok(created) => stored = Some(created),
            // Another run created it at the same time.
            Err(error) if is_status(&error, 409) => {
                stored = optional(secrets.get(name).await).map_err(failed("read the datastore's authority"))?;
            }
            Err(error) => return Err(failed("store the datastore's authority")(error)),
        }
    }
    let data = stored.map(read_texts).unwrap_or_default();
    let [cert, key] = AUTHORITY_FILES.map(|file| data.get(file).map(String::as_str).unwrap_or_default());
    CertificateAuthority::from_pem(cert, key).map_err(|error| CertificatesError::Damaged {
        name: name.into(),
        why: error.to_string(),
    })
}

/// The contents of the Secret of a certificate.
fn leaves(
    authority: &CertificateAuthority,
    stored: BTreeMap<String, String>,
    name: &str,
    leaf: &Leaf,
    now: Timestamp,
) -> Result<BTreeMap<String, String>, CertificateError> {
    let mut leaves = LeafStore::new(stored, now);
    leaves.issue(authority, name, leaf)?;
    let mut data = leaves.into_data();
    data.insert("ca.crt".into(), authority.cert_pem().into());
    Ok(data)
}

/// Addresses of a Service; a headless one has none.
fn service_addresses(service: &Service) -> Vec<IpAddr> {
    let spec = service.spec.as_ref();
    let all = spec.and_then(|spec| spec.cluster_ips.as_deref()).unwrap_or_default();
    all.iter().filter_map(|address| address.parse().ok()).collect()
}

fn secret(name: &str, kind: &str, data: BTreeMap<String, String>) -> Secret {
    let labels = [PART_OF, MANAGED_BY].map(|(key, value)| (key.to_owned(), value.to_owned()));
    Secret {
        metadata: ObjectMeta {
            name: Some(name.into()),
            labels: Some(labels.into()),
            ..ObjectMeta::default()
        },
        type_: Some(kind.into()),
        data: Some(
            data.into_iter()
                .map(|(name, text)| (name, ByteString(text.into_bytes())))
                .collect(),
        ),
        ..Secret::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::SignedDuration;

    fn datastore() -> Datastore {
        Datastore {
            namespace: "berth-system".into(),
            service: "berth-etcd".into(),
            peers: "berth-etcd-peers".into(),
            authority: "berth-etcd-ca".into(),
            server: "berth-etcd-server".into(),
            peer_authority: "berth-etcd-peer-ca".into(),
            peer: "berth-etcd-peer".into(),
        }
    }

    #[test]
    fn a_certificate_is_kept_until_it_expires_or_its_names_change() {
        let authority = CertificateAuthority::create("ca", AUTHORITY_VALIDITY).unwrap();
        let now = Timestamp::now();
        let leaf = datastore().server_certificate(&["10.96.0.7".parse().unwrap()]);
        let issue = |authority: &CertificateAuthority, stored, leaf: &Leaf, now| {
            leaves(authority, stored, SERVER, leaf, now).unwrap()
        };
        let first = issue(&authority, BTreeMap::new(), &leaf, now);
        assert_eq!(
            first.keys().collect::<Vec<_>>(),
            ["ca.crt", "server.crt", "server.key", "server.mark"]
        );
        assert_eq!(issue(&authority, first.clone(), &leaf, now), first);
        let later = now + SignedDuration::from_hours(24 * 80);
        assert_ne!(issue(&authority, first.clone(), &leaf, later), first, "due");
        let moved = datastore().server_certificate(&["10.96.0.8".parse().unwrap()]);
        assert_ne!(issue(&authority, first.clone(), &moved, now), first, "another address");
        let other = CertificateAuthority::create("ca", AUTHORITY_VALIDITY).unwrap();
        assert_ne!(issue(&other, first.clone(), &leaf, now), first, "another authority");
    }

    #[test]
    fn members_have_an_authority_of_their_own() {
        let datastore = datastore();
        let [server, peer] = datastore.certificates(&[]);
        assert_ne!(server.authority, peer.authority);
        assert_ne!(server.secret, peer.secret);
        let authority = CertificateAuthority::create(peer.authority_name, AUTHORITY_VALIDITY).unwrap();
        let stored = leaves(&authority, BTreeMap::new(), peer.name, &peer.leaf, Timestamp::now()).unwrap();
        assert_eq!(
            stored.keys().collect::<Vec<_>>(),
            ["ca.crt", "peer.crt", "peer.key", "peer.mark"]
        );
        assert_eq!(stored["ca.crt"], authority.cert_pem());
    }
}
