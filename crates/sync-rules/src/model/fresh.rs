//! Which kept objects are still trees: the newest ones, for a short time.

use super::{packed_text::Dictionary, stored::Stored};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

/// Objects that stay trees at most: some 30 KB each, so a few MB while much is created.
const MOST: usize = 128;
/// Memory of those of them that are large: the tenant decides how much structure an object has, and some maps take a hundred times their text.
const MOST_BYTES: u64 = 64 << 20;
/// Time after which an object is packed.
const FRESH_FOR: Duration = Duration::from_secs(2);

/// The objects that are trees, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Fresh(Arc<Mutex<VecDeque<Entry>>>);

#[derive(Debug)]
struct Entry {
    object: Weak<Stored>,
    dictionary: Arc<Dictionary>,
    since: Instant,
    tree_bytes: u64,
}

impl Entry {
    /// Whether the object was replaced or forgotten.
    fn is_gone(&self) -> bool {
        self.object.strong_count() == 0
    }

    fn pack(&self) {
        // Most objects are replaced before their turn comes.
        if let Some(object) = self.object.upgrade() {
            object.pack(&self.dictionary);
        }
    }
}

impl Fresh {
    fn entries(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an object as a tree for some time. The oldest ones are packed if there are too many, or too large ones.
    pub(super) fn keep(&self, object: &Arc<Stored>, dictionary: &Arc<Dictionary>) {
        let entry = Entry {
            object: Arc::downgrade(object),
            dictionary: Arc::clone(dictionary),
            since: Instant::now(),
            tree_bytes: object.tree_bytes,
        };
        let mut entries = self.entries();
        entries.push_back(entry);
        // Most objects are replaced within a second: what is gone takes no place of one that is read again.
        if entries.len() > MOST && entries.pop_front_if(|oldest| oldest.is_gone()).is_none() {
            entries.retain(|entry| !entry.is_gone());
        }
        let mut oldest = Vec::new();
        while has_too_many(&entries)
            && let Some(entry) = entries.pop_front()
        {
            oldest.push(entry);
        }
        drop(entries);
        oldest.iter().for_each(Entry::pack);
    }

    /// Packs what has been a tree for long enough at `now`.
    pub fn pack_old(&self, now: Instant) {
        loop {
            let mut entries = self.entries();
            let is_old = |entry: &Entry| now.saturating_duration_since(entry.since) >= FRESH_FOR;
            let Some(old) = entries.pop_front_if(|entry| is_old(entry)) else {
                if entries.is_empty() {
                    entries.shrink_to_fit();
                }
                return;
            };
            drop(entries);
            old.pack();
        }
    }
}

/// Whether fewer objects must stay trees.
fn has_too_many(entries: &VecDeque<Entry>) -> bool {
    let present = entries.iter().filter(|entry| !entry.is_gone());
    entries.len() > MOST || present.map(|entry| entry.tree_bytes).sum::<u64>() > MOST_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn stored(name: usize) -> Arc<Stored> {
        Arc::new(Stored::from(
            json!({"metadata": {"name": name.to_string()}, "spec": "x".repeat(300)}),
        ))
    }

    #[test]
    fn replaced_objects_take_no_places() {
        let (fresh, dictionary) = (Fresh::default(), Arc::default());
        let keep = |object: &Arc<Stored>| fresh.keep(object, &dictionary);
        let first = stored(0);
        keep(&first);
        for replaced in 1..10 * MOST {
            keep(&stored(replaced));
            assert!(fresh.entries().len() <= MOST);
        }
        assert!(!first.is_packed());
        let kept: Vec<_> = (0..MOST).map(stored).collect();
        kept.iter().for_each(keep);
        assert!(first.is_packed() && kept.iter().all(|object| !object.is_packed()));
    }

    #[test]
    fn large_objects_are_packed_before_they_are_many() {
        let (fresh, dictionary) = (Fresh::default(), Arc::default());
        let large = |name| Arc::new(Arc::into_inner(stored(name)).unwrap().of_tree_bytes(MOST_BYTES / 4));
        let kept: Vec<_> = (0..4).map(large).collect();
        for object in &kept[..3] {
            fresh.keep(object, &dictionary);
            // It is gone at once, and counts no longer.
            fresh.keep(&large(9), &dictionary);
        }
        fresh.keep(&kept[3], &dictionary);
        fresh.keep(&stored(5), &dictionary);
        assert!(kept.iter().all(|object| !object.is_packed()));
        let last = large(6);
        fresh.keep(&last, &dictionary);
        assert!(kept[0].is_packed() && !kept[1].is_packed() && !last.is_packed());
    }

    #[test]
    fn old_objects_and_those_beyond_the_limit_are_packed() {
        let (fresh, dictionary) = (Fresh::default(), Arc::default());
        let objects: Vec<_> = (0..MOST + 2).map(stored).collect();
        for object in &objects {
            fresh.keep(object, &dictionary);
        }
        let packed = || objects.iter().filter(|object| object.is_packed()).count();
        assert_eq!(packed(), 2);
        let now = Instant::now();
        fresh.pack_old(now);
        assert_eq!(packed(), 2);
        fresh.pack_old(now + FRESH_FOR);
        assert_eq!(packed(), objects.len());
    }
}
