//! Reconciles an Event of the host: it is copied to the tenant, then forgotten.

use std::{collections::HashMap, time::Duration};

use super::{
    Engine, Outcome,
    api::{CallError, Page},
};
use berth_sync_rules::{
    kinds::event::{ExistingEvent, TenantEvent, Translation, is_stale, translate},
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
/// Events of the host that are kept until they are copied. Each has 8 KiB at most, and usually less than one.
const MOST_KEPT: usize = 15_000;
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
        Translation::Copy(copy) => write(engine, &copy).await?,
    };
    // It may have happened again meanwhile.
    store.forget_version(name, event.version);
    Ok(Outcome::new(result))
}

/// Most Events are new, so creating comes first; a repetition updates the existing one. Returns the result of the reconciliation.
async fn write(engine: &Engine, copy: &TenantEvent) -> Result<&'static str, CallError> {
    let (tenant, namespace) = (&engine.tenant, &copy.about.namespace);
    match tenant.create(resource::EVENT, namespace, &copy.event).await {
        Ok(_) => Ok("copied"),
        Err(CallError::Conflict(_)) => {
            let patch = Patch::Merge(copy.event.clone());
            tenant.patch(resource::EVENT, namespace, &copy.name, "", &patch).await?;
            Ok("copied")
        }
        // To try again changes nothing: the Events of a namespace go with it. Those of its last pods are many.
        Err(CallError::Terminating(_)) => Ok("ignored"),
        Err(error) => Err(error),
    }
}

impl Engine {
    /// Counts an Event that the host's watch reports. What a list has was written before.
    pub(super) fn count_event(&self, name: &Name) {
        let store = self.cache.stores.host(KindId::Event);
        if let Some(event) = store.get(name).filter(|_| !store.is_listing()) {
            let bytes = u64::from(event.bytes);
            self.turns.take_event(bytes);
            self.metrics.host_writes.event_bytes.inc_by(bytes);
        }
    }

    /// Forgets an Event of the host that would not be copied any more, or for which there is no room. Returns whether it is forgotten. A list has
    /// those of the last hour: a kubelet may write fifty in a second.
    pub(super) fn forget_surplus_event(&self, name: &Name) -> bool {
        let store = self.cache.stores.host(KindId::Event);
        let Some(event) = store.get(name) else { return false };
        let is_surplus = store.len() > MOST_KEPT;
        if is_surplus {
            self.metrics.events_dropped.inc();
        }
        let is_forgotten = is_surplus || is_stale(&event.object(), Timestamp::now());
        if is_forgotten {
            store.forget_version(name, event.version);
        }
        is_forgotten
    }

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
    use super::super::test_engine::{engine, engine_reaching, tenant};
    use super::*;
    use berth_api::SyncPolicy;
    use berth_sync_rules::model::{resource::host_name, store::Stored};
    use http::{Request, Response};
    use kube::{Client, client::Body};
    use serde_json::{Value, json};
    use std::{convert::Infallible, sync::Arc};

    /// An engine whose tenant refuses all requests for this reason.
    fn engine_refused(cause: &str) -> Arc<Engine> {
        let causes =
            json!([{"reason": cause, "message": "namespace team is being terminated", "field": "metadata.namespace"}]);
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403, "reason": "Forbidden",
            "message": "unable to create new content in namespace team", "details": {"kind": "events", "causes": causes}});
        let service = tower::service_fn(move |_: Request<Body>| {
            let answer = Response::builder().status(403);
            let answer = answer.body(Body::from(status.to_string().into_bytes()));
            async move { Ok::<_, Infallible>(answer.unwrap()) }
        });
        engine_reaching(tenant(SyncPolicy::default()), Client::new(service, "default"))
    }

    /// An object with this name.
    fn named(name: &str) -> Value {
        json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1"}})
    }

    #[tokio::test]
    async fn an_event_of_a_namespace_that_is_deleted_is_not_tried_again() {
        let (pod, name) = (Name::new("team", "train"), Name::new("", "train.1"));
        let host_pod = host_name(KindId::Pod, &pod);
        let event = json!({"metadata": {"name": "train.1", "resourceVersion": "5", "creationTimestamp": Timestamp::now().to_string()},
            "involvedObject": {"kind": "Pod", "name": host_pod}});
        for (cause, is_kept) in [("NamespaceTerminating", false), ("SomethingElse", true)] {
            let engine = engine_refused(cause);
            let stores = &engine.cache.stores;
            stores
                .host(KindId::Pod)
                .written(pod.clone(), Stored::new(&named(&host_pod)));
            stores
                .tenant(KindId::Pod)
                .written(pod.clone(), Stored::new(&named("train")));
            let store = stores.host(KindId::Event);
            store.written(name.clone(), Stored::new(&event));
            let outcome = reconcile(&engine, &name).await;
            let result = outcome.as_ref().map(|outcome| (outcome.result, outcome.requeue_after));
            assert_eq!(result.is_err(), is_kept, "{cause}: {result:?}");
            assert!(
                is_kept || result.is_ok_and(|result| result == ("ignored", None)),
                "{cause}"
            );
            assert_eq!(store.get(&name).is_some(), is_kept, "{cause}");
        }
    }

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

    #[tokio::test]
    async fn of_events_without_end_few_are_kept() {
        let engine = engine();
        let store = engine.cache.stores.host(KindId::Event);
        let put = |number: usize, at: Timestamp| {
            let name = Name::new("", &number.to_string());
            let version = (number + 1).to_string();
            let event =
                json!({"metadata": {"name": &*name.name, "resourceVersion": version}, "lastTimestamp": at.to_string()});
            store.watched(name.clone(), Stored::from(event));
            engine.forget_surplus_event(&name)
        };
        let now = Timestamp::now();
        assert!(put(0, now - jiff::SignedDuration::from_mins(11)) && store.is_empty());
        let forgotten = (0..MOST_KEPT + 10).filter(|number| put(*number, now)).count();
        assert_eq!((forgotten, store.len()), (10, MOST_KEPT));
        assert_eq!(engine.metrics.events_dropped.get(), 10);
    }

    #[tokio::test]
    async fn events_that_are_written_are_counted_and_those_of_a_list_are_not() {
        let engine = engine();
        let store = engine.cache.stores.host(KindId::Event);
        let name = Name::new("", "train.1");
        let put = |version: &str| {
            let event = json!({"metadata": {"name": "train.1", "resourceVersion": version}});
            store.watched(name.clone(), Stored::from(event).of_bytes(500));
            engine.count_event(&name);
            engine.metrics.host_writes.event_bytes.get()
        };
        store.list_begins();
        assert_eq!(put("5"), 0, "it was written before the list");
        store.list_ends();
        assert_eq!((put("6"), put("7")), (500, 1000), "each version is kept by etcd");
        store.forget(&name);
        engine.count_event(&name);
        assert_eq!(engine.metrics.host_writes.event_bytes.get(), 1000, "it is gone");
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
