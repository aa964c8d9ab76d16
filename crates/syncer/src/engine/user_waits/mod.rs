//! Users with limits: how many pods of each are on the host until control lets them start.
//!
//! On the host such a pod has a gate, which control takes off. It counts there towards the pods that the tenant may have. So one user could
//! fill the host with pods that wait, and nobody else of the tenant could start any. Each user has a limited number of places,
//! [`HostLimits::waiting_pods_of_user`]; other pods wait in the tenant, and come one by one as those on the host start or end.
//!
//! | a pod | has a place |
//! |---|---|
//! | is to be created on the host, with the gate | from then on, if there is one; else it waits |
//! | is to be created on the host again | still, as when a node is cordoned and its host pod is replaced |
//! | is on the host without the gate, is gone in the tenant, or has ended | no more |
//! | is a member of a gang that has fewer pods on the host than its size, and some of these have started | although there is none: see [`user_places`](super::user_places) |
//! | was not created | no more: it asks again. It keeps the place if the host takes no pod at all, or does not answer |
//! | waits for requests of the host's controllers | still: so one user has no more pods in that line than places, and others come to their turn |
//!
//! [`HostLimits::waiting_pods_of_user`]: berth_sync_rules::model::HostLimits::waiting_pods_of_user

use super::{
    Engine, Outcome, lock,
    places::Presence,
    to_host::ObjectSync,
    user_places::{Answer, OnHost, User, UserPlaces, Waits},
    window::Gang,
};
use berth_api::labels;
use berth_sync_rules::{
    kinds::pod::user,
    model::{
        Cache, KindId, json,
        resource::{Name, Side},
        store::Stored,
    },
};
use jiff::Timestamp;
use serde_json::Value;
use std::{
    sync::{Arc, Mutex},
    time::Instant,
};

/// Result of a reconciliation of a pod for which its user has no place.
pub(super) const NO_PLACE: &str = "waiting for a place of its user";
/// What to do about such a pod.
pub(super) const NO_PLACE_OF_USER: Outcome = Outcome::new(NO_PLACE).comparing_again();

/// The places of a tenant's users.
pub(super) fn new_user_places(cache: &Cache) -> Mutex<UserPlaces> {
    let most = cache.tenant.host_limits.waiting_pods_of_user;
    Mutex::new(UserPlaces::new(usize::try_from(most).unwrap_or(usize::MAX)))
}

impl Engine {
    /// Counts the pods that wait on the host when the syncer starts.
    pub(super) fn restore_user_places(&self) {
        if self.cache.tenant.users.are_limited {
            for name in self.cache.stores.host(KindId::Pod).names() {
                self.restore_user_place(&name);
            }
        }
    }

    /// Brings the places up to date after a pod has changed on one side.
    pub(super) fn update_user_places(&self, side: Side, name: &Name) {
        if !self.cache.tenant.users.are_limited || self.observe_user_place(name) {
            return;
        }
        let host = self.cache.stores.host(KindId::Pod).get(name);
        // Most changes are of pods that run.
        let may_be_gated = |host: Arc<Stored>| !host.has_node && host.mentions(labels::USER_QUOTA_GATE);
        if side == Side::Host && host.is_some_and(may_be_gated) {
            self.restore_user_place(name);
        }
    }

    /// Brings them up to date after the gang of a pod, or the size of its gang, may have changed.
    pub(super) fn regroup_of_user(&self, name: &Name, pod: &Value, gang: Option<&Gang>) {
        if !self.cache.tenant.users.are_limited {
            return;
        }
        let mut places = lock(&self.user_places);
        let is_known = places.knows(name);
        let admitted = places.regroup(name, &self.user_of(pod), gang);
        drop(places);
        self.let_in(admitted);
        // Members that have started are known as well: those that wait need no place of the user then.
        if !is_known && gang.is_some() && self.cache.stores.host(KindId::Pod).contains(name) {
            self.restore_user_place(name);
        }
    }

    /// Notes what became of a pod. Returns whether it is known.
    pub(super) fn observe_user_place(&self, name: &Name) -> bool {
        let mut places = lock(&self.user_places);
        if !places.knows(name) {
            return false;
        }
        // Both sides change at the same time: what is read before may be old by now.
        let host = self.cache.stores.host(KindId::Pod).get(name);
        let admitted = places.observe(name, self.find_gate(name, host.as_deref()));
        drop(places);
        self.let_in(admitted);
        true
    }

    /// Counts a pod on the host that has not asked for a place.
    fn restore_user_place(&self, name: &Name) {
        let stores = &self.cache.stores;
        if let Some(pod) = stores.tenant(KindId::Pod).get(name).map(|pod| pod.object()) {
            let (_, request) = self.request(name, &pod);
            let mut places = lock(&self.user_places);
            // While they are locked, as above: one that is gone by now would have the place for ever.
            let host = stores.host(KindId::Pod).get(name);
            let on_host = self.find_gate(name, host.as_deref());
            let admitted = places.restore(&self.user_of(&pod), request, on_host);
            drop(places);
            self.let_in(admitted);
        }
    }

    /// What became of a pod of which this is on the host.
    fn find_gate(&self, name: &Name, host: Option<&Stored>) -> OnHost {
        match (self.find_presence(name, host), host.map(Stored::object)) {
            (Presence::Active, Some(host)) if user::is_gated(&host) => OnHost::Gated {
                exceeds_limit: user::exceeds_limit(&host),
            },
            (Presence::Active, _) => OnHost::Started,
            (Presence::Succeeded, _) => OnHost::Succeeded,
            (Presence::Gone, _) => OnHost::Gone,
            (Presence::Ended, _) => OnHost::Ended,
        }
    }

    /// Lets pods say why they wait.
    pub(super) fn check_user_places(&self) {
        let late = lock(&self.user_places).take_late(Instant::now());
        self.let_in(late);
    }

    /// Whether pods of the gang of a pod wait for a place of their user.
    pub(super) fn has_waiting_of_user(&self, pod: &Value, gang: &Name) -> bool {
        self.cache.tenant.users.are_limited && lock(&self.user_places).has_waiting(&self.user_of(pod), gang)
    }

    /// The user as whom a pod waits.
    pub(super) fn user_of(&self, pod: &Value) -> User {
        user::waits_as(self.cache.tenant.users, pod).into()
    }
}

impl ObjectSync<'_> {
    /// Asks for a place for a pod that is to be created behind the gate. Returns what to do if there is none.
    pub(super) async fn wait_for_user(&self, stored: &Stored, pod: &Value) -> Option<Outcome> {
        let Self { engine, id, name, .. } = self;
        if *id != KindId::Pod || !engine.cache.tenant.users.are_limited {
            return None;
        }
        let (_, request) = engine.request(name, pod);
        let gang = request.gang.as_ref().map(|gang| gang.name.clone());
        let user = engine.user_of(pod);
        let created = json::text(pod, &["metadata", "creationTimestamp"]).unwrap_or_default();
        let answer = lock(&engine.user_places).ask(&user, created, request, Instant::now());
        let Answer { waits, admitted } = answer;
        engine.let_in(admitted);
        let Waits { is_late } = waits?;
        // It may have come to the host before it asked: the answer to an earlier creation was lost.
        engine.observe_user_place(name);
        if let Some(gang) = gang {
            engine.expect_no_more(&gang);
        }
        if is_late {
            self.report_user_limit(stored, pod, &user).await;
        }
        // Its key is added when it gets a place. Until then it costs nothing.
        Some(NO_PLACE_OF_USER)
    }

    /// Says in the tenant why a pod waits, as the pods on the host say it.
    async fn report_user_limit(&self, stored: &Stored, pod: &Value, user: &str) {
        let most = self.engine.cache.tenant.host_limits.waiting_pods_of_user;
        let message = user::describe_wait(user, most);
        let status = user::waiting_status(pod, &message, Timestamp::now());
        let why = (user::LIMIT_EXCEEDED, &*message);
        self.report_line((stored, pod), Some(status), why).await;
    }
}

#[cfg(test)]
mod tests;
