//! Real nodes on this machine: for each a network namespace, a mount namespace and a cgroup, and in them a kubelet, a
//! containerd, a kube-proxy, and Calico's agent, which enforces network policies on every packet.
//!
//! There are no GPUs: a device plugin advertises as many as the node's shape has.

mod addons;
mod calico;
mod command;
mod config_files;
mod images;
mod kernel;
mod network;
mod place;
mod programs;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use berth_process::{
    ProcessSpec,
    binaries::{self, Binary},
    write_atomic,
};
use kube::Client;
use serde_json::{Value, json};

pub(crate) use self::kernel::raise_limits;
use self::network::{MOST_NODES, Network, Place};
use self::place::NodePlace;
use self::programs::Node;
use crate::nodes::SYSTEM_NODE;
use crate::pki::{HostPki, file};
use crate::{Error, Home, HostClusterConfig, Purpose, dra_driver};

/// User name of kube-proxy, which Kubernetes binds to a role by itself.
const PROXY_USER: &str = "system:kube-proxy";

/// The real nodes of a host cluster.
#[derive(Clone, Debug)]
pub(crate) struct RealNodes {
    home: Home,
    network: Network,
    kubernetes_version: String,
    nodes: Vec<(Place, NodePlace)>,
    /// GPUs by node name, without the nodes that have none.
    gpus: BTreeMap<String, u32>,
    /// As [`crate::HostClusterConfig::purpose`].
    is_prepared: bool,
}

impl RealNodes {
    /// Chooses the network, and makes namespaces, links and folders for every node of the plan.
    pub(crate) fn create(home: &Home, config: &HostClusterConfig) -> Result<Self, Error> {
        if let Some(why) = obstacle_to_real_nodes() {
            return Err(Error::NoRealNodes(why));
        }
        let count = config.nodes.names().len();
        if count > MOST_NODES {
            return Err(Error::NoRealNodes(format!(
                "one machine has at most {MOST_NODES} of them"
            )));
        }
        let network = Network::load_or_choose(home)?;
        let nodes = Self::of_network(home, network, config);
        for (place, files) in &nodes.nodes {
            nodes.network.create_node(place)?;
            files.create()?;
        }
        let places: Vec<Place> = nodes.nodes.iter().map(|(place, _)| place.clone()).collect();
        nodes.network.route(&places)?;
        Ok(nodes)
    }

    /// The nodes of the plan, which exist already.
    pub(crate) fn load(home: &Home, config: &HostClusterConfig) -> Result<Self, Error> {
        let network = Network::load(home)?
            .ok_or_else(|| Error::NoRealNodes(format!("{} was started without real nodes", home.root().display())))?;
        Ok(Self::of_network(home, network, config))
    }

    fn of_network(home: &Home, network: Network, config: &HostClusterConfig) -> Self {
        let plan = &config.nodes;
        let node = |(index, name): (usize, &String)| (network.place(index), NodePlace::new(home, &network, name));
        Self {
            home: home.clone(),
            kubernetes_version: config.kubernetes_version.clone(),
            nodes: plan.names().iter().enumerate().map(node).collect(),
            gpus: plan.gpus_by_node(),
            network,
            is_prepared: config.purpose == Purpose::Berth,
        }
    }

    /// The range of Services.
    pub(crate) fn services(&self) -> String {
        self.network.services()
    }

    /// The address of the Service `kubernetes`.
    pub(crate) fn service_address(&self) -> Ipv4Addr {
        self.network.service(1)
    }

    fn dns(&self) -> Ipv4Addr {
        self.network.service(10)
    }

    /// This machine's address towards the nodes.
    pub(crate) fn machine(&self) -> Ipv4Addr {
        self.network.machine()
    }

    /// Names and pod ranges of the nodes, for their Node objects.
    pub(crate) fn pod_ranges(&self) -> impl Iterator<Item = (&str, &str)> {
        self.nodes
            .iter()
            .map(|(place, files)| (files.name(), place.pods.as_str()))
    }

    /// Names of the nodes that have no GPUs, or of the first one if all have some: they run the cluster's own pods.
    pub(crate) fn system_nodes(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .names()
            .filter(|name| !self.gpus.contains_key(*name))
            .map(str::to_owned)
            .collect();
        if names.is_empty() {
            names.extend(self.names().take(1).map(str::to_owned));
        }
        names
    }

    /// Names of all nodes.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().map(|(_, files)| files.name())
    }

    /// Objects that must exist before the nodes' programs start.
    pub(crate) async fn apply_objects(&self, client: &Client) -> Result<(), Error> {
        let mut further = vec![
            // The API server reads logs and runs commands in containers through kubelets.
            calico::bind("kube-apiserver-kubelet-client", "system:kubelet-api-admin"),
            calico::bind(PROXY_USER, "system:node-proxier"),
        ];
        further.extend(dra_driver::objects());
        further.extend(addons::objects(self.dns(), &self.addon_selector()));
        if !self.is_prepared {
            return calico::apply_all(client, further).await;
        }
        let crds = binaries::manifests("calico", berth_kubernetes_versions::CALICO)
            .ok_or_else(|| Error::NoRealNodes("Calico's CRDs are missing (`make nodes` copies them)".into()))?;
        let (calico, further) = tokio::join!(calico::apply(client, &crds), calico::apply_all(client, further));
        calico.and(further)
    }

    /// Labels of the nodes that the cluster's own pods run on: of those that no tenant gets, if they are known.
    fn addon_selector(&self) -> Value {
        if self.is_prepared {
            json!({SYSTEM_NODE: ""})
        } else {
            json!({})
        }
    }

    /// Names of the nodes that the cluster's own pods can run on.
    pub(crate) fn addon_nodes(&self) -> Vec<String> {
        if self.is_prepared {
            self.system_nodes()
        } else {
            self.names().map(str::to_owned).collect()
        }
    }

    /// Arguments of `nsenter` with which a command runs as on a node, with its directories and its network.
    pub(crate) fn enter(&self, node: &str) -> Result<Vec<String>, Error> {
        let (place, files) = self.find(node)?;
        Ok(programs::enter(place, files))
    }

    /// The network plugins of a node, and the file that configures them.
    fn network_plugins(&self, place: &Place, node: &Node<'_>) -> ([Binary; 4], &'static str, String) {
        if self.is_prepared {
            let plugins = [Binary::CalicoCni, Binary::HostLocal, Binary::Loopback, Binary::Portmap];
            let text = config_files::calico_cni(node.files.name(), &place.pods, &node.kubeconfig("cni"));
            (plugins, "10-calico.conflist", text)
        } else {
            let plugins = [Binary::Ptp, Binary::HostLocal, Binary::Loopback, Binary::Portmap];
            (plugins, "10-plain.conflist", config_files::plain_cni(&place.pods))
        }
    }

    /// Writes every node's configuration.
    pub(crate) fn write_files(&self, pki: &HostPki, server: &str) -> Result<(), Error> {
        for (place, files) in &self.nodes {
            let node = self.node(place, files);
            let name = files.name();
            for (program, user, groups) in [
                ("kubelet", format!("system:node:{name}"), &["system:nodes"] as &[&str]),
                ("kube-proxy", PROXY_USER.to_owned(), &[]),
                ("felix", calico::FELIX_USER.to_owned(), &[]),
                ("cni", calico::CNI_USER.to_owned(), &[]),
                ("dra-driver", dra_driver::USER.to_owned(), &[]),
            ] {
                pki.ensure_kubeconfig(&node.kubeconfig(program), server, &user, groups)?;
            }
            let (certificate, key) = pki.ensure_node_certificate(name, place.address.into())?;
            let shim = binaries::find(Binary::ContainerdShim, berth_kubernetes_versions::CONTAINERD)?;
            let runc = binaries::find(Binary::Runc, berth_kubernetes_versions::RUNC)?;
            let kubelet = config_files::Kubelet {
                cgroup: files.cgroup(),
                client_ca: &pki.cert(file::CA),
                certificate: &certificate,
                key: &key,
                dns: self.dns(),
            };
            for (file, text) in [
                ("containerd.toml", config_files::containerd(&shim, &runc)),
                ("kubelet.json", config_files::kubelet(&kubelet)),
                (
                    "kube-proxy.json",
                    config_files::kube_proxy(name, &node.kubeconfig("kube-proxy"), &self.network.pods()),
                ),
            ] {
                write_atomic(&files.config(file), text.as_bytes(), 0o600)?;
            }
            let (plugins, file, text) = self.network_plugins(place, &node);
            write_atomic(&files.own("cni-config").join(file), text.as_bytes(), 0o600)?;
            for binary in plugins {
                let program = binaries::find(binary, binary.pinned_version())?;
                link(&program, &files.own("cni-bin").join(binary.name()))?;
            }
            // The scrub step Images looks for it.
            let ctr = binaries::find(Binary::Ctr, berth_kubernetes_versions::CONTAINERD)?;
            link(&ctr, &files.own("containerd-bin").join(Binary::Ctr.name()))?;
        }
        Ok(())
    }

    /// The programs of all nodes.
    pub(crate) fn programs(&self) -> Result<Vec<ProcessSpec>, Error> {
        let mut specs = Vec::new();
        for (place, files) in &self.nodes {
            let node = self.node(place, files);
            specs.extend([node.containerd()?, node.kube_proxy()?, node.kubelet()?]);
            if self.is_prepared {
                specs.push(node.felix()?);
            }
            if let Some(gpus) = self.gpus.get(files.name()) {
                specs.extend([node.device_plugin(*gpus)?, node.dra_driver(*gpus)?]);
            }
        }
        Ok(specs)
    }

    fn node<'a>(&'a self, place: &'a Place, files: &'a NodePlace) -> Node<'a> {
        Node {
            home: &self.home,
            place,
            files,
            kubernetes_version: &self.kubernetes_version,
        }
    }
}

/// Why this machine cannot have real nodes; none if it can.
pub fn obstacle_to_real_nodes() -> Option<String> {
    if !cfg!(target_os = "linux") {
        return Some("real nodes need Linux".into());
    }
    if !rustix::process::geteuid().is_root() {
        return Some("real nodes need root, for network namespaces and mounts".into());
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if !root_is_mounted(&mounts) {
        return Some(
            "real nodes do not run in a chroot: / must be a mount point, from which containers change their root"
                .into(),
        );
    }
    for program in ["ip", "nsenter", "unshare", "mount", "iptables", "ipset", "conntrack"] {
        if !in_path(program) {
            return Some(format!(
                "real nodes need the program {program} (`make prerequisites` installs it)"
            ));
        }
    }
    for binary in [
        Binary::Kubelet,
        Binary::Containerd,
        Binary::Runc,
        Binary::CalicoFelix,
        Binary::CalicoCni,
    ] {
        if binaries::find(binary, binary.pinned_version()).is_err() {
            return Some(format!("{} is not built (`make nodes` builds it)", binary.name()));
        }
    }
    None
}

/// Whether `/` is a mount point, by `/proc/self/mountinfo` (`man 5 proc_pid_mountinfo`). In a chroot it is not: runc cannot change
/// how mounts propagate there, and `nsenter` leaves the chroot.
fn root_is_mounted(mountinfo: &str) -> bool {
    mountinfo
        .lines()
        .any(|line| line.split_ascii_whitespace().nth(4) == Some("/"))
}

/// Removes what real nodes of a home leave: containers, namespaces, mounts, cgroups, links. Their supervised processes must
/// have ended. A home without real nodes has nothing to remove.
pub(crate) fn remove(home: &Home) -> Result<(), Error> {
    let Some(network) = Network::load(home)? else {
        return Ok(());
    };
    // The file says which networks and mounts of this machine are removed.
    home.check_private()?;
    let _lock = network::lock()?;
    place::remove_all(&network)?;
    network.remove()?;
    if network::unmount_run()? {
        place::remove_mount_points();
    }
    Ok(())
}

fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // An ordinary user's path often lacks the last two.
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .any(|dir| dir.join(program).is_file())
}

fn link(target: &Path, path: &Path) -> Result<(), Error> {
    if std::fs::read_link(path).is_ok_and(|current| current == target) {
        return Ok(());
    }
    let _ = std::fs::remove_file(path);
    symlink(target, path).map_err(|source| Error::File {
        action: "create",
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chroot_is_recognized() {
        let proc = "91 90 0:5 / /proc rw,nosuid - proc proc rw";
        assert!(!root_is_mounted(proc));
        assert!(root_is_mounted(&format!(
            "{proc}\n25 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw"
        )));
        assert!(!root_is_mounted(
            "25 1 254:0 / /var/tmp rw,relatime shared:1 - ext4 /dev/vda rw"
        ));
    }
}
