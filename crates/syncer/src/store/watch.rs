//! Fills a store from a watch.

use super::object::Object;
use berth_sync_rules::model::{
    resource::Name,
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
    /// Called with the tenant name of every object that was added, changed or deleted, and whether nothing but what the host says of it
    /// has changed.
    pub changed: &'a (dyn Fn(Name, bool) + Send + Sync),
    /// Called when objects of this kind become available or unavailable.
    pub availability: &'a (dyn Fn() + Send + Sync),
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
    let events = events.default_backoff();
    pin_mut!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => store.list_begins(),
            Ok(Event::Apply(object)) if store.is_expected(object.uid(), object.version()) => {}
            Ok(Event::InitApply(object) | Event::Apply(object)) => {
                if let Some((name, stored)) = keep(spec, object.parse()) {
                    let only_status = store.watched(name.clone(), stored);
                    (hooks.changed)(name, only_status);
                }
            }
            Ok(Event::Delete(object)) => {
                if let Some((name, stored)) = keep(spec, object.parse()) {
                    store.deleted(&name, stored);
                    (hooks.changed)(name, false);
                }
            }
            Ok(Event::InitDone) => {
                let gone = store.list_ends().into_iter();
                gone.for_each(|name| (hooks.changed)(name, false));
                if store.set_unavailable(None).is_some() {
                    tracing::info!(resource = spec.resource.plural, "available again");
                    (hooks.availability)();
                }
            }
            Err(Error::WatchStartFailed(kube::Error::Api(status)))
                if !store.is_listed() && matches!(status.code, 400 | 422) =>
            {
                return Ended::CannotStream;
            }
            Err(error) => {
                if let Some(why) = unavailable(&error) {
                    if store.set_unavailable(Some(why)) != Some(why) {
                        tracing::info!(resource = spec.resource.plural, %error, "not available");
                        (hooks.availability)();
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

fn keep(spec: WatchSpec, mut json: Value) -> Option<(Name, Stored)> {
    let name = (spec.name)(&json)?;
    (spec.trim)(&mut json);
    Some((name, Stored::from(json)))
}
