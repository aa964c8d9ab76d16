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

/// Host objects that are about to be gone, by their UIDs: whatever changes in one of them, it has no more time.
#[derive(Default)]
pub(super) struct Endings(Mutex<HashMap<Key, Ending>>);

struct Ending {
    uid: Box<str>,
    since: Instant,
}

impl Endings {
    /// Notes that the host object with this UID is about to be gone, if it is not noted yet. Returns the time that it may still take.
    pub(super) fn begin(&self, key: &Key, uid: &str) -> Duration {
        self.begin_at(key, uid, Instant::now())
    }

    fn begin_at(&self, key: &Key, uid: &str, now: Instant) -> Duration {
        let begin = || Ending {
            uid: uid.into(),
            since: now,
        };
        let mut endings = lock(&self.0);
        let ending = endings.entry(key.clone()).or_insert_with(begin);
        if *ending.uid != *uid {
            *ending = begin();
        }
        LONGEST.saturating_sub(now.saturating_duration_since(ending.since))
    }

    /// The time that this object may still take to be gone; none if nothing says that it ends, or if the time is over.
    pub(super) fn left(&self, key: &Key, uid: &str) -> Option<Duration> {
        self.left_at(key, uid, Instant::now())
    }

    fn left_at(&self, key: &Key, uid: &str, now: Instant) -> Option<Duration> {
        let endings = lock(&self.0);
        let ending = endings.get(key).filter(|ending| *ending.uid == *uid)?;
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
    use super::super::{scripted::Scripted, test_engine::tenant};
    use super::*;
    use berth_api::{SyncPolicy, labels};
    use berth_sync_rules::model::{KindId, resource::Name, store::Stored};
    use serde_json::json;

    fn key() -> Key {
        KindId::Pod.key(Name::new("default", "train"))
    }

    #[test]
    fn an_ending_has_a_time_that_does_not_begin_anew() {
        let (endings, begun) = (Endings::default(), Instant::now());
        assert_eq!(endings.left_at(&key(), "a", begun), None);
        assert_eq!(endings.begin_at(&key(), "a", begun), LONGEST);
        let later = begun + Duration::from_millis(500);
        assert_eq!(endings.begin_at(&key(), "a", later), Duration::from_millis(1500));
        assert_eq!(endings.left_at(&key(), "a", later), Some(Duration::from_millis(1500)));
        assert_eq!(endings.begin_at(&key(), "a", begun + LONGEST), Duration::ZERO);
        assert_eq!(endings.left_at(&key(), "a", begun + LONGEST), None);
    }

    #[test]
    fn another_object_of_the_name_has_its_own_time() {
        let (endings, begun) = (Endings::default(), Instant::now());
        endings.begin_at(&key(), "a", begun);
        assert_eq!(endings.left_at(&key(), "b", begun), None);
        assert_eq!(endings.begin_at(&key(), "b", begun + LONGEST), LONGEST);
        assert_eq!(endings.left_at(&key(), "a", begun + LONGEST), None);
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let (endings, begun) = (Endings::default(), Instant::now());
        endings.begin_at(&key(), "a", begun);
        endings.forget(&key());
        assert_eq!(endings.left_at(&key(), "a", begun), None);
        assert!(lock(&endings.0).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_whose_deletion_was_cut_off_is_deleted_again_although_it_changes() {
        let scripted = Scripted::new(tenant(SyncPolicy::default()), |_| None);
        let pods = scripted.engine.cache.stores.host(KindId::Pod);
        for (version, expected) in [("7", "ending"), ("8", "ending"), ("9", "deleted")] {
            let pod = json!({"metadata": {"name": "train-x", "uid": "h", "resourceVersion": version,
                "deletionTimestamp": "2026-05-01T10:00:00Z", "deletionGracePeriodSeconds": 0,
                "annotations": {labels::ORIGIN_UID: "t"}}, "spec": {}});
            pods.watched(key().name, Stored::from(pod));
            let outcome = scripted.engine.reconcile(&key(), Instant::now().into_std(), true).await;
            assert_eq!(outcome.unwrap().result, expected, "{version}");
            tokio::time::advance(LONGEST / 2).await;
        }
        assert_eq!(scripted.calls("host DELETE", "/pods/train-x").len(), 1);
    }
}
