//! Reconciles an Event of the host: it is copied to the tenant, then forgotten.

use std::{collections::HashMap, time::Duration};

use super::{
    Engine, Outcome,
    api::{CallError, Page},
};
use berth_sync_rules::{
    kinds::event::{ExistingEvent, TenantEvent, Translation, translate},
    model::{
        KindId,
        resource::{self, Name},
    },
};
use jiff::Timestamp;
use kube::api::Patch;

/// Pause after which an Event looks again for the object that it is about.
const RETRY: Duration = Duration::from_secs(3);
/// Fewer recent Events than this are written again after a start, without a look at the tenant's: that costs less than a list.
const FEW: usize = 20;
/// Events of the tenant that are read at a time, some 50 KB. The tenant can make each of them as large as etcd allows (1.5 MiB), and a syncer
/// without objects has 256 MiB.
const PAGE: u32 = 50;
/// Most pages that are read. What is not among them is written again, which changes nothing.
const PAGES: usize = 200;

pub(super) async fn reconcile(engine: &Engine, name: &Name) -> Result<Outcome, CallError> {
    let store = engine.cache.stores.host(KindId::Event);
    let Some(event) = store.get(name) else {
        return Ok(Outcome::new("nothing"));
    };
    let result = match translate(&engine.cache, &event.object(), Timestamp::now()) {
        Translation::Wait => return Ok(Outcome::requeue("waits for its object", RETRY)),
        Translation::Ignore => "ignored",
        Translation::Copy(copy) if !engine.recorder.take_from_budget(&copy.about) => "dropped",
        Translation::Copy(copy) => {
            write(engine, &copy).await?;
            "copied"
        }
    };
    // It may have happened again meanwhile.
    store.forget_version(name, event.version);
    Ok(Outcome::new(result))
}

/// Most Events are new, so creating comes first; a repetition updates the existing one.
async fn write(engine: &Engine, copy: &TenantEvent) -> Result<(), CallError> {
    let (tenant, namespace) = (&engine.tenant, &copy.about.namespace);
    match tenant.create(resource::EVENT, namespace, &copy.event).await {
        Err(CallError::Conflict(_)) => {
            let patch = Patch::Merge(copy.event.clone());
            tenant.patch(resource::EVENT, namespace, &copy.name, "", &patch).await?;
            Ok(())
        }
        result => result.map(drop),
    }
}

impl Engine {
    /// After a start: forgets the recent Events of the host whose copies are in the tenant already. To write each of them again would take
    /// two requests, and with many pods seconds.
    pub(super) async fn forget_copied_events(&self) {
        let now = Timestamp::now();
        let store = self.cache.stores.host(KindId::Event);
        // A copy is a hundred times as large as the names, and is made again once its Event is found.
        let mut recent: HashMap<(String, String), Name> = HashMap::new();
        for (name, event) in store.all() {
            if let Translation::Copy(copy) = translate(&self.cache, &event.object(), now) {
                recent.insert((copy.about.namespace.to_string(), copy.name), name);
            }
        }
        if recent.len() < FEW {
            return;
        }
        let mut after: Option<String> = None;
        for _ in 0..PAGES {
            let page = self.tenant.list_page(resource::EVENT, PAGE, after.as_deref()).await;
            let page: Page<ExistingEvent> = match page {
                Ok(page) => page,
                Err(error) => {
                    tracing::info!(%error, "cannot list the tenant's Events: recent ones are written again");
                    return;
                }
            };
            for existing in &page.items {
                let own = (existing.metadata.namespace.clone(), existing.metadata.name.clone());
                if let Some(name) = recent.remove(&own) {
                    self.forget_if_copied(&name, existing, now);
                }
            }
            after = page.metadata.continue_.filter(|token| !token.is_empty());
            if after.is_none() || recent.is_empty() {
                return;
            }
        }
    }

    /// Forgets an Event of the host if the tenant's is its copy.
    fn forget_if_copied(&self, name: &Name, existing: &ExistingEvent, now: Timestamp) {
        let store = self.cache.stores.host(KindId::Event);
        let Some(event) = store.get(name) else { return };
        if let Translation::Copy(copy) = translate(&self.cache, &event.object(), now)
            && copy.is_repeated_by(existing)
        {
            store.forget_version(name, event.version);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_engine::engine;
    use super::*;
    use berth_sync_rules::model::{resource::host_name, store::Stored};
    use serde_json::json;

    #[tokio::test]
    async fn an_event_is_kept_until_its_object_is_known() {
        let engine = engine();
        let (pod, name) = (Name::new("team", "train"), Name::new("", "train.1"));
        let event = |at: Timestamp| {
            Stored::new(
                &json!({"metadata": {"name": "train.1", "resourceVersion": "5", "creationTimestamp": at.to_string()},
                "involvedObject": {"kind": "Pod", "name": host_name(KindId::Pod, &pod)}}),
            )
        };
        let store = engine.cache.stores.host(KindId::Event);
        store.written(name.clone(), event(Timestamp::now()));
        let outcome = reconcile(&engine, &name).await.unwrap();
        assert_eq!(outcome.requeue_after, Some(RETRY));
        assert!(store.get(&name).is_some());

        store.forget(&name);
        store.written(
            name.clone(),
            event(Timestamp::now() - jiff::SignedDuration::from_mins(1)),
        );
        let outcome = reconcile(&engine, &name).await.unwrap();
        assert_eq!((outcome.result, outcome.requeue_after), ("ignored", None));
        assert!(store.get(&name).is_none());
    }

    #[test]
    fn of_the_tenants_events_only_what_tells_a_copy_is_read() {
        // As a tree, each of these maps takes a hundred times its text.
        let large = format!(r#"{{"":{{}}{}}}"#, r#","a":{"":0}"#.repeat(1000));
        let text = format!(
            r#"{{"kind": "EventList", "apiVersion": "v1", "metadata": {{"continue": "c", "remainingItemCount": 7}}, "items": [{{
                "metadata": {{"name": "e", "namespace": "team", "annotations": {large}, "managedFields": [{large}]}},
                "involvedObject": {{"uid": "u", "fieldPath": "f"}}, "count": 2, "eventTime": null, "message": "m"}}]}}"#
        );
        let page: Page<ExistingEvent> = serde_json::from_str(&text).unwrap();
        assert_eq!(page.metadata.continue_.as_deref(), Some("c"));
        assert_eq!(page.items[0].metadata.name, "e");
        assert!(format!("{page:?}").len() < 1000, "{page:?}");
    }
}
