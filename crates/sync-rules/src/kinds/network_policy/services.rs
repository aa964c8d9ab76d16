//! Services that the platform runs for a tenant's pods: DNS and the tenant's API server. Neither is a pod of the
//! tenant, so no selector on the host can stand for one of the tenant's. Instead a pod carries a label for each service
//! that its egress policies let it reach, and the platform's own policy selects pods with this label:
//!
//! | service | a policy lets pods reach it by | label of the host pod |
//! |---|---|---|
//! | DNS, port 53 | a rule without peers; a selector of pods `k8s-app: kube-dns` in `kube-system`; a range with its address | `net.berth.dev/dns: open` |
//! | API server, port 443 | a rule without peers; a range with the address of `default/kubernetes` | `net.berth.dev/api-server: open` |

use super::blocks::Block;
use crate::{
    model::{Cache, KindId, json, resource::Name},
    translation::selector,
};
use berth_api::labels;
use serde_json::Value;
use std::{cell::OnceCell, collections::BTreeMap, net::IpAddr};

/// One of the services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// The tenant's DNS server.
    Dns,
    /// The tenant's API server.
    ApiServer,
}

impl Service {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Dns, Self::ApiServer];

    /// The label of pods that may reach it although a policy for egress selects them.
    pub fn label(self) -> &'static str {
        match self {
            Self::Dns => labels::NETWORK_DNS,
            Self::ApiServer => labels::NETWORK_API_SERVER,
        }
    }

    /// Its address, as pods know it.
    fn address(self, cache: &Cache) -> Option<IpAddr> {
        let tenant = &cache.tenant;
        match self {
            Self::Dns => tenant.dns_address.as_ref()?.parse().ok(),
            Self::ApiServer => tenant.api_server_host.parse().ok(),
        }
    }

    fn has_port(self, cache: &Cache, port: &Value) -> bool {
        let protocol = json::text(port, &["protocol"]).unwrap_or("TCP");
        let (number, protocols, names): (u64, &[&str], &[&str]) = match self {
            Self::Dns => (53, &["UDP", "TCP"], &["dns", "dns-tcp"]),
            Self::ApiServer => (cache.tenant.api_server_port.into(), &["TCP"], &["https"]),
        };
        let is_port = match port.get("port") {
            None | Some(Value::Null) => true,
            Some(Value::String(name)) => names.contains(&name.as_str()),
            Some(first) => first.as_u64().is_some_and(|first| {
                let last = port.get("endPort").and_then(Value::as_u64).unwrap_or(first);
                (first..=last).contains(&number)
            }),
        };
        protocols.contains(&protocol) && is_port
    }

    /// Whether a range contains its address.
    pub fn is_in(self, cache: &Cache, block: &Block) -> bool {
        self.address(cache).is_some_and(|address| block.contains(address))
    }

    fn is_peer(self, cache: &Cache, namespace: &str, peer: &Value, of_dns: &DnsLabels) -> bool {
        let known = ["podSelector", "namespaceSelector", "ipBlock"];
        let keys = peer.as_object().into_iter().flatten();
        if keys
            .clone()
            .any(|(key, value)| !value.is_null() && !known.contains(&key.as_str()))
        {
            return false;
        }
        let part = |key: &str| peer.get(key).filter(|value| !value.is_null());
        if let Some(block) = part("ipBlock") {
            return Block::read(block).is_ok_and(|block| self.is_in(cache, &block));
        }
        if self != Self::Dns || (part("podSelector").is_none() && part("namespaceSelector").is_none()) {
            return false;
        }
        let is_namespace = match part("namespaceSelector") {
            None => namespace == DNS_NAMESPACE,
            Some(namespaces) => {
                let labels = of_dns.get_or_init(|| labels_of_dns_namespace(cache));
                selector::matches(namespaces, labels).unwrap_or(false)
            }
        };
        let labels = BTreeMap::from([("k8s-app".to_owned(), "kube-dns".to_owned())]);
        is_namespace && part("podSelector").is_none_or(|pods| selector::matches(pods, &labels).unwrap_or(false))
    }

    /// Whether a policy of `namespace` with this spec lets the pods that it selects reach this service.
    pub fn is_opened_by(self, cache: &Cache, namespace: &str, spec: &Value) -> bool {
        let known = ["podSelector", "policyTypes", "ingress", "egress"];
        let is_set = |(_, value): &(&String, &Value)| !json::is_unset(value);
        let mut fields = spec.as_object().into_iter().flatten().filter(is_set);
        let of_dns = DnsLabels::new();
        // A policy with unknown fields has no rules on the host.
        fields.all(|(field, _)| known.contains(&field.as_str()))
            && json::items(spec, &["egress"]).iter().any(|rule| {
                let mut fields = rule.as_object().into_iter().flatten().filter(is_set);
                let (ports, peers) = (json::items(rule, &["ports"]), json::items(rule, &["to"]));
                fields.all(|(field, _)| field == "ports" || field == "to")
                    && (ports.is_empty() || ports.iter().any(|port| self.has_port(cache, port)))
                    && (peers.is_empty() || peers.iter().any(|peer| self.is_peer(cache, namespace, peer, &of_dns)))
            })
    }
}

/// The labels of the namespace of the DNS server. They are read once for a policy, which can have thousands of peers.
type DnsLabels = OnceCell<BTreeMap<String, String>>;

/// Namespace of the DNS server on any cluster.
const DNS_NAMESPACE: &str = "kube-system";

/// Which state of the namespace of the DNS server is known: which policies open it depends on its labels.
pub fn version_of_dns_namespace(cache: &Cache) -> u64 {
    let namespaces = cache.stores.tenant(KindId::Namespace);
    let stored = namespaces.get(&Name::new("", DNS_NAMESPACE));
    stored.map_or(0, |stored| stored.version)
}

fn labels_of_dns_namespace(cache: &Cache) -> BTreeMap<String, String> {
    let stored = cache
        .stores
        .tenant(KindId::Namespace)
        .get(&Name::new("", DNS_NAMESPACE));
    let mut labels = stored.map_or_else(BTreeMap::new, |stored| {
        json::strings(&stored.object(), &["metadata", "labels"])
            .into_iter()
            .collect()
    });
    labels.insert("kubernetes.io/metadata.name".into(), DNS_NAMESPACE.into());
    labels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tenant::test_tenant;
    use crate::registry;
    use serde_json::json;

    #[expect(clippy::needless_pass_by_value, reason = "tests write the value in place")]
    fn opened(egress: Value) -> [bool; 2] {
        let mut tenant = test_tenant();
        tenant.dns_address = Some("10.96.0.53".into());
        let cache = registry::new_cache(tenant);
        let spec = json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": egress});
        Service::ALL.map(|service| service.is_opened_by(&cache, "shop", &spec))
    }

    #[test]
    fn rules_without_peers_open_both_services() {
        assert_eq!(opened(json!([{}])), [true, true]);
        assert_eq!(opened(json!([])), [false, false]);
        assert_eq!(
            opened(json!([{"ports": [{"port": 53, "protocol": "UDP"}]}])),
            [true, false]
        );
        assert_eq!(opened(json!([{"ports": [{"port": 443}]}])), [false, true]);
        assert_eq!(opened(json!([{"ports": [{"port": 1, "endPort": 1023}]}])), [true, true]);
        assert_eq!(opened(json!([{"ports": [{"protocol": "SCTP"}]}])), [false, false]);
    }

    #[test]
    fn dns_is_selected_as_on_any_cluster() {
        let system = json!({"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}});
        let dns = json!({"matchLabels": {"k8s-app": "kube-dns"}});
        let udp = json!([{"port": 53, "protocol": "UDP"}]);
        assert_eq!(
            opened(json!([{"to": [{"namespaceSelector": system, "podSelector": dns}], "ports": udp}])),
            [true, false]
        );
        assert_eq!(opened(json!([{"to": [{"namespaceSelector": {}}]}])), [true, false]);
        assert_eq!(
            opened(json!([{"to": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "db"}}}]}])),
            [false, false]
        );
        assert_eq!(opened(json!([{"to": [{"podSelector": {}}]}])), [false, false]);
        assert_eq!(
            opened(json!([{"to": [{"namespaceSelector": system}], "ports": [{"port": 80}]}])),
            [false, false]
        );
    }

    #[test]
    fn ranges_with_their_addresses_open_them() {
        let block = |cidr: &str, except: Value| json!([{"to": [{"ipBlock": {"cidr": cidr, "except": except}}]}]);
        assert_eq!(opened(block("10.96.0.53/32", json!([]))), [true, false]);
        assert_eq!(opened(block("10.96.0.49/32", json!([]))), [false, true]);
        assert_eq!(opened(block("0.0.0.0/0", json!([]))), [true, true]);
        assert_eq!(opened(block("0.0.0.0/0", json!(["10.0.0.0/8"]))), [false, false]);
    }

    #[test]
    fn unknown_rules_allow_no_traffic() {
        assert_eq!(opened(json!([{"serviceSelector": {"a": "b"}}])), [false, false]);
        assert_eq!(opened(json!([{"to": [{"futurePeer": {"a": "b"}}]}])), [false, false]);
        assert_eq!(opened(json!([{"to": [{}]}])), [false, false]);
    }
}
