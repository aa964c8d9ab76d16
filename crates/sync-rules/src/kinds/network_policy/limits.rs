//! The networks outside of the tenant that its policies may open: those declared for the tenant, without those that the
//! platform blocks.

use crate::translation::sizes::MOST_PEERS;
use berth_api::{
    NetworkLimits,
    network::{EgressRule, IngressRule, Protocol},
    ranges,
};
use ipnet::IpNet;
use serde_json::{Map, Value, json};

/// The limits, ready to be applied.
pub struct Limits {
    /// Ranges that are never opened.
    pub blocked: Vec<IpNet>,
    /// Peers that pods may connect to.
    pub egress: Vec<Allowed>,
    /// Peers that may connect to pods.
    pub ingress: Vec<Allowed>,
    /// The address families that pods may have, each as the network of all its addresses.
    pub families: Vec<IpNet>,
}

/// A declared peer outside of the tenant, and its ports.
#[derive(Clone, Debug)]
pub struct Allowed {
    /// The peer.
    pub peer: Peer,
    ports: Vec<u16>,
    protocol: Option<Protocol>,
}

/// A peer outside of the tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A range of addresses.
    Network(IpNet),
    /// The pods of a namespace of the host.
    Namespace(String),
}

impl Limits {
    /// The limits as control writes them. A declared range that cannot be parsed opens nothing; a blocked one that
    /// cannot be parsed blocks everything.
    pub fn new(limits: &NetworkLimits) -> Self {
        let NetworkLimits {
            blocked,
            egress,
            ingress,
            families,
            // These do not limit policies.
            closed: _,
            endpoint_cidrs: _,
            closed_to_endpoints: _,
            api_server_hosts: _,
        } = limits;
        Self {
            blocked: ranges::never_open().chain(ranges::blocking(blocked)).collect(),
            egress: egress.iter().filter_map(Allowed::to).collect(),
            ingress: ingress.iter().filter_map(Allowed::from).collect(),
            families: read_families(families),
        }
    }
}

/// The families, or both if they are not known.
fn read_families(families: &[String]) -> Vec<IpNet> {
    let known: Option<Vec<IpNet>> = families.iter().map(|text| ranges::parse(text).ok()).collect();
    let known = known.filter(|known| !known.is_empty());
    known.unwrap_or_else(|| vec![ranges::ALL_V4, ranges::ALL_V6])
}

impl Allowed {
    fn to(rule: &EgressRule) -> Option<Self> {
        let EgressRule { cidr, ports, protocol } = rule;
        Some(Self {
            peer: Peer::Network(ranges::parse(cidr).ok()?),
            ports: ports.clone(),
            protocol: *protocol,
        })
    }

    fn from(rule: &IngressRule) -> Option<Self> {
        let IngressRule {
            cidr,
            namespace,
            ports,
            protocol,
        } = rule;
        let peer = match (cidr, namespace) {
            (Some(cidr), None) => Peer::Network(ranges::parse(cidr).ok()?),
            (None, Some(namespace)) => Peer::Namespace(namespace.clone()),
            _ => return None,
        };
        Some(Self {
            peer,
            ports: ports.clone(),
            protocol: *protocol,
        })
    }

    /// Whether every port of every protocol is open.
    pub fn is_every_port(&self) -> bool {
        self.ports.is_empty() && self.protocol.is_none()
    }

    /// The ports of a rule that are open; `None` if none is. An empty list stands for all ports. Of more than a policy may have on the host, no more are
    /// made than show that: each port of a rule can become all of those that are declared.
    pub fn ports(&self, asked: &[Map<String, Value>]) -> Option<Vec<Value>> {
        if self.is_every_port() {
            return Some(asked.iter().cloned().map(Value::Object).collect());
        }
        let protocol = self.protocol.unwrap_or(Protocol::Tcp).as_str();
        let one = |port: u16| json!({"protocol": protocol, "port": port});
        let everything = || match self.ports.as_slice() {
            [] => vec![json!({ "protocol": protocol })],
            ports => ports.iter().copied().map(one).collect(),
        };
        if asked.is_empty() {
            return Some(everything());
        }
        let mut open: Vec<Value> = Vec::new();
        let of_protocol =
            |port: &&Map<String, Value>| port.get("protocol").and_then(Value::as_str).unwrap_or("TCP") == protocol;
        for port in asked.iter().filter(of_protocol) {
            if open.len() > MOST_PEERS {
                break;
            }
            let number = |key: &str| port.get(key).and_then(Value::as_u64);
            let more: Vec<Value> = match (number("port"), number("endPort")) {
                _ if !port.contains_key("port") => everything(),
                _ if self.ports.is_empty() => vec![Value::Object(port.clone())],
                (Some(first), last) => {
                    let range = first..=last.unwrap_or(first);
                    let within = self.ports.iter().filter(|port| range.contains(&u64::from(**port)));
                    within.copied().map(one).collect()
                }
                // The name of a port of a pod, which has no meaning outside.
                (None, _) => Vec::new(),
            };
            for port in more {
                if open.last() != Some(&port) {
                    open.push(port);
                }
            }
        }
        (!open.is_empty()).then_some(open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(ports: &[u16], protocol: Option<Protocol>, asked: Value) -> Option<Value> {
        let rule = EgressRule {
            cidr: "192.0.2.0/24".into(),
            ports: ports.to_vec(),
            protocol,
        };
        let asked: Vec<Map<String, Value>> = serde_json::from_value(asked).unwrap();
        Allowed::to(&rule).unwrap().ports(&asked).map(Value::Array)
    }

    #[test]
    fn only_open_ports_are_allowed() {
        let tcp = |port: u16| json!({"protocol": "TCP", "port": port});
        assert_eq!(
            open(&[], None, json!([{"port": 53, "protocol": "UDP"}])),
            Some(json!([{"port": 53, "protocol": "UDP"}]))
        );
        assert_eq!(open(&[], None, json!([])), Some(json!([])));
        assert_eq!(open(&[443], None, json!([])), Some(json!([tcp(443)])));
        assert_eq!(
            open(&[443, 8443], None, json!([{"port": 8443}])),
            Some(json!([tcp(8443)]))
        );
        assert_eq!(
            open(&[443, 8443], None, json!([{"port": 1, "endPort": 1000}])),
            Some(json!([tcp(443)]))
        );
        assert_eq!(
            open(&[443], None, json!([{"protocol": "TCP"}])),
            Some(json!([tcp(443)]))
        );
        assert_eq!(
            open(&[], Some(Protocol::Udp), json!([])),
            Some(json!([{"protocol": "UDP"}]))
        );
        assert_eq!(
            open(&[], Some(Protocol::Udp), json!([{"port": 53, "protocol": "UDP"}])),
            Some(json!([{"port": 53, "protocol": "UDP"}]))
        );
        for (ports, asked) in [
            (&[443][..], json!([{"port": 80}])),
            (&[443], json!([{"port": 443, "protocol": "UDP"}])),
            (&[443], json!([{"port": "https"}])),
        ] {
            assert_eq!(open(ports, None, asked), None);
        }
    }

    #[test]
    fn unreadable_networks_allow_no_traffic() {
        let mut limits = NetworkLimits {
            blocked: vec!["oops".into()],
            ..NetworkLimits::default()
        };
        limits.ingress = vec![IngressRule {
            cidr: None,
            namespace: None,
            ports: Vec::new(),
            protocol: None,
        }];
        let limits = Limits::new(&limits);
        assert!(limits.ingress.is_empty() && limits.blocked.contains(&ranges::ALL_V4));
    }
}
