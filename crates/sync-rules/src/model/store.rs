//! What the syncer knows about both sides: one [`Store`] for each (side, kind), filled by a watch and by the responses
//! of the syncer's own writes.
//!
//! Two rules make it safe to act on a store: a newer version is never overwritten by an older one, and a response
//! that the watch has already overtaken is ignored, so that a deleted object does not come back.

pub use super::stored::{Deletion, Stored, is_origin};
pub use super::watch_spec::{Detail, WatchSpec, origin_name, own_name};

use crate::model::{
    KindId,
    fresh::Fresh,
    resource::{Name, Side},
};
use std::{
    collections::{HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

/// Objects that cannot be read are remembered up to this number: a server of the tenant's own may name any number.
const MOST_UNREADABLE: usize = 10_000;

/// The objects of one kind on one side, by their name in the tenant.
#[derive(Debug, Default)]
pub struct Store {
    inner: Mutex<Inner>,
    dictionary: Arc<super::packed_text::Dictionary>,
    fresh: Fresh,
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
    /// It serves the kind and has not listed it, for longer than the syncer waits for that.
    NotListed,
    /// It lists more of the kind than the syncer keeps. What was known is forgotten until that is over.
    TooMuch,
}

impl Unavailable {
    /// Whether there may be objects that are not known: nothing follows from an object that is missing.
    pub fn is_unlisted(self) -> bool {
        match self {
            Self::NotListed | Self::TooMuch => true,
            Self::NotServed | Self::Forbidden => false,
        }
    }
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
    /// Versions that the watch will report and that need no work, by UID: those after the first, up to the second.
    expected: HashMap<Box<str>, (u64, u64)>,
    /// Counts changes of `objects`.
    state: u64,
    /// Bytes of all `objects` before they were trimmed.
    bytes: u64,
    /// Objects whose present state cannot be read, as hashes of their UIDs.
    unreadable: HashSet<u64>,
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

    /// A number that grows with each change of any object.
    pub fn state(&self) -> u64 {
        self.inner().state
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.inner().objects.len()
    }

    /// Bytes of all objects as JSON, as far as they are known.
    pub fn bytes(&self) -> u64 {
        self.inner().bytes
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

    /// Notes that the present state of an object cannot be read: what is known of it is an earlier one. Returns whether that is new.
    pub fn note_unreadable(&self, uid: &str) -> bool {
        let mut inner = self.inner();
        inner.unreadable.len() < MOST_UNREADABLE && inner.unreadable.insert(hash_of(uid))
    }

    /// Notes that an object is gone that perhaps could not be read.
    pub fn note_gone(&self, uid: &str) {
        self.inner().unreadable.remove(&hash_of(uid));
    }

    /// Number of objects that cannot be read.
    pub fn unreadable(&self) -> usize {
        self.inner().unreadable.len()
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

    /// Stops waiting for the first list: until it succeeds, the objects of this kind are not known. Returns false if there is nothing to wait
    /// for. Under the lock, so that a list that ends meanwhile is not missed: it is marked first, and then makes the kind available.
    pub fn stop_waiting_for_list(&self) -> bool {
        let mut unavailable = self.unavailable.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = !self.is_listed() && unavailable.is_none();
        if waits {
            *unavailable = Some(Unavailable::NotListed);
        }
        waits
    }

    /// Marks the store as listed: there is nothing to list.
    pub fn set_listed(&self) {
        self.listed.store(true, Ordering::Release);
    }

    /// Stores a state that a write of the syncer returned. Ignored if the watch has already seen that version or a
    /// newer one.
    pub fn written(&self, name: Name, stored: Stored) {
        let mut inner = self.inner();
        if stored.version > inner.seen_up_to {
            self.put(&mut inner, name, stored);
        }
    }

    /// Remembers that the versions of an object after `from`, up to `to`, come from writes of the syncer alone, whose result is
    /// stored: the watch will report them, and nothing has to be done then.
    pub fn expect(&self, uid: &str, from: u64, to: u64) {
        const MOST: usize = 1024;
        let mut inner = self.inner();
        let seen = inner.seen_up_to;
        if to <= seen {
            return;
        }
        if inner.expected.len() >= MOST {
            inner.expected.retain(|_, (_, to)| *to > seen);
        }
        let range = inner.expected.entry(uid.into()).or_insert((from, to));
        // Versions that follow those which are expected already.
        *range = if range.1 == from { (range.0, to) } else { (from, to) };
    }

    /// Whether the watch reports a version of an object that is expected, so that everything about it is done.
    pub fn is_expected(&self, uid: &str, version: u64) -> bool {
        let mut inner = self.inner();
        let Some((from, to)) = inner.expected.get(uid).copied() else {
            return false;
        };
        if version >= to {
            // The watch reports versions in order.
            inner.expected.remove(uid);
        }
        let is_expected = from < version && version <= to;
        if is_expected {
            inner.seen_up_to = inner.seen_up_to.max(version);
        }
        is_expected
    }

    /// Stores a state that the watch reports.
    pub fn watched(&self, name: Name, stored: Stored) {
        let mut inner = self.inner();
        inner.seen_up_to = inner.seen_up_to.max(stored.version);
        if let Some(unlisted) = &mut inner.unlisted {
            unlisted.remove(&name);
        }
        self.put(&mut inner, name, stored);
    }

    fn put(&self, inner: &mut Inner, name: Name, stored: Stored) {
        let known = inner.objects.get(&name);
        if known.is_some_and(|known| known.version > stored.version) {
            return;
        }
        if !inner.unreadable.is_empty() {
            inner.unreadable.remove(&hash_of(&stored.uid));
        }
        if *stored.name != *name.name {
            inner.by_own_name.insert(stored.name.clone(), name.clone());
        }
        let stored = Arc::new(stored);
        self.fresh.keep(&stored, &self.dictionary);
        inner.bytes += u64::from(stored.bytes);
        if let Some(old) = inner.objects.insert(name, stored) {
            inner.bytes -= u64::from(old.bytes);
        }
        inner.state += 1;
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

    /// Handles a deletion that the watch reports, of an object whose last state is not needed. `version` is that of the deletion.
    pub fn gone(&self, name: &Name, version: u64) {
        let mut inner = self.inner();
        inner.seen_up_to = inner.seen_up_to.max(version);
        inner.remove(name);
    }

    /// Handles a deletion of a host object that the watch reports, with the last state, which must be taken with
    /// [`Store::take_tombstone`].
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
        // It names them again.
        inner.unreadable.clear();
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
    fn remove(&mut self, name: &Name) {
        if let Some(old) = self.objects.remove(name) {
            self.by_own_name.remove(&old.name);
            // If it exists after all, for example because a list was older than the object, the watch brings it back.
            self.expected.remove(&old.uid);
            self.state += 1;
            self.bytes -= u64::from(old.bytes);
        }
    }
}

fn hash_of(uid: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    uid.hash(&mut hasher);
    hasher.finish()
}

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
        let empty = || Store {
            fresh: fresh.clone(),
            ..Store::default()
        };
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
    fn bytes_are_those_of_the_objects_that_exist() {
        let store = Store::default();
        let (one, other) = (Name::new("a", "b"), Name::new("a", "c"));
        store.watched(one.clone(), stored("b", 5).of_bytes(100));
        store.watched(other.clone(), stored("c", 6).of_bytes(1000));
        assert_eq!(store.bytes(), 1100);
        store.written(one.clone(), stored("b", 7).of_bytes(300));
        store.watched(one.clone(), stored("b", 6).of_bytes(200));
        assert_eq!(store.bytes(), 1300, "an older state does not count");
        store.gone(&other, 8);
        assert_eq!(store.bytes(), 300);
        store.list_begins();
        store.list_ends();
        assert_eq!(store.bytes(), 0);
    }

    #[test]
    fn only_versions_that_are_still_to_come_are_expected() {
        let store = Store::default();
        let name = Name::new("a", "b");
        store.watched(name.clone(), stored("b", 5));
        store.expect("u", 4, 5);
        assert!(!store.is_expected("u", 5), "it was reported before it was expected");
        store.expect("u", 5, 7);
        store.expect("u", 7, 9);
        assert!(!store.is_expected("v", 6), "that is another object");
        assert!(store.is_expected("u", 6) && store.is_expected("u", 9));
        assert!(!store.is_expected("u", 9), "once only");
        store.written(name.clone(), stored("b", 8));
        assert_eq!(store.get(&name).unwrap().version, 5, "what is expected counts as seen");
        store.expect("u", 9, 11);
        store.expect("u", 12, 14);
        assert!(!store.is_expected("u", 12), "12 came from somebody else");
        assert!(store.is_expected("u", 14) && !store.is_expected("u", 15));
    }

    #[test]
    fn an_object_that_a_list_did_not_know_comes_back() {
        let store = Store::default();
        let name = Name::new("a", "b");
        store.written(name.clone(), stored("b", 7));
        store.expect("u", 0, 7);
        store.list_begins();
        assert_eq!(store.list_ends(), [name]);
        assert!(!store.is_expected("u", 7));
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
    fn an_object_that_is_gone_leaves_no_last_state() {
        let store = Store::default();
        let name = Name::new("a", "b");
        store.watched(name.clone(), stored("b", 5));
        store.gone(&name, 12);
        assert!(store.take_tombstone(&name).is_none(), "whatever annotations it had");
        store.written(name.clone(), stored("b", 11));
        assert!(!store.contains(&name));
    }

    #[test]
    fn objects_that_cannot_be_read_count_until_they_can_or_are_gone() {
        let store = Store::default();
        assert!(store.note_unreadable("u") && store.note_unreadable("v"));
        assert!(!store.note_unreadable("u"), "that is known");
        store.watched(Name::new("a", "b"), stored("b", 5));
        assert_eq!(store.unreadable(), 1, "u can be read");
        store.note_gone("v");
        assert_eq!(store.unreadable(), 0);
        for number in 0..=MOST_UNREADABLE {
            store.note_unreadable(&number.to_string());
        }
        assert_eq!(store.unreadable(), MOST_UNREADABLE);
        store.list_begins();
        assert_eq!(store.unreadable(), 0);
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
    fn nobody_waits_for_a_list_that_does_not_end() {
        let store = Store::default();
        assert!(store.stop_waiting_for_list());
        assert_eq!(store.unavailable(), Some(Unavailable::NotListed));
        assert!(!store.stop_waiting_for_list(), "once");
        for (is_listed, unavailable) in [(true, None), (false, Some(Unavailable::NotServed))] {
            let store = Store::default();
            store.set_unavailable(unavailable);
            if is_listed {
                store.set_listed();
            }
            assert!(!store.stop_waiting_for_list());
            assert_eq!(store.unavailable(), unavailable);
        }
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
