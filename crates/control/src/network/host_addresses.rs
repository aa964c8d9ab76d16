//! Which addresses of the host's nodes and API servers count for the policies of all tenants.
//!
//! The policies of all tenants contain them, and the syncers of those with wide networks restart when they change. Kubelets report the addresses of nodes,
//! and who is root on a node of a tenant can be its kubelet: one that reports others every minute would keep all tenants busy. An API server that restarts
//! takes its address away until it is back. Syncers would lose it, and all policies would be written twice, while the host's control plane is upgraded.
//!
//! | addresses | count |
//! |---|---|
//! | of a node that is new | at once |
//! | others, of a node that tenants use | once an hour, with those of all such nodes |
//! | others, of a node that no tenant uses | once in ten minutes, with those of all such nodes: who was root there may have kept the kubelet's credentials |
//! | of an API server | at once, and for half an hour after it was seen last |
//!
//! A control that starts takes what it finds.

use super::host_network::addresses_of;
use berth_node_lifecycle::{Assignment, node::is_or_was_shared};
use berth_runtime::locks::lock;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
    sync::Mutex,
    time::Duration,
};
use tokio::time::Instant;

/// How often other addresses count of nodes that no tenant uses, and of nodes that tenants use.
const PAUSES: [Duration; 2] = [Duration::from_mins(10), Duration::from_hours(1)];
/// How long an API server counts that is not seen any more.
const KEPT: Duration = Duration::from_mins(30);

/// The addresses that count.
#[derive(Debug, Default)]
pub struct HostAddresses(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Of each node, sorted.
    by_node: HashMap<String, Vec<IpAddr>>,
    /// When those of a node that no tenant uses have changed last, and those of one that tenants use.
    changed_at: [Option<Instant>; 2],
    /// API servers, and when each was seen last.
    api_servers: BTreeMap<SocketAddr, Instant>,
}

impl HostAddresses {
    /// The addresses of all nodes that count now, in no order.
    pub fn observe_nodes<'n>(&self, nodes: impl IntoIterator<Item = &'n Node>) -> Vec<IpAddr> {
        lock(&self.0).observe_nodes(nodes, Instant::now())
    }

    /// The API servers that count now, if these were found. They are sorted.
    pub fn observe_api_servers(&self, found: impl IntoIterator<Item = SocketAddr>) -> Vec<SocketAddr> {
        lock(&self.0).observe_api_servers(found, Instant::now())
    }
}

impl Known {
    fn observe_nodes<'n>(&mut self, nodes: impl IntoIterator<Item = &'n Node>, now: Instant) -> Vec<IpAddr> {
        let is_due =
            [0_usize, 1].map(|kind| self.changed_at[kind].is_none_or(|at| now.duration_since(at) >= PAUSES[kind]));
        let mut before = std::mem::take(&mut self.by_node);
        for node in nodes {
            let name = node.name_any();
            let mut reported: Vec<IpAddr> = addresses_of(node).collect();
            reported.sort_unstable();
            let counted = match before.remove(&name) {
                Some(known) if known != reported && !known.is_empty() => {
                    let kind = usize::from(is_used(node));
                    if is_due[kind] {
                        self.changed_at[kind] = Some(now);
                        reported
                    } else {
                        known
                    }
                }
                _ => reported,
            };
            self.by_node.insert(name, counted);
        }
        self.by_node.values().flatten().copied().collect()
    }

    fn observe_api_servers(&mut self, found: impl IntoIterator<Item = SocketAddr>, now: Instant) -> Vec<SocketAddr> {
        self.api_servers.extend(found.into_iter().map(|server| (server, now)));
        self.api_servers.retain(|_, seen| now.duration_since(*seen) < KEPT);
        self.api_servers.keys().copied().collect()
    }
}

/// Whether tenants use a node, or have used it and it is not free yet.
fn is_used(node: &Node) -> bool {
    Assignment::read(node).is_some() || is_or_was_shared(node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::labels;
    use serde_json::{Value, json};

    fn node(name: &str, labels: &Value, address: &str) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": labels},
            "status": {"addresses": [{"type": "InternalIP", "address": address}]},
        }))
        .unwrap()
    }

    fn assigned(name: &str, address: &str) -> Node {
        node(
            name,
            &json!({(labels::NODE_STATE): "Assigned", (labels::TENANT): "a"}),
            address,
        )
    }

    /// The addresses that count, sorted.
    fn observe(known: &mut Known, nodes: &[Node], now: Instant) -> Vec<String> {
        let mut counted = known.observe_nodes(nodes, now);
        counted.sort();
        counted.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_node_of_a_tenant_that_reports_others_again_and_again_changes_what_counts_once_an_hour() {
        let mut known = Known::default();
        let start = Instant::now();
        observe(&mut known, &[assigned("n1", "10.0.0.1")], start);
        let mut counted = Vec::new();
        for minute in 1..=120_u8 {
            let reported = assigned("n1", &format!("192.0.2.{minute}"));
            counted.extend(observe(
                &mut known,
                &[reported],
                start + Duration::from_mins(minute.into()),
            ));
        }
        counted.dedup();
        assert_eq!(counted, ["192.0.2.1", "192.0.2.61"]);
    }

    #[test]
    fn a_free_node_that_reports_others_again_and_again_changes_what_counts_once_in_ten_minutes() {
        let mut known = Known::default();
        let start = Instant::now();
        let mut counted = Vec::new();
        for minute in 0..30_u8 {
            let reported = node("n1", &json!({}), &format!("192.0.2.{minute}"));
            let now = start + Duration::from_mins(minute.into());
            counted.extend(observe(&mut known, &[reported], now));
        }
        counted.dedup();
        assert_eq!(counted, ["192.0.2.0", "192.0.2.1", "192.0.2.11", "192.0.2.21"]);
    }

    #[test]
    fn nodes_of_tenants_change_together() {
        let mut known = Known::default();
        let start = Instant::now();
        let both = |first: &str, second: &str| [assigned("n1", first), assigned("n2", second)];
        observe(&mut known, &both("10.0.0.1", "10.0.0.2"), start);
        let soon = start + Duration::from_secs(1);
        assert_eq!(
            observe(&mut known, &both("192.0.2.1", "192.0.2.2"), soon),
            ["192.0.2.1", "192.0.2.2"]
        );
        let later = soon + Duration::from_mins(59);
        assert_eq!(
            observe(&mut known, &both("192.0.2.3", "192.0.2.2"), later),
            ["192.0.2.1", "192.0.2.2"],
            "not another one each minute"
        );
        let later = later + Duration::from_mins(1);
        assert_eq!(
            observe(&mut known, &both("192.0.2.3", "192.0.2.4"), later),
            ["192.0.2.3", "192.0.2.4"]
        );
    }

    #[test]
    fn addresses_of_new_and_free_nodes_do_not_wait_for_those_of_tenants() {
        let mut known = Known::default();
        let now = Instant::now();
        let shared = json!({(labels::SHARED_POOL): "cpu"});
        observe(
            &mut known,
            &[assigned("n1", "10.0.0.1"), node("s", &shared, "10.0.0.9")],
            now,
        );
        observe(
            &mut known,
            &[assigned("n1", "10.0.0.2"), node("s", &shared, "10.0.0.9")],
            now,
        );
        // From here on, nothing of those counts for an hour.
        let free = |address: &str| node("n2", &json!({}), address);
        for address in ["10.0.0.4", "10.0.0.5"] {
            let nodes = [
                assigned("n1", "10.0.0.3"),
                free(address),
                node("s", &shared, "10.0.0.8"),
            ];
            assert_eq!(observe(&mut known, &nodes, now), ["10.0.0.2", address, "10.0.0.9"]);
        }
        let joins = assigned("n3", "10.0.0.6");
        let nodes = [assigned("n1", "10.0.0.3"), joins];
        assert_eq!(
            observe(&mut known, &nodes, now),
            ["10.0.0.2", "10.0.0.6"],
            "the others are gone"
        );
        let nothing: Node =
            serde_json::from_value(json!({"metadata": {"name": "n4", "labels": {(labels::NODE_STATE): "Assigned"}}}))
                .unwrap();
        observe(&mut known, &[nothing], now);
        assert_eq!(
            observe(&mut known, &[assigned("n4", "10.0.0.7")], now),
            ["10.0.0.7"],
            "it had none"
        );
    }

    #[test]
    fn a_node_that_was_shared_counts_as_used_until_it_is_free() {
        let left = |address: &str| -> Node {
            serde_json::from_value(json!({
                "metadata": {"name": "s", "annotations": {(labels::PREVIOUS_SHARED_POOL): "cpu"}},
                "status": {"addresses": [{"type": "InternalIP", "address": address}]},
            }))
            .unwrap()
        };
        let mut known = Known::default();
        let start = Instant::now();
        for (minutes, reported, counted) in [
            (0, "10.0.0.1", "10.0.0.1"),
            (0, "10.0.0.2", "10.0.0.2"),
            (59, "10.0.0.3", "10.0.0.2"),
        ] {
            let now = start + Duration::from_mins(minutes);
            assert_eq!(observe(&mut known, &[left(reported)], now), [counted]);
        }
    }

    #[test]
    fn an_api_server_that_restarts_counts_meanwhile() {
        let mut known = Known::default();
        let start = Instant::now();
        let [first, second] = ["192.168.5.1:6443", "192.168.5.2:6443"].map(|text| text.parse::<SocketAddr>().unwrap());
        assert_eq!(
            known.observe_api_servers([second, first, second], start),
            [first, second]
        );
        let later = start + Duration::from_mins(29);
        assert_eq!(known.observe_api_servers([second], later), [first, second]);
        assert_eq!(known.observe_api_servers([], later), [first, second]);
        let later = later + Duration::from_mins(1);
        assert_eq!(known.observe_api_servers([second], later), [second]);
        assert_eq!(known.observe_api_servers([first], later), [first, second]);
    }
}
