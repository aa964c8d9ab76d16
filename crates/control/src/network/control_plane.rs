//! Policies of the control-plane namespace, if its components are pods.
//!
//! | policy | pods | lets in | lets out to |
//! |---|---|---|---|
//! | `berth-baseline` | all | nobody | the tenant's API server |
//! | `berth-kube-apiserver` | API server | the tenant's pods, the other components, Berth, and teams: everybody but the host's other pods | the datastore, the syncer's admission and egress ports |
//! | `berth-syncer` | syncer | the API server, Berth | the host's API server, the tenant's pods, DNS, what is declared for the tenant |
//! | `berth-coredns` | CoreDNS | the tenant's pods, the other components | DNS servers outside |

use super::{
    Isolation,
    build::{Rules, address, dns, everywhere_but, labelled, pods, pods_in, port},
    workloads::to_declared,
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

pub(super) fn policies(isolation: &Isolation<'_>) -> Vec<NetworkPolicy> {
    let namespace = isolation.tenant.control_plane_namespace();
    let policy = |name: &str, selected: LabelSelector, rules: Rules| {
        rules.into_policy((&namespace, name, &isolation.labels), selected, &["Ingress", "Egress"])
    };
    let of = |component: &str| labelled([(APP_NAME, component)]);
    let endpoints = isolation.endpoints;
    let tcp = |number: u16| port(Protocol::Tcp, number);
    let api = [tcp(endpoints.api_server.listen.port())];
    let berth = || {
        pods_in(
            labelled([(NAMESPACE_NAME, system::NAMESPACE)]),
            LabelSelector::default(),
        )
    };
    let siblings = || pods(LabelSelector::default());
    let host_dns = pods_in(
        labelled([(NAMESPACE_NAME, HOST_DNS.0)]),
        labelled([(HOST_DNS.1, HOST_DNS.2)]),
    );

    let baseline = Rules::default().to([pods(of(API_SERVER))], api.clone());

    let mut callers = vec![isolation.workloads(), siblings(), berth()];
    // Teams, from wherever its Service is reached; but no pods of the host, other tenants' among them.
    callers.extend(everywhere_but(&isolation.facts.pods));
    let called_back = [
        tcp(endpoints.admission.listen.port()),
        tcp(endpoints.egress.listen.port()),
    ];
    let mut server = Rules::default()
        .from(callers, api)
        .to([pods(of(SYNCER))], called_back.clone());
    for (peers, ports) in datastore(isolation, &host_dns) {
        server = server.to(peers, ports);
    }

    let mut syncer = Rules::default()
        .from([pods(of(API_SERVER))], called_back)
        .from([berth()], [tcp(endpoints.syncer_admin.listen.port())])
        .to([isolation.workloads()], [])
        .to([pods(of(COREDNS))], dns(endpoints.dns.listen.port()))
        .to([host_dns], dns(DNS_PORT));
    for host in &isolation.facts.api_servers {
        syncer = syncer.to([address(host.ip())], [tcp(host.port())]);
    }
    let syncer = to_declared(isolation, syncer);
    // The broker looks names up at each connection, so that only their ports are known here.
    let mut outside: Vec<u16> = isolation.webhook_hosts.iter().map(|host| port_of(host)).collect();
    outside.sort_unstable();
    outside.dedup();
    let syncer = if outside.is_empty() {
        syncer
    } else {
        let ports: Vec<NetworkPolicyPort> = outside.into_iter().map(tcp).collect();
        syncer.to(everywhere_but(isolation.closed), ports)
    };

    // The resolver of its node may be anywhere, but not among the host's pods: the host's own DNS server is there.
    let coredns = Rules::default()
        .from([isolation.workloads(), siblings()], dns(endpoints.dns.listen.port()))
        .to(everywhere_but(&isolation.facts.pods), dns(DNS_PORT));
    let coredns = isolation.dns_servers.iter().fold(coredns, |rules, server| {
        rules.to([address(server.ip())], dns(server.port()))
    });
    let coredns = to_declared(isolation, coredns);

    vec![
        policy("berth-baseline", LabelSelector::default(), baseline),
        policy("berth-kube-apiserver", of(API_SERVER), server),
        policy("berth-syncer", of(SYNCER), syncer),
        policy("berth-coredns", of(COREDNS), coredns),
    ]
}

/// The port in `host` or `host:port`.
fn port_of(host: &str) -> u16 {
    let port = Target::parse(host).map(|target| target.port);
    port.unwrap_or(443)
}

/// Where the tenant's objects are stored: at an address outside, or behind a Service, by its address or by its name. Policies see
/// the pods behind a Service, and a name has to be looked up.
fn datastore(
    isolation: &Isolation<'_>,
    host_dns: &NetworkPolicyPeer,
) -> Vec<(Vec<NetworkPolicyPeer>, Vec<NetworkPolicyPort>)> {
    let mut rules = Vec::new();
    for endpoint in isolation.datastore {
        let Ok(uri) = endpoint.parse::<http::Uri>() else {
            continue;
        };
        let ports = vec![port(Protocol::Tcp, uri.port_u16().unwrap_or(2379))];
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let pods_of = |namespace: &str| pods_in(labelled([(NAMESPACE_NAME, namespace)]), LabelSelector::default());
        match host.parse::<IpAddr>() {
            Ok(ip) if isolation.facts.services.iter().any(|range| range.contains(&ip)) => {
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
