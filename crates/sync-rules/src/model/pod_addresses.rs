//! Addresses of the tenant's own pods, as its pods on the host have them now.

use crate::model::{json, resource::Name};
use berth_api::ranges;
use serde_json::Value;
use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

/// The index, both ways.
#[derive(Debug, Default)]
pub struct PodAddresses {
    by_pod: HashMap<Name, BTreeSet<IpAddr>>,
    /// How many pods have an address, and the namespace of the one that got it last.
    pods: HashMap<IpAddr, (u32, Arc<str>)>,
}

impl PodAddresses {
    /// Sets the addresses that a pod has now; none once it is gone. Returns those that it has gained and lost.
    pub fn set(&mut self, pod: &Name, addresses: BTreeSet<IpAddr>) -> Vec<IpAddr> {
        let before = self.by_pod.remove(pod).unwrap_or_default();
        for address in before.difference(&addresses) {
            if let Some((count, _)) = self.pods.get_mut(address) {
                *count -= 1;
                if *count == 0 {
                    self.pods.remove(address);
                }
            }
        }
        for address in addresses.difference(&before) {
            let count = self.pods.get(address).map_or(0, |(count, _)| *count);
            self.pods.insert(*address, (count + 1, Arc::clone(&pod.namespace)));
        }
        let changed = before.symmetric_difference(&addresses).copied().collect();
        if !addresses.is_empty() {
            self.by_pod.insert(pod.clone(), addresses);
        }
        changed
    }

    /// Whether some pod of the tenant has this address.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.pods.contains_key(&address)
    }

    /// The namespace in the tenant of the pod that has this address.
    pub fn namespace(&self, address: IpAddr) -> Option<Arc<str>> {
        self.pods.get(&address).map(|(_, namespace)| Arc::clone(namespace))
    }
}

/// Whether a status is that of a finished pod.
pub fn is_finished(status: &Value) -> bool {
    matches!(json::text(status, &["phase"]), Some("Succeeded" | "Failed"))
}

/// Whether a host pod is ready.
pub fn is_ready(pod: &Value) -> bool {
    let conditions = json::items(pod, &["status", "conditions"]);
    conditions
        .iter()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// Whether a pod can have an address. Kubelets report addresses, and who is root on a node can be its kubelet: the syncer must not connect to itself or
/// to the metadata service of its own node, whatever is reported. Nor to a form of an IPv4 address, which a translator can lead to those that are closed.
fn may_be_of_pod(address: IpAddr) -> bool {
    let mut closed = ranges::never_open().chain(ranges::FORMS_OF_V4.iter().copied());
    !(address.is_unspecified() || address.is_multicast() || closed.any(|network| network.contains(&address)))
}

/// The addresses of a host pod. A finished pod has none: the network may have given them to another tenant's pod. A pod
/// in its node's network has none of its own, and what no pod can have is left out.
pub fn of(pod: &Value) -> BTreeSet<IpAddr> {
    let status = &pod["status"];
    if is_finished(status) {
        return BTreeSet::new();
    }
    let parse = |text: &str| text.parse::<IpAddr>().ok();
    let hosts: BTreeSet<IpAddr> = json::items(status, &["hostIPs"])
        .iter()
        .filter_map(|address| json::text(address, &["ip"]))
        .chain(json::text(status, &["hostIP"]))
        .filter_map(parse)
        .collect();
    json::items(status, &["podIPs"])
        .iter()
        .filter_map(|address| json::text(address, &["ip"]))
        .chain(json::text(status, &["podIP"]))
        .filter_map(parse)
        .filter(|address| !hosts.contains(address) && may_be_of_pod(*address))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_address_is_the_tenants_as_long_as_a_pod_has_it() {
        let mut index = PodAddresses::default();
        let (one, two) = (Name::new("a", "one"), Name::new("b", "two"));
        let running = json!({"status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}});
        let [address, other] = ["10.0.0.1", "fd00::1"].map(|text| text.parse::<IpAddr>().unwrap());
        assert_eq!(index.set(&one, of(&running)), [address, other]);
        assert!(index.set(&one, of(&running)).is_empty(), "nothing changed");
        assert_eq!(index.set(&two, of(&running)), [address, other]);
        assert_eq!(index.set(&one, [address].into()), [other]);
        assert_eq!(index.set(&one, BTreeSet::new()), [address]);
        assert!(index.contains(address), "the other pod still has it");
        assert_eq!(index.namespace(address).as_deref(), Some("b"));
        let mut ended = running.clone();
        ended["status"]["phase"] = "Succeeded".into();
        assert_eq!(index.set(&two, of(&ended)), [address, other]);
        assert!(!index.contains(address));
        assert_eq!(index.namespace(address), None);
        assert!(index.by_pod.is_empty() && index.pods.is_empty());
        let mut in_the_nodes_network = running;
        in_the_nodes_network["status"]["hostIP"] = "10.0.0.1".into();
        assert!(!of(&in_the_nodes_network).contains(&address));
    }

    #[test]
    fn no_pod_has_an_address_of_a_node_itself_or_of_a_metadata_service() {
        let of = |text: &str| of(&json!({"status": {"phase": "Running", "podIP": text, "podIPs": [{"ip": text}]}}));
        for reported in [
            "127.0.0.1",
            "127.0.0.53",
            "0.0.0.0",
            "169.254.169.254",
            "100.100.100.200",
            "168.63.129.16",
            "224.0.0.1",
            "::",
            "::1",
            "fe80::1",
            "ff02::1",
            "fd00:ec2::254",
            // Forms of IPv4 addresses, also behind translators.
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b::a00:1",
            "64:ff9b:1::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
        ] {
            assert!(of(reported).is_empty(), "{reported}");
        }
        for reported in ["10.0.0.1", "192.0.2.1", "100.64.0.1", "fd00::1", "2001:db8::1"] {
            assert_eq!(of(reported), BTreeSet::from([reported.parse().unwrap()]), "{reported}");
        }
    }
}
