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
        Cache, KindId, json,
        resource::{Name, Side},
        store::Stored,
    },
};
use jiff::Timestamp;
use serde_json::Value;
use std::{sync::Mutex, time::Instant};

/// Result of a reconciliation of a pod for which there is no place.
pub(super) const NO_PLACE: &str = "waiting for room on the host";
/// What to do about such a pod.
const NO_ROOM: Outcome = Outcome::new(NO_PLACE).comparing_again();
/// Phase of a pod that has ended, and whose gang does not need another for it.
const SUCCEEDED: &str = "Succeeded";
/// Phase of one that has ended, and may have to be replaced.
const FAILED: &str = "Failed";
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
        if self.observe_in_room(name) {
            return;
        }
        let host = self.cache.stores.host(KindId::Pod).get(name);
        if side == Side::Host && host.is_some_and(|host| placement::waits(&host)) {
            self.restore_in_room(name);
        }
    }

    /// Brings it up to date after the gang of a pod, or the size of its gang, may have changed.
    pub(super) fn regroup_in_room(&self, name: &Name, pod: &Value) {
        let gang = self.find_gang(name, pod);
        let mut room = lock(&self.waiting_room);
        let is_known = room.knows(name);
        let admitted = room.regroup(name, gang.as_ref());
        drop(room);
        self.let_in(admitted);
        // Members that have a node are known as well: those that are missing depend on it.
        if !is_known && gang.is_some() && self.cache.stores.host(KindId::Pod).contains(name) {
            self.restore_in_room(name);
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

    /// Notes what became of a pod. Returns whether it is known.
    fn observe_in_room(&self, name: &Name) -> bool {
        let mut room = lock(&self.waiting_room);
        if !room.knows(name) {
            return false;
        }
        // Both sides change at the same time: what is read before may be old by now.
        let host = self.cache.stores.host(KindId::Pod).get(name);
        let admitted = room.observe(name, self.find_on_host(name, host.as_deref()));
        drop(room);
        self.let_in(admitted);
        true
    }

    /// Counts a pod on the host that has not asked for a place.
    fn restore_in_room(&self, name: &Name) {
        let stores = &self.cache.stores;
        let on_host = self.find_on_host(name, stores.host(KindId::Pod).get(name).as_deref());
        if let Some(pod) = stores.tenant(KindId::Pod).get(name).map(|pod| pod.object()) {
            let (_, request) = self.request(name, &pod);
            lock(&self.waiting_room).restore(&self.shape(&pod), request, on_host);
        }
    }

    /// What became of a pod of which this is on the host.
    fn find_on_host(&self, name: &Name, host: Option<&Stored>) -> OnHost {
        if let Some(host) = host.filter(|host| host.deletion.is_none()) {
            return match phase(&host.object()) {
                Some(FAILED) => OnHost::Ended,
                phase if phase != Some(SUCCEEDED) && placement::waits(host) => OnHost::Waiting,
                _ => OnHost::Placed,
            };
        }
        let pod = self.cache.stores.tenant(KindId::Pod).get(name);
        let Some(pod) = pod.filter(|pod| pod.deletion.is_none()) else {
            return OnHost::Ended;
        };
        match phase(&pod.object()) {
            Some(FAILED) => OnHost::Ended,
            Some(SUCCEEDED) => OnHost::Placed,
            _ => OnHost::Gone,
        }
    }

    fn shape(&self, pod: &Value) -> Shape {
        shape::of(self.cache.tenant.users, pod).into()
    }
}

impl ObjectSync<'_> {
    /// Asks for a place for a pod that is to be created. Returns what to do if there is none.
    pub(super) async fn wait_for_room(&self, stored: &Stored, pod: &Value) -> Option<Outcome> {
        let Self { engine, id, name, .. } = self;
        if *id != KindId::Pod {
            return None;
        }
        let (_, request) = engine.request(name, pod);
        let shape = engine.shape(pod);
        let Answer { waits, admitted } = lock(&engine.waiting_room).ask(&shape, request, Instant::now());
        engine.let_in(admitted);
        let waits = waits?;
        // It may have come to the host before it asked: the answer to an earlier creation was lost.
        engine.observe_in_room(name);
        // It waits all the same if the tenant takes no status of the syncer.
        if waits >= LONG_WAIT
            && let Err(error) = self.report_full_room(stored, pod).await
        {
            tracing::debug!(pod = %name, %error, "could not say why a pod waits");
        }
        // Its key is added when it gets a place. Until then it costs nothing.
        Some(NO_ROOM)
    }

    /// What to do about a pod that waits for a place while the host takes no pods: it stays in its line. None if the pod does not wait.
    pub(super) fn stay_in_line(&self) -> Option<Outcome> {
        let is_waiting = self.id == KindId::Pod && lock(&self.engine.waiting_room).is_waiting(self.name);
        is_waiting.then_some(NO_ROOM)
    }

    /// Lets others have the place of a pod that waits for requests of the host's controllers, which can take long.
    pub(super) fn lend_room(&self) {
        if self.id == KindId::Pod {
            let admitted = lock(&self.engine.waiting_room).lend(self.name);
            self.engine.let_in(admitted);
        }
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
            let admitted = lock(&engine.waiting_room).forget(name);
            engine.let_in(admitted);
        }
    }

    /// The same after this came of the creation. A place that no other pod could use now is kept, or one after another would get it, and none would
    /// be left in the line. So is that of a pod in the line.
    pub(super) fn settle_room_after(&self, result: &Result<Outcome, CallError>) {
        let keeps = match result {
            Err(CallError::QuotaExceeded(exceeded)) if exceeded.refuses_every_object() => true,
            Err(_) => self.stay_in_line().is_some(),
            Ok(_) => false,
        };
        if !keeps {
            self.settle_room();
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

/// The phase of a pod.
fn phase(pod: &Value) -> Option<&str> {
    json::text(pod, &["status", "phase"])
}

#[cfg(test)]
mod tests;
