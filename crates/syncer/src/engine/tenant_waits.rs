//! How long reconciliations wait for the tenant's API server, and which kinds have waited long.
//!
//! A reconciliation keeps its place in its queue while it waits, and a webhook of the tenant can keep every call waiting until its time limit. With
//! some thousand objects of one kind it would so have all places for an hour. So keys of a kind that has waited long take at most half of them (see
//! [`queues`](super::queues)): what another kind has to take off the host does not wait behind them. It is the kind that counts, as the first
//! thousand keys have not waited yet, and the time, as a webhook that answers in the end takes the place as well.

use super::lock;
use berth_sync_rules::model::KindId;
use std::{cell::Cell, collections::HashMap, sync::Mutex, time::Duration};
use tokio::time::Instant;

/// Waits of one reconciliation that together are long.
const LONG: Duration = Duration::from_secs(2);
/// How long a kind counts as slow after one. Longer than the wait of a key whose API server has not answered, so that it goes on while this goes on.
const REMEMBERED: Duration = Duration::from_secs(30);

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

/// The kinds of which a key has waited long, a short while ago.
#[derive(Debug, Default)]
pub(super) struct SlowKinds(Mutex<HashMap<KindId, Instant>>);

impl SlowKinds {
    /// This task has reconciled a key of a kind.
    pub(super) fn note(&self, kind: KindId) {
        if WAITED.try_with(Cell::get).is_ok_and(|waited| waited >= LONG) {
            lock(&self.0).insert(kind, Instant::now());
        }
    }

    /// Whether a kind is one of them.
    pub(super) fn contain(&self, kind: KindId) -> bool {
        let noted_at = lock(&self.0).get(&kind).copied();
        noted_at.is_some_and(|at| at.elapsed() < REMEMBERED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_kind_is_slow_for_a_while_after_a_key_that_has_waited_long() {
        let kinds = SlowKinds::default();
        let reconcile = async |waits: &[u64]| {
            let task = async {
                for milliseconds in waits {
                    count(Duration::from_millis(*milliseconds));
                }
                kinds.note(KindId::Pod);
            };
            counted(task).await;
        };
        reconcile(&[1000, 500]).await;
        assert!(!kinds.contain(KindId::Pod), "others' waits do not count");
        reconcile(&[1000, 500, 500]).await;
        assert!(kinds.contain(KindId::Pod) && !kinds.contain(KindId::Ingress));
        tokio::time::sleep(REMEMBERED).await;
        assert!(!kinds.contain(KindId::Pod));
        count(LONG);
        kinds.note(KindId::Pod);
        assert!(!kinds.contain(KindId::Pod), "that was no task of a queue");
    }
}
