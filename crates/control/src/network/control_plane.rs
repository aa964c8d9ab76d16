//! Policies of the control-plane namespace, if its components are pods.
//!
//! | policy | pods | ingress from | egress to |
//! |---|---|---|---|
//! | `berth-baseline` | all | – | the tenant's API server |
//! | `berth-kube-apiserver` | API server | the tenant's pods, the other components, Berth, and clients: every address except the host's other pods, and pods of namespaces that the platform names | the datastore, the syncer's admission and egress ports |
//! | `berth-syncer` | syncer | the API server; Berth, and who collects metrics for the platform | the host's API server, the tenant's pods, DNS, allowed networks |
//! | `berth-coredns` | CoreDNS | the tenant's pods, the other components | DNS servers outside |

use super::{
    NetworkIsolation,
    build::{Rules, address, all_addresses_except, dns, label_selector, peer_elsewhere, pods, pods_in, port},
    workloads::allow_egress,
};
use crate::{
    control_plane::{API_SERVER, COREDNS, SYNCER},
    runtime::cluster::APP_NAME,
};
use berth_api::{labels::NAMESPACE_NAME, network::Protocol, system};
use berth_sync_rules::egress::target::Target;
use k8s_openapi::{
    api::networking::v1::{NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort},
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use std::net::IpAddr;

/// Port of DNS servers.
const DNS_PORT: u16 = 53;
/// Namespace and label of the host's own DNS server on most clusters.
const HOST_DNS: (&str, &str, &str) = ("kube-system", "k8s-app", "kube-dns");

pub(super) fn build_policies(isolation: &NetworkIsolation<'_>) -> Vec<NetworkPolicy> {
    let namespace = isolation.tenant.control_plane_namespace();
    let policy = |name: &str, selected: LabelSelector, rules: Rules| {
        rules.into_policy((&namespace, name, &isolation.labels), selected, &["Ingress", "Egress"])
    };
    let of = |component: &str| label_selector([(APP_NAME, component)]);
    let endpoints = isolation.endpoints;
    let tcp = |number: u16| port(Protocol::Tcp, number);
    let api = [tcp(endpoints.api_server.listen.port())];
    let all_pods_of = |name: &str| pods_in(label_selector([(NAMESPACE_NAME, name)]), LabelSelector::default());
    let berth = || all_pods_of(system::NAMESPACE);
    let siblings = || pods(LabelSelector::default());
    let host_dns = pods_in(
        label_selector([(NAMESPACE_NAME, HOST_DNS.0)]),
        label_selector([(HOST_DNS.1, HOST_DNS.2)]),
    );

    let baseline = Rules::default().to([pods(of(API_SERVER))], api.clone());

    let mut callers = vec![isolation.workloads(), siblings(), berth()];
    // Clients, wherever the Service is reached from, except pods of the host (and of other tenants).
    callers.extend(all_addresses_except(&isolation.host.pods));
    callers.extend(isolation.api_server_clients.iter().map(|name| all_pods_of(name)));
    let called_back = [
        tcp(endpoints.admission.listen.port()),
        tcp(endpoints.egress.listen.port()),
    ];
    let mut server = Rules::default()
        .from(callers, api)
        .to([pods(of(SYNCER))], called_back.clone());
    for (peers, ports) in datastore_rules(isolation, &host_dns) {
        server = server.to(peers, ports);
    }

    let metrics_from = isolation.metrics_from.iter();
    let metrics_from = metrics_from.map(|peer| peer_elsewhere(system::NAMESPACE, peer));
    let admin = [tcp(endpoints.syncer_admin.listen.port())];
    let mut syncer = Rules::default()
        .from([pods(of(API_SERVER))], called_back)
        .from([berth()], admin.clone())
        .from(metrics_from.collect::<Vec<_>>(), admin)
        .to([isolation.workloads()], [])
        .to([pods(of(COREDNS))], dns(endpoints.dns.listen.port()))
        .to([host_dns], dns(DNS_PORT));
    for host in &isolation.host.api_servers {
        syncer = syncer.to([address(host.ip())], [tcp(host.port())]);
    }
    let syncer = allow_egress(isolation, syncer);
    // The egress broker resolves names at each connection, so only the ports are known here.
    let mut outside: Vec<u16> = isolation.webhook_hosts.iter().map(|host| parse_port(host)).collect();
    outside.sort_unstable();
    outside.dedup();
    let syncer = if outside.is_empty() {
        syncer
    } else {
        let ports: Vec<NetworkPolicyPort> = outside.into_iter().map(tcp).collect();
        syncer.to(all_addresses_except(isolation.blocked), ports)
    };

    // The node's resolver may have any address except those of the host's pods: the host's own DNS server is one of them.
    let coredns = Rules::default()
        .from([isolation.workloads(), siblings()], dns(endpoints.dns.listen.port()))
        .to(all_addresses_except(&isolation.host.pods), dns(DNS_PORT));
    let coredns = isolation.dns_servers.iter().fold(coredns, |rules, server| {
        rules.to([address(server.ip())], dns(server.port()))
    });
    let coredns = allow_egress(isolation, coredns);

    vec![
        policy("berth-baseline", LabelSelector::default(), baseline),
        policy("berth-kube-apiserver", of(API_SERVER), server),
        policy("berth-syncer", of(SYNCER), syncer),
        policy("berth-coredns", of(COREDNS), coredns),
    ]
}

/// The port in `host` or `host:port`.
fn parse_port(host: &str) -> u16 {
    let port = Target::parse(host).map(|target| target.port);
    port.unwrap_or(443)
}

/// Rules for the datastore: an address, or a Service by its address or name. Policies see the pods behind a Service, and a name
/// must be resolved.
fn datastore_rules(
    isolation: &NetworkIsolation<'_>,
    host_dns: &NetworkPolicyPeer,
) -> Vec<(Vec<NetworkPolicyPeer>, Vec<NetworkPolicyPort>)> {
    let mut rules = Vec::new();
    for endpoint in isolation.datastore {
        let Ok(uri) = endpoint.parse::<http::Uri>() else {
            continue;
        };
        let ports = vec![port(Protocol::Tcp, uri.port_u16().unwrap_or(2379))];
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let pods_of =
            |namespace: &str| pods_in(label_selector([(NAMESPACE_NAME, namespace)]), LabelSelector::default());
        match host.parse::<IpAddr>() {
            Ok(ip) if isolation.host.services.iter().any(|range| range.contains(&ip)) => {
                rules.push((vec![pods_of(system::NAMESPACE)], ports));
            }
            Ok(ip) => rules.push((vec![address(ip)], ports)),
            Err(_) => {
                rules.push((
                    vec![pods_of(host.split('.').nth(1).unwrap_or(system::NAMESPACE))],
                    ports,
                ));
                rules.push((vec![host_dns.clone()], dns(DNS_PORT)));
            }
        }
    }
    rules.dedup();
    rules
}
