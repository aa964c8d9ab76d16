//! The `ResourceSlices` of each node. Who is root on a node publishes as many and as large ones as they want: so they are kept as text, which as a tree
//! takes fifty times as much, and of each node only so many bytes.

use super::slice_spec::SliceSpec;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Slices that are kept of a node.
pub const MOST_SLICES: usize = 64;
/// Bytes of them, as JSON. A node whose GPUs are offered with all of their partitions has less.
pub const MOST_BYTES: usize = 1 << 20;
/// Products and driver versions that are kept of a slice, and their longest text.
const MOST_TEXTS: usize = 8;
const MAX_TEXT_LENGTH: usize = 128;

/// What is kept of a `ResourceSlice`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    spec: Box<str>,
    products: BTreeSet<String>,
    driver_versions: BTreeSet<String>,
}

impl Slice {
    /// Reads the JSON text of the `spec` of a slice. Also returns the node whose devices the slice has, an empty name if several nodes reach them.
    ///
    /// # Errors
    /// It is no slice.
    pub fn read(spec: &str) -> serde_json::Result<(String, Self)> {
        let parsed: SliceSpec = serde_json::from_str(spec)?;
        let texts = |attribute: &str| {
            let devices = parsed.devices.iter().flatten();
            let texts = devices.filter_map(|device| device.text(attribute));
            let mut kept = BTreeSet::new();
            for text in texts.filter(|text| text.len() <= MAX_TEXT_LENGTH) {
                if kept.len() < MOST_TEXTS && !kept.contains(text) {
                    kept.insert(text.to_owned());
                }
            }
            kept
        };
        let slice = Self {
            spec: spec.into(),
            products: texts("productName"),
            driver_versions: texts("driverVersion"),
        };
        Ok((parsed.node_name.unwrap_or_default(), slice))
    }

    /// The JSON text of its `spec`.
    pub fn spec(&self) -> &str {
        &self.spec
    }

    /// Products of its devices.
    pub fn products(&self) -> &BTreeSet<String> {
        &self.products
    }

    /// Versions of the drivers of its devices.
    pub fn driver_versions(&self) -> &BTreeSet<String> {
        &self.driver_versions
    }

    /// Its devices.
    pub(super) fn parse(&self) -> SliceSpec {
        // It was read before.
        serde_json::from_str(&self.spec).unwrap_or_default()
    }
}

/// Slices by node, those of devices that several nodes reach under the empty name.
#[derive(Default)]
pub struct Slices(Mutex<Index>);

#[derive(Default)]
struct Index {
    nodes: HashMap<String, OnNode>,
    /// The node of each slice, also of those that are not kept.
    places: HashMap<String, String>,
}

/// The slices of one node.
#[derive(Default)]
struct OnNode {
    kept: BTreeMap<String, Arc<Slice>>,
    /// Bytes of those.
    bytes: usize,
    /// Bytes of those that have no room.
    left_out: HashMap<String, usize>,
}

impl Slices {
    fn lock(&self) -> MutexGuard<'_, Index> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets a slice and its node; none if it is gone. Returns the nodes whose slices changed.
    pub fn put(&self, name: &str, place: Option<(String, Slice)>) -> BTreeSet<String> {
        self.lock().put(name, place)
    }

    /// Removes all slices except these. Returns the nodes whose slices changed.
    pub fn retain(&self, names: &HashSet<String>) -> BTreeSet<String> {
        let mut index = self.lock();
        let places = index.places.keys();
        let gone: Vec<String> = places.filter(|name| !names.contains(*name)).cloned().collect();
        gone.iter().flat_map(|name| index.put(name, None)).collect()
    }

    /// The slices of a node by name, without those that have no room.
    pub fn of(&self, node: &str) -> BTreeMap<String, Arc<Slice>> {
        let index = self.lock();
        index.nodes.get(node).map(|on| on.kept.clone()).unwrap_or_default()
    }

    /// How many slices a node has, also without room.
    pub fn count(&self, node: &str) -> usize {
        let index = self.lock();
        index.nodes.get(node).map_or(0, |on| on.kept.len() + on.left_out.len())
    }

    /// Whether a node has slices that are not kept. What its drivers say of it is not known then.
    pub fn exceed_limits(&self, node: &str) -> bool {
        let index = self.lock();
        index.nodes.get(node).is_some_and(|on| !on.left_out.is_empty())
    }

    /// Whether there is room by now for a slice that had none. What it says is not known until it is listed again.
    pub fn have_room_again(&self) -> bool {
        self.lock().nodes.values().any(OnNode::has_room_again)
    }

    /// Nodes that have slices.
    pub fn nodes(&self) -> Vec<String> {
        self.lock().nodes.keys().cloned().collect()
    }
}

impl Index {
    fn put(&mut self, name: &str, place: Option<(String, Slice)>) -> BTreeSet<String> {
        let mut changed = BTreeSet::new();
        let now = place.as_ref().map(|(node, _)| node);
        if let Some(before) = self.places.get(name)
            && now != Some(before)
        {
            let before = before.clone();
            self.places.remove(name);
            if let Some(on) = self.nodes.get_mut(&before) {
                on.remove(name);
                if on.is_empty() {
                    self.nodes.remove(&before);
                }
            }
            changed.insert(before);
        }
        if let Some((node, slice)) = place {
            // Nobody on a node writes slices of several nodes: policies reject them.
            let is_limited = !node.is_empty();
            if self.nodes.entry(node.clone()).or_default().set(name, slice, is_limited) {
                changed.insert(node.clone());
            }
            self.places.insert(name.to_owned(), node);
        }
        changed
    }
}

impl OnNode {
    fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.left_out.is_empty()
    }

    fn remove(&mut self, name: &str) {
        self.left_out.remove(name);
        if let Some(slice) = self.kept.remove(name) {
            self.bytes -= slice.spec.len();
        }
    }

    /// Whether there is room for a slice of so many bytes.
    fn has_room(&self, bytes: usize) -> bool {
        self.kept.len() < MOST_SLICES && self.bytes + bytes <= MOST_BYTES
    }

    /// Whether there is room for one that had none.
    fn has_room_again(&self) -> bool {
        self.left_out.values().any(|bytes| self.has_room(*bytes))
    }

    /// Sets a slice, if there is room for it. Returns whether anything changed.
    fn set(&mut self, name: &str, slice: Slice, is_limited: bool) -> bool {
        if self.kept.get(name).is_some_and(|known| **known == slice) {
            return false;
        }
        let was_left_out = self.left_out.contains_key(name);
        self.remove(name);
        let bytes = slice.spec.len();
        if is_limited && !self.has_room(bytes) {
            self.left_out.insert(name.to_owned(), bytes);
            return !was_left_out;
        }
        self.bytes += bytes;
        self.kept.insert(name.to_owned(), Arc::new(slice));
        true
    }
}

#[cfg(test)]
mod tests;
