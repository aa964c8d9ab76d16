//! Users with limits: how many pods of each are on the host until control lets them start.
//!
//! On the host such a pod has a gate, which control takes off. It counts there towards the pods that the tenant may have. So one user could
//! fill the host with pods that wait, and nobody else of the tenant could start any. Each user has a limited number of places,
//! [`HostLimits::waiting_pods_of_user`]; other pods wait in the tenant, and come one by one as those on the host start or end.
//!
//! | a pod | has a place |
//! |---|---|
//! | is to be created on the host, with the gate | from then on, if there is one; else it waits |
//! | is on the host without the gate, or gone, or has ended | no more |
//! | is a member of a gang that has fewer pods on the host than its size, and some of these have started | although there is none: see [`user_places`](super::user_places) |
//! | was not created | no more: it asks again |
//!
//! [`HostLimits::waiting_pods_of_user`]: berth_sync_rules::model::HostLimits::waiting_pods_of_user

use super::{
    Engine, Outcome,
    api::CallError,
    lock,
    recorder::Level,
    status_sync::status_patch,
    to_host::ObjectSync,
    user_places::{Answer, OnHost, Request, UserPlaces},
};
use berth_api::labels;
use berth_sync_rules::{
    kinds::pod::user,
    model::{
        Cache, KindId, json,
        pod_addresses::is_finished,
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
        if !self.cache.tenant.users.are_limited {
            return;
        }
        match side {
            Side::Host => self.observe_on_host(name),
            Side::Tenant => {
                let pod = self.cache.stores.tenant(KindId::Pod).get(name);
                if pod.is_none_or(|pod| pod.deletion.is_some()) {
                    let admitted = lock(&self.user_places).forget(name);
                    self.let_in(admitted);
                }
            }
        }
    }

    fn observe_on_host(&self, name: &Name) {
        let host = self.cache.stores.host(KindId::Pod).get(name);
        if lock(&self.user_places).knows(name) {
            let admitted = lock(&self.user_places).observe(name, on_host(host.as_deref()));
            self.let_in(admitted);
            return;
        }
        // Most changes are of pods that run.
        let may_be_gated = |host: Arc<Stored>| !host.has_node && host.mentions(labels::USER_QUOTA_GATE);
        if host.is_some_and(may_be_gated) {
            self.restore_user_place(name);
        }
    }

    /// Counts a pod on the host that has not asked for a place.
    fn restore_user_place(&self, name: &Name) {
        let stores = &self.cache.stores;
        let on_host = on_host(stores.host(KindId::Pod).get(name).as_deref());
        if let Some(pod) = stores.tenant(KindId::Pod).get(name).map(|pod| pod.object()) {
            let user = user::waits_as(self.cache.tenant.users, &pod).into();
            let gang = self.find_gang(name, &pod);
            lock(&self.user_places).restore(name.clone(), user, gang, on_host);
        }
    }

    /// Lets pods say why they wait.
    pub(super) fn check_user_places(&self) {
        let late = lock(&self.user_places).take_late(Instant::now());
        self.let_in(late);
    }

    /// Puts pods into their queue.
    pub(super) fn let_in(&self, pods: Vec<Name>) {
        for name in pods {
            self.add(KindId::Pod.key(name));
        }
    }
}

impl ObjectSync<'_> {
    /// Asks for a place for a pod that is to be created behind the gate. Returns what to do if there is none.
    pub(super) async fn wait_for_user(&self, stored: &Stored, pod: &Value) -> Result<Option<Outcome>, CallError> {
        let Self { engine, id, name, .. } = self;
        let rules = engine.cache.tenant.users;
        if *id != KindId::Pod || !rules.are_limited {
            return Ok(None);
        }
        let user = user::waits_as(rules, pod);
        let request = Request {
            name: (*name).clone(),
            user: user.into(),
            priority: json::at(pod, &["spec", "priority"])
                .and_then(Value::as_i64)
                .unwrap_or_default(),
            created: json::text(pod, &["metadata", "creationTimestamp"])
                .unwrap_or_default()
                .to_owned(),
            gang: engine.find_gang(name, pod),
        };
        let answer = lock(&engine.user_places).ask(request, Instant::now());
        let Answer::Waits { is_late } = answer else {
            return Ok(None);
        };
        // It may have come to the host before it asked: the answer to an earlier creation was lost.
        engine.observe_on_host(name);
        if is_late {
            self.report_user_limit(stored, pod, user).await?;
        }
        // Its key is added when it gets a place. Until then it costs nothing.
        Ok(Some(Outcome::new(NO_PLACE).comparing_again()))
    }

    /// Says in the tenant why a pod waits, as the pods on the host say it.
    async fn report_user_limit(&self, stored: &Stored, pod: &Value, user: &str) -> Result<(), CallError> {
        let most = self.engine.cache.tenant.host_limits.waiting_pods_of_user;
        let message = user::describe_wait(user, most);
        let status = user::waiting_status(pod, &message, Timestamp::now());
        if status_patch(pod, &status).is_some() {
            let reason = user::LIMIT_EXCEEDED;
            self.engine
                .record_event(&self.key(), Level::Warning, reason, &message)
                .await;
            self.write_status(stored, pod, &status).await?;
        }
        Ok(())
    }

    /// Counts a pod that was created, and gives the place of one back that was not.
    pub(super) fn settle_user_place(&self) {
        let Self { engine, id, name, .. } = self;
        if *id != KindId::Pod || !engine.cache.tenant.users.are_limited {
            return;
        }
        if engine.cache.stores.host(*id).contains(name) {
            engine.observe_on_host(name);
        } else {
            let admitted = lock(&engine.user_places).forget(name);
            engine.let_in(admitted);
        }
    }
}

/// What became of a pod on the host.
fn on_host(host: Option<&Stored>) -> OnHost {
    let host = host.filter(|host| host.deletion.is_none()).map(Stored::object);
    match host.filter(|host| !is_finished(&host["status"])) {
        None => OnHost::Gone,
        Some(host) if user::is_gated(&host) => OnHost::Gated {
            exceeds_limit: user::exceeds_limit(&host),
        },
        Some(_) => OnHost::Started,
    }
}

#[cfg(test)]
mod tests;
