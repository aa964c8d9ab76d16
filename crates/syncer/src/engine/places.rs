//! What the places have in common that a pod needs before it comes to the host: that of its [user](super::user_waits), and that in the
//! [waiting room](super::room_waits), or in [two](super::device_room) of these. A place goes with the pod, not with the attempt to create it.
//!
//! | the attempt | the pod |
//! |---|---|
//! | creates it | has its places until it does not wait on the host any more |
//! | fails, as the host takes no pod at all, or has no bytes left for it | keeps its places, which no other pod could use, or only one that is smaller, and stays in its line |
//! | fails, as the host or the tenant gives no answer | keeps its places: others would fail as well, one after another, and the host may have created it. It stays in its line |
//! | fails otherwise, as there is no room for its claims of devices | gives its places back and asks again. In a line it stays |
//! | ends because the pod waits for a place or a turn | keeps its places; while it waits for requests or because of Events, others may [have](ObjectSync::lend_room) that in the waiting room |
//! | ends because the pod is not to be created now | gives its places back |

use super::{Engine, Outcome, api::CallError, lock, recorder::Level, room_waits, to_host::ObjectSync, user_waits};
use berth_sync_rules::model::{KindId, json, resource::Name, store::Stored};
use serde_json::Value;

/// Phase of a pod that has ended, and whose gang does not need another for it.
const SUCCEEDED: &str = "Succeeded";
/// Phase of one that has ended, and may have to be replaced.
const FAILED: &str = "Failed";

/// What became of a pod, by both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    /// It is on the host and has not ended.
    Active,
    /// It has succeeded: its gang does not lack it.
    Succeeded,
    /// It is not on the host or is being deleted there, and may be created again.
    Gone,
    /// It has failed, or is gone in the tenant as well.
    Ended,
}

impl Engine {
    /// What became of a pod of which this is on the host.
    pub(super) fn find_presence(&self, name: &Name, host: Option<&Stored>) -> Presence {
        let by_phase = |pod: &Stored, otherwise: Presence| {
            let pod = pod.object();
            match json::text(&pod, &["status", "phase"]) {
                Some(FAILED) => Presence::Ended,
                Some(SUCCEEDED) => Presence::Succeeded,
                _ => otherwise,
            }
        };
        if let Some(host) = host.filter(|host| host.deletion.is_none()) {
            return by_phase(host, Presence::Active);
        }
        let pod = self.cache.stores.tenant(KindId::Pod).get(name);
        let pod = pod.filter(|pod| pod.deletion.is_none());
        pod.map_or(Presence::Ended, |pod| by_phase(&pod, Presence::Gone))
    }

    /// Brings the places up to date after the gang of a pod, or the size of its gang, may have changed.
    pub(super) fn regroup_places(&self, name: &Name, pod: &Value) {
        let gang = self.find_gang(name, pod);
        self.regroup_of_user(name, pod, gang.as_ref());
        self.regroup_in_room(name, pod, gang.as_ref());
    }

    /// Puts pods into their queue.
    pub(super) fn let_in(&self, pods: Vec<Name>) {
        for name in pods {
            self.add(KindId::Pod.key(name));
        }
    }
}

impl ObjectSync<'_> {
    /// What to do about a pod that waits for a place while the host takes no pods: it stays in its line. None if the pod does not wait.
    pub(super) fn stay_in_line(&self) -> Option<Outcome> {
        let Self { engine, id, name, .. } = self;
        if *id != KindId::Pod {
            return None;
        }
        if lock(&engine.user_places).is_waiting(name) {
            return Some(user_waits::NO_PLACE_OF_USER);
        }
        let mut rooms = engine.rooms().into_iter();
        let is_waiting = rooms.any(|room| lock(room).is_waiting(name));
        is_waiting.then_some(room_waits::NO_ROOM)
    }

    /// Counts a pod that was created, and gives the places of one back that was not.
    pub(super) fn settle_places(&self) {
        let Self { engine, id, name, .. } = self;
        if *id != KindId::Pod {
            return;
        }
        if engine.cache.stores.host(*id).contains(name) {
            engine.observe_user_place(name);
            engine.observe_in_room(name);
        } else {
            let of_user = lock(&engine.user_places).forget(name);
            engine.let_in(of_user);
            for room in engine.rooms() {
                let in_room = lock(room).forget(name);
                engine.let_in(in_room);
            }
        }
    }

    /// The same after this came of the creation. Places that no other pod could use now are kept, or one after another would get them, and none would
    /// be left in the line. So are those of a pod for which bytes are missing: otherwise smaller ones would come before it for ever.
    pub(super) fn settle_places_after(&self, result: &Result<Outcome, CallError>) {
        let keeps_places = match result {
            Ok(_) => false,
            Err(CallError::QuotaExceeded(exceeded)) => exceeded.refuses_every_object() || exceeded.is_of_host_bytes(),
            Err(error) => error.is_transient(),
        };
        let is_on_host = self.engine.cache.stores.host(self.id).contains(self.name);
        if keeps_places && !is_on_host {
            return;
        }
        if result.is_err() && (self.stay_in_line().is_some() || self.has_lent_room()) {
            return;
        }
        self.settle_places();
    }

    /// Says in the tenant why a pod waits in a line, once: by an Event, and by this status if the kind has one. The pod waits all the same if the tenant
    /// takes no status of the syncer, or does not answer.
    pub(super) async fn report_line(
        &self,
        pod: (&Stored, &Value),
        status: Option<Value>,
        (reason, message): (&'static str, &str),
    ) {
        let why = (Level::Warning, reason, message);
        if let Err(error) = self.report_once(pod, status, why).await {
            tracing::debug!(pod = %self.name, %error, "could not say why a pod waits");
        }
    }
}
