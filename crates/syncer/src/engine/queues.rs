//! The queues of an engine. A burst in one does not delay the others, and Events wait for everything else. Keys for which the tenant's API server
//! takes long have a [second queue](super::slow_queue), and at most half of the places. What must happen on the host for them comes
//! [first](super::host_first), in the other places.

use std::{sync::Arc, time::Duration};

use berth_runtime::queue::{Queue, Taken};
use berth_sync_rules::model::{KindId, QueuePriority, resource::Key};
use tokio::task::JoinSet;

use super::{Engine, host_first, queued_key::QueuedKey, slow_queue::SlowQueue, tenant_waits};

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
        let run = |taken| tenant_waits::counted(Arc::clone(&self).run_key(priority, taken));
        loop {
            let has_place = running.len() + running_slow.len() < most;
            tokio::select! {
                Some(_) = running.join_next() => {}
                Some(_) = running_slow.join_next() => {}
                taken = slow.take(), if has_place && running_slow.len() < most / 2 => {
                    // If the first queue has it, it comes back with what it has to ask then.
                    if queue.claim(&taken.key) {
                        running_slow.spawn(run(taken));
                    }
                }
                taken = queue.take(), if has_place => {
                    let key = &taken.key.0;
                    if !self.is_slow(key) {
                        running.spawn(run(taken));
                    } else if self.may_close(key) {
                        running.spawn(host_first::without_tenant(Arc::clone(&self).work(taken)));
                    } else {
                        queue.done(&taken.key);
                        slow.add(taken.key.0);
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
        let slow: usize = self.slow_queues.iter().map(SlowQueue::len).sum();
        slow + self.queues.iter().map(Queue::len).sum::<usize>()
    }

    /// The queue of the keys of a kind.
    pub(super) fn queue_of(&self, kind: KindId) -> &Queue<QueuedKey> {
        self.queue(self.cache.kind(kind).priority)
    }

    /// The second queue of the keys of a kind.
    pub(super) fn slow_queue_of(&self, kind: KindId) -> &SlowQueue {
        &self.slow_queues[self.cache.kind(kind).priority as usize]
    }

    /// Whether the tenant's API server takes long for a key, or for several, some of which are of its kind. As long as it does for any key, that
    /// holds for those that wait in the second queue as well: they may wait there for so long that none of them has shown it a short while ago.
    /// Otherwise each of several slow kinds would get all places again and again, until it is known anew.
    pub(super) fn is_slow(&self, key: &Key) -> bool {
        let slow = self.slow_queue_of(key.kind);
        self.slow_keys.contain(key)
            || ((slow.has(key) || slow.has_a_few_with(key.kind)) && self.slow_keys.are_remembered())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        scripted::{Failure, Scripted},
        tenant_waits::FEW,
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

    fn key(kind: KindId, name: &str) -> Key {
        kind.key(Name::new("team", name))
    }

    /// A thousand pods with a status for a tenant that does not answer these calls.
    fn pods_of_a_silent_tenant(is_silent: fn(&str) -> bool) -> Scripted {
        let scripted = Scripted::new(tenant(SyncPolicy::default()), move |call| {
            is_silent(call).then_some(Failure::Silence)
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
        let scripted = pods_of_a_silent_tenant(|call| call.starts_with("tenant"));
        let engine = &scripted.engine;
        let working = tokio::spawn(Arc::clone(engine).run_queue(QueuePriority::Normal));
        tokio::time::sleep(Duration::from_secs(15)).await;
        let all = concurrency(QueuePriority::Normal);
        let asked = scripted.calls("tenant", "").len();
        assert_eq!(asked, all + all / 2, "nobody knew it of the first ones");
        assert!(
            engine.waiting() >= 1000 - all - all / 2,
            "they wait for the tenant: {}",
            engine.waiting()
        );

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

    #[tokio::test(start_paused = true)]
    async fn one_object_about_which_nobody_answers_is_slow_alone() {
        let scripted = pods_of_a_silent_tenant(|call| call.starts_with("tenant") && call.ends_with("/pods/0/status"));
        let engine = &scripted.engine;
        let working = tokio::spawn(Arc::clone(engine).run_queue(QueuePriority::Normal));
        tokio::time::sleep(Duration::from_secs(15)).await;
        assert!(engine.is_slow(&key(KindId::Pod, "0")) && !engine.is_slow(&key(KindId::Pod, "1")));
        let asked = scripted.calls("tenant", "/status").len();
        assert!(asked >= 1000, "the others had their places: {asked}");
        working.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_is_slow_while_a_few_keys_wait_for_a_tenant_that_takes_long() {
        let engine = engine();
        let slow = engine.slow_queue_of(KindId::Pod);
        let pod = |number: usize| key(KindId::Pod, &number.to_string());
        slow.add(pod(0));
        assert!(!engine.is_slow(&pod(0)), "nothing takes long");
        engine.slow_keys.note_long(&key(KindId::Ingress, "a"));
        for number in 1..FEW {
            assert!(engine.is_slow(&pod(number - 1)), "it waits");
            assert!(!engine.is_slow(&pod(number)), "{number} do not count for their kind");
            slow.add(pod(number));
        }
        assert!(engine.is_slow(&pod(FEW)) && !engine.is_slow(&key(KindId::Service, "a")));
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert!(!engine.is_slow(&pod(0)) && !engine.is_slow(&pod(FEW)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_whose_keys_wait_for_the_tenant_is_slow_as_long_as_another_one_is() {
        let scripted = Scripted::new(tenant(SyncPolicy::default()), |call| {
            call.starts_with("tenant").then_some(Failure::Silence)
        });
        let engine = &scripted.engine;
        let slow = engine.slow_queue_of(KindId::Ingress);
        let [ingress, pod, service] = [KindId::Ingress, KindId::Pod, KindId::Service].map(|kind| key(kind, "other"));
        slow.add(key(KindId::Ingress, "a"));
        assert!(!engine.is_slow(&ingress), "nothing takes long");
        let denied = json!({"spec": {"hostNetwork": true}});
        let working = scripted.flood(KindId::Pod, &denied).await;
        assert!(engine.is_slow(&pod) && !engine.is_slow(&service));
        slow.add(key(KindId::Ingress, "b"));
        assert!(engine.is_slow(&ingress));
        working.abort();
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert!(!engine.is_slow(&ingress) && !engine.is_slow(&pod));
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_two_queues_have_is_reconciled_once_at_a_time() {
        let engine = engine();
        let key = key(KindId::Pod, "a");
        let (queue, slow) = (engine.queue_of(KindId::Pod), engine.slow_queue_of(KindId::Pod));
        slow.add(key.clone());
        slow.add(key.clone());
        assert_eq!(engine.waiting(), 1);
        engine.add(key.clone());
        let taken = slow.take().await;
        assert!(!queue.claim(&taken.key), "it waits in the first one");
        let first = queue.take().await;
        assert!(!queue.claim(&first.key), "it is being reconciled");
        queue.done(&first.key);
        slow.add(key.clone());
        let taken = slow.take().await;
        assert!(queue.claim(&taken.key) && !slow.has(&key));
    }
}
