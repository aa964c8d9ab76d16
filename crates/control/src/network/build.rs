//! Building blocks of NetworkPolicies.

use berth_api::{
    labels,
    network::Protocol,
    ranges::{ALL_V4, ALL_V6},
};
use ipnet::IpNet;
use k8s_openapi::{
    api::networking::v1::{
        IPBlock, NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer,
        NetworkPolicyPort, NetworkPolicySpec,
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta},
        util::intstr::IntOrString,
    },
};
use std::{collections::BTreeMap, net::IpAddr};

/// A selector of objects with all of these labels.
pub fn label_selector<const N: usize>(all: [(&str, &str); N]) -> LabelSelector {
    LabelSelector {
        match_labels: (N > 0).then(|| all.map(|(key, value)| (key.into(), value.into())).into()),
        match_expressions: None,
    }
}

/// Pods of the policy's own namespace.
pub fn pods(selector: LabelSelector) -> NetworkPolicyPeer {
    NetworkPolicyPeer {
        pod_selector: Some(selector),
        ..NetworkPolicyPeer::default()
    }
}

/// Pods of other namespaces.
pub fn pods_in(namespaces: LabelSelector, selector: LabelSelector) -> NetworkPolicyPeer {
    NetworkPolicyPeer {
        namespace_selector: Some(namespaces),
        pod_selector: Some(selector),
        ip_block: None,
    }
}

/// The CIDR except the blocked ranges within it; `None` if nothing is left.
pub fn block(cidr: IpNet, blocked: &[IpNet]) -> Option<NetworkPolicyPeer> {
    if blocked.iter().any(|range| range.contains(&cidr)) {
        return None;
    }
    let except: Vec<String> = blocked
        .iter()
        .filter(|range| cidr.contains(*range))
        .map(ToString::to_string)
        .collect();
    Some(NetworkPolicyPeer {
        ip_block: Some(IPBlock {
            cidr: cidr.to_string(),
            except: (!except.is_empty()).then_some(except),
        }),
        ..NetworkPolicyPeer::default()
    })
}

/// One address.
pub fn address(address: IpAddr) -> NetworkPolicyPeer {
    block(IpNet::from(address), &[]).unwrap_or_default()
}

/// All addresses except the blocked ranges.
pub fn all_addresses_except(blocked: &[IpNet]) -> Vec<NetworkPolicyPeer> {
    [ALL_V4, ALL_V6]
        .into_iter()
        .filter_map(|cidr| block(cidr, blocked))
        .collect()
}

/// A peer of a policy in the namespace `home`, as a peer of policies elsewhere: without a namespace it means pods of `home`, and no selector of
/// namespaces selects those of tenants. What is empty is left out, as the API server returns it. Otherwise a policy would differ from the stored
/// one for ever.
pub fn peer_elsewhere(home: &str, peer: &NetworkPolicyPeer) -> NetworkPolicyPeer {
    let NetworkPolicyPeer {
        ip_block,
        namespace_selector,
        pod_selector,
    } = peer;
    let namespaces = match (namespace_selector, ip_block) {
        (Some(selector), _) => Some(with_requirement(without_empty(selector), lacks(labels::ROLE))),
        (None, Some(_)) => None,
        (None, None) => Some(label_selector([(labels::NAMESPACE_NAME, home)])),
    };
    NetworkPolicyPeer {
        ip_block: ip_block.as_ref().map(|block| IPBlock {
            cidr: block.cidr.clone(),
            except: block.except.clone().and_then(some),
        }),
        namespace_selector: namespaces,
        pod_selector: pod_selector.as_ref().map(without_empty),
    }
}

/// The requirement that an object has no label with this key.
pub fn lacks(key: &str) -> LabelSelectorRequirement {
    LabelSelectorRequirement {
        key: key.into(),
        operator: "DoesNotExist".into(),
        values: None,
    }
}

/// A selector with one requirement more.
pub fn with_requirement(selector: LabelSelector, requirement: LabelSelectorRequirement) -> LabelSelector {
    let LabelSelector {
        match_labels,
        match_expressions,
    } = selector;
    let requirements = match_expressions.into_iter().flatten().chain([requirement]);
    LabelSelector {
        match_labels,
        match_expressions: Some(requirements.collect()),
    }
}

/// A selector without empty maps and lists.
fn without_empty(selector: &LabelSelector) -> LabelSelector {
    let expressions = selector.match_expressions.iter().flatten();
    let expressions = expressions.map(|expression| LabelSelectorRequirement {
        values: expression.values.clone().and_then(some),
        ..expression.clone()
    });
    LabelSelector {
        match_labels: selector.match_labels.clone().filter(|labels| !labels.is_empty()),
        match_expressions: some(expressions.collect()),
    }
}

/// A port. The protocol is always written out, as the API server would.
pub fn port(protocol: Protocol, number: u16) -> NetworkPolicyPort {
    NetworkPolicyPort {
        protocol: Some(protocol.as_str().into()),
        port: Some(IntOrString::Int(number.into())),
        end_port: None,
    }
}

/// DNS uses both protocols.
pub fn dns(number: u16) -> Vec<NetworkPolicyPort> {
    vec![port(Protocol::Tcp, number), port(Protocol::Udp, number)]
}

/// Ports of an allowed network; none means all.
pub fn allowed_ports(ports: &[u16], protocol: Option<Protocol>) -> Vec<NetworkPolicyPort> {
    match (ports, protocol) {
        ([], None) => Vec::new(),
        ([], Some(protocol)) => vec![NetworkPolicyPort {
            protocol: Some(protocol.as_str().into()),
            ..NetworkPolicyPort::default()
        }],
        (ports, protocol) => {
            let protocol = protocol.unwrap_or(Protocol::Tcp);
            ports.iter().map(|number| port(protocol, *number)).collect()
        }
    }
}

/// Ports by what they are allowed for, in the order in which that is named first. What is named several times is in one rule: each rule repeats all
/// that is excepted, and policy engines pay for that on every node. No ports mean all.
pub fn merge_ports<K: PartialEq>(
    allowed: impl IntoIterator<Item = (K, Vec<NetworkPolicyPort>)>,
) -> Vec<(K, Vec<NetworkPolicyPort>)> {
    let mut merged: Vec<(K, Vec<NetworkPolicyPort>)> = Vec::new();
    for (key, ports) in allowed {
        match merged.iter_mut().find(|(known, _)| *known == key) {
            None => merged.push((key, ports)),
            Some((_, known)) if known.is_empty() || ports.is_empty() => known.clear(),
            Some((_, known)) => {
                for port in ports {
                    if !known.contains(&port) {
                        known.push(port);
                    }
                }
            }
        }
    }
    merged
}

/// Rules of one policy: peers with ports. A rule without peers would allow all peers, so none is added.
#[derive(Default)]
pub struct Rules {
    ingress: Vec<NetworkPolicyIngressRule>,
    egress: Vec<NetworkPolicyEgressRule>,
}

fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

impl Rules {
    /// Allows ingress from these peers at these ports; no ports mean all.
    #[must_use]
    pub fn from(mut self, peers: impl Into<Vec<NetworkPolicyPeer>>, ports: impl Into<Vec<NetworkPolicyPort>>) -> Self {
        let peers = peers.into();
        if !peers.is_empty() {
            self.ingress.push(NetworkPolicyIngressRule {
                from: Some(peers),
                ports: some(ports.into()),
            });
        }
        self
    }

    /// Allows egress to these peers at these ports; no ports mean all.
    #[must_use]
    pub fn to(mut self, peers: impl Into<Vec<NetworkPolicyPeer>>, ports: impl Into<Vec<NetworkPolicyPort>>) -> Self {
        let peers = peers.into();
        if !peers.is_empty() {
            self.egress.push(NetworkPolicyEgressRule {
                to: Some(peers),
                ports: some(ports.into()),
            });
        }
        self
    }

    /// The policy for the pods that `selected` selects. It does not affect directions that `types` does not list.
    pub fn into_policy(
        self,
        metadata: (&str, &str, &BTreeMap<String, String>),
        selected: LabelSelector,
        types: &[&str],
    ) -> NetworkPolicy {
        let (namespace, name, owner) = metadata;
        let mut all = owner.clone();
        all.insert(labels::MANAGED_BY.into(), labels::MANAGED_BY_CONTROL.into());
        NetworkPolicy {
            metadata: ObjectMeta {
                name: Some(name.into()),
                namespace: Some(namespace.into()),
                labels: Some(all),
                ..ObjectMeta::default()
            },
            spec: Some(NetworkPolicySpec {
                pod_selector: Some(selected),
                policy_types: Some(types.iter().map(ToString::to_string).collect()),
                ingress: some(self.ingress),
                egress: some(self.egress),
            }),
        }
    }
}
