//! The network of real nodes: a bridge in a network namespace of its own, one more namespace for each node, and one link
//! to this machine, over which the API server reaches the nodes and they reach it.
//!
//! ```text
//!  this machine        fabric namespace            node namespaces
//!  berth-1a2b3 ──────── br0 (bridge) ────────────── eth0  10.N.0.<node>
//!  10.N.0.254                                       pods  10.N.<128 + node>.0/24
//! ```
//!
//! Services have 10.N.64.0/18, which this machine routes to a node, so that a team on this machine reaches what it would
//! reach from a node.
//!
//! No namespace has a way out of the machine: the default route of a node ends at the bridge, and this machine rejects
//! packets to addresses of the cluster's range that it has no other route for.

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::PathBuf;

use berth_process::write_atomic;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::command::{ip, run};
use crate::{Error, Home};

/// Where namespaces and sockets of all clusters of this machine are: short, since a socket's path has 108 bytes.
pub(super) const RUN: &str = "/run/berth";
/// The second byte of a cluster's addresses: 10.200.0.0/16 and what follows.
const RANGES: std::ops::RangeInclusive<u8> = 200..=249;
const FILE: &str = "network.config";
/// The most nodes that one cluster has addresses for.
pub(super) const MOST_NODES: usize = 100;

/// Names and addresses of a cluster's network. Stays the same as long as the cluster exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Network {
    /// Five hexadecimal digits that no other home on this machine has.
    pub(super) id: String,
    /// The second byte of its addresses.
    range: u8,
}

/// A node's place in the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Name of the network namespace.
    pub(super) namespace: String,
    /// The node's address.
    pub(super) address: Ipv4Addr,
    /// The range of its pods.
    pub(super) pods: String,
    /// Its end of the link, as it is called in the fabric's namespace.
    link: String,
}

impl Network {
    /// The network of a home, chosen when it was first started.
    pub(super) fn load(home: &Home) -> Result<Option<Self>, Error> {
        home.read_config(FILE)
    }

    /// The network of a home; chooses a range that nothing on this machine uses if there is none yet.
    pub(super) fn load_or_choose(home: &Home) -> Result<Self, Error> {
        let _lock = lock()?;
        if let Some(network) = Self::load(home)? {
            network.create_fabric()?;
            return Ok(network);
        }
        let digest = Sha256::digest(home.root().as_os_str().as_encoded_bytes());
        let routes = ip("-4 route show table all")?;
        let range = RANGES
            .into_iter()
            .find(|range| !routes.contains(&format!("10.{range}.")))
            .ok_or_else(|| Error::Node {
                line: "choose addresses".into(),
                why: "10.200.0.0/16 to 10.249.0.0/16 are all in use on this machine".into(),
            })?;
        let network = Self {
            id: format!("{digest:x}")[..5].to_owned(),
            range,
        };
        let text = serde_json::to_vec_pretty(&network).unwrap_or_default();
        write_atomic(&home.config(FILE), &text, 0o600)?;
        // While the lock is held: its route shows others that the range is in use.
        network.create_fabric()?;
        Ok(network)
    }

    /// This machine's address in the network, at which the API server listens.
    pub(super) fn machine(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, self.range, 0, 254)
    }

    /// The range of all addresses.
    fn range(&self) -> String {
        format!("10.{}.0.0/16", self.range)
    }

    /// The range that all pods' ranges are part of.
    pub(super) fn pods(&self) -> String {
        format!("10.{}.128.0/17", self.range)
    }

    /// The range of Services.
    pub(super) fn services(&self) -> String {
        format!("10.{}.64.0/18", self.range)
    }

    /// The `number`-th address of the range of Services: the first is the API server's, the tenth by convention that of DNS.
    pub(super) fn service(&self, number: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, self.range, 64, number)
    }

    /// The place of the `index`-th node (from 0).
    pub(super) fn place(&self, index: usize) -> Place {
        let number = u8::try_from(index + 1).unwrap_or(u8::MAX);
        Place {
            namespace: format!("berth-{}-{number}", self.id),
            address: Ipv4Addr::new(10, self.range, 0, number),
            pods: format!("10.{}.{}.0/24", self.range, 128 + number),
            link: format!("node{number}"),
        }
    }

    fn fabric(&self) -> String {
        format!("berth-{}", self.id)
    }

    /// This machine's link to the bridge has the same name as the fabric's namespace.
    fn link(&self) -> String {
        self.fabric()
    }

    /// Where the cluster's mount namespaces are kept. It exists as long as the cluster.
    pub(super) fn folder(&self) -> PathBuf {
        PathBuf::from(RUN).join(&self.id)
    }

    /// To be called with the lock held.
    fn create_fabric(&self) -> Result<(), Error> {
        mount_run()?;
        let folder = self.folder();
        fs::create_dir_all(&folder).map_err(|source| Error::File {
            action: "create",
            path: folder.clone(),
            source,
        })?;
        let (fabric, link) = (self.fabric(), self.link());
        if !exists(&fabric) {
            ip(&format!("netns add {fabric}"))?;
        }
        // The fabric's own packet filter does not apply to packets over the bridge.
        sysctl(&fabric, "bridge/bridge-nf-call-iptables", "0")?;
        sysctl(&fabric, "bridge/bridge-nf-call-ip6tables", "0")?;
        if ip(&format!("-n {fabric} link show br0")).is_err() {
            ip(&format!("-n {fabric} link add br0 type bridge"))?;
        }
        ip(&format!("-n {fabric} link set lo up"))?;
        ip(&format!("-n {fabric} link set br0 up"))?;
        if ip(&format!("link show {link}")).is_err() {
            ip(&format!("link add {link} type veth peer name machine netns {fabric}"))?;
        }
        ip(&format!("-n {fabric} link set machine master br0 up"))?;
        ip(&format!("addr replace {}/24 dev {link}", self.machine()))?;
        ip(&format!("link set {link} up"))?;
        ip(&format!("route replace unreachable {}", self.range()))?;
        Ok(())
    }

    /// Makes a node's namespace and connects it. Existing parts stay.
    pub(super) fn create_node(&self, place: &Place) -> Result<(), Error> {
        let (fabric, node) = (self.fabric(), &place.namespace);
        if !exists(node) {
            ip(&format!("netns add {node}"))?;
        }
        for (name, value) in [
            ("ipv4/ip_forward", "1"),
            ("ipv4/conf/all/rp_filter", "1"),
            // Pods' processes may listen on low ports without a capability, as on any containerd node.
            ("ipv4/ip_unprivileged_port_start", "0"),
        ] {
            sysctl(node, name, value)?;
        }
        ip(&format!("-n {node} link set lo up"))?;
        if ip(&format!("-n {node} link show eth0")).is_err() {
            // The end in the fabric may be left over from a node that was just removed.
            let _ = ip(&format!("-n {fabric} link del {}", place.link));
            ip(&format!(
                "-n {fabric} link add {} type veth peer name eth0 netns {node}",
                place.link
            ))?;
        }
        ip(&format!("-n {fabric} link set {} master br0 up", place.link))?;
        ip(&format!("-n {node} addr replace {}/24 dev eth0", place.address))?;
        ip(&format!("-n {node} link set eth0 up"))?;
        // A program on the node that connects to a Service needs a route before the address is translated. Packets
        // to other addresses are lost: no node answers for them on the bridge.
        ip(&format!(
            "-n {node} route replace default dev eth0 src {}",
            place.address
        ))?;
        Ok(())
    }

    /// Lets every node and this machine find the pods of every node, and this machine the Services.
    pub(super) fn route(&self, places: &[Place]) -> Result<(), Error> {
        if let Some(any) = places.first() {
            ip(&format!("route replace {} via {}", self.services(), any.address))?;
        }
        for target in places {
            ip(&format!("route replace {} via {}", target.pods, target.address))?;
            for from in places.iter().filter(|from| *from != target) {
                ip(&format!(
                    "-n {} route replace {} via {}",
                    from.namespace, target.pods, target.address
                ))?;
            }
        }
        Ok(())
    }

    /// Removes every namespace, link and route of the network. The processes in them must have ended. To be called with the
    /// lock held.
    pub(super) fn remove(&self) -> Result<(), Error> {
        for namespace in ip("netns list")?
            .lines()
            .filter_map(|line| line.split_ascii_whitespace().next())
            .filter(|name| *name == self.fabric() || name.starts_with(&format!("{}-", self.fabric())))
        {
            ip(&format!("netns del {namespace}"))?;
        }
        // The link goes with its other end, but the kernel takes its time; routes over it go with it.
        let _ = ip(&format!("link del {}", self.link()));
        let _ = ip(&format!("route del unreachable {}", self.range()));
        Ok(())
    }
}

/// Mounts [`RUN`], where namespaces are kept: that takes a mount with private propagation.
fn mount_run() -> Result<(), Error> {
    if run("mountpoint", ["-q", RUN]).is_ok() {
        return Ok(());
    }
    fs::create_dir_all(RUN).map_err(|source| Error::File {
        action: "create",
        path: RUN.into(),
        source,
    })?;
    run("mount", ["-t", "tmpfs", "-o", "mode=0700,size=1m", "berth", RUN])?;
    run("mount", ["--make-private", RUN]).map(drop)
}

/// Removes [`RUN`] when no cluster has namespaces there; returns whether it did. To be called with the lock held.
pub(super) fn unmount_run() -> Result<bool, Error> {
    let is_last = fs::read_dir(RUN).is_ok_and(|mut entries| entries.next().is_none());
    if is_last {
        if run("mountpoint", ["-q", RUN]).is_ok() {
            run("umount", [RUN])?;
        }
        let _ = fs::remove_dir(RUN);
    }
    Ok(is_last)
}

/// Held while ranges are chosen and released: two clusters may start at the same time.
pub(super) fn lock() -> Result<File, Error> {
    let path = PathBuf::from(format!("{RUN}.lock"));
    let failed = |action| {
        let path = path.clone();
        move |source| Error::File { action, path, source }
    };
    let file = File::options()
        .create(true)
        .append(true)
        .open(&path)
        .map_err(failed("open"))?;
    flock(&file, FlockOperation::LockExclusive)
        .map_err(std::io::Error::from)
        .map_err(failed("lock"))?;
    Ok(file)
}

fn exists(namespace: &str) -> bool {
    namespace_file(namespace).exists()
}

/// The file by which a network namespace is entered.
pub(super) fn namespace_file(namespace: &str) -> PathBuf {
    PathBuf::from("/run/netns").join(namespace)
}

/// Sets a network parameter in a namespace. (Not with `ip netns exec`, which mounts another /sys.)
fn sysctl(namespace: &str, name: &str, value: &str) -> Result<(), Error> {
    let net = format!("--net={}", namespace_file(namespace).display());
    let write = format!("test ! -e /proc/sys/net/{name} || echo {value} > /proc/sys/net/{name}");
    run("nsenter", [net.as_str(), "--", "sh", "-c", &write]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_their_own_addresses_and_ranges() {
        let network = Network {
            id: "1a2b3".into(),
            range: 200,
        };
        assert_eq!(network.machine(), Ipv4Addr::new(10, 200, 0, 254));
        let (first, last) = (network.place(0), network.place(MOST_NODES - 1));
        assert_eq!(
            (first.address, first.pods.as_str()),
            (Ipv4Addr::new(10, 200, 0, 1), "10.200.129.0/24")
        );
        assert_eq!(
            (last.address, last.pods.as_str()),
            (Ipv4Addr::new(10, 200, 0, 100), "10.200.228.0/24")
        );
        // Names of links have at most 15 bytes.
        assert!(network.link().len() <= 15 && last.link.len() <= 15);
    }
}
