//! What the policies of control contain. The modules below check what they let pass.

mod connections;
mod engine;
mod writes;

use super::{cluster_policy::Generation, *};
use crate::control_plane::Ports;
use berth_api::network::Protocol;
use serde_json::{Value, json};
use std::net::IpAddr;

const NAMES: [&str; 2] = ["vision", "speech"];

struct Case {
    tenant: TenantId,
    allowed: AllowedNetworks,
    host: HostNetwork,
    endpoints: Endpoints,
    node_ports: NodePortAccess,
    uses_pods: bool,
    api_server_clients: Vec<&'static str>,
    metrics_from: Vec<NetworkPolicyPeer>,
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
            metrics_from: Vec::new(),
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
            metrics_from: &self.metrics_from,
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

/// The peers are those of a policy in Berth's namespace, and in the form in which the API server returns them: a policy that differs is
/// replaced in each reconcile.
#[test]
fn who_collects_metrics_is_a_peer_of_the_syncers_policy_as_the_api_server_stores_it() {
    let mut case = Case::new("vision");
    let before = case.policies();
    case.metrics_from = serde_json::from_value(json!([
        {"namespaceSelector": {"matchLabels": {"team": "monitoring"}, "matchExpressions": []},
            "podSelector": {"matchLabels": {}, "matchExpressions": [{"key": "app", "operator": "Exists", "values": []}]}},
        {"podSelector": {"matchLabels": {"app": "prometheus"}}},
        {"ipBlock": {"cidr": "192.0.2.7/32", "except": []}},
    ]))
    .unwrap();
    let after = case.policies();
    let changed: Vec<&NetworkPolicy> = after.iter().filter(|policy| !before.contains(policy)).collect();
    assert_eq!((before.len(), changed.len()), (after.len(), 1));
    assert_eq!(changed[0].metadata.name.as_deref(), Some("berth-syncer"));
    let spec = serde_json::to_value(&changed[0].spec).unwrap();
    let expected = json!({
        "from": [
            {"namespaceSelector": {"matchLabels": {"team": "monitoring"}, "matchExpressions": [{"key": "berth.dev/role", "operator": "DoesNotExist"}]},
                "podSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}},
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "berth-system"}},
                "podSelector": {"matchLabels": {"app": "prometheus"}}},
            {"ipBlock": {"cidr": "192.0.2.7/32"}},
        ],
        "ports": [{"protocol": "TCP", "port": 8080}],
    });
    assert_eq!(spec["ingress"].as_array().unwrap().last(), Some(&expected));
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
    let of_v4 = case
        .blocked()
        .iter()
        .filter(|range| !range.to_string().contains(':'))
        .count();
    assert_eq!(
        network_limits(&case.allowed, &ClassNetwork::default(), &case.host, &case.blocked())
            .blocked
            .len(),
        of_v4,
        "all of IPv4"
    );
    assert!(blocked(json!({"egress": [{"cidr": "198.51.100.0/24"}]})).is_empty());
    assert_eq!(blocked(json!({"egress": [{"cidr": "10.20.0.0/16"}]})), ["10.20.7.0/24"]);
}

#[test]
fn what_is_blocked_is_blocked_behind_a_translator() {
    let case = Case::new("vision");
    let blocked = |cidr: &str| -> Vec<String> {
        let allowed = serde_json::from_value(json!({"egress": [{"cidr": cidr}]})).unwrap();
        let class = ClassNetwork::default();
        let blocked = close_behind_nat64(&allowed, &class, case.blocked());
        network_limits(&allowed, &class, &case.host, &blocked).blocked
    };
    for cidr in ["::/0", "64:ff9b::/96"] {
        let blocked = blocked(cidr);
        // Services, metadata services, and what the class blocks.
        for range in [
            "64:ff9b::a60:0/112",
            "64:ff9b::a9fe:0/112",
            "64:ff9b::6464:64c8/128",
            "64:ff9b::a14:700/120",
        ] {
            assert!(blocked.iter().any(|known| known == range), "{range}: {blocked:?}");
        }
    }
    let is_behind = |range: &String| range.starts_with("64:ff9b:");
    assert!(!blocked("0.0.0.0/0").iter().any(is_behind));
    let hooks: ClassNetwork =
        serde_json::from_value(json!({"apiServerEgress": {"hosts": ["hooks.example.com"]}})).unwrap();
    let none = serde_json::from_value(json!({})).unwrap();
    let closed = close_behind_nat64(&none, &hooks, case.blocked());
    assert!(
        closed.iter().map(ToString::to_string).any(|range| is_behind(&range)),
        "a name may resolve to any address"
    );
    assert_eq!(blocked("64:ff9b::808:808/128"), [""; 0], "a server of the internet");
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

/// A team may declare 64 networks, and each rule repeats the blocked ranges.
#[test]
fn a_network_that_is_declared_often_repeats_no_blocked_ranges() {
    let rules_of = |allowed: Value| -> [Vec<Value>; 2] {
        let mut case = Case::new("vision");
        case.allowed = serde_json::from_value(allowed).unwrap();
        let rules = |name: &str, direction: &str| -> Vec<Value> {
            let policies = case.policies();
            let mut named = policies
                .iter()
                .filter(|policy| policy.metadata.name.as_deref() == Some(name));
            let spec = serde_json::to_value(&named.next().unwrap().spec).unwrap();
            let with_ranges = |rule: &&Value| rule.to_string().contains(r#""except""#);
            let rules = spec[direction].as_array().unwrap().iter().filter(with_ranges);
            rules.cloned().collect()
        };
        [
            rules("berth-open-egress", "egress"),
            rules("berth-open-ingress", "ingress"),
        ]
    };
    let each = |port: u16| json!({"cidr": "0.0.0.0/0", "ports": [port, 443]});
    let declared: Vec<Value> = (1..=64).map(each).collect();
    for rules in rules_of(json!({"egress": declared, "ingress": declared})) {
        assert_eq!(rules.len(), 1, "{rules:?}");
        let ports = rules[0]["ports"].as_array().unwrap();
        assert_eq!(ports.len(), 65);
        assert_eq!(
            ports[..2],
            [
                json!({"protocol": "TCP", "port": 1}),
                json!({"protocol": "TCP", "port": 443})
            ]
        );
    }
    let all_ports = json!({"cidr": "0.0.0.0/0"});
    for declared in [json!([all_ports, each(80)]), json!([each(80), all_ports, each(81)])] {
        for rules in rules_of(json!({"egress": declared, "ingress": declared})) {
            assert_eq!(rules.len(), 1, "{rules:?}");
            assert!(rules[0]["ports"].is_null(), "all ports: {rules:?}");
        }
    }
}

#[test]
fn a_policy_holds_no_more_rules_than_definitions_allow() {
    let mut case = Case::new("vision");
    case.allowed.ingress = (0..64)
        .map(|n| serde_json::from_value(json!({"namespace": format!("n{n}"), "ports": [n + 1]})).unwrap())
        .collect();
    // With what classes block, and all of that behind a translator.
    case.host.blocked = (0..628)
        .map(|n| ranges::parse(&format!("172.{}.{}.1/32", 16 + n / 250, n % 250)).unwrap())
        .collect();
    case.node_ports.nodes = (0..2000_u32)
        .map(|n| IpNet::from(IpAddr::from((0xAC20_0000 + 2 * n).to_be_bytes())))
        .collect();
    // As many lists of ports as have rules of their own, and more.
    for (lists, uses_pods) in [(15, true), (15, false), (64, true), (64, false)] {
        case.uses_pods = uses_pods;
        let rule = |n: u16| json!({"cidr": format!("198.51.{n}.0/24"), "ports": [n % lists + 1]});
        case.allowed.egress = (0..64).map(|n| serde_json::from_value(rule(n)).unwrap()).collect();
        let policy = case.with(|isolation| cluster_policy::build_cluster_policy(isolation, Generation::Cluster, true));
        for (direction, side) in [("ingress", "from"), ("egress", "to")] {
            let rules = policy.data["spec"][direction].as_array().unwrap();
            assert!(rules.len() <= 25, "{direction}: {}", rules.len());
            assert!(rules.iter().all(|rule| rule[side].as_array().unwrap().len() <= 25));
        }
    }
}
