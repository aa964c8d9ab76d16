//! Lets pods wait until there is a place for them in the [waiting room](super::waiting_room), and before that in the
//! [one for pods with devices](super::device_room), and brings both up to date when pods change on either side.

use super::{
    Engine, Outcome, admit, device_room, lock,
    places::Presence,
    to_host::ObjectSync,
    waiting_room::{Answer, Checked, OnHost, Shape, WaitingRoom},
    window::{Gang, LONG_WAIT},
};
use berth_sync_rules::{
    kinds::pod::{placement, shape},
    model::{
        Cache, KindId,
        resource::{Name, Side},
        store::Stored,
    },
};
use jiff::Timestamp;
use serde_json::Value;
use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

/// Result of a reconciliation of a pod for which there is no place.
pub(super) const NO_PLACE: &str = "waiting for room on the host";
/// What to do about such a pod.
pub(super) const NO_ROOM: Outcome = Outcome::new(NO_PLACE).comparing_again();
/// Reason of the Event and of the condition of a pod that waits for long.
const TOO_MANY: &str = "TooManyWaitingPods";

/// The waiting room of a tenant.
pub(super) fn new_waiting_room(cache: &Cache) -> Mutex<WaitingRoom> {
    let (most, of_user) = count_places(cache);
    Mutex::new(WaitingRoom::new(most, of_user))
}

/// Places of a tenant, and how many pods of one user may wait on the host, if users have limits.
pub(super) fn count_places(cache: &Cache) -> (usize, Option<usize>) {
    let tenant = &cache.tenant;
    let number = |limit: u32| usize::try_from(limit).unwrap_or(usize::MAX);
    let of_user = tenant.host_limits.waiting_pods_of_user;
    let of_user = tenant.users.are_limited.then(|| number(of_user));
    (number(tenant.host_limits.waiting_pods), of_user)
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
    pub(super) fn regroup_in_room(&self, name: &Name, pod: &Value, gang: Option<&Gang>) {
        let is_known = lock(&self.waiting_room).knows(name);
        for room in self.rooms() {
            let admitted = lock(room).regroup(name, gang);
            self.let_in(admitted);
        }
        if gang.is_none() {
            return;
        }
        // Members that have a node are known as well: those that are missing depend on it.
        if is_known {
            self.exempt_without_devices(name, pod);
        } else if self.cache.stores.host(KindId::Pod).contains(name) {
            self.restore_in_room(name);
        }
    }

    /// Lets pods in for which others have waited for long enough, lets those that have waited for long say so, and publishes how many there are.
    pub(super) fn check_waiting_room(&self) {
        let mut held = 0;
        for room in self.rooms() {
            let mut room = lock(room);
            let Checked { admitted, late } = room.check(Instant::now());
            held += room.waiting();
            drop(room);
            self.let_in(admitted);
            self.let_in(late);
        }
        let metrics = &self.metrics.waiting_room;
        let room = lock(&self.waiting_room);
        admit::set(&metrics.placed, room.placed());
        admit::set(&metrics.kept, room.kept());
        admit::set(&metrics.held, held);
    }

    /// Notes what became of a pod. Returns whether it is known: whether it has asked for a place in the room of all pods, which comes last.
    pub(super) fn observe_in_room(&self, name: &Name) -> bool {
        let [of_devices, of_all] = self.rooms();
        self.observe_in(of_devices, name);
        self.observe_in(of_all, name)
    }

    /// The same in one room.
    fn observe_in(&self, room: &Mutex<WaitingRoom>, name: &Name) -> bool {
        let mut room = lock(room);
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

    /// Pods of a gang wait for places of their user, and may do so for long: those that have one do not wait for them.
    pub(super) fn expect_no_more(&self, gang: &Name) {
        for room in self.rooms() {
            let admitted = lock(room).expect_no_more(gang);
            self.let_in(admitted);
        }
    }

    /// Counts a pod on the host that has not asked for a place.
    fn restore_in_room(&self, name: &Name) {
        let stores = &self.cache.stores;
        if let Some(pod) = stores.tenant(KindId::Pod).get(name).map(|pod| pod.object()) {
            self.exempt_without_devices(name, &pod);
            for (room, shape) in self.rooms_of(&pod) {
                let (_, request) = self.request(name, &pod);
                let mut room = lock(room);
                // While the room is locked, as above: one that is gone by now would have the place for ever.
                let host = stores.host(KindId::Pod).get(name);
                let admitted = room.restore(&shape, request, self.find_on_host(name, host.as_deref()));
                drop(room);
                self.let_in(admitted);
            }
        }
    }

    /// What became of a pod of which this is on the host.
    pub(super) fn find_on_host(&self, name: &Name, host: Option<&Stored>) -> OnHost {
        match self.find_presence(name, host) {
            Presence::Active if host.is_some_and(placement::waits) => OnHost::Waiting,
            Presence::Active | Presence::Succeeded => OnHost::Placed,
            Presence::Gone => OnHost::Gone,
            Presence::Ended => OnHost::Ended,
        }
    }

    pub(super) fn shape(&self, pod: &Value) -> Shape {
        shape::of(self.cache.tenant.users, pod).into()
    }
}

impl ObjectSync<'_> {
    /// Asks for a place for a pod that is to be created, in one room after the other. Returns how long it has waited so far, if there is none.
    pub(super) fn ask_for_room(&self, pod: &Value) -> Option<Duration> {
        let Self { engine, id, name, .. } = self;
        if *id != KindId::Pod {
            return None;
        }
        engine.exempt_without_devices(name, pod);
        let mut rooms = engine.rooms_of(pod);
        let waits = rooms.find_map(|(room, shape)| self.ask_in(room, &shape, pod))?;
        // It may have a place in those after this one, and ask for something else by now. With that place it would wait in the wrong order.
        for (room, _) in rooms {
            let mut room = lock(room);
            if !room.has_lent(name) {
                let admitted = room.forget(name);
                drop(room);
                engine.let_in(admitted);
            }
        }
        Some(waits)
    }

    /// The same in one room.
    fn ask_in(&self, room: &Mutex<WaitingRoom>, shape: &Shape, pod: &Value) -> Option<Duration> {
        let Self { engine, name, .. } = self;
        let (_, request) = engine.request(name, pod);
        let gang = request.gang.as_ref().map(|gang| gang.name.clone());
        let Answer { waits, admitted } = lock(room).ask(shape, request, Instant::now());
        engine.let_in(admitted);
        if let Some(gang) = gang
            && engine.has_waiting_of_user(pod, &gang)
        {
            engine.expect_no_more(&gang);
            return waits.filter(|_| lock(room).is_waiting(name));
        }
        waits
    }

    /// What to do about a pod that has waited for so long, and has no place.
    pub(super) async fn wait_for_room(&self, stored: &Stored, pod: &Value, waits: Duration) -> Outcome {
        // It may have come to the host before it asked: the answer to an earlier creation was lost.
        self.engine.observe_in_room(self.name);
        if waits >= LONG_WAIT {
            self.report_full_room(stored, pod).await;
        }
        // Its key is added when it gets a place. Until then it costs nothing.
        NO_ROOM
    }

    /// Lets others have the place of a pod that waits for requests, or because of Events, which can take long. When the pod asks again it gets the next place. A member of a gang
    /// keeps its place.
    pub(super) fn lend_room(&self) {
        let Self { engine, id, name, .. } = self;
        if *id == KindId::Pod {
            for room in engine.rooms() {
                let admitted = lock(room).lend(name);
                engine.let_in(admitted);
            }
        }
    }

    /// Whether others may have the place of a pod.
    pub(super) fn has_lent_room(&self) -> bool {
        let has_lent = |room: &Mutex<WaitingRoom>| lock(room).has_lent(self.name);
        self.id == KindId::Pod && self.engine.rooms().into_iter().any(has_lent)
    }

    /// Says in the tenant why a pod waits, once.
    async fn report_full_room(&self, stored: &Stored, pod: &Value) {
        let engine = self.engine;
        let message = if lock(&engine.device_room).is_waiting(self.name) {
            device_room::describe_wait(&engine.cache)
        } else {
            let alike = lock(&engine.waiting_room).most_alike();
            describe_wait(engine.cache.tenant.host_limits.waiting_pods, alike)
        };
        let status = self.kind.not_synced_status(pod, TOO_MANY, &message, Timestamp::now());
        self.report_line((stored, pod), status, (TOO_MANY, &message)).await;
    }
}

/// Why a pod waits: `most` pods may wait on the host, and `alike` of them may be alike.
fn describe_wait(most: u32, alike: usize) -> String {
    format!(
        "The pod waits in the cluster until others have a node or are deleted: at most {most} pods without a node may be at the host's scheduler, \
         and {alike} that ask it for the same. Pods that cannot be scheduled take these places: delete them or what creates them, or ask the \
         platform team for nodes, or to raise spec.limits.waitingPods of the class. Pods of a gang wait for each other, for a minute at most, and come \
         together: a gang of more than {most} pods needs a higher limit."
    )
}

#[cfg(test)]
mod tests;
