//! Host objects that are about to be gone: what ends by itself is not deleted once more.
//!
//! A request that deletes is answered before the watch says so, and an API server ends a pod's grace and removes the pod in two writes, of which the
//! watch reports both. What is reconciled in between would be deleted again, which costs the host one request for each pod.

use super::lock;
use berth_sync_rules::model::resource::Key;
use std::{collections::HashMap, sync::Mutex, time::Duration};
use tokio::time::Instant;

/// How long an object may take to be gone. What is there after that was left by an API server that ended in between, and is deleted again.
const LONGEST: Duration = Duration::from_secs(2);

/// Versions of host objects that are about to be gone.
#[derive(Default)]
pub(super) struct Endings(Mutex<HashMap<Key, Ending>>);

struct Ending {
    version: u64,
    since: Instant,
}

impl Endings {
    /// Notes that this version of a host object is about to be gone, if it is not noted yet. Returns the time that it may still take.
    pub(super) fn begin(&self, key: &Key, version: u64) -> Duration {
        self.begin_at(key, version, Instant::now())
    }

    fn begin_at(&self, key: &Key, version: u64, now: Instant) -> Duration {
        let mut endings = lock(&self.0);
        let ending = endings
            .entry(key.clone())
            .and_modify(|ending| {
                if ending.version != version {
                    *ending = Ending { version, since: now };
                }
            })
            .or_insert(Ending { version, since: now });
        LONGEST.saturating_sub(now.saturating_duration_since(ending.since))
    }

    /// The time that this version may still take to be gone; none if nothing says that it ends, or if the time is over.
    pub(super) fn left(&self, key: &Key, version: u64) -> Option<Duration> {
        self.left_at(key, version, Instant::now())
    }

    fn left_at(&self, key: &Key, version: u64, now: Instant) -> Option<Duration> {
        let endings = lock(&self.0);
        let ending = endings.get(key).filter(|ending| ending.version == version)?;
        let left = LONGEST.saturating_sub(now.saturating_duration_since(ending.since));
        Some(left).filter(|left| !left.is_zero())
    }

    /// Forgets what is gone, or what is to be deleted again.
    pub(super) fn forget(&self, key: &Key) {
        lock(&self.0).remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_sync_rules::model::{KindId, resource::Name};

    fn key() -> Key {
        KindId::Pod.key(Name::new("default", "train"))
    }

    #[test]
    fn an_ending_has_a_time_that_does_not_begin_anew() {
        let (endings, begun) = (Endings::default(), Instant::now());
        assert_eq!(endings.left_at(&key(), 7, begun), None);
        assert_eq!(endings.begin_at(&key(), 7, begun), LONGEST);
        let later = begun + Duration::from_millis(500);
        assert_eq!(endings.begin_at(&key(), 7, later), Duration::from_millis(1500));
        assert_eq!(endings.left_at(&key(), 7, later), Some(Duration::from_millis(1500)));
        assert_eq!(endings.begin_at(&key(), 7, begun + LONGEST), Duration::ZERO);
        assert_eq!(endings.left_at(&key(), 7, begun + LONGEST), None);
    }

    #[test]
    fn another_version_has_its_own_time() {
        let (endings, begun) = (Endings::default(), Instant::now());
        endings.begin_at(&key(), 7, begun);
        assert_eq!(endings.left_at(&key(), 8, begun), None);
        assert_eq!(endings.begin_at(&key(), 8, begun + LONGEST), LONGEST);
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let (endings, begun) = (Endings::default(), Instant::now());
        endings.begin_at(&key(), 7, begun);
        endings.forget(&key());
        assert_eq!(endings.left_at(&key(), 7, begun), None);
        assert!(lock(&endings.0).is_empty());
    }
}
