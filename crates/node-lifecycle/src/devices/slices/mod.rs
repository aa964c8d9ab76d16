//! The `ResourceSlices` of each node. Who is root on a node publishes as many and as large ones as they want: so they are kept as text, which as a tree
//! takes fifty times as much, and of each node only so many bytes.

use super::slice_spec::SliceSpec;
use crate::by_node::{ByNode, OnNode};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
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
pub type Slices = ByNode<SlicesOfNode>;

/// The slices of one node.
#[derive(Default)]
pub struct SlicesOfNode {
    kept: BTreeMap<String, Arc<Slice>>,
    /// Bytes of those.
    bytes: usize,
    /// Bytes of those that have no room.
    left_out: HashMap<String, usize>,
}

impl Slices {
    /// The slices of a node by name, without those that have no room.
    pub fn of(&self, node: &str) -> BTreeMap<String, Arc<Slice>> {
        self.read(node, |on| on.kept.clone()).unwrap_or_default()
    }

    /// How many slices a node has, also without room.
    pub fn count(&self, node: &str) -> usize {
        self.read(node, |on| on.kept.len() + on.left_out.len()).unwrap_or(0)
    }

    /// Whether a node has slices that are not kept. What its drivers say of it is not known then.
    pub fn exceed_limits(&self, node: &str) -> bool {
        self.read(node, |on| !on.left_out.is_empty()).unwrap_or(false)
    }

    /// Whether there is room by now for a slice that had none. What it says is not known until it is listed again.
    pub fn have_room_again(&self) -> bool {
        self.any(SlicesOfNode::has_room_again)
    }
}

impl SlicesOfNode {
    /// Whether there is room for a slice of so many bytes.
    fn has_room(&self, bytes: usize) -> bool {
        self.kept.len() < MOST_SLICES && self.bytes + bytes <= MOST_BYTES
    }

    /// Whether there is room for one that had none.
    fn has_room_again(&self) -> bool {
        self.left_out.values().any(|bytes| self.has_room(*bytes))
    }
}

impl OnNode for SlicesOfNode {
    type Value = Slice;

    /// Sets a slice, if there is room for it.
    fn set(&mut self, node: &str, name: &str, slice: Slice) -> bool {
        if self.kept.get(name).is_some_and(|known| **known == slice) {
            return false;
        }
        let was_left_out = self.left_out.contains_key(name);
        self.forget(name);
        // Nobody on a node writes slices of several nodes: policies reject them.
        let is_limited = !node.is_empty();
        let bytes = slice.spec.len();
        if is_limited && !self.has_room(bytes) {
            self.left_out.insert(name.to_owned(), bytes);
            return !was_left_out;
        }
        self.bytes += bytes;
        self.kept.insert(name.to_owned(), Arc::new(slice));
        true
    }

    fn forget(&mut self, name: &str) {
        self.left_out.remove(name);
        if let Some(slice) = self.kept.remove(name) {
            self.bytes -= slice.spec.len();
        }
    }

    fn has_none(&self) -> bool {
        self.kept.is_empty() && self.left_out.is_empty()
    }
}

#[cfg(test)]
mod tests;
