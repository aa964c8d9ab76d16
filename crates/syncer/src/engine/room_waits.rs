//! Lets pods wait until there is a place for them in the [waiting room](super::waiting_room), and brings it up to date when pods change on
//! either side.

use super::{
    Engine, Outcome, admit,
    api::CallError,
    lock,
    recorder::Level,
    status_sync::status_patch,
    to_host::ObjectSync,
    waiting_room::{Answer, OnHost, Shape, WaitingRoom},
    window::LONG_WAIT,
};
use berth_sync_rules::{
    kinds::pod::{placement, shape},
    model::{
        Cache, KindId,
        pod_addresses::is_finished,
        resource::{Name, Side},
        store::Stored,
    },
};
use jiff::Timestamp;
use serde_json::Value;
use std::{sync::Mutex, time::Instant};

/// Result of a reconciliation of a pod for which there is no place.
pub(super) const NO_PLACE: &str = "waiting for room on the host";
/// Reason of the Event and of the condition of a pod that waits for long.
const TOO_MANY: &str = "TooManyWaitingPods";

/// The waiting room of a tenant.
pub(super) fn new_waiting_room(cache: &Cache) -> Mutex<WaitingRoom> {
    let most = cache.tenant.host_limits.waiting_pods;
    Mutex::new(WaitingRoom::new(usize::try_from(most).unwrap_or(usize::MAX)))
}

impl Engine {
    /// Counts the pods that are on the host when the syncer starts.
    pub(super) fn restore_waiting_room(&self) {
        for name in self.cache.stores.host(KindId::Pod).names() {
            self.restore_in_room(&name);
        }
    }

    /// Brings the waiting room up to date after a pod has changed on one side.
    pub(super) fn update_waiting_room(&self, side: Side, name: &Name) {
        match side {
            Side::Host => self.observe_in_room(name),
            Side::Tenant => {
                let pod = self.cache.stores.tenant(KindId::Pod).get(name);
                if pod.is_none_or(|pod| pod.deletion.is_some()) {
                    self.leave_room(name);
                }
            }
        }
    }

    /// Lets pods that have waited for long say so, and publishes how many there are.
    pub(super) fn check_waiting_room(&self) {
        let mut room = lock(&self.waiting_room);
        let metrics = &self.metrics.waiting_room;
        admit::set(&metrics.placed, room.placed());
        admit::set(&metrics.held, room.waiting());
        let late = room.take_late(Instant::now());
        drop(room);
        self.let_in(late);
    }

    fn observe_in_room(&self, name: &Name) {
        let host = self.cache.stores.host(KindId::Pod).get(name);
        let mut room = lock(&self.waiting_room);
        if room.knows(name) {
            let admitted = room.observe(name, on_host(host.as_deref()));
            drop(room);
            self.let_in(admitted);
            return;
        }
        drop(room);
        if host.is_some_and(|host| placement::waits(&host)) {
            self.restore_in_room(name);
        }
    }

    /// Counts a pod on the host that has not asked for a place.
    fn restore_in_room(&self, name: &Name) {
        let stores = &self.cache.stores;
        let on_host = on_host(stores.host(KindId::Pod).get(name).as_deref());
        if let Some(pod) = stores.tenant(KindId::Pod).get(name).map(|pod| pod.object()) {
            let (_, request) = self.request(name, &pod);
            lock(&self.waiting_room).restore(&self.shape(&pod), request, on_host);
        }
    }

    /// A pod does not wait for a place any more, and has none unless it is on the host.
    fn leave_room(&self, name: &Name) {
        let admitted = lock(&self.waiting_room).forget(name);
        self.let_in(admitted);
    }

    fn shape(&self, pod: &Value) -> Shape {
        shape::of(self.cache.tenant.users, pod).into()
    }
}

impl ObjectSync<'_> {
    /// Asks for a place for a pod that is to be created. Returns what to do if there is none.
    pub(super) async fn wait_for_room(&self, stored: &Stored, pod: &Value) -> Result<Option<Outcome>, CallError> {
        let Self { engine, id, name, .. } = self;
        if *id != KindId::Pod {
            return Ok(None);
        }
        let (_, request) = engine.request(name, pod);
        let shape = engine.shape(pod);
        let Answer { waits, admitted } = lock(&engine.waiting_room).ask(&shape, request, Instant::now());
        engine.let_in(admitted);
        let Some(waits) = waits else { return Ok(None) };
        // It may have come to the host before it asked: the answer to an earlier creation was lost.
        engine.observe_in_room(name);
        if waits >= LONG_WAIT {
            self.report_full_room(stored, pod).await?;
        }
        // Its key is added when it gets a place. Until then it costs nothing.
        Ok(Some(Outcome::new(NO_PLACE).comparing_again()))
    }

    /// Says in the tenant why a pod waits, once.
    async fn report_full_room(&self, stored: &Stored, pod: &Value) -> Result<(), CallError> {
        let message = {
            let room = lock(&self.engine.waiting_room);
            describe_wait(self.engine.cache.tenant.host_limits.waiting_pods, room.most_alike())
        };
        let status = self.kind.not_synced_status(pod, TOO_MANY, &message, Timestamp::now());
        if let Some(status) = status.filter(|status| status_patch(pod, status).is_some()) {
            self.engine
                .record_event(&self.key(), Level::Warning, TOO_MANY, &message)
                .await;
            self.write_status(stored, pod, &status).await?;
        }
        Ok(())
    }

    /// Counts a pod that was created, and gives the place of one back that was not.
    pub(super) fn settle_room(&self) {
        let Self { engine, id, name, .. } = self;
        if *id != KindId::Pod {
            return;
        }
        if engine.cache.stores.host(*id).contains(name) {
            engine.observe_in_room(name);
        } else {
            engine.leave_room(name);
        }
    }
}

/// Why a pod waits: `most` pods may wait on the host, and `alike` of them may be alike.
fn describe_wait(most: u32, alike: usize) -> String {
    format!(
        "The pod waits in the cluster until others have a node or are deleted: at most {most} pods without a node may be at the host's scheduler, \
         and {alike} that ask it for the same. Pods that cannot be scheduled take these places: delete them or what creates them, or ask the \
         platform team for nodes, or to raise spec.limits.waitingPods of the class. A gang of more than {most} pods needs a higher limit."
    )
}

/// What became of a pod on the host.
fn on_host(host: Option<&Stored>) -> OnHost {
    match host.filter(|host| host.deletion.is_none()) {
        None => OnHost::Gone,
        Some(host) if is_finished(&host.object()["status"]) => OnHost::Gone,
        Some(host) if placement::waits(host) => OnHost::Waiting,
        Some(_) => OnHost::Placed,
    }
}

#[cfg(test)]
mod tests;
