//! Fills a store from a watch.

use super::{Store, Stored, Unavailable, object::Object};
use crate::{
    kinds::{origin_name, own_name},
    resource::{Name, Resource},
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

/// How much of each object a watch transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Whole objects.
    Full,
    /// Metadata only; the rest is fetched when it is needed.
    Metadata,
}

/// What to watch on one side for one kind.
#[derive(Clone, Copy, Debug)]
pub struct WatchSpec {
    /// The resource.
    pub resource: Resource,
    /// How much of it.
    pub detail: Detail,
    /// Label selector; empty for all objects.
    pub labels: &'static str,
    /// The name in the tenant of an object; `None` if the object is no business of this kind.
    pub name: fn(&Value) -> Option<Name>,
    /// Drops what need not be kept.
    pub trim: fn(&mut Value),
}

impl WatchSpec {
    /// Whole objects of a resource, whoever made them, under their own names.
    pub const fn own(resource: Resource) -> Self {
        Self {
            resource,
            detail: Detail::Full,
            labels: "",
            name: own_name,
            trim: |_| {},
        }
    }

    /// Whole host objects of a resource that the syncer made, under their names in the tenant.
    pub const fn synced(resource: Resource) -> Self {
        Self {
            labels: "berth.dev/managed-by=syncer",
            name: origin_name,
            ..Self::own(resource)
        }
    }

    /// The same with metadata only.
    #[must_use]
    pub const fn metadata_only(self) -> Self {
        Self {
            detail: Detail::Metadata,
            ..self
        }
    }

    /// The same without what `trim` drops.
    #[must_use]
    pub const fn trimmed(self, trim: fn(&mut Value)) -> Self {
        Self { trim, ..self }
    }
}

/// What a watch calls.
#[derive(Clone, Copy)]
pub struct Hooks<'a> {
    /// With the tenant name of every object that came, changed or went.
    pub changed: &'a (dyn Fn(Name) + Send + Sync),
    /// When the API server ceases or begins to give objects of this kind at all.
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
            Ok(Event::InitApply(object) | Event::Apply(object)) => {
                if let Some((name, stored)) = keep(spec, object.json) {
                    store.watched(name.clone(), stored);
                    (hooks.changed)(name);
                }
            }
            Ok(Event::Delete(object)) => {
                if let Some((name, stored)) = keep(spec, object.json) {
                    store.deleted(&name, stored);
                    (hooks.changed)(name);
                }
            }
            Ok(Event::InitDone) => {
                store.list_ends().into_iter().for_each(hooks.changed);
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

/// Whether an error says that there is nothing to be had.
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
    Some((name, Stored::new(&json)))
}
