//! Golden tests, and properties shown by a small model of what policy engines do: every packet between any two ends is checked
//! against the policies of control, against policies that a tenant might write, and against the administrators' tier.

use super::{cluster_policy::Generation, *};
use crate::control_plane::Ports;
use berth_api::network::Protocol;
use k8s_openapi::api::networking::v1::NetworkPolicyPort;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::core::{Selector, SelectorExt};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::{cmp::Ordering, net::IpAddr};

const NAMES: [&str; 2] = ["vision", "speech"];

struct Case {
    tenant: TenantId,
    allowed: AllowedNetworks,
    host: HostNetwork,
    endpoints: Endpoints,
    node_ports: NodePortAccess,
    uses_pods: bool,
    api_server_clients: Vec<&'static str>,
}

impl Case {
    fn new(name: &str) -> Self {
        let tenant = TenantId::new(name, &format!("uid-of-{name}"));
        let ports = Ports {
            api_server: 6443,
            syncer_admin: 8080,
            admission: 8443,
            egress: 8444,
            dns: 5353,
        };
        let nodes: Vec<k8s_openapi::api::core::v1::Node> = (0..2)
            .map(|n| {
                serde_json::from_value(json!({
                    "metadata": {"name": format!("n{n}")}, "spec": {"podCIDR": format!("10.244.{n}.0/24")},
                    "status": {"addresses": [{"type": "InternalIP", "address": format!("192.168.5.{}", 10 + n)}]},
                }))
                .unwrap()
            })
            .collect();
        let servers = vec!["192.168.5.1:6443".parse().unwrap()];
        // The first tenant has the first node.
        let exposed = [(Protocol::Tcp, 30080), (Protocol::Tcp, 30090), (Protocol::Udp, 30053)];
        let exposed = if name == NAMES[0] { &exposed[..] } else { &[] };
        Self {
            node_ports: NodePortAccess::new(exposed.iter().copied().collect(), &nodes[..1]),
            allowed: serde_json::from_value(json!({
                "egress": [
                    {"cidr": "10.20.0.0/16", "ports": [443]}, {"cidr": "192.168.0.0/16", "ports": [5432]},
                    {"cidr": "0.0.0.0/0", "protocol": "UDP", "ports": [123]},
                ],
                "ingress": [{"namespace": "ingress-nginx", "ports": [8080]}, {"cidr": "203.0.113.0/24"}],
            }))
            .unwrap(),
            host: host_network::collect_host_network(&nodes, ["10.96.0.0/16"], servers, &[]),
            endpoints: Endpoints::direct(IpAddr::from([0, 0, 0, 0]), &ports),
            uses_pods: true,
            api_server_clients: Vec::new(),
            tenant,
        }
    }

    fn with<T>(&self, then: impl FnOnce(&NetworkIsolation<'_>) -> T) -> T {
        then(&NetworkIsolation {
            tenant: &self.tenant,
            labels: BTreeMap::from([(labels::TENANT.to_owned(), self.tenant.slug().to_owned())]),
            allowed: &self.allowed,
            host: &self.host,
            blocked: &self.blocked(),
            node_ports: self.node_ports.clone(),
            uses_pods: self.uses_pods,
            endpoints: &self.endpoints,
            webhook_hosts: &["hooks.example.com".into(), "hooks.example.com:8443".into()],
            dns_servers: vec!["192.0.2.53:5353".parse().unwrap()],
            datastore: &[
                "https://192.168.5.2:2379".into(),
                "https://10.96.7.7:2379".into(),
                "https://etcd.storage.svc:2379".into(),
            ],
            api_server_clients: self.api_server_clients.clone(),
        })
    }

    fn blocked(&self) -> Vec<IpNet> {
        self.host.blocked_with(&[ranges::parse("10.20.7.0/24").unwrap()])
    }

    fn policies(&self) -> Vec<NetworkPolicy> {
        self.with(build_policies)
    }
}

#[test]
fn pods_of_named_namespaces_reach_the_api_server_and_nothing_else() {
    let mut case = Case::new("vision");
    let before = case.policies();
    case.api_server_clients = vec!["argocd"];
    let after = case.policies();
    let names = |policies: &[NetworkPolicy]| -> Vec<Option<String>> {
        policies.iter().map(|policy| policy.metadata.name.clone()).collect()
    };
    assert_eq!(names(&before), names(&after));
    let pairs = before.iter().zip(&after);
    let changed: Vec<&NetworkPolicy> = pairs
        .filter(|(before, after)| before != after)
        .map(|(_, after)| after)
        .collect();
    assert_eq!(
        names(&changed.iter().copied().cloned().collect::<Vec<_>>()),
        [Some("berth-kube-apiserver".into())]
    );
    let spec = serde_json::to_value(&changed[0].spec).unwrap();
    let peer =
        json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "argocd"}}, "podSelector": {}});
    let rules = spec["ingress"].as_array().unwrap();
    let rule = rules
        .iter()
        .find(|rule| rule["from"].as_array().unwrap().contains(&peer))
        .unwrap();
    assert_eq!(rule["ports"], json!([{"protocol": "TCP", "port": 6443}]));
}

#[test]
fn policies_are_as_reviewed() {
    let specs = |policies: Vec<NetworkPolicy>| -> Vec<(String, Value)> {
        let name = |policy: &NetworkPolicy| policy.metadata.name.clone().unwrap();
        policies
            .iter()
            .map(|policy| (name(policy), serde_json::to_value(&policy.spec).unwrap()))
            .collect()
    };
    insta::assert_yaml_snapshot!(specs(Case::new("vision").policies()));
    let mut processes = Case::new("vision");
    processes.uses_pods = false;
    processes.allowed = AllowedNetworks::default();
    processes.node_ports = NodePortAccess::default();
    processes.endpoints = Endpoints::direct(
        IpAddr::from([192, 168, 5, 1]),
        &Ports {
            api_server: 16000,
            syncer_admin: 16001,
            admission: 16002,
            egress: 16003,
            dns: 16004,
        },
    );
    insta::assert_yaml_snapshot!(specs(processes.policies()));
}

#[test]
fn cluster_policies_are_as_reviewed() {
    let case = Case::new("vision");
    for generation in Generation::ALL {
        insta::assert_yaml_snapshot!(
            case.with(|isolation| cluster_policy::build_cluster_policy(isolation, generation, true))
        );
    }
    let without = case.with(|isolation| cluster_policy::build_cluster_policy(isolation, Generation::Admin, false));
    assert!(!without.data.to_string().contains("networks"));
}

#[test]
fn limits_contain_only_blocked_ranges_that_overlap_allowed_ones() {
    let case = Case::new("vision");
    let blocked = |allowed: Value| {
        network_limits(
            &serde_json::from_value(allowed).unwrap(),
            &ClassNetwork::default(),
            &case.host,
            &case.blocked(),
        )
        .blocked
    };
    assert_eq!(
        network_limits(&case.allowed, &ClassNetwork::default(), &case.host, &case.blocked())
            .blocked
            .len(),
        case.blocked().len() - 4,
        "all of IPv4"
    );
    assert!(blocked(json!({"egress": [{"cidr": "198.51.100.0/24"}]})).is_empty());
    assert_eq!(blocked(json!({"egress": [{"cidr": "10.20.0.0/16"}]})), ["10.20.7.0/24"]);
}

#[test]
fn networks_for_endpoints_come_with_what_is_blocked_in_them() {
    let case = Case::new("vision");
    let class = |cidrs: &[&str]| -> ClassNetwork { serde_json::from_value(json!({ "endpointCIDRs": cidrs })).unwrap() };
    let limits =
        |cidrs: &[&str]| network_limits(&AllowedNetworks::default(), &class(cidrs), &case.host, &case.blocked());
    let blocked = |cidrs: &[&str]| limits(cidrs).blocked;
    assert!(blocked(&[]).is_empty());
    assert_eq!(blocked(&["10.20.0.0/16"]), ["10.20.7.0/24"]);
    // The host's pods, Services and nodes.
    let all = blocked(&["10.0.0.0/8", "192.168.0.0/16"]);
    for range in ["10.96.0.0/16", "10.244.0.0/23", "192.168.5.1/32", "192.168.5.10/31"] {
        assert!(all.iter().any(|known| known == range), "{range}: {all:?}");
    }
    assert_eq!(
        closed_to_endpoints(&case.host, &class(&[])),
        ["10.96.0.0/16", "192.168.5.1/32"],
        "Services and API servers"
    );
    assert_eq!(
        closed_to_endpoints(&case.host, &class(&["192.168.0.0/16"])),
        ["10.96.0.0/16", "192.168.5.1/32", "192.168.5.10/31"],
        "and nodes"
    );
    let nothing: &[&str] = &[];
    for offered in [nothing, &["192.168.0.0/16"]] {
        let policy = closed_to_endpoints(&case.host, &class(offered));
        assert_eq!(
            limits(offered).closed_to_endpoints,
            policy,
            "the syncer knows what the policy closes"
        );
    }
}

#[test]
fn blocked_ranges_beyond_what_a_policy_can_compare_are_merged() {
    let case = Case::new("vision");
    let many: Vec<IpNet> = (0..250)
        .map(|n| ranges::parse(&format!("198.51.{}.{}/32", n / 100, 2 * (n % 100) + 1)).unwrap())
        .collect();
    let allowed = |cidrs: &[&str]| -> AllowedNetworks {
        let egress: Vec<Value> = cidrs.iter().map(|cidr| json!({ "cidr": cidr })).collect();
        serde_json::from_value(json!({ "egress": egress })).unwrap()
    };
    let blocked = |cidrs: &[&str], blocked: &[IpNet]| -> Vec<IpNet> {
        let limits = network_limits(&allowed(cidrs), &ClassNetwork::default(), &case.host, blocked);
        limits.blocked.iter().map(|text| ranges::parse(text).unwrap()).collect()
    };
    assert_eq!(blocked(&["0.0.0.0/0"], &many[..100]), many[..100], "not merged");
    assert_eq!(
        blocked(&["198.51.1.0/24"], &many).len(),
        100,
        "only what is allowed counts"
    );
    let hosts: ClassNetwork =
        serde_json::from_value(json!({"apiServerEgress": {"hosts": ["hooks.example.com"]}})).unwrap();
    let limits = network_limits(&allowed(&["198.51.1.0/24"]), &hosts, &case.host, &many);
    assert_eq!(
        (limits.blocked.len(), limits.closed.len()),
        (100, many.len()),
        "endpoints and webhooks keep what is between blocked networks"
    );
    // A network between blocked ones stays open.
    let merged = blocked(&["0.0.0.0/0", "198.51.0.100/32"], &many);
    assert!(merged.len() <= 100, "{}", merged.len());
    assert!(many.iter().all(|one| merged.iter().any(|range| range.contains(one))));
    let open: IpNet = ranges::parse("198.51.0.100/32").unwrap();
    assert!(!merged.iter().any(|range| range.contains(&open)), "{merged:?}");
}

#[test]
fn a_policy_holds_no_more_rules_than_definitions_allow() {
    let mut case = Case::new("vision");
    case.allowed.egress = (0..64)
        .map(|n| serde_json::from_value(json!({"cidr": format!("198.51.{n}.0/24"), "ports": [n + 1]})).unwrap())
        .collect();
    case.allowed.ingress = (0..64)
        .map(|n| serde_json::from_value(json!({"namespace": format!("n{n}"), "ports": [n + 1]})).unwrap())
        .collect();
    case.host.blocked = (0..250)
        .map(|n| ranges::parse(&format!("172.16.{n}.1/32")).unwrap())
        .collect();
    case.node_ports.nodes = (0..2000_u32)
        .map(|n| IpNet::from(IpAddr::from((0xAC20_0000 + 2 * n).to_be_bytes())))
        .collect();
    let policy = case.with(|isolation| cluster_policy::build_cluster_policy(isolation, Generation::Cluster, true));
    for (direction, side) in [("ingress", "from"), ("egress", "to")] {
        let rules = policy.data["spec"][direction].as_array().unwrap();
        assert!(rules.len() <= 25, "{direction}: {}", rules.len());
        assert!(rules.iter().all(|rule| rule[side].as_array().unwrap().len() <= 25));
    }
}

/// One end of a connection.
#[derive(Clone, Debug, PartialEq)]
struct End {
    address: IpAddr,
    /// Namespace and labels, if it is a pod.
    pod: Option<(String, BTreeMap<String, String>)>,
}

fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    entries
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn pod(namespace: &str, last: u8, entries: &[(&str, &str)]) -> End {
    End {
        address: IpAddr::from([10, 244, 0, last]),
        pod: Some((namespace.into(), map(entries))),
    }
}

fn outside(address: &str) -> End {
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
struct Fleet {
    policies: Vec<NetworkPolicy>,
    denials: Vec<Value>,
}

impl Fleet {
    fn new(written: Vec<NetworkPolicy>) -> Self {
        let cases = NAMES.map(Case::new);
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
    fn connects(&self, from: &End, to: &End, at: (&str, u16)) -> bool {
        passes(&self.policies, from, to, true, at) && passes(&self.policies, to, from, false, at)
    }

    /// Checks connections, given as (from, to, protocol and port, whether it is allowed).
    fn check(&self, cases: &[(&End, &End, (&str, u16), bool)]) {
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
    fn connects_with_cluster_policy(&self, from: &End, to: &End, at: (&str, u16)) -> bool {
        let mut denials = self.denials.iter();
        self.connects(from, to, at)
            && !denials.any(|policy| is_denied(policy, from, to, true, at) || is_denied(policy, to, from, false, at))
    }
}

fn workload(tenant: usize, last: u8, extra: &[(&str, &str)]) -> End {
    let case = Case::new(NAMES[tenant]);
    let mut end = pod(&case.tenant.workload_namespace(), last, extra);
    end.pod
        .as_mut()
        .unwrap()
        .1
        .insert(labels::TENANT.into(), case.tenant.slug().into());
    end
}

fn component(tenant: usize, last: u8, name: &str) -> End {
    pod(
        &Case::new(NAMES[tenant]).tenant.control_plane_namespace(),
        last,
        &[(APP_NAME, name)],
    )
}

const OPEN: &[(&str, &str)] = &[("net.berth.dev/ingress", "open"), ("net.berth.dev/egress", "open")];
const TCP: (&str, u16) = ("TCP", 8080);

#[test]
fn allowed_and_denied_connections() {
    let fleet = Fleet::new(Vec::new());
    let open = workload(0, 1, OPEN);
    let sealed = workload(0, 2, &[]);
    let names_only = workload(0, 3, &[("net.berth.dev/dns", "open")]);
    let foreign = workload(1, 4, OPEN);
    let (server, syncer, coredns) = (
        component(0, 5, "kube-apiserver"),
        component(0, 6, "syncer"),
        component(0, 7, "coredns"),
    );
    let manager = component(0, 8, "kube-controller-manager");
    let (ingress, berth, stranger) = (
        pod("ingress-nginx", 9, &[]),
        pod("berth-system", 10, &[]),
        pod("other", 11, &[]),
    );
    let their_server = component(1, 12, "kube-apiserver");
    let host_dns = pod("kube-system", 13, &[("k8s-app", "kube-dns")]);
    let (team, metadata) = (outside("198.51.100.9"), outside("169.254.169.254"));
    let (node, host_api, etcd) = (outside("192.168.5.10"), outside("192.168.5.1"), outside("192.168.5.2"));
    let (allowed, blocked) = (outside("10.20.1.1"), outside("10.20.7.1"));
    let api = ("TCP", 6443);
    let cases = [
        (&open, &workload(0, 20, OPEN), TCP, true),
        (&open, &sealed, TCP, false),
        (&sealed, &open, TCP, false),
        (&open, &foreign, TCP, false),
        (&foreign, &open, TCP, false),
        (&open, &coredns, ("UDP", 5353), true),
        (&open, &coredns, ("TCP", 9153), false),
        (&sealed, &coredns, ("UDP", 5353), false),
        (&names_only, &coredns, ("UDP", 5353), true),
        (&names_only, &server, api, false),
        (&foreign, &coredns, ("UDP", 5353), false),
        (&open, &host_dns, ("UDP", 53), false),
        (&open, &server, api, true),
        (&open, &their_server, api, false),
        (&open, &syncer, ("TCP", 8444), false),
        (&open, &syncer, ("TCP", 8080), false),
        (&open, &host_api, api, false),
        (&open, &node, ("TCP", 10250), false),
        (&open, &etcd, ("TCP", 2379), false),
        (&open, &metadata, ("TCP", 80), false),
        (&open, &allowed, ("TCP", 443), true),
        (&open, &allowed, ("TCP", 80), false),
        (&open, &blocked, ("TCP", 443), false),
        (&open, &outside("192.168.9.9"), ("TCP", 5432), true),
        (&open, &node, ("TCP", 5432), false),
        (&open, &team, ("UDP", 123), true),
        (&open, &team, ("TCP", 123), false),
        (&metadata, &open, TCP, false),
        (&ingress, &open, TCP, true),
        (&ingress, &open, ("TCP", 9090), false),
        (&ingress, &sealed, TCP, false),
        (&stranger, &open, TCP, false),
        (&outside("203.0.113.9"), &open, TCP, true),
        (&team, &open, TCP, false),
        (&syncer, &open, TCP, true),
        (&syncer, &sealed, TCP, true),
        (&syncer, &foreign, TCP, false),
        (&syncer, &host_api, api, true),
        (&syncer, &node, ("TCP", 10250), false),
        (&syncer, &metadata, ("TCP", 80), false),
        (&syncer, &server, api, true),
        (&server, &syncer, ("TCP", 8444), true),
        (&server, &syncer, ("TCP", 8443), true),
        (&server, &open, TCP, false),
        (&server, &host_api, api, false),
        (&server, &node, ("TCP", 10250), false),
        (&server, &metadata, ("TCP", 80), false),
        (&server, &etcd, ("TCP", 2379), true),
        (&server, &pod("berth-system", 14, &[]), ("TCP", 2379), true),
        (&manager, &server, api, true),
        (&manager, &host_api, api, false),
        (&manager, &their_server, api, false),
        (&coredns, &server, api, true),
        (&coredns, &outside("192.168.5.53"), ("UDP", 53), true),
        (&coredns, &host_dns, ("UDP", 53), false),
        (&coredns, &open, TCP, false),
        (&team, &server, api, true),
        (&stranger, &server, api, false),
        (&foreign, &server, api, false),
        (&berth, &server, api, true),
        (&berth, &syncer, ("TCP", 8080), true),
        (&stranger, &syncer, ("TCP", 8444), false),
        (&team, &coredns, ("UDP", 5353), false),
    ];
    fleet.check(&cases);
}

#[test]
fn node_ports_are_open_at_the_tenants_own_nodes() {
    let fleet = Fleet::new(Vec::new());
    let (open, sealed, foreign) = (workload(0, 1, OPEN), workload(0, 2, &[]), workload(1, 4, OPEN));
    let (node, other_node) = (outside("192.168.5.10"), outside("192.168.5.11"));
    fleet.check(&[
        (&open, &node, ("TCP", 30080), true),
        (&open, &node, ("UDP", 30053), true),
        (&open, &node, ("UDP", 30080), false),
        (&open, &node, ("TCP", 30085), false),
        (&open, &node, ("TCP", 10250), false),
        (&open, &other_node, ("TCP", 30080), false),
        (&sealed, &node, ("TCP", 30080), false),
        (&foreign, &node, ("TCP", 30080), false),
        (&node, &open, TCP, true),
        (&other_node, &open, TCP, false),
        (&node, &sealed, TCP, false),
        (&node, &foreign, TCP, false),
    ]);
}

/// Any peer that the API accepts, including peers that no syncer writes.
fn peer_strategy() -> impl Strategy<Value = Value> {
    let selector = prop::sample::select(vec![
        json!({}),
        json!({"matchLabels": {"app": "a"}}),
        json!({"matchExpressions": [{"key": "berth.dev/tenant", "operator": "DoesNotExist"}]}),
    ]);
    let block = prop::sample::select(vec![
        "0.0.0.0/0",
        "10.0.0.0/8",
        "169.254.169.254/32",
        "192.168.5.0/24",
        "198.51.100.0/24",
    ]);
    prop_oneof![
        selector.clone().prop_map(|pods| json!({"podSelector": pods})),
        selector.prop_map(|namespaces| json!({"namespaceSelector": namespaces})),
        block.prop_map(|cidr| json!({"ipBlock": {"cidr": cidr}})),
    ]
}

fn policy_strategy() -> impl Strategy<Value = NetworkPolicy> {
    let rules = || prop::collection::vec(prop::collection::vec(peer_strategy(), 0..3), 0..3);
    let types = prop::sample::select(vec![
        json!(["Ingress"]),
        json!(["Egress"]),
        json!(["Ingress", "Egress"]),
    ]);
    let selected = prop::sample::select(vec![json!({}), json!({"matchLabels": {"app": "a"}})]);
    (rules(), rules(), types, selected).prop_map(|(ingress, egress, types, selected)| {
        let rules = |rules: Vec<Vec<Value>>, side: &str| -> Vec<Value> {
            let rule = |peers: Vec<Value>| if peers.is_empty() { json!({}) } else { json!({ side: peers }) };
            rules.into_iter().map(rule).collect()
        };
        let namespace = Case::new(NAMES[0]).tenant.workload_namespace();
        serde_json::from_value(json!({
            "metadata": {"name": "written", "namespace": namespace},
            "spec": {"podSelector": selected, "policyTypes": types, "ingress": rules(ingress, "from"), "egress": rules(egress, "to")},
        }))
        .unwrap()
    })
}

fn workload_strategy() -> impl Strategy<Value = End> {
    let entries = prop::sample::subsequence(
        vec![
            ("app", "a"),
            ("net.berth.dev/ingress", "open"),
            ("net.berth.dev/egress", "open"),
            ("net.berth.dev/dns", "open"),
            ("net.berth.dev/api-server", "open"),
        ],
        0..=5,
    );
    (1_u8..40, entries).prop_map(|(last, entries)| workload(0, last, &entries))
}

proptest! {
    /// The administrators' tier denies these connections, whatever policies the workload namespace has.
    #[test]
    fn no_policy_of_a_tenant_allows_foreign_networks(
        written in prop::collection::vec(policy_strategy(), 0..4), own in workload_strategy(), port in prop::sample::select(vec![53_u16, 80, 443, 6443, 10250]),
    ) {
        let fleet = Fleet::new(written);
        let foreign = [workload(1, 60, OPEN), workload(1, 61, &[]), component(1, 62, "kube-apiserver"), component(1, 63, "syncer"),
            component(0, 64, "syncer"), pod("kube-system", 65, &[("k8s-app", "kube-dns")]), pod("berth-system", 66, &[])];
        let blocked = ["169.254.169.254", "192.168.5.10", "192.168.5.1", "10.96.0.1", "10.20.7.1", "127.0.0.1", "198.51.100.1"].map(outside);
        for to in foreign.iter().chain(&blocked) {
            prop_assert!(!fleet.connects_with_cluster_policy(&own, to, ("TCP", port)), "{own:?} to {to:?}");
        }
        for from in [workload(1, 60, OPEN), component(1, 62, "kube-apiserver"), pod("other", 67, &[])] {
            prop_assert!(!fleet.connects_with_cluster_policy(&from, &own, ("TCP", port)), "{from:?} to {own:?}");
        }
    }

    /// Pods with the labels for open traffic can connect to each other; other pods only as far as a policy allows.
    #[test]
    fn labels_for_open_traffic_allow_it(one in workload_strategy(), other in workload_strategy(), port in 1_u16..) {
        let fleet = Fleet::new(Vec::new());
        let has = |end: &End, label: &str| end.pod.as_ref().unwrap().1.contains_key(label);
        let expected = has(&one, labels::NETWORK_EGRESS) && has(&other, labels::NETWORK_INGRESS);
        prop_assert_eq!(fleet.connects_with_cluster_policy(&one, &other, ("TCP", port)), expected);
        let names = has(&one, labels::NETWORK_EGRESS) || has(&one, labels::NETWORK_DNS);
        prop_assert_eq!(fleet.connects_with_cluster_policy(&one, &component(0, 70, "coredns"), ("UDP", 5353)), names);
        let api = has(&one, labels::NETWORK_EGRESS) || has(&one, labels::NETWORK_API_SERVER);
        prop_assert_eq!(fleet.connects_with_cluster_policy(&one, &component(0, 71, "kube-apiserver"), ("TCP", 6443)), api);
    }
}
