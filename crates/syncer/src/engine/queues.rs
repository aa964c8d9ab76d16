//! The queues of an engine. A burst in one does not delay the others, and Events wait for everything else. Keys for which the tenant's API server
//! takes long have a second queue, and at most half of the places.

use std::{collections::HashMap, sync::Arc, time::Duration};

use berth_runtime::queue::{Queue, Taken};
use berth_sync_rules::model::{KindId, QueuePriority};
use tokio::task::JoinSet;

use super::{
    Engine,
    queued_key::{QueuedKey, SlowKey},
    tenant_waits,
};

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
        let (queue, slow) = (self.queue(priority), &self.slow_queues[priority as usize]);
        let most = concurrency(priority);
        let (mut running, mut running_slow) = (JoinSet::new(), JoinSet::new());
        // How long those in the second queue were in the first one.
        let mut queued_before: HashMap<SlowKey, Duration> = HashMap::new();
        let run = |taken| tenant_waits::counted(Arc::clone(&self).run_key(priority, taken));
        loop {
            let has_place = running.len() + running_slow.len() < most;
            tokio::select! {
                Some(_) = running.join_next() => {}
                Some(_) = running_slow.join_next() => {}
                taken = slow.take(), if has_place && running_slow.len() < most / 2 => {
                    // The first queue has not got it back, so that nobody adds it again.
                    slow.done(&taken.key);
                    let before = queued_before.remove(&taken.key).unwrap_or_default();
                    running_slow.spawn(run(Taken {
                        key: QueuedKey(taken.key.0),
                        queued_for: before + taken.queued_for,
                    }));
                }
                taken = queue.take(), if has_place => {
                    if self.slow_keys.contain(&taken.key.0) {
                        let key = SlowKey(taken.key.0);
                        queued_before.insert(key.clone(), taken.queued_for);
                        slow.add(key);
                    } else {
                        running.spawn(run(taken));
                    }
                }
            }
        }
    }

    /// Reconciles a key that was taken from a queue.
    async fn run_key(self: Arc<Self>, priority: QueuePriority, taken: Taken<QueuedKey>) {
        if priority == QueuePriority::Low {
            self.wait_until_idle().await;
        }
        self.work(taken).await;
    }

    /// Waits until no key waits in the other queues, but only for a second: nobody waits for an Event, and each takes the processor time of
    /// half a pod.
    async fn wait_until_idle(&self) {
        for _ in 0..IDLE_CHECKS {
            let idle = [QueuePriority::High, QueuePriority::Normal];
            let is_idle = idle.into_iter().all(|priority| self.queue(priority).is_empty());
            let low = QueuePriority::Low;
            let events = self.queue(low).len() + self.slow_queues[low as usize].len();
            if is_idle || events > MANY {
                return;
            }
            tokio::time::sleep(IDLE_CHECK).await;
        }
    }

    pub(super) fn queue(&self, priority: QueuePriority) -> &Queue<QueuedKey> {
        &self.queues[priority as usize]
    }

    /// Number of keys that wait in all queues.
    pub(super) fn waiting(&self) -> usize {
        let slow: usize = self.slow_queues.iter().map(Queue::len).sum();
        slow + self.queues.iter().map(Queue::len).sum::<usize>()
    }

    /// The queue of the keys of a kind.
    pub(super) fn queue_of(&self, kind: KindId) -> &Queue<QueuedKey> {
        self.queue(self.cache.kind(kind).priority)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        scripted::{Failure, Scripted},
        test_engine::{engine, tenant},
    };
    use super::*;
    use berth_api::SyncPolicy;
    use berth_sync_rules::model::resource::{Name, Side};
    use futures::FutureExt;
    use serde_json::json;

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

    /// A thousand pods with a status for a tenant that does not answer.
    fn pods_of_a_silent_tenant() -> Scripted {
        let scripted = Scripted::new(tenant(SyncPolicy::default()), |call| {
            call.starts_with("tenant").then_some(Failure::Silence)
        });
        for number in 0..1000 {
            let name = Name::new("team", &number.to_string());
            for (side, message) in [(Side::Tenant, "before"), (Side::Host, "after")] {
                let pod = json!({"spec": {"nodeName": "gpu-1"}, "status": {"phase": "Running", "message": message}});
                scripted.put(side, KindId::Pod, &name, pod);
            }
            scripted.engine.add_for_status(KindId::Pod.key(name));
        }
        scripted
    }

    #[tokio::test(start_paused = true)]
    async fn keys_that_wait_for_the_tenant_leave_places_for_others() {
        let scripted = pods_of_a_silent_tenant();
        let engine = &scripted.engine;
        let working = tokio::spawn(Arc::clone(engine).run_queue(QueuePriority::Normal));
        tokio::time::sleep(Duration::from_secs(15)).await;
        let all = concurrency(QueuePriority::Normal);
        let asked = scripted.calls("tenant", "").len();
        assert_eq!(asked, all + all / 2, "nobody knew it of the first ones");
        assert_eq!(engine.waiting(), 1000 - all / 2, "the first ones are tried again");

        let policy = Name::new("team", "gone");
        scripted.put(Side::Host, KindId::NetworkPolicy, &policy, json!({"spec": {}}));
        engine.add(KindId::NetworkPolicy.key(policy));
        let start = tokio::time::Instant::now();
        while scripted.calls("host DELETE", "/networkpolicies/gone").is_empty() {
            assert!(start.elapsed() < Duration::from_secs(1));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        working.abort();
    }
}
