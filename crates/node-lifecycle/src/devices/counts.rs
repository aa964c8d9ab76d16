//! How many devices of each kind a node has: counted once, and again when its slices or a class change.

use super::claims::{DeviceClass, DeviceKind};
use super::selector::Selector;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

/// Maximum number of kinds kept that no claim requests any more.
const MAX_UNUSED_KINDS: usize = 64;

/// Devices of a node by kind.
pub(super) type Counted = Arc<BTreeMap<DeviceKind, u64>>;

/// Counts by node.
#[derive(Default)]
pub(super) struct Counts(HashMap<String, Counted>);

impl Counts {
    /// Removes all counts.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Removes the counts of some nodes.
    pub(super) fn forget(&mut self, nodes: &BTreeSet<String>) {
        for node in nodes {
            self.0.remove(node);
        }
    }

    /// Devices of a node, of at least these kinds. `slices` returns the specs of its slices.
    pub(super) fn of(
        &mut self,
        node: &str,
        kinds: &BTreeSet<DeviceKind>,
        classes: &HashMap<String, Arc<DeviceClass>>,
        slices: impl FnOnce() -> BTreeMap<String, Value>,
    ) -> Counted {
        let known = self.0.get(node);
        let is_missing = |kind: &&DeviceKind| known.is_none_or(|known| !known.contains_key(*kind));
        let missing: Vec<&DeviceKind> = kinds.iter().filter(is_missing).collect();
        if !missing.is_empty() {
            let slices = slices();
            if slices.is_empty() {
                // Most nodes have no slices: no counts are kept for them.
                self.0.remove(node);
                return Counted::default();
            }
            let counted = Arc::make_mut(self.0.entry(node.to_owned()).or_default());
            if counted.len() + missing.len() > kinds.len() + MAX_UNUSED_KINDS {
                counted.retain(|kind, _| kinds.contains(kind));
            }
            for kind in missing {
                let count = classes
                    .get(&kind.class)
                    .map_or(0, |class| count(kind, class, slices.values()));
                counted.insert(kind.clone(), count);
            }
        }
        self.0.get(node).cloned().unwrap_or_default()
    }
}

/// Counts the devices of a kind in slices.
fn count<'s>(kind: &DeviceKind, class: &DeviceClass, slices: impl Iterator<Item = &'s Value> + Clone) -> u64 {
    let own: Vec<Selector> = kind.selectors.iter().map(|text| Selector::new(text)).collect();
    let of_pool = |slice: &Value| (slice["driver"].to_string(), slice["pool"]["name"].to_string());
    let generation = |slice: &Value| slice["pool"]["generation"].as_i64().unwrap_or_default();
    let mut newest = HashMap::new();
    for slice in slices.clone() {
        let known = newest.entry(of_pool(slice)).or_insert_with(|| generation(slice));
        *known = (*known).max(generation(slice));
    }
    let mut count = 0;
    // Slices of earlier generations are about to be deleted.
    for slice in slices.filter(|slice| newest.get(&of_pool(slice)) == Some(&generation(slice))) {
        let driver = slice["driver"].as_str().unwrap_or_default();
        for device in slice["devices"].as_array().into_iter().flatten() {
            let mut selectors = class.selectors.iter().chain(&own);
            if !is_tainted(device) && selectors.all(|selector| selector.matches(driver, device) != Some(false)) {
                count += 1;
            }
        }
    }
    count
}

/// Whether a taint keeps the device from being allocated.
fn is_tainted(device: &Value) -> bool {
    let mut taints = device["taints"].as_array().into_iter().flatten();
    taints.any(|taint| matches!(taint["effect"].as_str(), Some("NoSchedule" | "NoExecute")))
}
