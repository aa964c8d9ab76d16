//! Lists and watches whose pages become smaller where objects are large.

use super::{Watched, readable};
use crate::answers::is_too_long;
use futures::{
    Stream, StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use kube::{
    Api, Resource,
    api::ListParams,
    core::ObjectList,
    runtime::{
        WatchStreamExt,
        watcher::{Config, Error, Event, watcher},
    },
};
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// Objects that are listed at a time. Tenants decide on the size of most of what is watched, up to 1.5 MiB for each object. A page that is [longer than
/// may be](crate::page_limit) is asked for again with half as many.
pub const PAGE: u32 = 50;

/// Watches objects, and reads them one by one. After an error it goes on. Ends only if the watch ends.
///
/// With each list that begins again, because a page was too long, `Event::Init` comes again.
pub fn watch<K>(api: Api<Watched<K>>, config: Config) -> impl Stream<Item = Result<Event<K>, Error>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let events = open(&api, &config, PAGE);
    let watch = Watch {
        api,
        config,
        page: PAGE,
        is_listed: false,
        events,
    };
    stream::unfold(watch, |mut watch| async move {
        let event = watch.next().await?;
        Some((event, watch))
    })
}

struct Watch<K> {
    api: Api<Watched<K>>,
    config: Config,
    /// Objects in a page of the list.
    page: u32,
    /// Whether the list is complete.
    is_listed: bool,
    events: BoxStream<'static, Result<Event<K>, Error>>,
}

fn open<K>(api: &Api<Watched<K>>, config: &Config, page: u32) -> BoxStream<'static, Result<Event<K>, Error>>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    watcher(api.clone(), config.clone().page_size(page))
        .default_backoff()
        .try_filter_map(readable)
        .boxed()
}

impl<K> Watch<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    async fn next(&mut self) -> Option<Result<Event<K>, Error>> {
        loop {
            match self.events.next().await? {
                Err(Error::InitialListFailed(error)) if self.page > 1 && is_too_long(&error) => {
                    self.list_again(self.page / 2);
                }
                // A later list: what was large may be gone.
                Ok(Event::Init) if self.is_listed && self.page < PAGE => self.list_again(PAGE),
                event => {
                    self.is_listed |= matches!(event, Ok(Event::InitDone));
                    return Some(event);
                }
            }
        }
    }

    fn list_again(&mut self, page: u32) {
        tracing::debug!(object = std::any::type_name::<K>(), page, "listing with other pages");
        self.page = page;
        self.is_listed = false;
        self.events = open(&self.api, &self.config, page);
    }
}

/// Lists objects page by page and gives each to `take`, so that not all of them are in memory at once. All are of one version of the datastore.
///
/// # Errors
/// The API server refuses or does not answer, or the token that continues the list has expired. `take` has seen a part of the objects by then.
pub async fn for_each<K: Clone>(
    api: &Api<Watched<K>>,
    params: ListParams,
    mut take: impl FnMut(Watched<K>),
) -> Result<(), kube::Error> {
    let mut params = params.limit(PAGE);
    loop {
        let page = list_page(api, &mut params).await?;
        let next = page.metadata.continue_.filter(|token| !token.is_empty());
        page.items.into_iter().for_each(&mut take);
        let Some(token) = next else { return Ok(()) };
        params = params.continue_token(&token);
    }
}

/// A page of at most `params.limit` objects. If they are too large, the limit becomes smaller.
///
/// # Errors
/// The API server refuses or does not answer.
pub async fn list_page<K: Clone>(
    api: &Api<Watched<K>>,
    params: &mut ListParams,
) -> Result<ObjectList<Watched<K>>, kube::Error> {
    loop {
        match (api.list(params).await, params.limit) {
            (Err(error), Some(limit)) if limit > 1 && is_too_long(&error) => params.limit = Some(limit / 2),
            (page, _) => return page,
        }
    }
}
