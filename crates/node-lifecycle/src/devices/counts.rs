//! How many devices of each kind a node has: counted once, and again when its slices or a class change.

use super::{
    claims::{DeviceClass, DeviceKind},
    selector::Selector,
    slice_spec::{Device, SliceSpec},
    slices::Slice,
};
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

    /// Devices of a node, of at least these kinds. `slices` returns its slices.
    pub(super) fn of(
        &mut self,
        node: &str,
        kinds: &BTreeSet<DeviceKind>,
        classes: &HashMap<String, Arc<DeviceClass>>,
        slices: impl FnOnce() -> BTreeMap<String, Arc<Slice>>,
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
            let mut kinds: Vec<KindCount<'_>> = { missing.into_iter() }
                .map(|kind| KindCount::new(kind, classes))
                .collect();
            count(&mut kinds, slices.values());
            counted.extend(kinds.into_iter().map(|found| (found.kind.clone(), found.count)));
        }
        self.0.get(node).cloned().unwrap_or_default()
    }
}

/// How many devices of a kind were found.
struct KindCount<'k> {
    kind: &'k DeviceKind,
    /// None: the class does not exist.
    class: Option<&'k DeviceClass>,
    own: Vec<Selector>,
    count: u64,
}

impl<'k> KindCount<'k> {
    fn new(kind: &'k DeviceKind, classes: &'k HashMap<String, Arc<DeviceClass>>) -> Self {
        Self {
            kind,
            class: classes.get(&kind.class).map(AsRef::as_ref),
            own: kind.selectors.iter().map(|text| Selector::new(text)).collect(),
            count: 0,
        }
    }

    fn selects(&self, driver: &str, device: &Device) -> bool {
        self.class.is_some_and(|class| {
            let mut selectors = class.selectors.iter().chain(&self.own);
            selectors.all(|selector| selector.matches(driver, device) != Some(false))
        })
    }
}

/// Counts the devices of kinds in slices, which are parsed one after the other: as text they take much less memory.
fn count<'s>(kinds: &mut [KindCount<'_>], slices: impl Iterator<Item = &'s Arc<Slice>>) {
    // Slices of earlier generations are about to be deleted.
    let mut newest: HashMap<(String, String), (i64, Vec<u64>)> = HashMap::new();
    for slice in slices {
        let SliceSpec {
            driver, pool, devices, ..
        } = slice.parse();
        let generation = pool.generation;
        let of_pool = newest.entry((driver.clone(), pool.name));
        let (known, counts) = of_pool.or_insert_with(|| (generation, vec![0; kinds.len()]));
        if generation > *known {
            (*known, *counts) = (generation, vec![0; kinds.len()]);
        }
        if generation < *known {
            continue;
        }
        for device in devices.iter().flatten().filter(|device| !device.is_tainted()) {
            for (kind, count) in kinds.iter().zip(counts.iter_mut()) {
                *count += u64::from(kind.selects(&driver, device));
            }
        }
    }
    for (_, counts) in newest.values() {
        for (kind, count) in kinds.iter_mut().zip(counts) {
            kind.count += count;
        }
    }
}
