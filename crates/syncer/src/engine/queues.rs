//! The queues of an engine. A burst in one does not delay the others, and Events wait for everything else.

use std::{sync::Arc, time::Duration};

use berth_runtime::queue::Queue;
use berth_sync_rules::model::{KindId, QueuePriority};
use tokio::task::JoinSet;

use super::{Engine, queued_key::QueuedKey};

/// All queues, in the order in which an engine has them.
pub(super) const PRIORITIES: [QueuePriority; 3] = [QueuePriority::High, QueuePriority::Normal, QueuePriority::Low];

/// How often, and how many times, a key of the lowest priority looks whether the other queues are empty. Then its turn has come even so: a
/// syncer that is never idle still shows Events, one or two a second.
const IDLE_CHECK: Duration = Duration::from_millis(25);
const IDLE_CHECKS: u32 = 40;
/// With more keys of the lowest priority than this they wait no longer: Events are kept until they are copied, each some kilobyte, and a
/// tenant can make them faster than two a second.
const MANY: usize = 10_000;

/// Keys of a queue that are reconciled at a time. Each waits for an API server most of its life; each needs a connection.
const fn concurrency(priority: QueuePriority) -> usize {
    match priority {
        QueuePriority::High => 8,
        QueuePriority::Normal => 32,
        QueuePriority::Low => 2,
    }
}

impl Engine {
    /// Reconciles the keys of one queue, for ever.
    pub(super) async fn run_queue(self: Arc<Self>, priority: QueuePriority) {
        if priority == QueuePriority::Low {
            self.forget_copied_events().await;
        }
        let (queue, most) = (self.queue(priority).clone(), concurrency(priority));
        let mut running = JoinSet::new();
        loop {
            tokio::select! {
                Some(_) = running.join_next() => {}
                taken = queue.take(), if running.len() < most => {
                    let engine = Arc::clone(&self);
                    running.spawn(async move {
                        if priority == QueuePriority::Low {
                            engine.wait_until_idle().await;
                        }
                        engine.work(taken).await;
                    });
                }
            }
        }
    }

    /// Waits until no key waits in the other queues, but only for a second: nobody waits for an Event, and each takes the processor time of
    /// half a pod.
    async fn wait_until_idle(&self) {
        for _ in 0..IDLE_CHECKS {
            let idle = [QueuePriority::High, QueuePriority::Normal];
            let is_idle = idle.into_iter().all(|priority| self.queue(priority).is_empty());
            if is_idle || self.queue(QueuePriority::Low).len() > MANY {
                return;
            }
            tokio::time::sleep(IDLE_CHECK).await;
        }
    }

    pub(super) fn queue(&self, priority: QueuePriority) -> &Queue<QueuedKey> {
        &self.queues[priority as usize]
    }

    /// The queue of the keys of a kind.
    pub(super) fn queue_of(&self, kind: KindId) -> &Queue<QueuedKey> {
        self.queue(self.cache.kind(kind).priority)
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_engine::engine;
    use super::*;
    use berth_sync_rules::model::resource::Name;
    use futures::FutureExt;

    #[tokio::test(start_paused = true)]
    async fn an_event_waits_until_pods_do_not() {
        let engine = engine();
        assert!(engine.wait_until_idle().now_or_never().is_some(), "nothing else waits");
        engine.add(KindId::Pod.key(Name::new("team", "train")));
        let mut waiting = Box::pin(engine.wait_until_idle());
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(engine.queue_of(KindId::Pod).take().await);
        let start = tokio::time::Instant::now();
        waiting.await;
        assert!(start.elapsed() <= IDLE_CHECK);
    }

    #[tokio::test(start_paused = true)]
    async fn many_events_do_not_wait() {
        let engine = engine();
        engine.add(KindId::Pod.key(Name::new("team", "train")));
        for number in 0..=MANY {
            engine.add(KindId::Event.key(Name::new("", &number.to_string())));
        }
        assert!(engine.wait_until_idle().now_or_never().is_some());
        drop(engine.queue_of(KindId::Event).take().await);
        assert!(engine.wait_until_idle().now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_does_not_wait_for_ever() {
        let engine = engine();
        engine.add(KindId::Pod.key(Name::new("team", "train")));
        engine.wait_until_idle().await;
        assert_eq!(engine.queue_of(KindId::Pod).len(), 1, "the pod still waits");
    }
}
