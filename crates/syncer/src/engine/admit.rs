//! Lets pods wait until there is a place for them in the [scheduling window](super::window), and brings the window up to date when
//! pods change on either side.

use super::{
    Engine, Outcome, lock,
    recorder::Level,
    to_host::ObjectSync,
    window::{Admitted, Checked, Gang, LONG_WAIT, Request, SchedulingWindows},
};
use berth_sync_rules::{
    kinds::pod::{
        gang,
        placement::{self, SchedulingStage},
    },
    model::{
        Cache, KindId, json,
        resource::{Name, Side},
        store::Stored,
    },
};
use prometheus_client::metrics::gauge::Gauge;
use serde_json::Value;
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// Result of a reconciliation of a pod for which there is no place.
pub(super) const NO_PLACE: &str = "waiting for a place";
/// Time between two looks for pods that the scheduler does not try.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Reason of the Event of a pod that waits for long.
const WAITING: &str = "WaitingForScheduler";
/// Its message.
const MESSAGE: &str = "The pod waits for its turn at the host's scheduler: many pods of this cluster were created before it, \
    or have a higher priority.";

/// The windows of a tenant.
pub(super) fn new_windows(cache: &Cache) -> Mutex<SchedulingWindows> {
    let maximum = cache.tenant.policy.pods.scheduling_window();
    let maximum = usize::try_from(maximum).unwrap_or(usize::MAX);
    Mutex::new(SchedulingWindows::new(maximum))
}

impl Engine {
    /// Fills the windows with the pods that are on the host when the syncer starts.
    pub(super) fn restore_windows(&self) {
        let (now, stores) = (Instant::now(), &self.cache.stores);
        let mut pods = stores.host(KindId::Pod).all();
        pods.retain(|(_, host)| exists(host) && placement::stage(host) == SchedulingStage::Untried);
        self.with_windows(|windows| {
            for (name, _) in pods {
                let pod = stores.tenant(KindId::Pod).get(&name).map(|pod| pod.object());
                let (scheduler, request) = self.request(&name, &pod.unwrap_or_default());
                windows.restore(scheduler, request, now);
            }
        });
    }

    /// Lets pods take the places of those that the scheduler does not try.
    pub(super) async fn check_windows(self: Arc<Self>) {
        let mut due = Instant::now() + CHECK_INTERVAL;
        loop {
            let next = lock(&self.windows).rests_until().map_or(due, |end| end.min(due));
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(next.into()) => {}
                () = self.rest_begins.notified() => continue,
            }
            let now = Instant::now();
            let Checked { admitted, late } = self.with_windows(|windows| windows.check(now));
            self.admit(admitted);
            if now >= due {
                due = now + CHECK_INTERVAL;
                self.check_user_places();
                self.check_waiting_room();
            }
            // They ask again, and get an Event.
            for name in late {
                self.add(KindId::Pod.key(name));
            }
        }
    }

    /// Brings the windows up to date after a pod has changed on one side.
    pub(super) fn update_windows(&self, side: Side, name: &Name) {
        let pods = self.cache.stores.of(side, KindId::Pod);
        match side {
            Side::Tenant if pods.get(name).is_some_and(|pod| exists(&pod)) => {}
            Side::Tenant => self.leave_windows(name),
            Side::Host if !lock(&self.windows).knows(name) => {}
            Side::Host => {
                let host = pods.get(name).filter(|pod| exists(pod));
                let stage = host.map(|pod| placement::stage(&pod));
                let progress = self.with_windows(|windows| windows.observe(name, stage, Instant::now()));
                if let Some(after) = progress.tried_after {
                    self.metrics.scheduling_window.first_try.observe(after.as_secs_f64());
                }
                self.admit(progress.admitted);
            }
        }
    }

    /// A pod does not wait for a place any more, and has none unless it is on the host.
    fn leave_windows(&self, name: &Name) {
        let admitted = self.with_windows(|windows| windows.forget(name, Instant::now()));
        self.admit(admitted);
    }

    /// Puts pods that got a place into their queue.
    fn admit(&self, admitted: Vec<Admitted>) {
        for Admitted { name, waited } in admitted {
            self.metrics.scheduling_window.wait.observe(waited.as_secs_f64());
            self.add(KindId::Pod.key(name));
        }
    }

    /// The gang of a pod.
    pub(super) fn find_gang(&self, name: &Name, pod: &Value) -> Option<Gang> {
        gang::membership(&self.cache, name, pod).map(|(gang, size)| Gang {
            name: Name::new(&name.namespace, &gang),
            size: usize::try_from(size).unwrap_or(usize::MAX),
        })
    }

    /// A pod's request for a place, and the scheduler in whose window.
    pub(super) fn request(&self, name: &Name, pod: &Value) -> (&str, Request) {
        let request = Request {
            name: name.clone(),
            priority: json::at(pod, &["spec", "priority"])
                .and_then(Value::as_i64)
                .unwrap_or_default(),
            gang: self.find_gang(name, pod),
            user: self.cache.tenant.users.are_limited.then(|| self.user_of(pod)),
        };
        (placement::host_scheduler(&self.cache, &pod["spec"]), request)
    }

    /// Uses the windows, and publishes what has become of them.
    fn with_windows<T>(&self, act: impl FnOnce(&mut SchedulingWindows) -> T) -> T {
        let mut windows = lock(&self.windows);
        let rested_until = windows.rests_until();
        let result = act(&mut windows);
        if windows.rests_until() != rested_until {
            self.rest_begins.notify_one();
        }
        let metrics = &self.metrics.scheduling_window;
        set(&metrics.limit, windows.limit());
        set(&metrics.used, windows.used());
        set(&metrics.waiting, windows.waiting());
        result
    }
}

impl ObjectSync<'_> {
    /// Asks for a place for a pod that is to be created. Returns what to do if there is none.
    pub(super) async fn wait_for_place(&self, pod: &Value) -> Option<Outcome> {
        let Self { engine, id, name, .. } = self;
        if *id != KindId::Pod {
            return None;
        }
        let (scheduler, request) = engine.request(name, pod);
        let answer = engine.with_windows(|windows| windows.ask(scheduler, request, Instant::now()));
        let (own, others): (Vec<_>, Vec<_>) = answer.admitted.into_iter().partition(|pod| pod.name == **name);
        for Admitted { waited, .. } in own {
            engine.metrics.scheduling_window.wait.observe(waited.as_secs_f64());
        }
        engine.admit(others);
        let waits = answer.waits?;
        // It may have come to the host before it asked: the answer to an earlier creation was lost.
        if engine.cache.stores.host(KindId::Pod).contains(name) {
            engine.update_windows(Side::Host, name);
        }
        if waits >= LONG_WAIT {
            engine.record_event(&self.key(), Level::Normal, WAITING, MESSAGE).await;
        }
        // Its key is added when it gets a place. Until then it costs nothing.
        Some(Outcome::new(NO_PLACE).comparing_again())
    }

    /// Gives the place of a pod back if it was not created.
    pub(super) fn give_place_back(&self) {
        let Self { engine, id, name, .. } = self;
        if *id == KindId::Pod && !engine.cache.stores.host(*id).contains(name) {
            engine.leave_windows(name);
        }
    }
}

fn exists(pod: &Stored) -> bool {
    pod.deletion.is_none()
}

/// Sets a gauge to a number.
pub(super) fn set(gauge: &Gauge, number: usize) {
    gauge.set(i64::try_from(number).unwrap_or(i64::MAX));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{
        queued_key::QueuedKey,
        test_engine::{engine, sync_of},
        test_pods::{annotations_of_member, put_host_pod, put_pod},
        test_requests::name,
    };
    use berth_runtime::queue::Taken;
    use berth_sync_rules::model::schedule::PodSchedule;
    use serde_json::json;

    /// Whether a pod that asks for a place waits.
    fn waits(engine: &Engine, of: &str, pod: &Value) -> bool {
        let (scheduler, request) = engine.request(&name(of), pod);
        let answer = engine.with_windows(|windows| windows.ask(scheduler, request, Instant::now()));
        answer.waits.is_some()
    }

    #[tokio::test]
    async fn a_pod_that_waits_for_its_next_place_keeps_its_back_off() {
        let engine = engine();
        let pod = put_pod(&engine, "rejected", &json!({}));
        assert!(!waits(&engine, "other", &pod), "the only place is taken");
        let key = KindId::Pod.key(name("rejected"));
        lock(&engine.failures).entry(key.clone()).or_default().count = 3;
        let taken = || Taken {
            key: QueuedKey(key.clone()),
            queued_for: Duration::ZERO,
        };
        Arc::clone(&engine).work(taken()).await;
        assert_eq!(lock(&engine.windows).waiting(), 1);
        let failures = || lock(&engine.failures).get(&key).map(|failures| failures.count);
        assert_eq!(failures(), Some(3));
        assert!(lock(&engine.to_compare).contains(&key), "nothing of it was compared");
        engine.cache.stores.tenant(KindId::Pod).forget(&name("rejected"));
        Arc::clone(&engine).work(taken()).await;
        assert_eq!(failures(), None, "nothing is left to do");
    }

    #[tokio::test]
    async fn a_pod_that_came_to_the_host_before_it_asked_does_not_wait() {
        let engine = engine();
        let pod = put_pod(&engine, "created", &json!({}));
        assert!(!waits(&engine, "other", &pod));
        put_host_pod(&engine, "created", &json!({}), &json!({}));
        let name = name("created");
        let sync = sync_of(&engine, &name, PodSchedule::default());
        let outcome = sync.wait_for_place(&pod).await;
        assert_eq!(
            outcome,
            Some(Outcome::new(NO_PLACE).comparing_again()),
            "it is not created again"
        );
        let windows = lock(&engine.windows);
        assert_eq!((windows.used(), windows.waiting()), (2, 0));
    }

    #[tokio::test]
    async fn a_restarted_syncer_knows_the_gangs_of_the_pods_on_the_host() {
        let engine = engine();
        let pod = put_pod(&engine, "m0", &annotations_of_member("train", 2));
        put_host_pod(&engine, "m0", &json!({}), &json!({}));
        engine.restore_windows();
        assert!(waits(&engine, "other", &json!({})), "the only place is taken");
        assert!(!waits(&engine, "m1", &pod), "the gang is admitted whole");
    }
}
