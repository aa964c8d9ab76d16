//! Fills a store from a watch.

use super::{Bounds, Parts, TreeSize, most_of_side, object::Object};
use berth_api::labels;
use berth_runtime::{
    answers::is_too_long,
    extension_answers::{WATCH_SECONDS, is_silent},
};
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
use std::time::Duration;

/// Objects asked for at a time from servers that cannot stream lists.
const PAGE_SIZE: u32 = 100;
/// The same in the tenant, whose API server can: such a server is one of the tenant's own, and no page may be longer than
/// [`MAX_ANSWER`](berth_runtime::answers::MAX_ANSWER).
const TENANT_PAGE_SIZE: u32 = 10;
/// Wait before a kind that had too much is listed again.
const TOO_MUCH_WAIT: Duration = Duration::from_mins(5);
/// Characters of an error that are logged: a server of a tenant may write it.
const MAX_MESSAGE: usize = 1024;

/// Callbacks of a watch.
#[derive(Clone, Copy)]
pub struct Hooks<'a> {
    /// The side that is watched.
    pub side: Side,
    /// Whether the last state of a deleted object is kept until its key is reconciled.
    pub keeps_last: bool,
    /// Whether two states of an object differ in nothing but its status and its node; none if that makes no difference.
    pub differs_in_status: Option<fn(&Stored, &Stored) -> bool>,
    /// Whether an object is none of those that belong under this tenant name: it is left out, and what is known of the name stays.
    pub is_stray: &'a (dyn Fn(&Name, &Stored) -> bool + Send + Sync),
    /// Called with the tenant name of every object that was added, changed or deleted, and whether nothing but its status and its node
    /// has changed.
    pub changed: &'a (dyn Fn(Name, bool) + Send + Sync),
    /// Called when objects of this kind become available or unavailable, with why they were not available before.
    pub availability: &'a (dyn Fn(Option<Unavailable>) + Send + Sync),
    /// How much there may be; none if the API server itself limits that.
    pub bounds: Option<Bounds<'a>>,
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
    let pages = Config {
        page_size: Some(match hooks.side {
            Side::Tenant => TENANT_PAGE_SIZE,
            Side::Host => PAGE_SIZE,
        }),
        // How long a watch may say nothing follows from it.
        timeout: Some(WATCH_SECONDS),
        ..Config::default()
    }
    .labels(spec.labels);
    let mut listing = pages.clone().streaming_lists();
    loop {
        match follow(watcher::watcher(api.clone(), listing.clone()), spec, store, hooks).await {
            Ended::CannotStream => {
                tracing::info!(
                    resource = spec.resource.plural,
                    "the API server cannot stream lists: reading pages instead"
                );
                listing = pages.clone();
            }
            Ended::TooMuch => {
                forget_all(spec, store, hooks);
                tokio::time::sleep(TOO_MUCH_WAIT).await;
            }
            Ended::Silent => {
                tracing::info!(
                    resource = spec.resource.plural,
                    "the watch says nothing and does not end: listing again"
                );
            }
            Ended::Stream => return,
        }
    }
}

/// Why a kind is not followed any more.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    /// The API server cannot stream lists.
    CannotStream,
    /// There is more than is kept.
    TooMuch,
    /// What has changed is not known: the watch said nothing for too long. A new watch from where it was would say nothing either.
    Silent,
    /// There are no more events.
    Stream,
}

/// Forgets what is known of a kind, as if it had never been listed.
fn forget_all(spec: WatchSpec, store: &Store, hooks: Hooks<'_>) {
    // First, so that nobody takes what is forgotten for deleted.
    let before = store.set_unavailable(Some(Unavailable::TooMuch));
    for name in store.names() {
        store.forget(&name);
        (hooks.changed)(name, false);
    }
    // It may have been off since the start for another reason, and this one is what to look for.
    tracing::warn!(
        resource = spec.resource.plural,
        "objects are too many or too large: going on without this kind until they are not; its objects on the host stay as they are"
    );
    if before != Some(Unavailable::TooMuch) {
        (hooks.availability)(before);
    }
}

async fn follow<const METADATA_ONLY: bool>(
    events: impl Stream<Item = Result<Event<Object<METADATA_ONLY>>, Error>> + Send,
    spec: WatchSpec,
    store: &Store,
    hooks: Hooks<'_>,
) -> Ended {
    let parts = spec.spec_fields.map_or(Parts::All, Parts::SpecFields);
    let most = most_of_side(hooks.side);
    let events = events.default_backoff();
    pin_mut!(events);
    while let Some(event) = events.next().await {
        if let Some(bounds) = hooks.bounds
            && let Ok(event) = &event
            && !bounds.leave_room_for(event).await
        {
            return Ended::TooMuch;
        }
        match event {
            Ok(Event::Init) => store.list_begins(),
            Ok(Event::Apply(object)) if store.is_expected(object.uid(), object.version()) => {}
            Ok(Event::InitApply(object) | Event::Apply(object)) => {
                if let Some((name, stored)) = keep(spec, &object, parts, most) {
                    if (hooks.is_stray)(&name, &stored) {
                        continue;
                    }
                    let only_status = hooks
                        .differs_in_status
                        .zip(store.get(&name))
                        .is_some_and(|(differs_in_status, known)| differs_in_status(&known, &stored));
                    store.watched(name.clone(), stored);
                    (hooks.changed)(name, only_status);
                } else if object.parse(parts).is_null() {
                    report_unreadable(spec, &object, store);
                }
            }
            Ok(Event::Delete(object)) => {
                store.note_gone(object.uid());
                // Tenants' objects have their own names, so that nothing else of them is needed.
                let parts = match hooks.side {
                    Side::Tenant => Parts::Metadata,
                    Side::Host => parts,
                };
                if let Some((name, last)) = keep(spec, &object, parts, most)
                    && !(hooks.is_stray)(&name, &last)
                {
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
            // The next one would be the same, at once: a watch begins with an event, which ends the backoff.
            Err(error) if hooks.bounds.is_some() && is_too_long(&error) => return Ended::TooMuch,
            Err(error) if is_silent(&error) => return Ended::Silent,
            Err(error) => {
                if let Some(why) = unavailable(&error) {
                    let before = store.set_unavailable(Some(why));
                    if before != Some(why) {
                        tracing::info!(resource = spec.resource.plural, error = brief(&error), "not available");
                        (hooks.availability)(before);
                    }
                } else {
                    tracing::warn!(
                        resource = spec.resource.plural,
                        error = brief(&error),
                        "watch interrupted"
                    );
                }
            }
        }
    }
    Ended::Stream
}

/// Logs once that an object cannot be read. It is not forgotten: what it was before is at work.
fn report_unreadable<const METADATA_ONLY: bool>(spec: WatchSpec, object: &Object<METADATA_ONLY>, store: &Store) {
    if store.note_unreadable(object.uid()) {
        let name = (spec.name)(&object.parse(Parts::Metadata)).map(|name| name.to_string());
        let name: String = name.unwrap_or_default().chars().take(MAX_MESSAGE).collect();
        tracing::warn!(
            resource = spec.resource.plural,
            ?name,
            "an object is nested too deep to be read: what it was before stays on the host"
        );
    }
}

/// The beginning of an error.
fn brief(error: &Error) -> String {
    error.to_string().chars().take(MAX_MESSAGE).collect()
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

/// What is kept of an object; none if it cannot be read, or is not of the kind. `most` is the memory that its tree may take besides its status.
fn keep<const METADATA_ONLY: bool>(
    spec: WatchSpec,
    object: &Object<METADATA_ONLY>,
    parts: Parts,
    most: u64,
) -> Option<(Name, Stored)> {
    let size = object.tree_size();
    let is_cut = size.exceeds(most);
    let parts = if is_cut { Parts::Cut(spec.fields_if_cut) } else { parts };
    let mut json = object.parse(parts);
    let name = (spec.name)(&json)?;
    let mut bytes = object.bytes();
    if METADATA_ONLY {
        bytes = bytes.saturating_add(content_bytes(&json));
    }
    (spec.trim)(&mut json);
    // What was left out takes no memory, so nothing else is packed because of it.
    let tree_bytes = if size.all > 0 { TreeSize::of_value(&json).all } else { 0 };
    let stored = Stored::from(json).of_bytes(bytes).of_tree_bytes(tree_bytes);
    Some((name, if is_cut { stored.cut() } else { stored }))
}

/// Bytes of an object's content, from its metadata.
fn content_bytes(object: &Value) -> usize {
    let bytes = json::text(object, &["metadata", "annotations", labels::BYTES]);
    bytes.and_then(|bytes| bytes.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
