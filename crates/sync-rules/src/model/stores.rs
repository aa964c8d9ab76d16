//! The stores of all kinds on both sides.

use super::{
    fresh::Fresh,
    kind_id::KindId,
    resource::{Name, Side},
    store::Store,
};
use std::{
    collections::{HashMap, HashSet},
    time::Instant,
};

/// All stores.
#[derive(Debug)]
pub struct Stores {
    by_kind: HashMap<(Side, KindId), Store>,
    fresh: Fresh,
}

impl Stores {
    /// Empty stores for these kinds.
    pub fn new(kinds: &[KindId]) -> Self {
        let fresh = Fresh::default();
        let empty = || Store::new(fresh.clone());
        let all = kinds
            .iter()
            .flat_map(|kind| [Side::Tenant, Side::Host].map(|side| ((side, *kind), empty())));
        Self {
            by_kind: all.collect(),
            fresh,
        }
    }

    /// Packs the objects that have not changed for some time.
    pub fn pack_old(&self) {
        self.fresh.pack_old(Instant::now());
    }

    /// The store of a side and kind. Kinds that are not watched on a side have an empty store there.
    pub fn of(&self, side: Side, kind: KindId) -> &Store {
        &self.by_kind[&(side, kind)]
    }

    /// Bytes of the host's objects of these kinds.
    pub fn host_bytes(&self, kinds: impl IntoIterator<Item = KindId>) -> u64 {
        kinds.into_iter().map(|kind| self.host(kind).bytes()).sum()
    }

    /// The tenant's objects of a kind.
    pub fn tenant(&self, kind: KindId) -> &Store {
        self.of(Side::Tenant, kind)
    }

    /// The host's objects of a kind.
    pub fn host(&self, kind: KindId) -> &Store {
        self.of(Side::Host, kind)
    }

    /// Number of objects of a kind that cannot be read, on both sides.
    pub fn unreadable(&self, kind: KindId) -> usize {
        self.tenant(kind).unreadable() + self.host(kind).unreadable()
    }

    /// Every key of a kind that either side knows.
    pub fn names(&self, kind: KindId) -> HashSet<Name> {
        self.tenant(kind)
            .names()
            .into_iter()
            .chain(self.host(kind).names())
            .collect()
    }
}
