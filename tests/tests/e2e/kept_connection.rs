//! A connection that a former pod of a node has opened and that its peer keeps, in packets. The pod and the peer are network namespaces of their own
//! at the node's. Its packet filter lets the pod connect to the peer, and from the peer nothing but what belongs to an established connection, as
//! network plug-ins do.

use crate::{network::ip, on_node};
use berth_tests::{test_cluster::TestCluster, wait::SOON};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;
use std::{fs::File, net, os::fd::AsFd, process::Command, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// Addresses of the pod and of its peer, and of the node towards each.
const POD: (&str, &str) = ("198.18.0.2", "198.18.0.1");
const PEER: (&str, &str) = ("198.18.0.6", "198.18.0.5");
/// The node's link to the peer.
const PEER_LINK: &str = "kept-peer";
/// How long nothing may arrive until it counts as kept out. The peer sends it again several times meanwhile.
const QUIET: Duration = Duration::from_secs(3);

/// What the packet filter of the node does with what comes from the peer, one after the other.
const RULES: [&str; 2] = ["-m conntrack --ctstate ESTABLISHED -j ACCEPT", "-j DROP"];

/// The connection. The namespaces and the rules are gone with it.
pub(crate) struct KeptConnection {
    pod: TcpStream,
    peer: TcpStream,
    _made: Made,
}

/// What was made for a connection. If this process is killed, it goes with the node: its namespaces are named as those of the node's cluster.
struct Made {
    /// Network namespaces, with which their links go.
    namespaces: [String; 2],
    /// The commands that remove the rules.
    removals: Vec<Command>,
}

impl KeptConnection {
    /// Lets a pod of the node open it.
    pub(crate) async fn open(host: &TestCluster, node: &str) -> Self {
        let network = std::fs::read(host.home().run().join("network.config")).unwrap();
        let network: Value = serde_json::from_slice(&network).unwrap();
        let id = network["id"].as_str().unwrap();
        let nodes: Api<Node> = Api::all(host.client.clone());
        let addresses = nodes.get(node).await.unwrap().status.unwrap().addresses.unwrap();
        let address = addresses.iter().find(|address| address.type_ == "InternalIP").unwrap();
        let number = address.address.rsplit('.').next().unwrap();
        let of_node = format!("berth-{id}-{number}");
        let mut made = Made {
            namespaces: ["kept-pod", PEER_LINK].map(|name| format!("berth-{id}-{name}")),
            removals: Vec::new(),
        };
        let namespaces = &made.namespaces;
        for (namespace, link, (own, towards)) in [(&namespaces[0], "kept-pod", POD), (&namespaces[1], PEER_LINK, PEER)]
        {
            ip(&format!("netns add {namespace}")).await;
            ip(&format!(
                "-n {of_node} link add {link} type veth peer name eth0 netns {namespace}"
            ))
            .await;
            ip(&format!("-n {of_node} addr add {towards}/30 dev {link}")).await;
            ip(&format!("-n {of_node} link set {link} up")).await;
            for line in [
                "link set lo up".to_owned(),
                "link set eth0 up".to_owned(),
                format!("addr add {own}/30 dev eth0"),
                format!("route add default via {towards}"),
            ] {
                ip(&format!("-n {namespace} {line}")).await;
            }
        }
        for rule in RULES {
            let arguments = |action: &str| format!("--wait {action} FORWARD -i {PEER_LINK} {rule}");
            let mut removal = host.command_on_node(node, "iptables").unwrap();
            removal.args(arguments("-D").split(' '));
            made.removals.push(removal);
            let added = arguments("-A");
            on_node::run(host, node, "iptables", &added.split(' ').collect::<Vec<_>>());
        }
        let [pod, peer] = connect(&made.namespaces);
        Self {
            pod: TcpStream::from_std(pod).unwrap(),
            peer: TcpStream::from_std(peer).unwrap(),
            _made: made,
        }
    }

    /// Asserts that what the peer sends arrives at the pod's address.
    pub(crate) async fn assert_lets_the_peer_in(&mut self) {
        self.peer.write_all(b"known").await.unwrap();
        assert_eq!(receive(&mut self.pod, "at the pod").await, *b"known");
    }

    /// Asserts that it does not, and that this is not because of the link: once the pod itself sends, it does.
    pub(crate) async fn assert_keeps_the_peer_out(&mut self) {
        self.peer.write_all(b"again").await.unwrap();
        let mut arrived = [0; 5];
        let read = timeout(QUIET, self.pod.read_exact(&mut arrived)).await;
        assert!(read.is_err(), "the former connection lets in {arrived:?}: {read:?}");
        self.pod.write_all(b"fresh").await.unwrap();
        assert_eq!(receive(&mut self.peer, "at the peer").await, *b"fresh");
        assert_eq!(receive(&mut self.pod, "at the pod").await, *b"again");
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let namespaces = self.namespaces.iter().map(|namespace| {
            let mut command = Command::new("ip");
            command.args(["netns", "del", namespace]);
            command
        });
        for mut command in self.removals.drain(..).chain(namespaces) {
            if !command.status().is_ok_and(|status| status.success()) {
                eprintln!("something is left: {command:?} failed");
            }
        }
    }
}

/// Five bytes.
async fn receive(stream: &mut TcpStream, place: &str) -> [u8; 5] {
    let mut bytes = [0; 5];
    let read = timeout(SOON, stream.read_exact(&mut bytes)).await;
    read.unwrap_or_else(|_| panic!("nothing arrives {place}")).unwrap();
    bytes
}

/// Both ends of a connection from the first namespace to the second one.
fn connect(namespaces: &[String; 2]) -> [net::TcpStream; 2] {
    let listener = within(&namespaces[1], || net::TcpListener::bind((PEER.0, 0)).unwrap());
    let target = listener.local_addr().unwrap();
    let pod = within(&namespaces[0], move || {
        net::TcpStream::connect_timeout(&target, SOON).unwrap()
    });
    let (peer, _) = listener.accept().unwrap();
    for stream in [&pod, &peer] {
        stream.set_nonblocking(true).unwrap();
        stream.set_nodelay(true).unwrap();
    }
    [pod, peer]
}

/// Does something in a network namespace, to which the sockets that it opens belong.
fn within<T: Send>(namespace: &str, action: impl FnOnce() -> T + Send) -> T {
    let namespace = File::open(format!("/run/netns/{namespace}")).unwrap();
    let work = || {
        // Only the thread moves.
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        action()
    };
    std::thread::scope(|scope| scope.spawn(work).join()).unwrap()
}
