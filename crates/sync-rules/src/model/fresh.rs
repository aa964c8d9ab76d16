//! Which kept objects are still trees: the newest ones, for a short time.

use super::{packed_text::Dictionary, stored::Stored};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

/// Objects that stay trees at most: some 30 KB each, so a few MB while much is created.
const MOST: usize = 128;
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

    /// Keeps an object as a tree for some time. The oldest one is packed if there are too many.
    pub(super) fn keep(&self, object: &Arc<Stored>, dictionary: &Arc<Dictionary>) {
        let entry = Entry {
            object: Arc::downgrade(object),
            dictionary: Arc::clone(dictionary),
            since: Instant::now(),
        };
        let mut entries = self.entries();
        entries.push_back(entry);
        // Most objects are replaced within a second: what is gone takes no place of one that is read again.
        if entries.len() > MOST && entries.pop_front_if(|oldest| oldest.is_gone()).is_none() {
            entries.retain(|entry| !entry.is_gone());
        }
        let oldest = (entries.len() > MOST).then(|| entries.pop_front()).flatten();
        drop(entries);
        if let Some(oldest) = oldest {
            oldest.pack();
        }
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
