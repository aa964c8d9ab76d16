//! A small model of what policy engines do: whether a packet passes between two ends.

use super::*;
use k8s_openapi::api::networking::v1::NetworkPolicyPort;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::core::{Selector, SelectorExt};
use std::cmp::Ordering;

/// One end of a connection.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct End {
    address: IpAddr,
    /// Namespace and labels, if it is a pod.
    pub(super) pod: Option<(String, BTreeMap<String, String>)>,
}

fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    entries
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

pub(super) fn pod(namespace: &str, last: u8, entries: &[(&str, &str)]) -> End {
    End {
        address: IpAddr::from([10, 244, 0, last]),
        pod: Some((namespace.into(), map(entries))),
    }
}

pub(super) fn outside(address: &str) -> End {
    End {
        address: address.parse().unwrap(),
        pod: None,
    }
}

/// Labels of the host's namespaces.
fn labels_of_namespace(name: &str) -> BTreeMap<String, String> {
    let mut all = map(&[(labels::NAMESPACE_NAME, name)]);
    for case in NAMES.map(Case::new) {
        for (namespace, role) in [
            (case.tenant.workload_namespace(), labels::ROLE_WORKLOADS),
            (case.tenant.control_plane_namespace(), labels::ROLE_CONTROL_PLANE),
        ] {
            if namespace == name {
                all.insert(labels::TENANT.into(), case.tenant.slug().into());
                all.insert(labels::ROLE.into(), role.into());
            }
        }
    }
    all
}

fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    Selector::try_from(selector.clone()).unwrap().matches(labels)
}

fn matches_peer(peer: &NetworkPolicyPeer, home: &str, other: &End) -> bool {
    if let Some(block) = &peer.ip_block {
        let within = |text: &String| ranges::parse(text).unwrap().contains(&other.address);
        return within(&block.cidr) && !block.except.iter().flatten().any(within);
    }
    let Some((namespace, labels)) = &other.pod else {
        return false;
    };
    let in_namespace = peer.namespace_selector.as_ref().map_or(namespace == home, |selector| {
        selects(selector, &labels_of_namespace(namespace))
    });
    in_namespace
        && peer
            .pod_selector
            .as_ref()
            .is_none_or(|selector| selects(selector, labels))
}

fn matches_ports(ports: Option<&Vec<NetworkPolicyPort>>, protocol: &str, port: u16) -> bool {
    ports.is_none_or(|ports| {
        ports.iter().any(|known| {
            known.protocol.as_deref() == Some(protocol)
                && known
                    .port
                    .as_ref()
                    .is_none_or(|number| *number == IntOrString::Int(port.into()))
        })
    })
}

/// Whether NetworkPolicies let a packet pass at one end of it.
fn passes(policies: &[NetworkPolicy], end: &End, other: &End, is_egress: bool, (protocol, port): (&str, u16)) -> bool {
    let Some((namespace, labels)) = &end.pod else {
        return true;
    };
    let kind = if is_egress { "Egress" } else { "Ingress" };
    let mut concerning = policies
        .iter()
        .filter(|policy| policy.metadata.namespace.as_ref() == Some(namespace))
        .filter_map(|policy| policy.spec.as_ref())
        .filter(|spec| selects(spec.pod_selector.as_ref().unwrap(), labels))
        .filter(|spec| spec.policy_types.iter().flatten().any(|known| known == kind))
        .peekable();
    if concerning.peek().is_none() {
        return true;
    }
    concerning.any(|spec| {
        let peers_match = |peers: Option<&Vec<NetworkPolicyPeer>>| {
            peers.is_none_or(|peers| peers.iter().any(|peer| matches_peer(peer, namespace, other)))
        };
        if is_egress {
            let mut rules = spec.egress.iter().flatten();
            rules.any(|rule| peers_match(rule.to.as_ref()) && matches_ports(rule.ports.as_ref(), protocol, port))
        } else {
            let mut rules = spec.ingress.iter().flatten();
            rules.any(|rule| peers_match(rule.from.as_ref()) && matches_ports(rule.ports.as_ref(), protocol, port))
        }
    })
}

/// Whether the administrators' tier denies a packet at one end of it.
fn is_denied(policy: &Value, end: &End, other: &End, is_egress: bool, (protocol, port): (&str, u16)) -> bool {
    let selector = |value: &Value| serde_json::from_value::<LabelSelector>(value.clone()).unwrap();
    let in_namespaces = |value: &Value, end: &End| {
        let pod = end.pod.as_ref();
        pod.is_some_and(|(namespace, _)| selects(&selector(value), &labels_of_namespace(namespace)))
    };
    if !in_namespaces(&policy["spec"]["subject"]["namespaces"], end) {
        return false;
    }
    let matches = |peer: &Value| {
        if let Some(networks) = peer["networks"].as_array() {
            return networks
                .iter()
                .any(|text| ranges::parse(text.as_str().unwrap()).unwrap().contains(&other.address));
        }
        if peer.get("namespaces").is_some() {
            return in_namespaces(&peer["namespaces"], other);
        }
        in_namespaces(&peer["pods"]["namespaceSelector"], other)
            && other
                .pod
                .as_ref()
                .is_some_and(|(_, labels)| selects(&selector(&peer["pods"]["podSelector"]), labels))
    };
    let at_port = |rule: &Value| {
        rule.get("protocols").is_none_or(|protocols| {
            protocols.as_array().unwrap().iter().any(|known| {
                let at = &known[protocol.to_lowercase()]["destinationPort"];
                let limit = |end: &str| at["range"][end].as_u64().map(|limit| limit.cmp(&port.into()));
                at["number"] == port
                    || limit("start").is_some_and(Ordering::is_le) && limit("end").is_some_and(Ordering::is_ge)
            })
        })
    };
    let (direction, side) = if is_egress {
        ("egress", "to")
    } else {
        ("ingress", "from")
    };
    policy["spec"][direction]
        .as_array()
        .unwrap()
        .iter()
        .find(|rule| at_port(rule) && rule[side].as_array().unwrap().iter().any(matches))
        .is_some_and(|rule| rule["action"] == "Deny")
}

/// Two tenants on one host, and a policy that the first wrote itself.
pub(super) struct Fleet {
    policies: Vec<NetworkPolicy>,
    denials: Vec<Value>,
}

impl Fleet {
    pub(super) fn new(written: Vec<NetworkPolicy>) -> Self {
        Self::of(&NAMES.map(Case::new), written)
    }

    /// The same with these two tenants.
    pub(super) fn of(cases: &[Case; 2], written: Vec<NetworkPolicy>) -> Self {
        let deny = |case: &Case| {
            case.with(|isolation| cluster_policy::build_cluster_policy(isolation, Generation::Cluster, true))
                .data
        };
        Self {
            policies: cases.iter().flat_map(Case::policies).chain(written).collect(),
            denials: cases.iter().map(deny).collect(),
        }
    }

    /// Whether NetworkPolicies allow a connection, without the administrators' tier.
    pub(super) fn connects(&self, from: &End, to: &End, at: (&str, u16)) -> bool {
        passes(&self.policies, from, to, true, at) && passes(&self.policies, to, from, false, at)
    }

    /// Checks connections, given as (from, to, protocol and port, whether it is allowed).
    pub(super) fn check(&self, cases: &[(&End, &End, (&str, u16), bool)]) {
        for (from, to, at, expected) in cases {
            assert_eq!(self.connects(from, to, *at), *expected, "{from:?} to {to:?} at {at:?}");
            assert_eq!(
                self.connects_with_cluster_policy(from, to, *at),
                *expected,
                "with the administrators' tier, {from:?} to {to:?} at {at:?}"
            );
        }
    }

    /// The same with the administrators' tier.
    pub(super) fn connects_with_cluster_policy(&self, from: &End, to: &End, at: (&str, u16)) -> bool {
        let mut denials = self.denials.iter();
        self.connects(from, to, at)
            && !denials.any(|policy| is_denied(policy, from, to, true, at) || is_denied(policy, to, from, false, at))
    }
}

pub(super) fn workload(tenant: usize, last: u8, extra: &[(&str, &str)]) -> End {
    let case = Case::new(NAMES[tenant]);
    let mut end = pod(&case.tenant.workload_namespace(), last, extra);
    end.pod
        .as_mut()
        .unwrap()
        .1
        .insert(labels::TENANT.into(), case.tenant.slug().into());
    end
}

pub(super) fn component(tenant: usize, last: u8, name: &str) -> End {
    pod(
        &Case::new(NAMES[tenant]).tenant.control_plane_namespace(),
        last,
        &[(APP_NAME, name)],
    )
}

pub(super) const OPEN: &[(&str, &str)] = &[("net.berth.dev/ingress", "open"), ("net.berth.dev/egress", "open")];
pub(super) const TCP: (&str, u16) = ("TCP", 8080);
