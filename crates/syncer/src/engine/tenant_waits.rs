//! How long reconciliations wait for the tenant's API server, and which keys wait for long.
//!
//! A reconciliation keeps its place in its queue while it waits, and a webhook of the tenant can keep every call waiting until its time limit. With
//! some thousand objects of one kind it would so have all places for an hour. So keys that have waited long, and all of a kind of which a few have, take
//! at most half of them (see [`queues`](super::queues)): what another kind has to take off the host does not wait behind them. The kind counts as well, as
//! the first thousand keys have not waited yet, and the time, as a webhook that answers in the end takes the place as well. One key alone does not count for
//! its kind: a webhook may have to do with one object only.

use super::lock;
use berth_sync_rules::model::resource::Key;
use std::{cell::Cell, collections::HashMap, sync::Mutex, time::Duration};
use tokio::time::Instant;

/// Waits of one reconciliation that together are long.
const LONG: Duration = Duration::from_secs(2);
/// How long a key counts as slow after one. Longer than the wait of a key whose API server has not answered, so that it goes on while this goes on.
const REMEMBERED: Duration = Duration::from_secs(30);
/// So many slow keys, of all kinds together, make the kinds of these slow: half of the places of the smallest queue that has several kinds. Fewer
/// leave as many places to others by themselves. Of a kind that answers nothing as many keys wait at the same time, so that the first wait is enough.
pub(super) const FEW: usize = 4;

tokio::task_local! {
    /// How long the task has waited for the tenant's API server.
    static WAITED: Cell<Duration>;
}

/// The same task, of which the waits are counted.
pub(super) fn counted<T: Future>(task: T) -> impl Future<Output = T::Output> {
    WAITED.scope(Cell::default(), task)
}

/// Counts a wait of this task. Others, such as answers to the tenant's API server, have no place in a queue.
pub(super) fn count(wait: Duration) {
    let _ = WAITED.try_with(|waited| waited.set(waited.get() + wait));
}

/// The keys that have waited long, a short while ago.
#[derive(Debug, Default)]
pub(super) struct SlowKeys(Mutex<Waited>);

impl SlowKeys {
    /// This task has reconciled a key.
    pub(super) fn note(&self, key: &Key) {
        if WAITED.try_with(Cell::get).is_ok_and(|waited| waited >= LONG) {
            lock(&self.0).note(key, Instant::now());
        }
    }

    /// As if this task had waited long.
    #[cfg(test)]
    pub(super) fn note_long(&self, key: &Key) {
        lock(&self.0).note(key, Instant::now());
    }

    /// Whether there are any.
    pub(super) fn are_remembered(&self) -> bool {
        let now = Instant::now();
        lock(&self.0).0.values().any(|at| is_remembered(*at, now))
    }

    /// Whether a key is one of them, or of a kind of which, with others, a few are.
    pub(super) fn contain(&self, key: &Key) -> bool {
        lock(&self.0).is_slow(key, Instant::now())
    }
}

/// When keys have waited long. They are few: each had a place for [`LONG`].
#[derive(Debug, Default)]
struct Waited(HashMap<Key, Instant>);

impl Waited {
    fn note(&mut self, key: &Key, now: Instant) {
        self.0.retain(|_, at| is_remembered(*at, now));
        self.0.insert(key.clone(), now);
    }

    fn is_slow(&self, key: &Key, now: Instant) -> bool {
        if self.0.get(key).is_some_and(|at| is_remembered(*at, now)) {
            return true;
        }
        let remembered = || self.0.iter().filter(move |(_, at)| is_remembered(**at, now));
        remembered().count() >= FEW && remembered().any(|(slow, _)| slow.kind == key.kind)
    }
}

fn is_remembered(at: Instant, now: Instant) -> bool {
    now.duration_since(at) < REMEMBERED
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_sync_rules::model::{KindId, resource::Name};

    fn pod(number: usize) -> Key {
        KindId::Pod.key(Name::new("team", &number.to_string()))
    }

    fn ingress(number: usize) -> Key {
        KindId::Ingress.key(Name::new("team", &number.to_string()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_has_waited_long_is_slow_for_a_while() {
        let keys = SlowKeys::default();
        let reconcile = async |waits: &[u64]| {
            let task = async {
                for milliseconds in waits {
                    count(Duration::from_millis(*milliseconds));
                }
                keys.note(&pod(0));
            };
            counted(task).await;
        };
        reconcile(&[1000, 500]).await;
        assert!(!keys.contain(&pod(0)), "others' waits do not count");
        assert!(!keys.are_remembered());
        reconcile(&[1000, 500, 500]).await;
        assert!(keys.contain(&pod(0)) && !keys.contain(&ingress(0)));
        assert!(!keys.contain(&pod(1)), "one object does not count for its kind");
        assert!(keys.are_remembered());
        tokio::time::sleep(REMEMBERED).await;
        assert!(!keys.contain(&pod(0)) && !keys.are_remembered());
        count(LONG);
        keys.note(&pod(0));
        assert!(!keys.contain(&pod(0)), "that was no task of a queue");
    }

    #[test]
    fn a_kind_is_slow_once_a_few_keys_are() {
        let now = Instant::now();
        let mut waited = Waited::default();
        for number in 0..FEW - 1 {
            for _ in 0..10 {
                waited.note(&pod(number), now);
            }
            assert!(!waited.is_slow(&pod(FEW), now), "{number}");
        }
        waited.note(&pod(FEW - 1), now);
        assert!(waited.is_slow(&pod(FEW), now) && !waited.is_slow(&ingress(0), now));
        assert!(!waited.is_slow(&pod(FEW), now + REMEMBERED));
        waited.note(&pod(0), now + REMEMBERED);
        assert_eq!(waited.0.len(), 1, "others are forgotten");
        assert!(waited.is_slow(&pod(0), now + REMEMBERED) && !waited.is_slow(&pod(1), now + REMEMBERED));
    }

    #[test]
    fn kinds_with_a_slow_key_each_leave_places_to_others_as_well() {
        let now = Instant::now();
        let mut waited = Waited::default();
        for number in 0..FEW - 1 {
            waited.note(&pod(number), now);
        }
        waited.note(&ingress(0), now);
        assert!(waited.is_slow(&ingress(1), now) && waited.is_slow(&pod(FEW), now));
        let service = KindId::Service.key(Name::new("team", "web"));
        assert!(!waited.is_slow(&service, now));
    }
}
