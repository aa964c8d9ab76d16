//! Policies of the workload namespace.
//!
//! | policy | pods | opens |
//! |---|---|---|
//! | `berth-baseline` | all | nothing, but that the tenant's syncer reaches them for its API server (webhooks, proxies) |
//! | `berth-open-ingress` | those that no ingress policy of the tenant selects | pods of the tenant, who is declared to be let in |
//! | `berth-open-egress` | those that no egress policy of the tenant selects | pods, DNS and API server of the tenant, what is declared |
//! | `berth-dns`, `berth-api-server` | those that an egress policy of the tenant lets reach it | DNS, API server |
//!
//! So a tenant's own policies mean what they mean on any cluster: one that denies egress closes DNS as well.

use super::{
    Isolation,
    build::{Rules, address, declared_block, declared_ports, dns, labelled, pods, pods_in, port},
};
use crate::control_plane::{API_SERVER, COREDNS, Endpoint, SYNCER};
use berth_api::{
    labels::{NAMESPACE_NAME, NETWORK_API_SERVER, NETWORK_DNS, NETWORK_EGRESS, NETWORK_INGRESS, NETWORK_OPEN, TENANT},
    network::{EgressRule, IngressRule, Protocol},
};
use k8s_openapi::{
    api::networking::v1::{NetworkPolicy, NetworkPolicyPeer},
    apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement},
};

pub(super) fn policies(isolation: &Isolation<'_>) -> Vec<NetworkPolicy> {
    let namespace = isolation.tenant.workload_namespace();
    let policy = |name: &str, label: Option<&str>, rules: Rules, types: &[&str]| {
        let selected = label.map_or_else(LabelSelector::default, |label| labelled([(label, NETWORK_OPEN)]));
        rules.into_policy((&namespace, name, &isolation.labels), selected, types)
    };
    let baseline = if isolation.uses_pods {
        Rules::default().from([isolation.component(SYNCER)], [])
    } else {
        // Processes beside the host's API server.
        let machines = isolation.facts.api_servers.iter().map(|server| address(server.ip()));
        Rules::default().from(machines.collect::<Vec<_>>(), [])
    };
    let own = || [pods(LabelSelector::default())];
    let inward = isolation
        .declared
        .ingress
        .iter()
        .fold(Rules::default().from(own(), []), |rules, rule| {
            let IngressRule {
                cidr,
                namespace,
                ports,
                protocol,
            } = rule;
            let by_range = cidr.iter().filter_map(|cidr| declared_block(cidr, isolation.closed));
            let by_name = namespace.iter().map(|name| namespace_of_host(name));
            rules.from(
                by_range.chain(by_name).collect::<Vec<_>>(),
                declared_ports(ports, *protocol),
            )
        });
    let outward = Rules::default().to(own(), []);
    let outward = to_api_server(isolation, to_dns(isolation, outward));
    let outward = to_declared(isolation, outward);
    vec![
        policy("berth-baseline", None, baseline, &["Ingress", "Egress"]),
        policy("berth-open-ingress", Some(NETWORK_INGRESS), inward, &["Ingress"]),
        policy("berth-open-egress", Some(NETWORK_EGRESS), outward, &["Egress"]),
        policy(
            "berth-dns",
            Some(NETWORK_DNS),
            to_dns(isolation, Rules::default()),
            &["Egress"],
        ),
        policy(
            "berth-api-server",
            Some(NETWORK_API_SERVER),
            to_api_server(isolation, Rules::default()),
            &["Egress"],
        ),
    ]
}

/// The pods of a namespace of the host, unless it is a tenant's.
fn namespace_of_host(name: &str) -> NetworkPolicyPeer {
    let mut selector = labelled([(NAMESPACE_NAME, name)]);
    selector.match_expressions = Some(vec![LabelSelectorRequirement {
        key: TENANT.into(),
        operator: "DoesNotExist".into(),
        values: None,
    }]);
    pods_in(selector, LabelSelector::default())
}

/// What a server of the control plane is for policies, which see packets after the address of its Service was replaced.
fn server(isolation: &Isolation<'_>, component: &str, endpoint: &Endpoint) -> Vec<NetworkPolicyPeer> {
    if isolation.uses_pods {
        vec![isolation.component(component)]
    } else {
        endpoint.host.parse().map(address).into_iter().collect()
    }
}

fn to_dns(isolation: &Isolation<'_>, rules: Rules) -> Rules {
    let endpoint = &isolation.endpoints.dns;
    rules.to(server(isolation, COREDNS, endpoint), dns(endpoint.listen.port()))
}

fn to_api_server(isolation: &Isolation<'_>, rules: Rules) -> Rules {
    let endpoint = &isolation.endpoints.api_server;
    let ports = [port(Protocol::Tcp, endpoint.listen.port())];
    rules.to(server(isolation, API_SERVER, endpoint), ports)
}

/// What is declared to be reached, without what is closed.
pub(super) fn to_declared(isolation: &Isolation<'_>, rules: Rules) -> Rules {
    isolation.declared.egress.iter().fold(rules, |rules, rule| {
        let EgressRule { cidr, ports, protocol } = rule;
        let peers: Vec<NetworkPolicyPeer> = declared_block(cidr, isolation.closed).into_iter().collect();
        rules.to(peers, declared_ports(ports, *protocol))
    })
}
