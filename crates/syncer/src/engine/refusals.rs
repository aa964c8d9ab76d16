//! Parts of host objects that the host has refused, and that are written again later: those that a kind writes alone, such as ephemeral containers of a pod.
//!
//! Nobody can take an ephemeral container out of a pod. So each that the host refuses would be written again whenever the pod changes, for as long as it runs,
//! and a pod that flips changes all the time. So a part waits after a refusal, each time twice as long. One that differs from it is written at once.

use super::lock;
use berth_sync_rules::model::resource::Key;
use std::{collections::HashMap, sync::Mutex, time::Duration};
use tokio::time::Instant;

/// First and longest time from a refusal to the next try.
const PAUSE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_mins(5));
/// Most characters that are kept of what the host says: the tenant may have thousands of such objects, and can write part of it.
const MESSAGE: usize = 512;
/// Parts of one object that are remembered. An object has few at a time; if more are refused, all are tried again.
const MOST_PARTS: usize = 32;

/// What the host has refused.
#[derive(Default)]
pub(super) struct Refusals(Mutex<HashMap<Key, OfObject>>);

#[derive(Default)]
struct OfObject {
    /// What the host has said last.
    message: String,
    /// Parts, by their hashes.
    parts: HashMap<u64, Refused>,
}

struct Refused {
    at: Instant,
    pause: Duration,
}

impl Refusals {
    /// Why a part of an object is not written now: what the host has said.
    pub(super) fn refusal(&self, key: &Key, part: u64) -> Option<String> {
        let all = lock(&self.0);
        let object = all.get(key)?;
        let refused = object.parts.get(&part)?;
        (refused.at.elapsed() < refused.pause).then(|| object.message.clone())
    }

    /// Notes that the host has refused a part of an object.
    pub(super) fn note(&self, key: &Key, part: u64, message: &str) {
        let mut all = lock(&self.0);
        let object = all.entry(key.clone()).or_default();
        object.message = message.chars().take(MESSAGE).collect();
        let before = object.parts.remove(&part).map(|refused| refused.pause);
        if object.parts.len() >= MOST_PARTS {
            object.parts.clear();
        }
        let refused = Refused {
            at: Instant::now(),
            pause: before.map_or(PAUSE.0, |pause| (2 * pause).min(PAUSE.1)),
        };
        object.parts.insert(part, refused);
    }

    /// Forgets what the host has refused of an object: it has everything, or is gone.
    pub(super) fn forget(&self, key: &Key) {
        lock(&self.0).remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_sync_rules::model::{KindId, resource::Name};

    fn key() -> Key {
        KindId::Pod.key(Name::new("team", "a"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_part_waits_longer_each_time() {
        let refusals = Refusals::default();
        let mut waits = Vec::new();
        for _ in 0..8 {
            refusals.note(&key(), 1, "no");
            let start = Instant::now();
            while let Some(message) = refusals.refusal(&key(), 1) {
                assert_eq!(message, "no");
                tokio::time::advance(Duration::from_secs(1)).await;
            }
            waits.push(start.elapsed().as_secs());
        }
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 300, 300]);
    }

    #[tokio::test(start_paused = true)]
    async fn other_parts_and_other_objects_do_not_wait() {
        let refusals = Refusals::default();
        refusals.note(&key(), 1, "no");
        assert_eq!(refusals.refusal(&key(), 2), None);
        let other = KindId::Pod.key(Name::new("team", "b"));
        assert_eq!(refusals.refusal(&other, 1), None);
        refusals.forget(&key());
        assert_eq!(refusals.refusal(&key(), 1), None);
        assert!(lock(&refusals.0).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn little_is_kept_of_an_object_of_which_much_is_refused() {
        let refusals = Refusals::default();
        let message = "é".repeat(2 * MESSAGE);
        for part in 0..1000 {
            refusals.note(&key(), part, &message);
        }
        let all = lock(&refusals.0);
        let object = &all[&key()];
        assert!(object.parts.len() <= MOST_PARTS, "{}", object.parts.len());
        assert_eq!(object.message.chars().count(), MESSAGE);
    }
}
