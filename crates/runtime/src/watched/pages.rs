//! Lists and watches whose pages become smaller where objects are large.
//!
//! A tenant decides where. With pages of one object the list of all pods would take minutes, and the token that continues it expires when the datastore is
//! compacted: the list would begin again and again. So pages become larger again after a few large objects, and a watch whose pages would become tiny, or whose token has
//! expired, gets its list as a stream, object by object.

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
/// Instead of smaller pages a watch asks for a stream.
const SMALLEST_PAGE: u32 = 6;

/// Watches objects, and reads them one by one. After an error it goes on. Ends only if the watch ends.
///
/// With each list that begins again, because a page was too long, `Event::Init` comes again.
pub fn watch<K>(api: Api<Watched<K>>, config: Config) -> impl Stream<Item = Result<Event<K>, Error>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let listing = Listing::Pages(PAGE);
    let events = open(&api, &config, listing);
    let watch = Watch {
        api,
        config,
        listing,
        can_stream: true,
        is_listed: false,
        events,
    };
    stream::unfold(watch, |mut watch| async move {
        let event = watch.next().await?;
        Some((event, watch))
    })
}

/// How a list is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listing {
    /// In pages of at most so many objects.
    Pages(u32),
    /// Object by object, as a watch.
    Stream,
}

struct Watch<K> {
    api: Api<Watched<K>>,
    config: Config,
    listing: Listing,
    /// Whether the API server may be able to stream lists.
    can_stream: bool,
    /// Whether the list is complete.
    is_listed: bool,
    events: BoxStream<'static, Result<Event<K>, Error>>,
}

fn open<K>(api: &Api<Watched<K>>, config: &Config, listing: Listing) -> BoxStream<'static, Result<Event<K>, Error>>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let config = match listing {
        Listing::Pages(page) => config.clone().page_size(page),
        Listing::Stream => config.clone().streaming_lists(),
    };
    watcher(api.clone(), config)
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
            match (self.events.next().await?, self.listing) {
                (Err(Error::InitialListFailed(kube::Error::Api(status))), Listing::Pages(_))
                    if self.can_stream && status.code == 410 =>
                {
                    self.list_again(Listing::Stream);
                }
                (Err(Error::InitialListFailed(error)), Listing::Pages(page)) if page > 1 && is_too_long(&error) => {
                    let smaller = page / 2;
                    self.list_again(if self.can_stream && smaller < SMALLEST_PAGE {
                        Listing::Stream
                    } else {
                        Listing::Pages(smaller)
                    });
                }
                (Err(Error::WatchStartFailed(kube::Error::Api(status))), Listing::Stream)
                    if !self.is_listed && matches!(status.code, 400 | 422) =>
                {
                    self.can_stream = false;
                    self.list_again(Listing::Pages(SMALLEST_PAGE / 2));
                }
                // A later list: what was large may be gone.
                (Ok(Event::Init), listing) if self.is_listed && listing != Listing::Pages(PAGE) => {
                    self.list_again(Listing::Pages(PAGE));
                }
                (event, _) => {
                    self.is_listed |= matches!(event, Ok(Event::InitDone));
                    return Some(event);
                }
            }
        }
    }

    fn list_again(&mut self, listing: Listing) {
        tracing::debug!(object = std::any::type_name::<K>(), ?listing, "listing in another way");
        self.listing = listing;
        self.is_listed = false;
        self.events = open(&self.api, &self.config, listing);
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

/// A page of at most `params.limit` objects. If they are too large, the limit becomes smaller. If they are not, it becomes larger for the next page, up to
/// [`PAGE`]: what is large may be in one place of the list.
///
/// # Errors
/// The API server refuses or does not answer.
pub async fn list_page<K: Clone>(
    api: &Api<Watched<K>>,
    params: &mut ListParams,
) -> Result<ObjectList<Watched<K>>, kube::Error> {
    let asked = params.limit;
    loop {
        match (api.list(params).await, params.limit) {
            (Err(error), Some(limit)) if limit > 1 && is_too_long(&error) => params.limit = Some(limit / 2),
            (Ok(page), Some(limit)) if asked == Some(limit) && limit < PAGE => {
                params.limit = Some(PAGE.min(limit * 2));
                return Ok(page);
            }
            (page, _) => return page,
        }
    }
}
