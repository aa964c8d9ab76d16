//! The cluster-wide policy for a tenant's pods, in the tier of administrators. It is evaluated before every NetworkPolicy, and
//! no NetworkPolicy can allow what it denies: neither one that was written with a stolen syncer credential nor one that an
//! administrator wrote by mistake. NetworkPolicies decide what it passes on.
//!
//! Network plug-ins serve two generations of the API: `ClusterNetworkPolicy` (v1alpha2) and, before it, `AdminNetworkPolicy`
//! (v1alpha1). If the host serves both, a tenant has the same policy in both.

use super::NetworkIsolation;
use crate::{
    control_plane::{API_SERVER, COREDNS, SYNCER},
    runtime::cluster::APP_NAME,
};
use berth_api::{
    labels::{self, NAMESPACE_NAME},
    names::TenantId,
    network::{EgressRule, Protocol},
    ranges,
};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ObjectMeta};
use serde_json::{Value, json};

/// The API group.
pub const GROUP: &str = "policy.networking.k8s.io";
/// Priority of Berth's policies. Administrators can use 0 to 49 for policies that are evaluated first.
const PRIORITY: u32 = 50;
/// CIDRs per peer.
const MAX_CIDRS_PER_PEER: usize = 25;
/// Peers per rule, in the newer generation.
const MAX_PEERS_PER_RULE: usize = 25;

/// Rules for allowed networks. A policy has at most 25 rules, and the others are needed.
const MAX_PORT_GROUPS: usize = 15;

/// Rules for a tenant's own nodes, of 625 nodes each. Node ports are closed at further nodes.
const MAX_NODE_RULES: usize = 2;

/// A generation of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// `ClusterNetworkPolicy`.
    Cluster,
    /// `AdminNetworkPolicy`.
    Admin,
}

impl Generation {
    /// Newest first.
    pub const ALL: [Self; 2] = [Self::Cluster, Self::Admin];

    /// API version and plural, as discovery names them.
    pub fn api_resource_name(self) -> (String, &'static str) {
        let resource = self.api_resource();
        match self {
            Self::Cluster => (resource.api_version, "clusternetworkpolicies"),
            Self::Admin => (resource.api_version, "adminnetworkpolicies"),
        }
    }

    /// The kind.
    pub fn api_resource(self) -> ApiResource {
        let (version, kind, plural) = match self {
            Self::Cluster => ("v1alpha2", "ClusterNetworkPolicy", "clusternetworkpolicies"),
            Self::Admin => ("v1alpha1", "AdminNetworkPolicy", "adminnetworkpolicies"),
        };
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, version, kind), plural)
    }

    fn build_ports(self, ports: &[u16], protocol: Option<Protocol>) -> Option<(&'static str, Value)> {
        let protocol = match (ports, protocol) {
            ([], None) => return None,
            (_, protocol) => protocol.unwrap_or(Protocol::Tcp),
        };
        let every = [(1, 65535)];
        let listed: Vec<(u16, u16)> = ports.iter().map(|port| (*port, *port)).collect();
        let listed = if listed.is_empty() { &every[..] } else { &listed };
        Some(self.build_ranges(listed.iter().map(|(first, last)| (protocol, *first, *last))))
    }

    /// Ranges of ports, as (protocol, first, last).
    fn build_ranges(self, ranges: impl Iterator<Item = (Protocol, u16, u16)>) -> (&'static str, Value) {
        let of = |(protocol, first, last): (Protocol, u16, u16)| match self {
            Self::Cluster => {
                let port = if first == last {
                    json!({ "number": first })
                } else {
                    json!({"range": {"start": first, "end": last}})
                };
                json!({protocol.as_str().to_lowercase(): {"destinationPort": port}})
            }
            Self::Admin if first == last => json!({"portNumber": {"protocol": protocol.as_str(), "port": first}}),
            Self::Admin => json!({"portRange": {"protocol": protocol.as_str(), "start": first, "end": last}}),
        };
        let key = match self {
            Self::Cluster => "protocols",
            Self::Admin => "ports",
        };
        (key, ranges.map(of).collect())
    }
}

/// One rule.
struct Rule {
    name: String,
    action: &'static str,
    peers: Vec<Value>,
    ports: Option<(&'static str, Value)>,
}

fn rule(name: &str, action: &'static str, peers: Vec<Value>) -> Rule {
    Rule {
        name: name.into(),
        action,
        peers,
        ports: None,
    }
}

fn render_rules(rules: Vec<Rule>, side: &str) -> Vec<Value> {
    let render = |rule: Rule| {
        let mut object = json!({"name": rule.name, "action": rule.action, side: rule.peers});
        if let Some((key, ports)) = rule.ports {
            object[key] = ports;
        }
        object
    };
    rules
        .into_iter()
        .filter(|rule| !rule.peers.is_empty())
        .map(render)
        .collect()
}

/// CIDRs as peers, split by [`MAX_CIDRS_PER_PEER`].
fn network_peers(ranges: &[String]) -> Vec<Value> {
    ranges
        .chunks(MAX_CIDRS_PER_PEER)
        .map(|part| json!({ "networks": part }))
        .collect()
}

/// The policy of a tenant. Without `networks` it has rules about pods only, for hosts whose definition of the kind has no CIDRs.
pub fn build_cluster_policy(isolation: &NetworkIsolation<'_>, generation: Generation, networks: bool) -> DynamicObject {
    let subject = json!({"namespaces": selector(isolation, labels::ROLE_WORKLOADS)});
    let mut object = DynamicObject::new(&policy_name(isolation.tenant), &generation.api_resource());
    object.metadata = ObjectMeta {
        name: Some(policy_name(isolation.tenant)),
        labels: Some(isolation.labels.clone()),
        ..ObjectMeta::default()
    };
    object.data = json!({ "spec": tier_of(generation) });
    object.data["spec"]["subject"] = subject;
    object.data["spec"]["ingress"] = render_rules(ingress_rules(isolation), "from").into();
    object.data["spec"]["egress"] = render_rules(egress_rules(isolation, generation, networks), "to").into();
    object
}

/// A policy with a CIDR and for no pod at all, to try whether the host's definition has CIDRs. It contains nothing of a tenant.
pub fn build_probe(generation: Generation) -> DynamicObject {
    let nobody = json!({"namespaces": {"matchLabels": {labels::TENANT: "none", labels::ROLE: "none"}}});
    let mut object = DynamicObject::new("berth-networks", &generation.api_resource());
    object.data = json!({ "spec": tier_of(generation) });
    object.data["spec"]["subject"] = nobody;
    let rules = vec![rule("networks", "Deny", network_peers(&["192.0.2.0/24".to_owned()]))];
    object.data["spec"]["egress"] = render_rules(rules, "to").into();
    object
}

fn tier_of(generation: Generation) -> Value {
    match generation {
        Generation::Cluster => json!({"tier": "Admin", "priority": PRIORITY}),
        Generation::Admin => json!({ "priority": PRIORITY }),
    }
}

/// Name of a tenant's policy.
pub fn policy_name(tenant: &TenantId) -> String {
    format!("berth-{}", tenant.slug())
}

fn selector(isolation: &NetworkIsolation<'_>, role: &str) -> Value {
    json!({"matchLabels": {labels::TENANT: isolation.tenant.slug(), labels::ROLE: role}})
}

fn components(isolation: &NetworkIsolation<'_>, names: &[&str]) -> Value {
    json!({"pods": {
        "namespaceSelector": selector(isolation, labels::ROLE_CONTROL_PLANE),
        "podSelector": {"matchExpressions": [{"key": APP_NAME, "operator": "In", "values": names}]},
    }})
}

fn own_pods(isolation: &NetworkIsolation<'_>) -> Value {
    json!({"namespaces": selector(isolation, labels::ROLE_WORKLOADS)})
}

fn ingress_rules(isolation: &NetworkIsolation<'_>) -> Vec<Rule> {
    let mut rules = vec![rule("own-pods", "Pass", vec![own_pods(isolation)])];
    if isolation.uses_pods {
        rules.push(rule("syncer", "Pass", vec![components(isolation, &[SYNCER])]));
    }
    // Ports are left to NetworkPolicies: every kind of rule counts against the limit.
    let named = isolation
        .allowed
        .ingress
        .iter()
        .filter_map(|rule| rule.namespace.as_ref());
    let named = named.map(|name| json!({"namespaces": {"matchLabels": {NAMESPACE_NAME: name}}}));
    let named: Vec<Value> = named.collect();
    rules.extend(
        named
            .chunks(MAX_PEERS_PER_RULE)
            .map(|peers| rule("allowed", "Pass", peers.to_vec())),
    );
    rules.push(rule("other-pods", "Deny", vec![json!({"namespaces": {}})]));
    rules
}

fn egress_rules(isolation: &NetworkIsolation<'_>, generation: Generation, with_networks: bool) -> Vec<Rule> {
    let mut rules = vec![rule("own-pods", "Pass", vec![own_pods(isolation)])];
    if isolation.uses_pods {
        let servers = components(isolation, &[COREDNS, API_SERVER]);
        rules.push(rule("control-plane", "Pass", vec![servers]));
    }
    rules.push(rule("other-pods", "Deny", vec![json!({"namespaces": {}})]));
    if !with_networks {
        return rules;
    }
    if !isolation.uses_pods {
        let endpoints = isolation.endpoints;
        for (name, endpoint) in [("api-server", &endpoints.api_server), ("dns", &endpoints.dns)] {
            let Ok(address) = endpoint.host.parse::<std::net::IpAddr>() else {
                continue;
            };
            let host = ipnet::IpNet::from(address).to_string();
            let port = endpoint.listen.port();
            let both = [Protocol::Tcp, Protocol::Udp].map(|protocol| (protocol, port, port));
            rules.push(Rule {
                ports: Some(generation.build_ranges(both.into_iter())),
                ..rule(name, "Pass", network_peers(std::slice::from_ref(&host)))
            });
        }
    }
    rules.extend(node_port_rules(isolation, generation));
    let blocked: Vec<String> = isolation.blocked.iter().map(ToString::to_string).collect();
    let blocked = network_peers(&blocked);
    rules.extend(
        blocked
            .chunks(MAX_PEERS_PER_RULE)
            .map(|peers| rule("blocked", "Deny", peers.to_vec())),
    );
    rules.extend(allowed_egress_rules(isolation, generation));
    let rest = [ranges::ALL_V4, ranges::ALL_V6].map(|range| range.to_string());
    rules.push(rule("all-other", "Deny", network_peers(&rest)));
    rules
}

/// Rules for the tenant's own nodes. NetworkPolicies list the node ports; here it is a range, because policies are limited.
fn node_port_rules(isolation: &NetworkIsolation<'_>, generation: Generation) -> Vec<Rule> {
    let nodes: Vec<String> = isolation.node_ports.nodes.iter().map(ToString::to_string).collect();
    let ranges = isolation.node_ports.ranges();
    let ranges = ranges
        .iter()
        .map(|(protocol, range)| (*protocol, *range.start(), *range.end()));
    let ports = generation.build_ranges(ranges);
    network_peers(&nodes)
        .chunks(MAX_PEERS_PER_RULE)
        .take(MAX_NODE_RULES)
        .map(|peers| Rule {
            ports: Some(ports.clone()),
            ..rule("node-ports", "Pass", peers.to_vec())
        })
        .collect()
}

/// Rules for allowed networks, one for all that have the same ports: a policy has at most 25 rules.
fn allowed_egress_rules(isolation: &NetworkIsolation<'_>, generation: Generation) -> Vec<Rule> {
    type PortsAndNetworks<'a> = ((&'a [u16], Option<Protocol>), Vec<String>);
    let mut grouped: Vec<PortsAndNetworks<'_>> = Vec::new();
    for EgressRule { cidr, ports, protocol } in &isolation.allowed.egress {
        let key = (ports.as_slice(), *protocol);
        let Ok(range) = ranges::parse(cidr) else { continue };
        match grouped.iter_mut().find(|(known, _)| *known == key) {
            Some((_, list)) => list.push(range.to_string()),
            None => grouped.push((key, vec![range.to_string()])),
        }
    }
    if grouped.len() > MAX_PORT_GROUPS {
        // Ports are left to NetworkPolicies.
        let all = grouped.into_iter().flat_map(|(_, list)| list).collect();
        grouped = vec![((&[], None), all)];
    }
    let rule_of = |((ports, protocol), mut list): ((&[u16], Option<Protocol>), Vec<String>)| {
        list.sort();
        list.dedup();
        Rule {
            ports: generation.build_ports(ports, protocol),
            ..rule("allowed", "Pass", network_peers(&list))
        }
    };
    grouped.into_iter().map(rule_of).collect()
}
