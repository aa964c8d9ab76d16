//! Watches one kind of host object and keeps only what is needed of each.

use berth_runtime::watched::{Watched, watch};
use futures::TryStreamExt;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, GroupVersionKind},
    runtime::watcher::{self, Event},
};
use serde::de::DeserializeOwned;
use std::{collections::HashSet, fmt::Debug, pin::pin, time::Duration};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// Pause before checking again whether the host serves a kind.
const NOT_SERVED_PAUSE: Duration = Duration::from_secs(300);

/// Keeps what is needed of objects.
pub(super) trait Index<K> {
    /// An object was created or changed, or deleted if it is None. `name` has the namespace before it, if there is one.
    fn put(&self, name: &str, object: Option<&K>);
    /// Removes all objects but these.
    fn retain(&self, names: &HashSet<String>);
}

/// Keeps `index` current until `stop`. Sends to `listed` when the first list is complete.
pub(super) async fn follow<K>(
    api: Api<Watched<K>>,
    config: watcher::Config,
    index: &impl Index<K>,
    listed: oneshot::Sender<()>,
    stop: &CancellationToken,
) where
    K: kube::Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut listed = Some(listed);
    let mut seen = HashSet::new();
    let mut stream = pin!(watch(api, config));
    let name = |object: &K| match object.namespace() {
        Some(namespace) => format!("{namespace}/{}", object.name_any()),
        None => object.name_any(),
    };
    loop {
        let next = tokio::select! {
            () = stop.cancelled() => return,
            next = stream.try_next() => next,
        };
        match next {
            Ok(Some(Event::Init)) => seen.clear(),
            Ok(Some(Event::InitApply(object))) => {
                let name = name(&object);
                index.put(&name, Some(&object));
                seen.insert(name);
            }
            Ok(Some(Event::InitDone)) => {
                index.retain(&seen);
                seen = HashSet::new();
                if let Some(listed) = listed.take() {
                    // The receiver may be gone.
                    let _ = listed.send(());
                }
            }
            Ok(Some(Event::Apply(object))) => index.put(&name(&object), Some(&object)),
            Ok(Some(Event::Delete(object))) => index.put(&name(&object), None),
            Ok(None) => return,
            Err(error) => tracing::warn!(%error, "watch interrupted; trying again"),
        }
    }
}

/// The same for a kind of `resource.k8s.io/v1`, once the host serves it. `listed` is dropped if it does not.
pub(super) async fn follow_if_served<K>(
    client: Client,
    (kind, plural): (&str, &str),
    index: &impl Index<K>,
    listed: oneshot::Sender<()>,
    stop: &CancellationToken,
) where
    K: kube::Resource<DynamicType = ApiResource> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let gvk = GroupVersionKind::gvk("resource.k8s.io", "v1", kind);
    let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
    let mut listed = Some(listed);
    while !is_served(&client, &resource).await {
        // There is no list to wait for.
        drop(listed.take());
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(NOT_SERVED_PAUSE) => {}
        }
    }
    let api = Api::all_with(client, &resource);
    let listed = listed.unwrap_or_else(|| oneshot::channel().0);
    follow(api, watcher::Config::default(), index, listed, stop).await;
}

/// Whether the host serves a resource. Also true if the API server does not answer: the watch tries again.
async fn is_served(client: &Client, resource: &ApiResource) -> bool {
    match client.list_api_group_resources(&resource.api_version).await {
        Ok(list) => list.resources.iter().any(|served| served.name == resource.plural),
        Err(kube::Error::Api(status)) => status.code != 404,
        Err(_) => true,
    }
}
