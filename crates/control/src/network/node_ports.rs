//! Node ports of a tenant's Services, and who may use them.
//!
//! The proxy of a node sends what arrives at a node port to any pod of the Service, and replaces the client's address by one of
//! the node, unless the Service has `externalTrafficPolicy: Local`. So pods are opened to the addresses of the tenant's own nodes.
//! The tenant's pods may connect to these nodes at the node ports of the tenant's own Services: no other Service of the host has
//! the same ones.

use super::host_network::addresses_of;
use berth_api::network::Protocol;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, Service};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
    sync::{PoisonError, RwLock},
};

/// A port on all nodes that leads to a Service.
pub type NodePort = (Protocol, u16);

/// The node ports of a tenant's Services, and the nodes at which they may be used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePortAccess {
    /// The node ports.
    pub ports: BTreeSet<NodePort>,
    /// Addresses of the tenant's own nodes; none if there are no node ports.
    pub nodes: Vec<IpNet>,
}

impl NodePortAccess {
    /// Access to `ports` at `nodes`.
    pub fn new<'n>(ports: BTreeSet<NodePort>, nodes: impl IntoIterator<Item = &'n Node>) -> Self {
        if ports.is_empty() {
            return Self::default();
        }
        let mut nodes: Vec<IpNet> = nodes.into_iter().flat_map(addresses_of).map(IpNet::from).collect();
        nodes.sort();
        nodes.dedup();
        Self { ports, nodes }
    }

    /// For each protocol, a range that contains its ports.
    pub fn ranges(&self) -> BTreeMap<Protocol, RangeInclusive<u16>> {
        let mut ranges = BTreeMap::new();
        for (protocol, port) in &self.ports {
            let range = ranges.entry(*protocol).or_insert(*port..=*port);
            // Ports of a protocol are sorted.
            *range = *range.start()..=*port;
        }
        ranges
    }
}

/// The node ports of Services that have some.
#[derive(Debug, Default)]
pub struct NodePorts(RwLock<BTreeMap<String, BTreeSet<NodePort>>>);

impl NodePorts {
    /// The node ports of the Services of a namespace of the host.
    pub fn of(&self, namespace: &str) -> BTreeSet<NodePort> {
        let prefix = format!("{namespace}/");
        let services = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let of_namespace = services
            .range(prefix.clone()..)
            .take_while(|(name, _)| name.starts_with(&prefix));
        of_namespace.flat_map(|(_, ports)| ports.iter().copied()).collect()
    }

    /// Sets the node ports of a Service, given by its namespace and name. Returns whether they are others than before.
    pub fn set(&self, service: &str, ports: BTreeSet<NodePort>) -> bool {
        let mut services = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if ports.is_empty() {
            services.remove(service).is_some()
        } else {
            services.insert(service.to_owned(), ports.clone()) != Some(ports)
        }
    }

    /// The Services that have node ports, by namespace and name.
    pub fn names(&self) -> Vec<String> {
        let services = self.0.read().unwrap_or_else(PoisonError::into_inner);
        services.keys().cloned().collect()
    }
}

/// The node ports of a Service.
pub fn node_ports(service: &Service) -> BTreeSet<NodePort> {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    let ports = ports.filter_map(|port| {
        let protocol = match port.protocol.as_deref() {
            Some("UDP") => Protocol::Udp,
            Some("SCTP") => Protocol::Sctp,
            _ => Protocol::Tcp,
        };
        Some((protocol, u16::try_from(port.node_port?).ok()?))
    });
    ports.filter(|(_, port)| *port != 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ports_and_nodes_of_a_tenant() {
        let service: Service = serde_json::from_value(json!({"spec": {"ports": [
            {"port": 80, "nodePort": 30080}, {"port": 53, "protocol": "UDP", "nodePort": 30053}, {"port": 81, "nodePort": 31000},
            {"port": 82},
        ]}}))
        .unwrap();
        let node: Node = serde_json::from_value(json!({"status": {"addresses": [
            {"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "192.168.5.10"},
            {"type": "ExternalIP", "address": "2001:db8::1"},
        ]}}))
        .unwrap();
        let access = NodePortAccess::new(node_ports(&service), [&node, &node]);
        assert_eq!(
            access.ports.iter().copied().collect::<Vec<_>>(),
            [(Protocol::Tcp, 30080), (Protocol::Tcp, 31000), (Protocol::Udp, 30053)]
        );
        assert_eq!(
            access.nodes,
            ["192.168.5.10/32", "2001:db8::1/128"].map(|text| text.parse().unwrap())
        );
        let ranges = access.ranges();
        assert_eq!(
            (&ranges[&Protocol::Tcp], &ranges[&Protocol::Udp]),
            (&(30080..=31000), &(30053..=30053))
        );
        assert_eq!(
            NodePortAccess::new(BTreeSet::new(), [&node]),
            NodePortAccess::default(),
            "no node is opened"
        );
    }

    #[test]
    fn ports_of_a_namespace_are_its_own() {
        let index = NodePorts::default();
        let ports = |port| BTreeSet::from([(Protocol::Tcp, port)]);
        assert!(index.set("berth-a/web", ports(30001)));
        assert!(!index.set("berth-a/web", ports(30001)), "nothing changed");
        assert!(index.set("berth-a-b/web", ports(30002)));
        assert!(index.set("berth-a/other", ports(30003)));
        assert!(!index.set("berth-a/none", BTreeSet::new()));
        assert_eq!(
            index.of("berth-a"),
            BTreeSet::from([(Protocol::Tcp, 30001), (Protocol::Tcp, 30003)])
        );
        assert!(index.set("berth-a/web", BTreeSet::new()));
        assert_eq!(index.of("berth-a"), ports(30003));
        assert_eq!(index.names(), ["berth-a-b/web", "berth-a/other"]);
    }
}
