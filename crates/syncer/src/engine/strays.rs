//! Strays: host objects that name an object of the tenant and do not have the name that the syncer gives to what it makes for that one.
//!
//! The syncer makes none. With a stolen credential somebody can make as many as quotas allow, beside the host object that there should be. In a store each
//! would take the place of that one, and lead traffic for as long as it exists. So they come into no store, and are deleted as soon as a watch reports them.
//!
//! What [holds data](berth_sync_rules::model::ToHost::holds_data) comes into no store either, but stays: it may be the copy that somebody of the platform has
//! made of a claim, with its labels and annotations, and be the only one by now. It leads no traffic, and counts to the quotas of the tenant.

use super::{
    Engine,
    api::{CallError, Delete},
    lock,
};
use berth_sync_rules::model::{
    Direction, KindId,
    resource::{Name, host_name},
    store::Stored,
};
use serde_json::Value;
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::Notify;

/// Pause before those are deleted again that could not be deleted.
const RETRY: Duration = Duration::from_secs(5);
/// Most strays with data that are known, so that each is reported once.
const MOST_LEFT: usize = 1000;

/// UIDs by kind and name.
type Found = HashMap<(KindId, Box<str>), Box<str>>;

/// Strays that are not deleted yet, or not at all.
#[derive(Default)]
pub(super) struct Strays {
    /// UIDs of those to delete, by kind and by their own names.
    found: Mutex<Found>,
    is_found: Notify,
    /// UIDs of those that stay because they hold data.
    left: Mutex<HashSet<Box<str>>>,
}

impl Engine {
    /// Whether a host object that a watch reports for the object `name` of the tenant is a stray. If so, it is deleted, unless it holds data.
    pub(super) fn is_stray(&self, id: KindId, name: &Name, host: &Stored) -> bool {
        let holds_data = match self.cache.kind(id).direction {
            Direction::ToHost(rules) => rules.holds_data(),
            Direction::Tokens => false,
            // Others have made these.
            Direction::Nodes | Direction::Schedule | Direction::Events | Direction::Mirror(_) | Direction::ReadOnly => {
                return false;
            }
        };
        // Most events are about objects that are known: the name of these need not be made again.
        let known = self.cache.stores.host(id).get(name);
        let is_known = known.is_some_and(|known| known.name == host.name);
        if is_known || *host.name == *host_name(id, name) {
            return false;
        }
        if holds_data {
            self.report_left(id, host);
            return true;
        }
        if host.deletion.is_none() {
            lock(&self.strays.found).insert((id, host.name.clone()), host.uid.clone());
            self.strays.is_found.notify_one();
        }
        self.forget_renamed(id, host);
        true
    }

    /// Forgets a stray that was made for another object of the tenant, before somebody wrote the name of this one into it. That one is made anew.
    fn forget_renamed(&self, id: KindId, host: &Stored) {
        let store = self.cache.stores.host(id);
        let Some(known) = store.tenant_name(&host.name) else {
            return;
        };
        if store.get(&known).is_some_and(|stored| stored.uid == host.uid) {
            store.forget(&known);
            self.add(id.key(known));
        }
    }

    fn report_left(&self, id: KindId, host: &Stored) {
        let is_new = {
            let mut left = lock(&self.strays.left);
            left.len() < MOST_LEFT && left.insert(host.uid.clone())
        };
        if is_new {
            tracing::warn!(
                kind = id.label(),
                name = &*host.name,
                "a host object names an object of the tenant and was not made for it by this syncer: it is ignored, and not deleted because it holds data"
            );
            self.metrics.strays.inc();
        }
    }

    /// Deletes strays, for ever.
    pub(super) async fn delete_strays(self: Arc<Self>) {
        loop {
            self.strays.is_found.notified().await;
            while !self.delete_found_strays().await {
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    /// Deletes those that are found. Returns whether the host has answered for each.
    async fn delete_found_strays(&self) -> bool {
        let found: Vec<_> = {
            let found = lock(&self.strays.found);
            found.iter().map(|(stray, uid)| (stray.clone(), uid.clone())).collect()
        };
        let mut failure = None;
        for (stray, uid) in found {
            let (id, name) = (stray.0, &*stray.1);
            match self.delete_stray(id, name, &uid).await {
                Ok(deleted) => {
                    // Nothing, if it was gone already.
                    if !deleted.is_null() {
                        tracing::warn!(
                            kind = id.label(),
                            name,
                            "deleted a host object that names an object of the tenant and was not made for it by this syncer"
                        );
                        self.metrics.strays.inc();
                    }
                    self.forget_stray(&stray, &uid);
                }
                // Another object has the name. If it is a stray as well, the watch reports it.
                Err(CallError::Conflict(_)) => self.forget_stray(&stray, &uid),
                Err(error) => failure = Some((id, error)),
            }
        }
        // Once for all of them: there may be many.
        if let Some((id, error)) = &failure {
            tracing::warn!(kind = id.label(), %error, "cannot delete host objects that this syncer has not made");
        }
        failure.is_none()
    }

    async fn delete_stray(&self, id: KindId, name: &str, uid: &str) -> Result<Value, CallError> {
        let Some((_, spec)) = self.cache.kind(id).host else {
            return Ok(Value::Null);
        };
        let grace_seconds = match self.cache.kind(id).direction {
            Direction::ToHost(kind) => kind.orphan_grace(),
            _ => None,
        };
        let how = Delete {
            uid,
            version: None,
            grace_seconds,
        };
        let namespace = &self.cache.tenant.workload_namespace;
        self.host.delete(spec.resource, namespace, name, how).await
    }

    fn forget_stray(&self, stray: &(KindId, Box<str>), uid: &str) {
        let mut found = lock(&self.strays.found);
        if found.get(stray).is_some_and(|known| **known == *uid) {
            found.remove(stray);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{
        scripted::{Failure, Scripted},
        test_engine::tenant,
    };
    use super::*;
    use berth_api::SyncPolicy;
    use serde_json::json;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A host object of this name, for the object `team/web` of the tenant.
    fn host_object(name: &str, uid: &str) -> Stored {
        Stored::from(
            json!({"metadata": {"name": name, "uid": uid, "resourceVersion": "7", "annotations": {
            "berth.dev/origin-namespace": "team", "berth.dev/origin-name": "web", "berth.dev/origin-uid": "tenant-uid"}}}),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn what_names_an_object_under_another_name_is_deleted_until_the_host_has_done_it() {
        let is_down = Arc::new(AtomicBool::new(true));
        let fails = Arc::clone(&is_down);
        let scripted = Scripted::new(tenant(SyncPolicy::default()), move |call| {
            (fails.load(Ordering::Relaxed) && call.starts_with("host DELETE")).then_some(Failure::Refused(500))
        });
        let (engine, web) = (&scripted.engine, Name::new("team", "web"));
        for id in [KindId::Service, KindId::Pod, KindId::PodToken] {
            assert!(!engine.is_stray(id, &web, &host_object(&host_name(id, &web), "own")));
        }
        assert!(!engine.is_stray(KindId::Event, &web, &host_object("web.1", "event")));
        assert!(scripted.engine.delete_found_strays().await, "there is none");
        assert!(engine.is_stray(KindId::Service, &web, &host_object("second", "s")));
        assert!(engine.is_stray(KindId::Pod, &web, &host_object("third", "t")));
        let deleting = tokio::spawn(Arc::clone(engine).delete_strays());
        scripted.expect_soon("host DELETE", "/services/second").await;
        is_down.store(false, Ordering::Relaxed);
        let is_over = async || {
            while !lock(&engine.strays.found).is_empty() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_mins(1), is_over()).await.unwrap();
        assert_eq!(engine.metrics.strays.get(), 2);
        let sent = scripted.sent("host DELETE", "/pods/third");
        let last = sent.last().unwrap();
        assert_eq!(
            (&last["preconditions"]["uid"], &last["gracePeriodSeconds"]),
            (&json!("t"), &json!(1)),
            "this very pod, as one without a pod in the tenant"
        );
        deleting.abort();
    }

    #[tokio::test]
    async fn a_second_object_that_holds_data_is_reported_once_and_stays() {
        let scripted = Scripted::new(tenant(SyncPolicy::default()), |_| None);
        let (engine, web) = (&scripted.engine, Name::new("team", "web"));
        for id in [KindId::PersistentVolumeClaim, KindId::VolumeSnapshot] {
            assert!(!engine.is_stray(id, &web, &host_object(&host_name(id, &web), "own")));
            for _ in 0..2 {
                assert!(engine.is_stray(id, &web, &host_object("copy", id.label())));
            }
        }
        assert!(engine.delete_found_strays().await);
        assert!(scripted.calls("host DELETE", "").is_empty());
        assert_eq!(engine.metrics.strays.get(), 2);
    }

    #[tokio::test]
    async fn an_object_that_names_another_one_by_now_is_made_anew() {
        let scripted = Scripted::new(tenant(SyncPolicy::default()), |_| None);
        let (engine, id, web) = (&scripted.engine, KindId::Service, Name::new("team", "web"));
        let own = host_object(&host_name(id, &web), "own");
        let store = engine.cache.stores.host(id);
        store.watched(web.clone(), own);
        let other = Name::new("team", "other");
        let renamed = host_object(&host_name(id, &web), "own");
        assert!(engine.is_stray(id, &other, &renamed));
        assert!(!store.contains(&web) && engine.waiting() == 1);
        assert!(engine.delete_found_strays().await);
        assert_eq!(engine.metrics.strays.get(), 1);
    }

    #[tokio::test]
    async fn an_object_that_is_known_is_none_and_one_that_ends_is_not_deleted_again() {
        let scripted = Scripted::new(tenant(SyncPolicy::default()), |_| None);
        let (engine, id, web) = (&scripted.engine, KindId::Service, Name::new("team", "web"));
        let own = host_name(id, &web);
        engine
            .cache
            .stores
            .host(id)
            .watched(web.clone(), host_object(&own, "own"));
        assert!(!engine.is_stray(id, &web, &host_object(&own, "own")));
        let ending = json!({"metadata": {"name": "second", "uid": "s", "resourceVersion": "8", "deletionTimestamp": "2026-05-01T10:00:00Z"}});
        assert!(engine.is_stray(id, &web, &Stored::from(ending)));
        assert!(engine.delete_found_strays().await);
        assert!(scripted.calls("host DELETE", "").is_empty());
    }
}
