//! What the syncer knows about both sides: one [`Store`] for each (side, kind), filled by a watch and by the responses
//! of the syncer's own writes.
//!
//! Two rules make it safe to act on a store: a newer version is never overwritten by an older one, and a response
//! that the watch has already overtaken is ignored, so that a deleted object does not come back.

pub use super::stored::{Deletion, Stored, is_origin};
pub use super::watch_spec::{Detail, WatchSpec, origin_name, own_name};

use crate::model::{
    KindId,
    resource::{Name, Side},
};
use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// The objects of one kind on one side, by their name in the tenant.
#[derive(Debug, Default)]
pub struct Store {
    inner: Mutex<Inner>,
    dictionary: super::packed_text::Dictionary,
    listed: AtomicBool,
    /// Why the API server gives no objects of this kind at all.
    unavailable: Mutex<Option<Unavailable>>,
}

/// Why an API server gives no objects of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// It does not serve the kind.
    NotServed,
    /// The syncer may not read it.
    Forbidden,
}

#[derive(Debug, Default)]
struct Inner {
    objects: HashMap<Name, Arc<Stored>>,
    /// Tenant names by the name of the object itself, for host objects only.
    by_own_name: HashMap<Box<str>, Name>,
    /// Last state of deleted host objects, until they are reconciled.
    tombstones: HashMap<Name, Arc<Stored>>,
    /// The watch has seen everything up to this resource version.
    seen_up_to: u64,
    /// While a list runs: versions of what was known when it began, without what the list has named since.
    unlisted: Option<HashMap<Name, u64>>,
}

impl Store {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The object under a tenant name.
    pub fn get(&self, name: &Name) -> Option<Arc<Stored>> {
        self.inner().objects.get(name).cloned()
    }

    /// Whether there is an object under a tenant name.
    pub fn contains(&self, name: &Name) -> bool {
        self.inner().objects.contains_key(name)
    }

    /// All tenant names.
    pub fn names(&self) -> Vec<Name> {
        self.inner().objects.keys().cloned().collect()
    }

    /// All objects, with their tenant names.
    pub fn all(&self) -> Vec<(Name, Arc<Stored>)> {
        self.inner()
            .objects
            .iter()
            .map(|(name, stored)| (name.clone(), Arc::clone(stored)))
            .collect()
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.inner().objects.len()
    }

    /// Whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tenant name of the host object called `own_name`.
    pub fn tenant_name(&self, own_name: &str) -> Option<Name> {
        self.inner().by_own_name.get(own_name).cloned()
    }

    /// Takes the last state of a host object that is gone.
    pub fn take_tombstone(&self, name: &Name) -> Option<Arc<Stored>> {
        self.inner().tombstones.remove(name)
    }

    /// Puts the last state of a host object back, for a later step.
    pub fn restore_tombstone(&self, name: &Name, last: Arc<Stored>) {
        self.inner().tombstones.entry(name.clone()).or_insert(last);
    }

    /// Whether the first list is complete.
    pub fn is_listed(&self) -> bool {
        self.listed.load(Ordering::Acquire)
    }

    /// Why the API server gives no objects of this kind, if so.
    pub fn unavailable(&self) -> Option<Unavailable> {
        *self.unavailable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets whether and why the API server gives no objects of this kind. Returns the value before.
    pub fn set_unavailable(&self, why: Option<Unavailable>) -> Option<Unavailable> {
        std::mem::replace(
            &mut *self.unavailable.lock().unwrap_or_else(PoisonError::into_inner),
            why,
        )
    }

    /// Marks the store as listed: there is nothing to list.
    pub fn set_listed(&self) {
        self.listed.store(true, Ordering::Release);
    }

    /// Stores a state that a write of the syncer returned. Ignored if the watch has already seen that version or a
    /// newer one.
    pub fn written(&self, name: Name, stored: Stored) {
        let stored = stored.packed(&self.dictionary);
        let mut inner = self.inner();
        if stored.version > inner.seen_up_to {
            inner.put(name, stored);
        }
    }

    /// Stores a state that the watch reports.
    pub fn watched(&self, name: Name, stored: Stored) {
        let stored = stored.packed(&self.dictionary);
        let mut inner = self.inner();
        inner.seen_up_to = inner.seen_up_to.max(stored.version);
        if let Some(unlisted) = &mut inner.unlisted {
            unlisted.remove(&name);
        }
        inner.put(name, stored);
    }

    /// Drops an object from the store, although it exists.
    pub fn forget(&self, name: &Name) {
        self.inner().remove(name);
    }

    /// Drops an object unless there is a newer state of it.
    pub fn forget_version(&self, name: &Name, version: u64) {
        let mut inner = self.inner();
        if inner.objects.get(name).is_some_and(|stored| stored.version <= version) {
            inner.remove(name);
        }
    }

    /// Handles a deletion that the watch reports, with the last state.
    pub fn deleted(&self, name: &Name, last: Stored) {
        let mut inner = self.inner();
        inner.seen_up_to = inner.seen_up_to.max(last.version);
        if last.origin_uid.is_some() {
            inner.tombstones.insert(name.clone(), Arc::new(last));
        }
        inner.remove(name);
    }

    /// Begins a list.
    pub fn list_begins(&self) {
        let mut inner = self.inner();
        inner.unlisted = Some(
            inner
                .objects
                .iter()
                .map(|(name, stored)| (name.clone(), stored.version))
                .collect(),
        );
    }

    /// Ends a list: what it did not name is gone. Returns the names that are gone.
    pub fn list_ends(&self) -> Vec<Name> {
        let mut inner = self.inner();
        let unlisted = inner.unlisted.take().unwrap_or_default();
        let gone: Vec<Name> = unlisted
            .into_iter()
            // Something that was written while the list ran may rightly be missing from it.
            .filter(|(name, version)| inner.objects.get(name).is_some_and(|stored| stored.version == *version))
            .map(|(name, _)| name)
            .collect();
        for name in &gone {
            inner.remove(name);
        }
        drop(inner);
        self.listed.store(true, Ordering::Release);
        gone
    }
}

impl Inner {
    fn put(&mut self, name: Name, stored: Stored) {
        if self
            .objects
            .get(&name)
            .is_some_and(|known| known.version > stored.version)
        {
            return;
        }
        if *stored.name != *name.name {
            self.by_own_name.insert(stored.name.clone(), name.clone());
        }
        self.objects.insert(name, Arc::new(stored));
    }

    fn remove(&mut self, name: &Name) {
        if let Some(old) = self.objects.remove(name) {
            self.by_own_name.remove(&old.name);
        }
    }
}

/// All stores.
#[derive(Debug)]
pub struct Stores(HashMap<(Side, KindId), Store>);

impl Stores {
    /// Empty stores for these kinds.
    pub fn new(kinds: &[KindId]) -> Self {
        let all = kinds
            .iter()
            .flat_map(|kind| [Side::Tenant, Side::Host].map(|side| ((side, *kind), Store::default())));
        Self(all.collect())
    }

    /// The store of a side and kind. Kinds that are not watched on a side have an empty store there.
    pub fn of(&self, side: Side, kind: KindId) -> &Store {
        &self.0[&(side, kind)]
    }

    /// The tenant's objects of a kind.
    pub fn tenant(&self, kind: KindId) -> &Store {
        self.of(Side::Tenant, kind)
    }

    /// The host's objects of a kind.
    pub fn host(&self, kind: KindId) -> &Store {
        self.of(Side::Host, kind)
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn stored(name: &str, version: u64) -> Stored {
        let annotations = json!({"berth.dev/origin-uid": "t"});
        let version = version.to_string();
        Stored::new(
            &json!({"metadata": {"name": name, "uid": "u", "resourceVersion": version, "annotations": annotations}}),
        )
    }

    #[test]
    fn older_states_never_replace_newer_ones() {
        let store = Store::default();
        let name = Name::new("a", "b");
        store.watched(name.clone(), stored("b", 5));
        store.written(name.clone(), stored("b", 9));
        store.watched(name.clone(), stored("b", 7));
        assert_eq!(store.get(&name).unwrap().version, 9);
    }

    #[test]
    fn a_late_response_does_not_bring_back_what_was_deleted() {
        let store = Store::default();
        let name = Name::new("a", "b");
        store.deleted(&name, stored("b", 12));
        store.written(name.clone(), stored("b", 11));
        assert!(!store.contains(&name));
        store.written(name.clone(), stored("b", 13));
        assert!(store.contains(&name));
    }

    #[test]
    fn a_list_removes_what_it_does_not_name_except_what_was_written_meanwhile() {
        let store = Store::default();
        let (kept, gone, fresh) = (Name::new("a", "kept"), Name::new("a", "gone"), Name::new("a", "fresh"));
        store.watched(kept.clone(), stored("kept", 1));
        store.watched(gone.clone(), stored("gone", 2));
        store.list_begins();
        store.written(fresh.clone(), stored("fresh", 8));
        store.watched(kept.clone(), stored("kept", 1));
        assert!(!store.is_listed());
        assert_eq!(store.list_ends(), [gone]);
        assert!(store.is_listed() && store.contains(&kept) && store.contains(&fresh));
    }

    #[test]
    fn host_objects_are_found_by_their_own_name() {
        let store = Store::default();
        store.watched(Name::new("a", "b"), stored("b-xyz", 1));
        assert_eq!(store.tenant_name("b-xyz"), Some(Name::new("a", "b")));
        store.deleted(&Name::new("a", "b"), stored("b-xyz", 2));
        assert_eq!(store.tenant_name("b-xyz"), None);
        assert_eq!(store.take_tombstone(&Name::new("a", "b")).unwrap().version, 2);
    }
}
