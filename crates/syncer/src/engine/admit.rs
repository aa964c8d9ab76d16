//! Lets pods wait until there is a place for them in the [scheduling window](super::window), and brings the window up to date when
//! pods change on either side.

use super::{
    Engine, Outcome, lock,
    recorder::Level,
    to_host::ObjectSync,
    window::{Admitted, Gang, Request, SchedulingWindow, TIMEOUT},
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
    sync::Mutex,
    time::{Duration, Instant},
};

/// Result of a reconciliation of a pod for which there is no place.
pub(super) const NO_PLACE: &str = "waiting for a place";
/// A pod that has waited for so long gets an Event.
const LONG_WAIT: Duration = Duration::from_secs(30);
/// Reason of that Event.
const WAITING: &str = "WaitingForScheduler";
/// Its message.
const MESSAGE: &str = "The pod waits for its turn at the host's scheduler: many pods of this cluster were created before it, \
    or have a higher priority.";

/// The window of a tenant.
pub(super) fn new_window(cache: &Cache) -> Mutex<SchedulingWindow> {
    let maximum = cache.tenant.policy.pods.scheduling_window();
    let maximum = usize::try_from(maximum).unwrap_or(usize::MAX);
    Mutex::new(SchedulingWindow::new(maximum))
}

impl Engine {
    /// Fills the window with the pods that are on the host when the syncer starts.
    pub(super) fn restore_window(&self) {
        let now = Instant::now();
        let pods = self.cache.stores.host(KindId::Pod).all();
        let mut window = lock(&self.window);
        for (name, host) in pods {
            if exists(&host) && placement::stage(&host) == SchedulingStage::Untried {
                window.restore(name, now);
            }
        }
        self.publish_window(&window);
    }

    /// Brings the window up to date after a pod has changed on one side.
    pub(super) fn update_window(&self, side: Side, name: &Name) {
        let pods = self.cache.stores.of(side, KindId::Pod);
        match side {
            Side::Tenant if pods.get(name).is_some_and(|pod| exists(&pod)) => {}
            Side::Tenant => self.leave_window(name),
            Side::Host if !lock(&self.window).knows(name) => {}
            Side::Host => {
                let host = pods.get(name).filter(|pod| exists(pod));
                let stage = host.map(|pod| placement::stage(&pod));
                let progress = {
                    let mut window = lock(&self.window);
                    let progress = window.observe(name, stage, Instant::now());
                    self.publish_window(&window);
                    progress
                };
                if let Some(after) = progress.tried_after {
                    self.metrics.scheduling_window.first_try.observe(after.as_secs_f64());
                }
                self.admit(progress.admitted);
            }
        }
    }

    /// A pod does not wait for a place any more, and has none unless it is on the host.
    fn leave_window(&self, name: &Name) {
        let admitted = {
            let mut window = lock(&self.window);
            let admitted = window.forget(name, Instant::now());
            self.publish_window(&window);
            admitted
        };
        self.admit(admitted);
    }

    /// Puts pods that got a place into their queue.
    fn admit(&self, admitted: Vec<Admitted>) {
        for Admitted { name, waited } in admitted {
            self.metrics.scheduling_window.wait.observe(waited.as_secs_f64());
            self.add(KindId::Pod.key(name));
        }
    }

    fn publish_window(&self, window: &SchedulingWindow) {
        let metrics = &self.metrics.scheduling_window;
        set(&metrics.limit, window.limit());
        set(&metrics.used, window.used());
        set(&metrics.waiting, window.waiting());
    }
}

impl ObjectSync<'_> {
    /// Asks for a place for a pod that is to be created. Returns what to do if there is none.
    pub(super) async fn wait_for_place(&self, pod: &Value) -> Option<Outcome> {
        if self.id != KindId::Pod || has_gates(pod) {
            return None;
        }
        self.ask_for_place(pod, false).await
    }

    /// The same for a pod on the host that is to lose its last scheduling gate.
    pub(super) async fn wait_to_open_gates(&self, pod: &Value, host: &Stored) -> Option<Outcome> {
        if self.id != KindId::Pod || !placement::opens_gates(pod, host) {
            return None;
        }
        self.ask_for_place(pod, true).await
    }

    async fn ask_for_place(&self, pod: &Value, opens_gates: bool) -> Option<Outcome> {
        let Self { engine, name, .. } = self;
        let gang = gang::membership(&engine.cache, name, pod).map(|(gang, size)| Gang {
            name: Name::new(&name.namespace, &gang),
            size: usize::try_from(size).unwrap_or(usize::MAX),
        });
        let request = Request {
            name: (*name).clone(),
            priority: json::at(pod, &["spec", "priority"])
                .and_then(Value::as_i64)
                .unwrap_or_default(),
            gang,
            opens_gates,
        };
        let answer = {
            let mut window = lock(&engine.window);
            let answer = window.ask(request, Instant::now());
            engine.publish_window(&window);
            answer
        };
        let (own, others): (Vec<_>, Vec<_>) = answer.admitted.into_iter().partition(|pod| pod.name == **name);
        for Admitted { waited, .. } in own {
            engine.metrics.scheduling_window.wait.observe(waited.as_secs_f64());
        }
        engine.admit(others);
        let waits = answer.waits?;
        // It may have come to the host before it asked: the answer to an earlier creation was lost.
        if !opens_gates && engine.cache.stores.host(KindId::Pod).contains(name) {
            engine.update_window(Side::Host, name);
        }
        if waits >= LONG_WAIT {
            engine.record_event(&self.key(), Level::Normal, WAITING, MESSAGE).await;
        }
        // By then the place of a pod that the scheduler does not try is free.
        Some(Outcome::requeue(NO_PLACE, TIMEOUT))
    }

    /// Gives the place of a pod back if it was not created.
    pub(super) fn give_place_back(&self) {
        let Self { engine, id, name, .. } = self;
        if *id == KindId::Pod && !engine.cache.stores.host(*id).contains(name) {
            engine.leave_window(name);
        }
    }
}

fn exists(pod: &Stored) -> bool {
    pod.deletion.is_none()
}

fn has_gates(pod: &Value) -> bool {
    !json::items(pod, &["spec", "schedulingGates"]).is_empty()
}

fn set(gauge: &Gauge, number: usize) {
    gauge.set(i64::try_from(number).unwrap_or(i64::MAX));
}
