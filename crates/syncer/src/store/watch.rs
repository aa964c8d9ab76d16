//! Fills a store from a watch.

use super::{Parts, object::Object};
use berth_api::labels;
use berth_sync_rules::model::{
    json,
    resource::{Name, Side},
    store::{Detail, Store, Stored, Unavailable, WatchSpec},
};
use futures::{Stream, StreamExt, pin_mut};
use kube::{
    Api, Client,
    runtime::{
        WatchStreamExt,
        watcher::{self, Config, Error, Event},
    },
};
use serde_json::Value;

/// Objects asked for at a time from servers that cannot stream lists.
const PAGE_SIZE: u32 = 100;

/// Callbacks of a watch.
#[derive(Clone, Copy)]
pub struct Hooks<'a> {
    /// The side that is watched.
    pub side: Side,
    /// Whether the last state of a deleted object is kept until its key is reconciled.
    pub keeps_last: bool,
    /// Whether two states of an object differ in nothing but its status and its node; none if that makes no difference.
    pub differs_in_status: Option<fn(&Stored, &Stored) -> bool>,
    /// Called with the tenant name of every object that was added, changed or deleted, and whether nothing but its status and its node
    /// has changed.
    pub changed: &'a (dyn Fn(Name, bool) + Send + Sync),
    /// Called when objects of this kind become available or unavailable, with why they were not available before.
    pub availability: &'a (dyn Fn(Option<Unavailable>) + Send + Sync),
}

/// Watches for ever and fills `store`. An empty `namespace` means all namespaces, or a cluster-scoped kind.
pub async fn run(client: Client, spec: WatchSpec, namespace: &str, store: &Store, hooks: Hooks<'_>) {
    match spec.detail {
        Detail::Full => watch::<false>(client, spec, namespace, store, hooks).await,
        Detail::Metadata => watch::<true>(client, spec, namespace, store, hooks).await,
    }
}

async fn watch<const METADATA_ONLY: bool>(
    client: Client,
    spec: WatchSpec,
    namespace: &str,
    store: &Store,
    hooks: Hooks<'_>,
) {
    let api: Api<Object<METADATA_ONLY>> = if namespace.is_empty() {
        Api::all_with(client, &spec.resource)
    } else {
        Api::namespaced_with(client, namespace, &spec.resource)
    };
    let listing = Config {
        page_size: Some(PAGE_SIZE),
        ..Config::default()
    }
    .labels(spec.labels);
    let streaming = listing.clone().streaming_lists();
    if follow(watcher::watcher(api.clone(), streaming), spec, store, hooks).await == Ended::CannotStream {
        tracing::info!(
            resource = spec.resource.plural,
            "the API server cannot stream lists: reading pages instead"
        );
        follow(watcher::watcher(api, listing), spec, store, hooks).await;
    }
}

#[derive(PartialEq, Eq)]
enum Ended {
    CannotStream,
    Stream,
}

async fn follow<const METADATA_ONLY: bool>(
    events: impl Stream<Item = Result<Event<Object<METADATA_ONLY>>, Error>> + Send,
    spec: WatchSpec,
    store: &Store,
    hooks: Hooks<'_>,
) -> Ended {
    let parts = spec.spec_fields.map_or(Parts::All, Parts::SpecFields);
    let events = events.default_backoff();
    pin_mut!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => store.list_begins(),
            Ok(Event::Apply(object)) if store.is_expected(object.uid(), object.version()) => {}
            Ok(Event::InitApply(object) | Event::Apply(object)) => {
                if let Some((name, stored)) = keep(spec, &object, parts) {
                    let only_status = hooks
                        .differs_in_status
                        .zip(store.get(&name))
                        .is_some_and(|(differs_in_status, known)| differs_in_status(&known, &stored));
                    store.watched(name.clone(), stored);
                    (hooks.changed)(name, only_status);
                }
            }
            Ok(Event::Delete(object)) => {
                // Tenants' objects have their own names, so that nothing else of them is needed.
                let parts = match hooks.side {
                    Side::Tenant => Parts::Metadata,
                    Side::Host => parts,
                };
                if let Some((name, last)) = keep(spec, &object, parts) {
                    if hooks.keeps_last {
                        store.deleted(&name, last);
                    } else {
                        store.gone(&name, last.version);
                    }
                    (hooks.changed)(name, false);
                }
            }
            Ok(Event::InitDone) => {
                let gone = store.list_ends().into_iter();
                gone.for_each(|name| (hooks.changed)(name, false));
                let before = store.set_unavailable(None);
                if before.is_some() {
                    tracing::info!(resource = spec.resource.plural, "available again");
                    (hooks.availability)(before);
                }
            }
            Err(Error::WatchStartFailed(kube::Error::Api(status)))
                if !store.is_listed() && matches!(status.code, 400 | 422) =>
            {
                return Ended::CannotStream;
            }
            Err(error) => {
                if let Some(why) = unavailable(&error) {
                    let before = store.set_unavailable(Some(why));
                    if before != Some(why) {
                        tracing::info!(resource = spec.resource.plural, %error, "not available");
                        (hooks.availability)(before);
                    }
                } else {
                    tracing::warn!(resource = spec.resource.plural, %error, "watch interrupted");
                }
            }
        }
    }
    Ended::Stream
}

/// Whether an error says that objects of this kind are not available at all, and why.
fn unavailable(error: &Error) -> Option<Unavailable> {
    let code = match error {
        Error::InitialListFailed(kube::Error::Api(status)) | Error::WatchStartFailed(kube::Error::Api(status)) => {
            status.code
        }
        Error::WatchError(status) => status.code,
        _ => return None,
    };
    match code {
        403 => Some(Unavailable::Forbidden),
        404 | 405 => Some(Unavailable::NotServed),
        _ => None,
    }
}

fn keep<const METADATA_ONLY: bool>(
    spec: WatchSpec,
    object: &Object<METADATA_ONLY>,
    parts: Parts,
) -> Option<(Name, Stored)> {
    let mut json = object.parse(parts);
    let name = (spec.name)(&json)?;
    let mut bytes = object.bytes();
    if METADATA_ONLY {
        bytes = bytes.saturating_add(content_bytes(&json));
    }
    (spec.trim)(&mut json);
    Some((name, Stored::from(json).of_bytes(bytes)))
}

/// Bytes of an object's content, from its metadata.
fn content_bytes(object: &Value) -> usize {
    let bytes = json::text(object, &["metadata", "annotations", labels::BYTES]);
    bytes.and_then(|bytes| bytes.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_sync_rules::model::{
        KindId,
        resource::{POD, SECRET},
    };
    use serde_json::json;
    use std::sync::Mutex;

    fn object(json: &Value) -> Object<false> {
        serde_json::from_str(&json.to_string()).unwrap()
    }

    /// What a watch with these events calls `changed` with.
    async fn changes(
        spec: WatchSpec,
        store: &Store,
        side: Side,
        keeps_last: bool,
        events: Vec<Event<Object<false>>>,
    ) -> Vec<(Name, bool)> {
        let changes = Mutex::new(Vec::new());
        let hooks = Hooks {
            side,
            keeps_last,
            differs_in_status: Some(match side {
                Side::Host => Stored::is_for_the_same,
                Side::Tenant => Stored::requests_the_same,
            }),
            changed: &|name, only_status| changes.lock().unwrap().push((name, only_status)),
            availability: &|_| {},
        };
        let events = futures::stream::iter(events.into_iter().map(Ok));
        follow(events, spec, store, hooks).await;
        changes.into_inner().unwrap()
    }

    fn host_object(name: &str, version: &str) -> Value {
        json!({"metadata": {"name": name, "uid": "h", "resourceVersion": version, "annotations": {
            labels::ORIGIN_NAMESPACE: "team", labels::ORIGIN_NAME: "train", labels::ORIGIN_UID: "t"}}})
    }

    #[tokio::test]
    async fn the_last_state_is_kept_only_where_it_is_used() {
        let name = Name::new("team", "train");
        for (resource, keeps_last) in [(POD, true), (SECRET, false)] {
            let store = Store::default();
            let events = vec![
                Event::Apply(object(&host_object("train-x", "7"))),
                Event::Delete(object(&host_object("train-x", "9"))),
            ];
            let spec = WatchSpec::synced(resource);
            let seen = changes(spec, &store, Side::Host, keeps_last, events).await;
            assert_eq!(seen, [(name.clone(), false), (name.clone(), false)]);
            assert!(!store.contains(&name));
            assert_eq!(store.take_tombstone(&name).is_some(), keeps_last);
        }
    }

    #[tokio::test]
    async fn a_binding_changes_only_the_status_of_a_tenants_pod() {
        let pod = |version: &str, node: Option<&str>, image: &str| {
            object(&json!({
                "metadata": {"name": "train", "namespace": "team", "uid": "t", "resourceVersion": version},
                "spec": {"containers": [{"image": image}], "nodeName": node},
                "status": {"conditions": [{"type": "PodScheduled", "status": node}]},
            }))
        };
        let (store, name) = (Store::default(), Name::new("team", "train"));
        let events = vec![
            Event::Apply(pod("5", None, "a:1")),
            Event::Apply(pod("7", Some("gpu-1"), "a:1")),
            Event::Apply(pod("9", Some("gpu-1"), "a:2")),
            Event::Delete(pod("11", Some("gpu-1"), "a:2")),
        ];
        let seen = changes(WatchSpec::own(POD), &store, Side::Tenant, false, events).await;
        let only_status: Vec<bool> = seen.iter().map(|(_, only_status)| *only_status).collect();
        assert_eq!(only_status, [false, true, false, false]);
        assert!(seen.iter().all(|(changed, _)| *changed == name) && !store.contains(&name));
    }

    #[tokio::test]
    async fn a_list_that_ends_late_makes_the_kind_available() {
        let (store, before) = (Store::default(), Mutex::new(Vec::new()));
        let hooks = Hooks {
            side: Side::Tenant,
            keeps_last: false,
            differs_in_status: None,
            changed: &|_, _| {},
            availability: &|why| before.lock().unwrap().push(why),
        };
        store.stop_waiting_for_list();
        let pod = json!({"metadata": {"name": "train", "namespace": "team", "uid": "t", "resourceVersion": "5"}});
        let part = [Event::Init, Event::InitApply(object(&pod))].map(Ok);
        follow(futures::stream::iter(part), WatchSpec::own(POD), &store, hooks).await;
        assert_eq!(
            store.unavailable(),
            Some(Unavailable::NotListed),
            "a part of a list is no list"
        );
        let whole = [Event::Init, Event::InitApply(object(&pod)), Event::InitDone].map(Ok);
        follow(futures::stream::iter(whole), WatchSpec::own(POD), &store, hooks).await;
        assert!(store.is_listed() && store.unavailable().is_none());
        assert_eq!(*before.lock().unwrap(), [Some(Unavailable::NotListed)]);
    }

    #[test]
    fn bytes_are_those_of_the_whole_object() {
        let text = json!({"metadata": {"name": "a", "annotations": {labels::BYTES: "5000"}, "managedFields": [{}]}, "data": {"x": "y"}}).to_string();
        let spec = WatchSpec::own(SECRET).trimmed(|object| *object = json!({"metadata": object["metadata"]}));
        let whole: Object<false> = serde_json::from_str(&text).unwrap();
        let metadata: Object<true> = serde_json::from_str(&text).unwrap();
        let bytes = keep(spec, &whole, Parts::All).map(|(_, stored)| stored.bytes as usize);
        assert_eq!(bytes, Some(text.len()));
        let bytes = keep(spec, &metadata, Parts::All).map(|(_, stored)| stored.bytes as usize);
        assert_eq!(bytes, Some(text.len() + 5000), "its content is not in the text");
    }

    #[test]
    fn names_of_tenants_objects_need_only_their_metadata() {
        let settings = crate::engine::test_engine::tenant(berth_api::SyncPolicy::default());
        let cache = berth_sync_rules::registry::new_cache(settings);
        let metadata = object(&json!({"metadata": {"name": "a", "namespace": "b"}}));
        let tenants: Vec<(KindId, WatchSpec)> = cache
            .kinds
            .iter()
            .filter_map(|id| Some((*id, cache.kind(*id).tenant?)))
            .collect();
        assert!(!tenants.is_empty());
        for (id, spec) in tenants {
            let name = (spec.name)(&metadata.parse(Parts::Metadata));
            assert_eq!(name, Some(Name::new("b", "a")), "{}", id.label());
            let kept = keep(spec, &metadata, Parts::All).map(|(name, _)| name);
            assert_eq!(kept, Some(Name::new("b", "a")), "{}", id.label());
        }
    }
}
