//! Addresses of the tenant's own pods, as its pods on the host have them now.

use crate::model::{json, resource::Name};
use serde_json::Value;
use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
};

/// The index, both ways.
#[derive(Debug, Default)]
pub struct PodAddresses {
    by_pod: HashMap<Name, BTreeSet<IpAddr>>,
    pods: HashMap<IpAddr, u32>,
}

impl PodAddresses {
    /// Sets the addresses that a pod has now; none once it is gone. Returns whether they changed.
    pub fn set(&mut self, pod: &Name, addresses: BTreeSet<IpAddr>) -> bool {
        let before = self.by_pod.remove(pod).unwrap_or_default();
        if before == addresses {
            if !before.is_empty() {
                self.by_pod.insert(pod.clone(), before);
            }
            return false;
        }
        for address in &before {
            if let Some(count) = self.pods.get_mut(address) {
                *count -= 1;
                if *count == 0 {
                    self.pods.remove(address);
                }
            }
        }
        for address in &addresses {
            *self.pods.entry(*address).or_default() += 1;
        }
        if !addresses.is_empty() {
            self.by_pod.insert(pod.clone(), addresses);
        }
        true
    }

    /// Whether some pod of the tenant has this address.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.pods.contains_key(&address)
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

/// The addresses of a host pod. A finished pod has none: the network may have given them to another tenant's pod. A pod
/// in its node's network has none of its own.
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
        .filter(|address| !hosts.contains(address))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_address_is_the_tenants_as_long_as_a_pod_has_it() {
        let mut index = PodAddresses::default();
        let (one, two) = (Name::new("a", "one"), Name::new("a", "two"));
        let running = json!({"status": {"phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}});
        let address = "10.0.0.1".parse().unwrap();
        assert!(index.set(&one, of(&running)));
        assert!(!index.set(&one, of(&running)), "nothing changed");
        assert!(index.set(&two, of(&running)));
        assert!(index.set(&one, BTreeSet::new()));
        assert!(index.contains(address), "the other pod still has it");
        let mut ended = running.clone();
        ended["status"]["phase"] = "Succeeded".into();
        assert!(index.set(&two, of(&ended)));
        assert!(!index.contains(address));
        assert!(index.by_pod.is_empty() && index.pods.is_empty());
        let mut in_the_nodes_network = running;
        in_the_nodes_network["status"]["hostIP"] = "10.0.0.1".into();
        assert!(!of(&in_the_nodes_network).contains(&address));
    }
}
