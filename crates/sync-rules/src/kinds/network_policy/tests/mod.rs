//! Golden tests, and properties checked with a small model of what a policy engine does.

mod too_many;

use super::*;
use crate::{
    kinds::schemas,
    model::{KindId, store::Stored, tenant::test_tenant},
    registry,
    translation::{namespace_labels, pod_labels},
};
use berth_api::{NetworkLimits, labels};
use ipnet::IpNet;
use proptest::prelude::*;
use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

const BLOCKED: &[&str] = &["10.0.0.0/8", "fd00::/16"];
const NAMESPACES: &[(&str, &str)] = &[("shop", "web"), ("lab", "ml")];

fn cache() -> Cache {
    cache_with(&everything())
}

/// Everything outside is declared, but for what is blocked.
fn everything() -> NetworkLimits {
    let ranges = ["0.0.0.0/0", "::/0"];
    limits(
        &ranges.map(|cidr| json!({ "cidr": cidr })),
        &ranges.map(|cidr| json!({ "cidr": cidr })),
    )
}

fn limits(egress: &[Value], ingress: &[Value]) -> NetworkLimits {
    serde_json::from_value(json!({"blocked": BLOCKED, "egress": egress, "ingress": ingress})).unwrap()
}

fn cache_with(limits: &NetworkLimits) -> Cache {
    let mut tenant = test_tenant();
    tenant.dns_address = Some("10.96.0.53".into());
    tenant.network = Arc::new(limits.clone());
    let cache = registry::new_cache(tenant);
    for (namespace, team) in NAMESPACES {
        let object = json!({"metadata": {"name": namespace, "resourceVersion": "1",
            "labels": {"team": team, "kubernetes.io/metadata.name": namespace}}});
        let store = cache.stores.tenant(KindId::Namespace);
        store.written(Name::new("", namespace), Stored::new(&object));
    }
    cache
}

fn name() -> Name {
    Name::new("shop", "rules")
}

fn translate(spec: &Value) -> (Value, Vec<String>) {
    translate_in(&cache(), spec)
}

fn translate_in(cache: &Cache, spec: &Value) -> (Value, Vec<String>) {
    let policy = json!({"metadata": {"name": "rules", "namespace": "shop"}, "spec": spec});
    let translated = Policies.translate(cache, &name(), &policy).unwrap();
    let ignored = translated.ignored.iter().map(ToString::to_string).collect();
    (translated.object["spec"].clone(), ignored)
}

#[test]
fn selectors_become_those_of_the_tenants_pods() {
    let (spec, ignored) = translate(&json!({
        "podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"ports": [{"protocol": "TCP", "port": 5432, "endPort": 5440}], "from": [
            {"podSelector": {"matchLabels": {"app": "web"}}},
            {"namespaceSelector": {}},
            {"namespaceSelector": {"matchLabels": {"team": "web"}},
             "podSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}},
            {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "lab"}}}]}],
        "egress": [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["192.0.2.0/24"]}}], "ports": [{"port": "dns"}]}]
    }));
    assert!(ignored.is_empty(), "{ignored:?}");
    insta::assert_yaml_snapshot!(spec);
}

#[test]
fn a_rule_for_everyone_ends_where_the_platform_begins() {
    let (spec, ignored) = translate(&json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{}]}));
    assert!(ignored.is_empty(), "{ignored:?}");
    insta::assert_yaml_snapshot!(spec["egress"]);
}

/// The rules of an egress policy with these peers, in a tenant that has nothing declared on a host with these families; and what is ignored.
fn egress_to(families: &[&str], peers: &[Value]) -> (Value, Vec<String>) {
    let limits = json!({"blocked": BLOCKED, "families": families});
    let cache = cache_with(&serde_json::from_value(limits).unwrap());
    let policy =
        json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": peers, "ports": [{"port": 80}]}]});
    let (spec, ignored) = translate_in(&cache, &policy);
    (spec["egress"].clone(), ignored)
}

// Upstream's end-to-end tests: a policy that allows all addresses allows pods as well.
#[test]
fn blocks_of_all_addresses_open_the_tenants_pods() {
    let block = |cidr: &str, except: &[&str]| json!({"ipBlock": {"cidr": cidr, "except": except}});
    let (v4, v6) = ("0.0.0.0/0", "::/0");
    let every_pod = egress_to(&[v4], &[json!({"namespaceSelector": {}})]).0;
    let opens = |families: &[&str], peers: &[Value]| {
        let (rules, ignored) = egress_to(families, peers);
        assert!(rules == every_pod || rules.is_null(), "{rules}");
        assert!(rules.is_null() || ignored.is_empty(), "{ignored:?}");
        rules == every_pod
    };
    assert!(opens(&[v4], &[block(v4, &[])]) && opens(&[v4], &[block(v4, &["169.254.0.0/16"])]));
    assert!(opens(&[v6], &[block(v6, &[])]) && opens(&[v4, v6], &[block(v4, &[]), block(v6, &[])]));
    assert!(!opens(&[v4], &[block(v6, &[])]) && !opens(&[v4, v6], &[block(v4, &[])]));
    assert!(!opens(&[v4], &[block(v4, &["192.0.2.0/24"])]) && !opens(&[], &[block(v4, &[])]));
    let mut unknown = block(v4, &[]);
    unknown["zone"] = "a".into();
    assert!(!opens(&[v4], &[unknown]));
}

#[test]
fn only_declared_networks_are_opened_at_their_ports() {
    let egress = [
        json!({"cidr": "192.0.2.0/24", "ports": [443, 5432]}),
        json!({"cidr": "198.51.100.0/24"}),
    ];
    let ingress = [
        json!({"cidr": "203.0.113.0/24"}),
        json!({"namespace": "ingress-nginx", "ports": [8080]}),
    ];
    let cache = cache_with(&limits(&egress, &ingress));
    let (spec, ignored) = translate_in(
        &cache,
        &json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"],
            "egress": [
                {"to": [{"ipBlock": {"cidr": "192.0.2.7/32"}}, {"podSelector": {}}], "ports": [{"port": 443}]},
                {"ports": [{"port": 1, "endPort": 1023}]},
                {"to": [{"ipBlock": {"cidr": "8.8.8.8/32"}}, {"ipBlock": {"cidr": "10.96.0.53/32"}}]}],
            "ingress": [{"ports": [{"port": 8080}]}, {"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}]}),
    );
    insta::assert_yaml_snapshot!((spec, ignored));
}

#[test]
fn unsupported_parts_are_left_out_and_allow_no_traffic() {
    let (spec, ignored) = translate(&json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [
        {"from": [{"ipBlock": {"cidr": "10.20.0.0/16"}}]},
        {"from": [{"ipBlock": {"cidr": "10.20.0.0/16"}}, {"podSelector": {}}]},
        {"from": [{"serviceSelector": {}}]},
        {"sources": ["everyone"]},
        {"ports": [{"port": 80, "weight": 3}]}
    ]}));
    assert_eq!(json::items(&spec, &["ingress"]).len(), 1, "{spec}");
    insta::assert_yaml_snapshot!(ignored);
}

#[test]
fn a_policy_with_unknown_parts_allows_no_traffic() {
    let spec = json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{}], "exceptions": ["mine"]});
    let (spec, ignored) = translate(&spec);
    assert_eq!(spec.get("ingress"), None);
    assert_eq!(ignored.len(), 1, "{ignored:?}");
}

#[test]
fn a_direction_that_costs_the_host_too_much_is_closed() {
    let blocked: Vec<String> = (0..100).map(|n| format!("172.16.{n}.1/32")).collect();
    let declared = [json!({"cidr": "0.0.0.0/0"})];
    let mut limits = limits(&declared, &declared);
    limits.blocked = blocked;
    let cache = cache_with(&limits);
    let translate = |peers: u32| {
        let to: Vec<Value> = (0..peers)
            .map(|n| json!({"ipBlock": {"cidr": format!("{}.0.0.0/4", 16 * (n % 14))}}))
            .collect();
        let everywhere: Vec<Value> = (0..peers).map(|_| json!({"ipBlock": {"cidr": "0.0.0.0/0"}})).collect();
        let spec = json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [{"from": to}], "egress": [{"to": everywhere}]});
        translate_in(&cache, &spec)
    };
    let (spec, ignored) = translate(40);
    assert_eq!((json::items(&spec, &["egress"]).len(), ignored), (1, Vec::new()));
    let (spec, ignored) = translate(80);
    assert_eq!(
        (spec.get("egress"), &spec["policyTypes"]),
        (None, &json!(["Ingress", "Egress"]))
    );
    assert_eq!(json::items(&spec, &["ingress"]).len(), 1, "the other direction stays");
    assert!(
        ignored.len() == 1 && ignored[0].starts_with("spec.egress: "),
        "{ignored:?}"
    );
}

#[test]
fn a_policy_with_a_too_large_selector_is_not_on_the_host() {
    let values: Vec<String> = (0..500).map(|number| format!("v{number}")).collect();
    let selector = json!({"matchExpressions": [{"key": "app", "operator": "In", "values": values}]});
    let policy = json!({"metadata": {"name": "rules", "namespace": "shop"}, "spec": {"podSelector": selector}});
    let denied = Policies.translate(&cache(), &name(), &policy).unwrap_err();
    assert_eq!(denied[0].field, "spec.podSelector");
    assert_eq!(
        Policies.when_denied(&cache(), &name(), &policy, &Value::Null),
        WhenDenied::Withdraw
    );
}

fn open(cache: &Cache, namespace: &str, pod_labels: &Value) -> Vec<String> {
    let pod = json!({"metadata": {"labels": pod_labels}});
    let labels = isolation::labels_of(cache, &Name::new(namespace, "pod"), &pod);
    labels.into_iter().map(|(label, _)| label).collect()
}

#[test]
fn policies_are_read_once_for_all_pods_and_a_too_large_selector_closes_all() {
    let cache = cache();
    let policies = cache.stores.tenant(KindId::NetworkPolicy);
    let mut versions = 1..;
    let mut put = |spec: &Value| {
        let version = versions.next().unwrap_or(0_u32).to_string();
        let policy = json!({"metadata": {"name": "rules", "resourceVersion": version}, "spec": spec});
        policies.written(name(), Stored::new(&policy));
        open(&cache, "shop", &json!({"app": "other"}))
    };
    let selecting = |values: usize| {
        let values: Vec<String> = (0..values).map(|number| format!("v{number}")).collect();
        let selector = json!({"matchExpressions": [{"key": "app", "operator": "In", "values": values}]});
        json!({"podSelector": selector, "policyTypes": ["Ingress"]})
    };
    assert_eq!(put(&selecting(499)), [labels::NETWORK_EGRESS, labels::NETWORK_INGRESS]);
    let known = policies
        .get(&name())
        .unwrap()
        .extract(0, |_| unreachable!("it is known"));
    assert_eq!((&known["ingress"], &known["egress"]), (&json!(true), &json!(false)));
    assert_eq!(put(&selecting(500)), [labels::NETWORK_EGRESS]);
    // One of which nothing but the metadata is kept closes both directions.
    assert_eq!(put(&Value::Null), [""; 0]);
}

#[test]
fn pods_are_open_while_no_policy_selects_them() {
    let cache = cache();
    let put = |name: &str, spec: Value| {
        let policy = json!({"metadata": {"name": name, "resourceVersion": "1"}, "spec": spec});
        let store = cache.stores.tenant(KindId::NetworkPolicy);
        store.written(Name::new("shop", name), Stored::new(&policy));
    };
    let both = [labels::NETWORK_EGRESS, labels::NETWORK_INGRESS];
    assert_eq!(open(&cache, "shop", &json!({"app": "db"})), both);
    put(
        "db",
        json!({"podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Ingress"]}),
    );
    assert_eq!(open(&cache, "shop", &json!({"app": "db"})), [labels::NETWORK_EGRESS]);
    assert_eq!(open(&cache, "shop", &json!({"app": "web"})), both);
    assert_eq!(
        open(&cache, "lab", &json!({"app": "db"})),
        both,
        "policies are about their own namespace"
    );
    put("all", json!({"podSelector": {}, "policyTypes": ["Egress"]}));
    put(
        "names",
        json!({"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Egress"],
            "egress": [{"ports": [{"port": 53, "protocol": "UDP"}]}]}),
    );
    assert_eq!(
        open(&cache, "shop", &json!({"app": "web"})),
        [labels::NETWORK_DNS, labels::NETWORK_INGRESS],
        "a policy may keep DNS open"
    );
    assert!(open(&cache, "shop", &json!({"app": "db"})).is_empty());
    assert_eq!(open(&cache, "shop", &json!({})), [labels::NETWORK_INGRESS]);
    put(
        "odd",
        json!({"podSelector": {"matchExpressions": [{"key": "a", "operator": "Resembles"}]}}),
    );
    assert!(
        open(&cache, "shop", &json!({})).is_empty(),
        "what cannot be read might select anything"
    );
}

#[test]
fn policies_without_types_take_them_from_their_rules() {
    assert_eq!(isolation::directions(&json!({})).collect::<Vec<_>>(), ["Ingress"]);
    let both = json!({"egress": [{}]});
    assert_eq!(isolation::directions(&both).collect::<Vec<_>>(), ["Ingress", "Egress"]);
}

/// A pod and what policies see of it.
#[derive(Clone, Debug)]
struct Pod {
    namespace: String,
    labels: BTreeMap<String, String>,
    address: IpAddr,
}

impl Pod {
    /// The pod as it is on the host.
    fn on_host(&self, cache: &Cache) -> Self {
        let object = json!({"metadata": {"labels": self.labels}});
        let labels = pod_labels::labels_of(&object, &[])
            .into_iter()
            .chain(namespace_labels::labels_of(cache, &self.namespace))
            .map(|(key, value)| (key, value.as_str().unwrap().to_owned()))
            .chain(
                cache
                    .tenant
                    .labels(&self.namespace)
                    .map(|(key, value)| (key.to_owned(), value)),
            )
            .collect();
        Self {
            namespace: cache.tenant.workload_namespace.clone(),
            labels,
            address: self.address,
        }
    }
}

fn selects(selector: &Value, labels: &BTreeMap<String, String>) -> bool {
    crate::translation::selector::matches(selector, labels).unwrap()
}

/// Whether a policy in `namespace` allows `other` on `port`, by a cluster's own rules.
fn allows(
    spec: &Value,
    namespace: &str,
    other: &Pod,
    port: u16,
    labels_of: &dyn Fn(&str) -> BTreeMap<String, String>,
) -> bool {
    json::items(spec, &["ingress"]).iter().any(|rule| {
        let ports = json::items(rule, &["ports"]);
        let peers = json::items(rule, &["from"]);
        let port_matches = ports.is_empty() || ports.iter().any(|known| known["port"] == port);
        let peer_matches = peers.is_empty()
            || peers.iter().any(|peer| {
                if let Some(block) = peer.get("ipBlock") {
                    let contains = |range: &Value| {
                        range
                            .as_str()
                            .unwrap()
                            .parse::<IpNet>()
                            .unwrap()
                            .contains(&other.address)
                    };
                    return contains(&block["cidr"]) && !json::items(block, &["except"]).iter().any(contains);
                }
                let in_namespace = peer
                    .get("namespaceSelector")
                    .map_or(other.namespace == namespace, |selector| {
                        selects(selector, &labels_of(&other.namespace))
                    });
                in_namespace
                    && peer
                        .get("podSelector")
                        .is_none_or(|selector| selects(selector, &other.labels))
            });
        port_matches && peer_matches
    })
}

fn labels_strategy() -> impl Strategy<Value = BTreeMap<String, String>> {
    let key = prop::sample::select(vec![
        "app",
        "tier",
        "kueue.x-k8s.io/queue-name",
        "berth.dev/tenant",
        "berth.dev/namespace",
    ]);
    let value = prop::sample::select(vec!["a", "b", "vision-aaaaaaaaaaaaa", "other-bbbbbbbbbbbbb"]);
    prop::collection::btree_map(key.prop_map(String::from), value.prop_map(String::from), 0..4)
}

fn selector_strategy() -> impl Strategy<Value = Value> {
    let operator = prop::sample::select(vec!["In", "NotIn", "Exists", "DoesNotExist"]);
    let key = prop::sample::select(vec![
        "app",
        "app",
        "tier",
        "team",
        "kueue.x-k8s.io/queue-name",
        "berth.dev/tenant",
    ]);
    let expression = (key, operator).prop_map(|(key, operator)| {
        let values: &[&str] = if operator.ends_with("In") {
            &["a", "web", "other-bbbbbbbbbbbbb"]
        } else {
            &[]
        };
        json!({"key": key, "operator": operator, "values": values})
    });
    (labels_strategy(), prop::collection::vec(expression, 0..2), 0..3).prop_map(|(labels, expressions, parts)| match parts {
        0 => json!({}),
        1 => json!({ "matchExpressions": expressions }),
        _ => json!({"matchLabels": labels.into_iter().take(1).collect::<BTreeMap<_, _>>(), "matchExpressions": expressions}),
    })
}

fn namespace_selector() -> impl Strategy<Value = Value> {
    prop::sample::select(vec![
        json!({}),
        json!({"matchLabels": {"team": "web"}}),
        json!({"matchLabels": {"kubernetes.io/metadata.name": "lab"}}),
        json!({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["web"]}]}),
        json!({"matchExpressions": [{"key": "berth.dev/tenant", "operator": "DoesNotExist"}]}),
    ])
}

fn peer_strategy() -> impl Strategy<Value = Value> {
    let block = prop::sample::select(vec![
        "0.0.0.0/0",
        "10.1.0.0/16",
        "192.0.2.0/24",
        "192.0.2.0/25",
        "::/0",
        "fd00::/8",
        "::ffff:10.0.0.0/104",
    ]);
    prop_oneof![
        selector_strategy().prop_map(|pods| json!({"podSelector": pods})),
        namespace_selector().prop_map(|namespaces| json!({"namespaceSelector": namespaces})),
        (selector_strategy(), namespace_selector())
            .prop_map(|(pods, namespaces)| json!({"podSelector": pods, "namespaceSelector": namespaces})),
        block.prop_map(|cidr| json!({"ipBlock": {"cidr": cidr}})),
        Just(json!({"futurePeer": {"a": "b"}})),
    ]
}

fn spec_strategy() -> impl Strategy<Value = Value> {
    let rule = (prop::collection::vec(peer_strategy(), 0..3), prop::bool::ANY).prop_map(|(from, port)| {
        let ports = if port {
            json!([{"port": 80, "protocol": "TCP"}])
        } else {
            json!([])
        };
        json!({"from": from, "ports": ports})
    });
    (selector_strategy(), prop::collection::vec(rule, 0..3))
        .prop_map(|(pods, rules)| json!({"podSelector": pods, "policyTypes": ["Ingress"], "ingress": rules}))
}

fn pod_strategy() -> impl Strategy<Value = Pod> {
    let address = prop::sample::select(vec!["10.1.2.3", "10.9.9.9", "fd00::5", "169.254.169.254"]);
    (labels_strategy(), prop::sample::select(NAMESPACES.to_vec()), address).prop_map(
        |(labels, (namespace, _), address)| Pod {
            namespace: namespace.into(),
            labels,
            address: address.parse().unwrap(),
        },
    )
}

proptest! {
    #[test]
    fn no_policy_reaches_a_pod_of_another_tenant(spec in spec_strategy(), mut foreign in pod_strategy(), port in 80u16..82) {
        let cache = cache();
        let (host, _) = translate(&spec);
        foreign.labels.insert(labels::TENANT.into(), "other-bbbbbbbbbbbbb".into());
        foreign.labels.insert(labels::TENANT_OBJECT_NAMESPACE.into(), "shop".into());
        // Even a pod in the tenant's own workload namespace.
        foreign.namespace = cache.tenant.workload_namespace.clone();
        prop_assert!(!selects(&host["podSelector"], &foreign.labels));
        prop_assert!(!allows(&host, &cache.tenant.workload_namespace, &foreign, port, &|_| BTreeMap::new()), "{host}");
    }

    #[test]
    fn the_host_allows_what_the_tenant_asked_for_and_never_more(
        spec in spec_strategy(), selected in pod_strategy(), other in pod_strategy(), port in 80u16..82
    ) {
        let cache = cache();
        let (host, ignored) = translate(&spec);
        let in_tenant = |namespace: &str| {
            let team = NAMESPACES.iter().find(|(name, _)| *name == namespace).unwrap().1;
            BTreeMap::from([("team".to_owned(), team.to_owned()), ("kubernetes.io/metadata.name".to_owned(), namespace.to_owned())])
        };
        let asked = allows(&spec, "shop", &other, port, &in_tenant);
        let (host_selected, host_other) = (selected.on_host(&cache), other.on_host(&cache));
        let given = allows(&host, &cache.tenant.workload_namespace, &host_other, port, &|_| BTreeMap::new());
        prop_assert!(asked || !given, "{host} allows what {spec} does not");
        let selects_in_tenant = selected.namespace == "shop" && selects(&spec["podSelector"], &selected.labels);
        if ignored.is_empty() {
            prop_assert_eq!(selects_in_tenant, selects(&host["podSelector"], &host_selected.labels));
            let by_range = spec.to_string().contains("ipBlock");
            prop_assert!(by_range || asked == given, "{host} is not {spec}");
        }
    }
}

/// A field that means less traffic must not be left out of what is on the host.
#[test]
fn every_field_of_every_version_has_a_rule() {
    const BLOCK: Fields = &[("cidr", Rule::Rewrite), ("except", Rule::Rewrite)];
    const PEER: Fields = &[
        ("ipBlock", Rule::Rewrite),
        ("namespaceSelector", Rule::Rewrite),
        ("podSelector", Rule::Rewrite),
    ];
    schemas::check(&[
        ("IPBlock", BLOCK),
        ("LabelSelector", schemas::LABEL_SELECTOR),
        ("LabelSelectorRequirement", schemas::REQUIREMENT),
        (
            "NetworkPolicyEgressRule",
            &[("ports", Rule::Rewrite), ("to", Rule::Rewrite)],
        ),
        (
            "NetworkPolicyIngressRule",
            &[("from", Rule::Rewrite), ("ports", Rule::Rewrite)],
        ),
        ("NetworkPolicyPeer", PEER),
        ("NetworkPolicyPort", PORT),
        ("NetworkPolicySpec", SPEC),
    ]);
}
