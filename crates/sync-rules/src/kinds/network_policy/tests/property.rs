//! Random policies, checked with a small model of what a policy engine does.

use super::{super::*, NAMESPACES, cache, translate};
use crate::translation::{namespace_labels, pod_labels};
use berth_api::labels;
use ipnet::IpNet;
use proptest::prelude::*;
use std::{collections::BTreeMap, net::IpAddr};

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
