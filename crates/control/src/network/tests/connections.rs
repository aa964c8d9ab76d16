//! Which connections are possible: every packet is checked against the policies of control, against policies that a tenant might
//! write, and against the administrators' tier.

use super::{
    engine::{End, Fleet, OPEN, TCP, component, outside, pod, workload},
    *,
};
use proptest::prelude::*;

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
    // Packets to them reach the pod's own node.
    let (everybody, all_hosts) = (outside("255.255.255.255"), outside("224.0.0.1"));
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
        (&open, &everybody, ("UDP", 123), false),
        (&open, &all_hosts, ("UDP", 123), false),
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

#[test]
fn who_collects_metrics_reaches_the_metrics_of_syncers_and_nothing_else() {
    let mut cases = NAMES.map(Case::new);
    for case in &mut cases {
        case.metrics_from = serde_json::from_value(json!([
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
                "podSelector": {"matchLabels": {"app": "prometheus"}}},
            {"podSelector": {"matchLabels": {"app": "agent"}}},
            {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "collector"}}},
        ]))
        .unwrap();
    }
    let fleet = Fleet::of(&cases, Vec::new());
    let prometheus = pod("monitoring", 1, &[("app", "prometheus")]);
    let (beside, elsewhere) = (pod("monitoring", 2, &[]), pod("other", 3, &[("app", "prometheus")]));
    let agent = pod("berth-system", 4, &[("app", "agent")]);
    let (berth, agent_elsewhere) = (pod("berth-system", 5, &[]), pod("other", 6, &[("app", "agent")]));
    let team = workload(0, 7, &[&[("app", "prometheus")][..], OPEN].concat());
    let (collector, of_team) = (
        pod("other", 13, &[("app", "collector")]),
        workload(0, 14, &[&[("app", "collector")][..], OPEN].concat()),
    );
    let (syncer, other_syncer) = (component(0, 8, "syncer"), component(1, 9, "syncer"));
    let (server, coredns) = (component(0, 10, "kube-apiserver"), component(0, 11, "coredns"));
    let metrics = ("TCP", 8080);
    fleet.check(&[
        (&prometheus, &syncer, metrics, true),
        (&prometheus, &other_syncer, metrics, true),
        (&agent, &syncer, metrics, true),
        (&berth, &syncer, metrics, true),
        (&prometheus, &syncer, ("UDP", 8080), false),
        (&prometheus, &syncer, ("TCP", 8443), false),
        (&prometheus, &syncer, ("TCP", 8444), false),
        (&prometheus, &server, ("TCP", 6443), false),
        (&prometheus, &coredns, ("UDP", 5353), false),
        (&prometheus, &workload(0, 12, OPEN), metrics, false),
        (&beside, &syncer, metrics, false),
        (&elsewhere, &syncer, metrics, false),
        (&agent_elsewhere, &syncer, metrics, false),
        (&team, &syncer, metrics, false),
        (&collector, &syncer, metrics, true),
        (&of_team, &syncer, metrics, false),
        (&of_team, &other_syncer, metrics, false),
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
