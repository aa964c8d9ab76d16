//! Policies of the workload namespace.
//!
//! | policy | pods | allows |
//! |---|---|---|
//! | `berth-baseline` | all | ingress from the tenant's syncer, for its API server (webhooks, proxies) |
//! | `berth-open-ingress` | those that no ingress policy of the tenant selects | ingress from pods of the tenant, from allowed networks and namespaces, and from the tenant's nodes if it has node ports |
//! | `berth-open-egress` | those that no egress policy of the tenant selects | egress to pods, DNS, API server and node ports of the tenant and to allowed networks |
//! | `berth-dns`, `berth-api-server` | those that an egress policy of the tenant allows it | egress to DNS, to the API server |
//!
//! So a tenant's own policies have the same effect as on any cluster: one that denies egress denies DNS as well.

use super::{
    NetworkIsolation,
    build::{
        Rules, address, allowed_ports, block, dns, label_selector, lacks, merge_ports, pods, pods_in, port,
        with_requirement,
    },
};
use crate::control_plane::{API_SERVER, COREDNS, Endpoint, SYNCER};
use berth_api::{
    labels::{NAMESPACE_NAME, NETWORK_API_SERVER, NETWORK_DNS, NETWORK_EGRESS, NETWORK_INGRESS, NETWORK_OPEN, TENANT},
    network::{EgressRule, IngressRule, Protocol},
    ranges,
};
use k8s_openapi::{
    api::networking::v1::{NetworkPolicy, NetworkPolicyPeer},
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};

pub(super) fn build_policies(isolation: &NetworkIsolation<'_>) -> Vec<NetworkPolicy> {
    let namespace = isolation.tenant.workload_namespace();
    let policy = |name: &str, label: Option<&str>, rules: Rules, types: &[&str]| {
        let selected = label.map_or_else(LabelSelector::default, |label| label_selector([(label, NETWORK_OPEN)]));
        rules.into_policy((&namespace, name, &isolation.labels), selected, types)
    };
    let baseline = if isolation.uses_pods {
        Rules::default().from([isolation.component(SYNCER)], [])
    } else {
        // Processes run beside the host's API server.
        let servers = isolation.host.api_servers.iter().map(|server| address(server.ip()));
        Rules::default().from(servers.collect::<Vec<_>>(), [])
    };
    let own = || [pods(LabelSelector::default())];
    let sources = isolation.allowed.ingress.iter().filter_map(|rule| {
        let IngressRule {
            cidr,
            namespace,
            ports,
            protocol,
        } = rule;
        let network = cidr.as_deref().map(ranges::parse).transpose().ok()?;
        Some(((network, namespace.as_deref()), allowed_ports(ports, *protocol)))
    });
    let inward = merge_ports(sources).into_iter();
    let inward = inward.fold(
        Rules::default().from(own(), []),
        |rules, ((network, namespace), ports)| {
            let by_range = network.and_then(|network| block(network, isolation.blocked));
            let by_name = namespace.map(pods_of_host_namespace);
            rules.from(by_range.into_iter().chain(by_name).collect::<Vec<_>>(), ports)
        },
    );
    let inward = inward.from(node_peers(isolation), []);
    let node_ports = isolation
        .node_ports
        .ports
        .iter()
        .map(|(protocol, number)| port(*protocol, *number));
    let outward = Rules::default().to(own(), []);
    let outward = outward.to(node_peers(isolation), node_ports.collect::<Vec<_>>());
    let outward = allow_api_server(isolation, allow_dns(isolation, outward));
    let outward = allow_egress(isolation, outward);
    vec![
        policy("berth-baseline", None, baseline, &["Ingress", "Egress"]),
        policy("berth-open-ingress", Some(NETWORK_INGRESS), inward, &["Ingress"]),
        policy("berth-open-egress", Some(NETWORK_EGRESS), outward, &["Egress"]),
        policy(
            "berth-dns",
            Some(NETWORK_DNS),
            allow_dns(isolation, Rules::default()),
            &["Egress"],
        ),
        policy(
            "berth-api-server",
            Some(NETWORK_API_SERVER),
            allow_api_server(isolation, Rules::default()),
            &["Egress"],
        ),
    ]
}

/// The tenant's own nodes, if it has node ports.
fn node_peers(isolation: &NetworkIsolation<'_>) -> Vec<NetworkPolicyPeer> {
    let nodes = isolation.node_ports.nodes.iter();
    nodes.filter_map(|node| block(*node, &[])).collect()
}

/// The pods of a host namespace that is not a tenant's.
fn pods_of_host_namespace(name: &str) -> NetworkPolicyPeer {
    let selector = with_requirement(label_selector([(NAMESPACE_NAME, name)]), lacks(TENANT));
    pods_in(selector, LabelSelector::default())
}

/// A component of the control plane as a peer. Policies see packets after Service addresses were translated.
fn component_peers(isolation: &NetworkIsolation<'_>, component: &str, endpoint: &Endpoint) -> Vec<NetworkPolicyPeer> {
    if isolation.uses_pods {
        vec![isolation.component(component)]
    } else {
        endpoint.host.parse().map(address).into_iter().collect()
    }
}

fn allow_dns(isolation: &NetworkIsolation<'_>, rules: Rules) -> Rules {
    let endpoint = &isolation.endpoints.dns;
    rules.to(
        component_peers(isolation, COREDNS, endpoint),
        dns(endpoint.listen.port()),
    )
}

fn allow_api_server(isolation: &NetworkIsolation<'_>, rules: Rules) -> Rules {
    let endpoint = &isolation.endpoints.api_server;
    let ports = [port(Protocol::Tcp, endpoint.listen.port())];
    rules.to(component_peers(isolation, API_SERVER, endpoint), ports)
}

/// Allows egress to the allowed networks, except the blocked ranges.
pub(super) fn allow_egress(isolation: &NetworkIsolation<'_>, rules: Rules) -> Rules {
    let networks = isolation.allowed.egress.iter().filter_map(|rule| {
        let EgressRule { cidr, ports, protocol } = rule;
        Some((ranges::parse(cidr).ok()?, allowed_ports(ports, *protocol)))
    });
    let merged = merge_ports(networks).into_iter();
    merged.fold(rules, |rules, (network, ports)| {
        let peers: Vec<NetworkPolicyPeer> = block(network, isolation.blocked).into_iter().collect();
        rules.to(peers, ports)
    })
}
