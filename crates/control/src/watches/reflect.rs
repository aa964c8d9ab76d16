//! Watches kinds of host objects and keeps all objects of each, in a store.

use super::wake::{Seen, Wake, full_name};
use crate::{
    changes::{ChangeCounter, Changes},
    key::Key,
};
use berth_runtime::{
    queue::Queue,
    watched::{Watched, watch},
};
use futures::{FutureExt, StreamExt, TryStreamExt, future::BoxFuture};
use kube::{
    Api, Client, Resource, ResourceExt,
    runtime::{
        WatchStreamExt,
        reflector::{self, Store, store::WriterDropped},
        watcher::{Config, Event},
    },
};
use serde::de::DeserializeOwned;
use std::{fmt::Debug, sync::Arc};
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

/// The watches that were started.
pub(super) struct Watches<'a> {
    pub(super) client: &'a Client,
    pub(super) queue: &'a Queue<Key>,
    pub(super) tasks: &'a mut JoinSet<()>,
    pub(super) stop: &'a CancellationToken,
    pub(super) changes: Arc<Changes>,
    /// Each completes when the first list is complete.
    pub(super) listed: Vec<BoxFuture<'static, Result<(), WriterDropped>>>,
}

impl Watches<'_> {
    /// Watches objects of one kind in all namespaces.
    pub(super) fn all<K>(
        &mut self,
        config: Config,
        wake: impl FnMut(&K, &mut Seen) -> Vec<Wake> + Send + 'static,
    ) -> Store<K>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        self.start(Api::all(self.client.clone()), config, wake)
    }

    /// Watches objects of one kind; `wake` returns the keys to reconcile after an object was created, changed or deleted.
    pub(super) fn start<K>(
        &mut self,
        api: Api<Watched<K>>,
        config: Config,
        wake: impl FnMut(&K, &mut Seen) -> Vec<Wake> + Send + 'static,
    ) -> Store<K>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        self.start_reduced(api, config, |_| {}, wake)
    }

    /// The same for objects of which `reduce` takes away what is not needed, before anything else sees them.
    pub(super) fn start_reduced<K>(
        &mut self,
        api: Api<Watched<K>>,
        config: Config,
        reduce: impl Fn(&mut K) + Send + 'static,
        mut wake: impl FnMut(&K, &mut Seen) -> Vec<Wake> + Send + 'static,
    ) -> Store<K>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        let (store, writer) = reflector::store();
        let (stop, queue) = (self.stop.clone(), self.queue.clone());
        let kind = <K as Resource>::kind(&());
        let mut counter = ChangeCounter::new(&self.changes, &kind);
        self.tasks.spawn(async move {
            let mut seen = Seen::default();
            let mut first_error: Option<Instant> = None;
            let mut stream = watch(api, config)
                .modify(reduce)
                .reflect(writer)
                .boxed();
            loop {
                let next = tokio::select! {
                    () = stop.cancelled() => return,
                    next = stream.try_next() => next,
                };
                if let Ok(Some(event)) = &next {
                    counter.count(event);
                }
                let object = match next {
                    Ok(Some(Event::Apply(object) | Event::InitApply(object))) => object,
                    Ok(Some(Event::Delete(object))) => {
                        seen.forget(&object.name_any());
                        seen.forget(&full_name(&object));
                        object
                    }
                    Ok(Some(Event::Init | Event::InitDone)) => continue,
                    Ok(None) => return,
                    Err(error) => {
                        let since = *first_error.get_or_insert_with(Instant::now);
                        tracing::warn!(%kind, %error, failing_for = ?since.elapsed(), "watch interrupted; trying again");
                        continue;
                    }
                };
                first_error = None;
                for due in wake(&object, &mut seen) {
                    due.enqueue(&queue);
                }
            }
        });
        let listing = store.clone();
        self.listed
            .push(async move { listing.wait_until_ready().await }.boxed());
        store
    }
}
