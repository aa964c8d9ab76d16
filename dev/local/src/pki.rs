//! The authorities, certificates and kubeconfigs of a host cluster.
//!
//! Existing files stay, except certificates whose renewal is due: a restarted cluster keeps its identity.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_pki::kubeconfig::{Credential, KubeconfigRequest, kubeconfig};
use berth_pki::{Certificate, CertificateAuthority, LeafRequest, ServiceAccountKey, Usage, renew_at};
use berth_process::write_atomic;

use crate::kubeconfigs::read_kubeconfig;
use crate::{Error, Home};

const DAY: Duration = Duration::from_hours(24);
const AUTHORITY_VALIDITY: Duration = Duration::from_hours(24 * 3650);
const LEAF_VALIDITY: Duration = Duration::from_hours(24 * 365);

/// The names of the files below `pki/`, without `.crt` and `.key`.
pub(crate) mod file {
    pub(crate) const CA: &str = "ca";
    pub(crate) const FRONT_PROXY_CA: &str = "front-proxy-ca";
    pub(crate) const ETCD_CA: &str = "etcd-ca";
    pub(crate) const ETCD_PEER_CA: &str = "etcd-peer-ca";
    pub(crate) const DATASTORE_CA: &str = "datastore-ca";
    pub(crate) const DATASTORE_PEER_CA: &str = "datastore-peer-ca";
    pub(crate) const APISERVER: &str = "apiserver";
    pub(crate) const APISERVER_ETCD_CLIENT: &str = "apiserver-etcd-client";
    /// Client certificate with which the API server calls kubelets.
    pub(crate) const KUBELET_CLIENT: &str = "apiserver-kubelet-client";
    pub(crate) const FRONT_PROXY_CLIENT: &str = "front-proxy-client";
    pub(crate) const ETCD: &str = "etcd";
    pub(crate) const ETCD_PEER: &str = "etcd-peer";
    pub(crate) const DATASTORE: &str = "datastore";
    pub(crate) const DATASTORE_PEER: &str = "datastore-peer";
    /// Serves health and metrics of components that only this machine talks to.
    pub(crate) const LOCALHOST: &str = "localhost";
    pub(crate) const SERVICE_ACCOUNTS: &str = "service-accounts";
}

/// The cluster's authority, and the directory of all files.
#[derive(Debug)]
pub(crate) struct HostPki {
    dir: PathBuf,
    ca: CertificateAuthority,
}

impl HostPki {
    /// Loads what exists and makes what is missing or due.
    ///
    /// `addresses` are those of the API server besides 127.0.0.1: for pods the first address of the service range, and for
    /// real nodes this machine's address.
    pub(crate) fn load_or_create(home: &Home, addresses: &[IpAddr]) -> Result<Self, Error> {
        let dir = home.pki();
        let ca = load_or_create_authority(&dir, file::CA, "berth-host-ca")?;
        let front_proxy = load_or_create_authority(&dir, file::FRONT_PROXY_CA, "berth-host-front-proxy-ca")?;
        let etcd = load_or_create_authority(&dir, file::ETCD_CA, "berth-host-etcd-ca")?;
        let datastore = load_or_create_authority(&dir, file::DATASTORE_CA, "berth-datastore-ca")?;
        let mut apiserver = server_request("kube-apiserver", Usage::Server);
        apiserver.dns_names.extend(
            [
                "kubernetes",
                "kubernetes.default",
                "kubernetes.default.svc",
                "kubernetes.default.svc.cluster.local",
            ]
            .map(String::from),
        );
        apiserver.ip_addresses.extend(addresses);
        ensure_leaf(&dir, file::APISERVER, &ca, &apiserver)?;
        ensure_leaf(
            &dir,
            file::KUBELET_CLIENT,
            &ca,
            &client_request("kube-apiserver-kubelet-client", &[]),
        )?;
        ensure_leaf(&dir, file::LOCALHOST, &ca, &server_request("localhost", Usage::Server))?;
        ensure_leaf(
            &dir,
            file::FRONT_PROXY_CLIENT,
            &front_proxy,
            &client_request("front-proxy-client", &[]),
        )?;
        // An etcd is also its own client, for its gateway.
        ensure_leaf(&dir, file::ETCD, &etcd, &server_request("etcd", Usage::Both))?;
        ensure_leaf(
            &dir,
            file::APISERVER_ETCD_CLIENT,
            &etcd,
            &client_request("kube-apiserver", &[]),
        )?;
        ensure_leaf(
            &dir,
            file::DATASTORE,
            &datastore,
            &server_request("datastore", Usage::Both),
        )?;
        for (authority, leaf) in [
            (file::ETCD_PEER_CA, file::ETCD_PEER),
            (file::DATASTORE_PEER_CA, file::DATASTORE_PEER),
        ] {
            let peers = load_or_create_authority(&dir, authority, &format!("berth-{authority}"))?;
            ensure_leaf(&dir, leaf, &peers, &server_request(leaf, Usage::Both))?;
        }
        ensure_service_account_key(&dir)?;
        Ok(Self { dir, ca })
    }

    /// The certificate file of that name.
    pub(crate) fn cert(&self, name: &str) -> PathBuf {
        cert_path(&self.dir, name)
    }

    /// The key file of that name.
    pub(crate) fn key(&self, name: &str) -> PathBuf {
        key_path(&self.dir, name)
    }

    /// Ensures the serving certificate of a node's kubelet; returns the files of certificate and key.
    pub(crate) fn ensure_node_certificate(&self, node: &str, address: IpAddr) -> Result<(PathBuf, PathBuf), Error> {
        let name = format!("node-{node}");
        let request = LeafRequest {
            common_name: format!("system:node:{node}"),
            organizations: vec!["system:nodes".into()],
            dns_names: vec![node.into()],
            ip_addresses: vec![address],
            ..LeafRequest::new(Usage::Server, LEAF_VALIDITY)
        };
        ensure_leaf(&self.dir, &name, &self.ca, &request)?;
        Ok((self.cert(&name), self.key(&name)))
    }

    /// Kubeconfig text for a user of the host cluster, signed by its authority.
    pub(crate) fn kubeconfig(&self, server: &str, user: &str, groups: &[&str]) -> Result<String, Error> {
        let Certificate { cert_pem, key_pem } = self.ca.issue(&client_request(user, groups))?;
        Ok(kubeconfig(&KubeconfigRequest {
            cluster_name: "berth-host".into(),
            server: server.into(),
            ca_pem: self.ca.cert_pem().into(),
            user: Credential::ClientCertificate { cert_pem, key_pem },
            namespace: None,
        })?)
    }

    /// Ensures a kubeconfig at `path` for a user of the host cluster. One that is less than a month old and names
    /// `server` stays, so that the processes that use it need no restart.
    pub(crate) fn ensure_kubeconfig(
        &self,
        path: &Path,
        server: &str,
        user: &str,
        groups: &[&str],
    ) -> Result<(), Error> {
        let fresh = fs::metadata(path)
            .and_then(|metadata| metadata.modified())
            .is_ok_and(|written| written.elapsed().is_ok_and(|age| age < 30 * DAY));
        let names_server = || fs::read_to_string(path).is_ok_and(|text| text.contains(&format!("server: {server}\n")));
        // Programs that use it would run the commands in one that somebody else wrote.
        if fresh && names_server() && read_kubeconfig(path).is_ok() {
            return Ok(());
        }
        Ok(write_atomic(
            path,
            self.kubeconfig(server, user, groups)?.as_bytes(),
            0o600,
        )?)
    }
}

fn cert_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.crt"))
}

fn key_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.key"))
}

fn client_request(user: &str, groups: &[&str]) -> LeafRequest {
    LeafRequest {
        common_name: user.into(),
        organizations: groups.iter().map(ToString::to_string).collect(),
        ..LeafRequest::new(Usage::Client, LEAF_VALIDITY)
    }
}

fn server_request(name: &str, usage: Usage) -> LeafRequest {
    LeafRequest {
        common_name: name.into(),
        dns_names: vec!["localhost".into()],
        ip_addresses: vec![Ipv4Addr::LOCALHOST.into()],
        ..LeafRequest::new(usage, LEAF_VALIDITY)
    }
}

/// A file's text; none when there is no file.
fn read_if_exists(path: &Path) -> Result<Option<String>, Error> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::File {
            action: "read",
            path: path.to_owned(),
            source,
        }),
    }
}

fn load_or_create_authority(dir: &Path, name: &str, common_name: &str) -> Result<CertificateAuthority, Error> {
    let (cert_path, key_path) = (cert_path(dir, name), key_path(dir, name));
    if let (Some(cert), Some(key)) = (read_if_exists(&cert_path)?, read_if_exists(&key_path)?) {
        return CertificateAuthority::from_pem(&cert, &key).map_err(|source| Error::DamagedPki {
            path: cert_path,
            source,
        });
    }
    let authority = CertificateAuthority::create(common_name, AUTHORITY_VALIDITY)?;
    write_atomic(&key_path, authority.key_pem().as_bytes(), 0o600)?;
    write_atomic(&cert_path, authority.cert_pem().as_bytes(), 0o600)?;
    Ok(authority)
}

fn ensure_leaf(dir: &Path, name: &str, authority: &CertificateAuthority, request: &LeafRequest) -> Result<(), Error> {
    let (cert_path, key_path) = (cert_path(dir, name), key_path(dir, name));
    if let Some(cert) = read_if_exists(&cert_path)?
        && key_path.exists()
    {
        let due = renew_at(&cert).map_err(|source| Error::DamagedPki {
            path: cert_path.clone(),
            source,
        })?;
        if std::time::SystemTime::from(due) > std::time::SystemTime::now() {
            return Ok(());
        }
    }
    let Certificate { cert_pem, key_pem } = authority.issue(request)?;
    write_atomic(&key_path, key_pem.as_bytes(), 0o600)?;
    Ok(write_atomic(&cert_path, cert_pem.as_bytes(), 0o600)?)
}

fn ensure_service_account_key(dir: &Path) -> Result<(), Error> {
    let (public, private) = (
        cert_path(dir, file::SERVICE_ACCOUNTS),
        key_path(dir, file::SERVICE_ACCOUNTS),
    );
    let key = match read_if_exists(&private)? {
        Some(_) if public.exists() => return Ok(()),
        Some(text) => ServiceAccountKey::from_private_pem(&text).map_err(|source| Error::DamagedPki {
            path: private.clone(),
            source,
        })?,
        None => ServiceAccountKey::create()?,
    };
    write_atomic(&private, key.private_pem.as_bytes(), 0o600)?;
    Ok(write_atomic(&public, key.public_pem.as_bytes(), 0o600)?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
        fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .map(|path| (path.clone(), fs::read(path).unwrap()))
            .collect()
    }

    #[test]
    fn a_restart_keeps_every_key() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::new(dir.path());
        home.create().unwrap();
        let address = "10.96.0.1".parse().unwrap();
        HostPki::load_or_create(&home, &[address]).unwrap();
        let first = files(&home.pki());
        assert_eq!(first.len(), 32);
        HostPki::load_or_create(&home, &[address]).unwrap();
        assert_eq!(files(&home.pki()), first);
        for path in first.keys() {
            assert_eq!(
                fs::metadata(path).unwrap().permissions().mode() & 0o077,
                0,
                "{}",
                path.display()
            );
        }
    }

    #[test]
    fn a_kubeconfig_follows_its_server() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::new(dir.path());
        home.create().unwrap();
        let pki = HostPki::load_or_create(&home, &["10.96.0.1".parse().unwrap()]).unwrap();
        let path = home.admin_kubeconfig();
        let write = |server| {
            pki.ensure_kubeconfig(&path, server, "admin", &[]).unwrap();
            fs::read_to_string(&path).unwrap()
        };
        let first = write("https://127.0.0.1:1");
        assert_eq!(write("https://127.0.0.1:1"), first);
        assert!(write("https://127.0.0.1:2").contains("server: https://127.0.0.1:2\n"));
    }

    #[test]
    fn a_kubeconfig_of_somebody_else_does_not_stay() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::new(dir.path());
        home.create().unwrap();
        let pki = HostPki::load_or_create(&home, &["10.96.0.1".parse().unwrap()]).unwrap();
        let (path, server) = (home.control_kubeconfig(), "https://127.0.0.1:1");
        fs::write(
            &path,
            format!(
                "clusters:\n- name: a\n  cluster:\n    server: {server}\nusers:\n- name: a\n  user:\n    exec:\n      command: ./evil\n"
            ),
        )
        .unwrap();
        pki.ensure_kubeconfig(&path, server, "control", &[]).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(server) && !text.contains("evil"), "{text}");
    }
}
