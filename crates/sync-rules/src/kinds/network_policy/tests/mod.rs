//! Golden tests of policies; random ones have their own.

mod property;
mod too_many;

use super::*;
use crate::{
    kinds::schemas,
    model::{KindId, store::Stored, tenant::test_tenant},
    registry,
};
use berth_api::{NetworkLimits, labels};
use std::{collections::BTreeMap, sync::Arc};

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

/// A host pod that does not carry all labels of the tenant's pod or of its namespace may have, in the tenant, the label that must be absent.
#[test]
fn selectors_of_pods_without_a_label_select_none_whose_labels_are_left_out() {
    let absent = json!({"matchExpressions": [{"key": "quarantine", "operator": "DoesNotExist"}]});
    let no_value = json!({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["guests"]}]});
    let by_name =
        json!({"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["lab"]}]});
    let (spec, ignored) = translate(
        &json!({"podSelector": absent, "policyTypes": ["Ingress"], "ingress": [{"from": [
        {"podSelector": absent}, {"namespaceSelector": no_value}, {"namespaceSelector": by_name}]}]}),
    );
    assert!(ignored.is_empty(), "{ignored:?}");
    let of_tenant = test_tenant().labels("shop");
    let mut carried = BTreeMap::from(of_tenant.map(|(key, value)| (key.to_owned(), value)));
    let selected = |carried: &BTreeMap<String, String>| {
        let of_peer = |index: usize| &spec["ingress"][0]["from"][index]["podSelector"];
        [&spec["podSelector"], of_peer(0), of_peer(1), of_peer(2)]
            .map(|selector| crate::translation::selector::matches(selector, carried) == Some(true))
    };
    assert_eq!(selected(&carried), [true; 4]);
    carried.insert(labels::LABELS_LEFT_OUT.into(), "true".into());
    assert_eq!(
        selected(&carried),
        [false, false, false, true],
        "all pods carry the name"
    );
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
