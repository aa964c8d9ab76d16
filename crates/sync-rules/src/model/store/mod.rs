//! What the syncer knows about both sides: one [`Store`] for each (side, kind), filled by a watch and by the responses
//! of the syncer's own writes.
//!
//! Two rules make it safe to act on a store: a newer version is never overwritten by an older one, and a response
//! that the watch has already overtaken is ignored, so that a deleted object does not come back.

pub use super::stored::{Deletion, Stored, is_origin};
pub use super::watch_spec::{Detail, WatchSpec, origin_name, own_name};

use super::{fresh::Fresh, resource::Name};
use std::{
    collections::{HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
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
    /// An empty store that shares with others which objects are to be packed.
    pub(super) fn new(fresh: Fresh) -> Self {
        Self {
            fresh,
            ..Self::default()
        }
    }

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

    /// The object under a tenant name; or, of a host object that is gone, its last state, which is taken: nobody gets it again.
    ///
    /// Both at one moment. If an object goes after it was read here, its last state stays for the next reconciliation: one that has the object
    /// does not use it.
    pub fn get_or_take_tombstone(&self, name: &Name) -> (Option<Arc<Stored>>, Option<Arc<Stored>>) {
        let mut inner = self.inner();
        let tombstone = inner.tombstones.remove(name);
        match inner.objects.get(name).cloned() {
            // What is left of an earlier object says nothing about this one.
            Some(object) => (Some(object), None),
            None => (None, tombstone),
        }
    }

    /// Puts the last state of a host object back, for a later reconciliation.
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

    /// Whether a list runs: what is put into the store now may have been there for long.
    pub fn is_listing(&self) -> bool {
        self.inner().unlisted.is_some()
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
    /// [`Store::get_or_take_tombstone`].
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

#[cfg(test)]
mod tests;
