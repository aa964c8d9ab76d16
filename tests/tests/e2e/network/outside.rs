//! A machine beside the nodes.

use super::{DECLARED, METADATA, OTHER, OUTSIDE_PORT, address};
use berth_process::binaries::{self, Binary};
use berth_tests::test_cluster::TestCluster;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::ListParams};
use serde_json::Value;
use std::process::Stdio;
use tokio::process::{Child, Command};

/// `ip` of this machine, with the arguments in one text: none of them has a space.
pub(crate) async fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().await.unwrap();
    assert!(
        output.status.success(),
        "ip {arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// agnhost in a network namespace of this machine.
pub(crate) fn inside(namespace: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("nsenter");
    command
        .arg(format!("--net=/run/netns/{namespace}"))
        .arg(binaries::find_pinned(Binary::Agnhost).unwrap())
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    command
}

/// A machine beside the nodes that has the declared address, another one, and that of metadata services; it serves on all of
/// them. Gone with the value.
pub(super) struct Outside {
    namespace: String,
    _server: Child,
}

impl Outside {
    pub(super) async fn start(host: &TestCluster) -> Self {
        let network = std::fs::read(host.home().run().join("network.config")).unwrap();
        let network: Value = serde_json::from_slice(&network).unwrap();
        let (id, range) = (network["id"].as_str().unwrap(), network["range"].as_u64().unwrap());
        let (fabric, namespace) = (format!("berth-{id}"), format!("berth-{id}-outside"));
        let own = format!("10.{range}.0.253");
        ip(&format!("netns add {namespace}")).await;
        ip(&format!(
            "-n {fabric} link add outside type veth peer name eth0 netns {namespace}"
        ))
        .await;
        ip(&format!("-n {fabric} link set outside master br0 up")).await;
        for line in [
            "link set lo up".to_owned(),
            "link set eth0 up".to_owned(),
            format!("addr add {own}/24 dev eth0"),
            format!("addr add {DECLARED}/32 dev lo"),
            format!("addr add {OTHER}/32 dev lo"),
            format!("addr add {METADATA}/32 dev lo"),
        ] {
            ip(&format!("-n {namespace} {line}")).await;
        }
        let nodes: Api<Node> = Api::all(host.client.clone());
        for node in nodes.list(&ListParams::default()).await.unwrap() {
            let pods = node.spec.unwrap().pod_cidr.unwrap();
            let address = address(&node.status.unwrap().addresses.unwrap());
            let number = address.rsplit('.').next().unwrap();
            ip(&format!("-n {namespace} route add {pods} via {address}")).await;
            for target in [DECLARED, OTHER, METADATA] {
                ip(&format!("-n berth-{id}-{number} route add {target}/32 via {own}")).await;
            }
        }
        let port = format!("--http-port={OUTSIDE_PORT}");
        let server = inside(&namespace, &["netexec", &port, "--udp-port=-1"])
            .spawn()
            .unwrap();
        Self {
            namespace,
            _server: server,
        }
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        // Its link goes with it.
        let removed = std::process::Command::new("ip")
            .args(["netns", "del", &self.namespace])
            .status();
        if !removed.is_ok_and(|status| status.success()) {
            eprintln!("the namespace {} is left", self.namespace);
        }
    }
}
