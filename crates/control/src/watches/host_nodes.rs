//! What is kept of Nodes. Kubelets write their status, and who is root on a node writes 768 KiB.

use berth_api::labels::RESERVED_PREFIX;
use k8s_openapi::api::core::v1::Node;
use std::collections::BTreeMap;

/// Labels, annotations and resources of a node that are kept, the first by name; those of Berth all.
const MOST_ENTRIES: usize = 1024;
/// Conditions, addresses and handlers that are kept of a node.
const MOST_ITEMS: usize = 64;

/// Takes away what nothing here reads, and what is more than any node has.
pub(super) fn reduce(node: &mut Node) {
    let metadata = &mut node.metadata;
    for map in [&mut metadata.labels, &mut metadata.annotations].into_iter().flatten() {
        shorten(map);
    }
    let Some(status) = &mut node.status else {
        return;
    };
    (status.images, status.config) = (None, None);
    (status.volumes_attached, status.volumes_in_use) = (None, None);
    for resources in [&mut status.capacity, &mut status.allocatable].into_iter().flatten() {
        shorten(resources);
    }
    if let Some(conditions) = &mut status.conditions {
        conditions.truncate(MOST_ITEMS);
    }
    if let Some(addresses) = &mut status.addresses {
        addresses.truncate(MOST_ITEMS);
    }
    if let Some(handlers) = &mut status.runtime_handlers {
        handlers.truncate(MOST_ITEMS);
    }
    if let Some(features) = &mut status.declared_features {
        features.truncate(MOST_ENTRIES);
    }
}

fn shorten<V>(entries: &mut BTreeMap<String, V>) {
    if entries.len() <= MOST_ENTRIES {
        return;
    }
    let mut left = MOST_ENTRIES;
    entries.retain(|key, _| {
        let is_kept = left > 0;
        left = left.saturating_sub(1);
        is_kept || key.starts_with(RESERVED_PREFIX)
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Map, Value, json};

    fn many(count: usize) -> Map<String, Value> {
        (0..count).map(|number| (format!("a{number:06}"), "1".into())).collect()
    }

    #[test]
    fn an_ordinary_node_keeps_what_counts() {
        let node = json!({
            "metadata": {"name": "n1", "labels": {"a": "b"}, "annotations": {"berth.dev/state": "Assigned"}},
            "status": {
                "capacity": {"cpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}],
                "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
                "images": [{"names": ["a"]}], "volumesInUse": ["v"],
            },
        });
        let node: Node = serde_json::from_value(node).unwrap();
        let mut reduced = node.clone();
        reduce(&mut reduced);
        let mut expected = node;
        let status = expected.status.as_mut().unwrap();
        (status.images, status.volumes_in_use) = (None, None);
        assert_eq!(reduced, expected);
    }

    #[test]
    fn of_what_a_hostile_kubelet_writes_little_is_kept() {
        let mut annotations = many(20_000);
        annotations.insert("berth.dev/state".into(), "Assigned".into());
        let conditions: Vec<Value> = (0..10_000)
            .map(|number| json!({"type": format!("c{number}"), "status": "True"}))
            .collect();
        let node = json!({
            "metadata": {"name": "n1", "labels": many(20_000), "annotations": annotations},
            "status": {"capacity": many(20_000), "allocatable": many(20_000), "conditions": conditions},
        });
        let mut node: Node = serde_json::from_value(node).unwrap();
        reduce(&mut node);
        let metadata = node.metadata;
        assert_eq!(metadata.labels.unwrap().len(), MOST_ENTRIES);
        let annotations = metadata.annotations.unwrap();
        assert_eq!(annotations.len(), MOST_ENTRIES + 1);
        assert_eq!(annotations["berth.dev/state"], "Assigned");
        let status = node.status.unwrap();
        let lengths = [status.capacity.unwrap().len(), status.allocatable.unwrap().len()];
        assert_eq!(lengths, [MOST_ENTRIES; 2]);
        assert_eq!(status.conditions.unwrap().len(), MOST_ITEMS);
    }
}
