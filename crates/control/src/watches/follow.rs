//! Watches one kind of host object and keeps only what is needed of each.

use berth_runtime::watched::{Watched, watch};
use futures::{StreamExt, TryStreamExt};
use kube::{
    Api, Client, ResourceExt,
    api::ApiResource,
    runtime::watcher::{self, Event},
};
use serde::de::DeserializeOwned;
use std::{collections::HashSet, fmt::Debug, time::Duration};
use tokio::{sync::oneshot, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// Pause before checking again whether the host serves a kind.
const NOT_SERVED_PAUSE: Duration = Duration::from_secs(300);
/// Time between two looks whether objects must be listed again. Who makes that necessary again and again costs the host a list each time.
const LACKS_CHECK: Duration = Duration::from_mins(5);

/// Keeps what is needed of objects.
pub(super) trait Index<K> {
    /// An object was created or changed, or deleted if it is None. `name` has the namespace before it, if there is one.
    fn put(&self, name: &str, object: Option<&K>);
    /// Removes all objects but these.
    fn retain(&self, names: &HashSet<String>);
    /// Whether objects were left out for which there is room by now, so that all must be listed again.
    fn lacks_objects(&self) -> bool {
        false
    }
}

/// Keeps `index` current in a task until `stop`. The receiver resolves when the first list is complete.
pub(super) fn start<K>(
    api: Api<Watched<K>>,
    config: watcher::Config,
    index: impl Index<K> + Send + Sync + 'static,
    tasks: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> oneshot::Receiver<()>
where
    K: kube::Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let (listed, is_listed) = oneshot::channel();
    let stop = stop.clone();
    tasks.spawn(async move { follow(api, config, &index, listed, &stop).await });
    is_listed
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
    let open = || watch(api.clone(), config.clone()).boxed();
    let mut stream = open();
    let mut looks = tokio::time::interval(LACKS_CHECK);
    let name = |object: &K| match object.namespace() {
        Some(namespace) => format!("{namespace}/{}", object.name_any()),
        None => object.name_any(),
    };
    loop {
        let next = tokio::select! {
            () = stop.cancelled() => return,
            _ = looks.tick() => {
                // While a list is read, `seen` has some of its objects.
                if listed.is_none() && seen.is_empty() && index.lacks_objects() {
                    stream = open();
                }
                continue;
            }
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

/// The same for a kind that the host may not serve, once it does. `listed` is dropped if it does not.
pub(super) async fn follow_if_served<K>(
    client: Client,
    (resource, config): (&ApiResource, watcher::Config),
    index: &impl Index<K>,
    listed: oneshot::Sender<()>,
    stop: &CancellationToken,
) where
    K: kube::Resource<DynamicType = ApiResource> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut listed = Some(listed);
    while !is_served(&client, resource).await {
        // There is no list to wait for.
        drop(listed.take());
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(NOT_SERVED_PAUSE) => {}
        }
    }
    let api = Api::all_with(client, resource);
    let listed = listed.unwrap_or_else(|| oneshot::channel().0);
    follow(api, config, index, listed, stop).await;
}

/// Whether the host serves a resource. Also true if the API server does not answer: the watch tries again.
async fn is_served(client: &Client, resource: &ApiResource) -> bool {
    match client.list_api_group_resources(&resource.api_version).await {
        Ok(list) => list.resources.iter().any(|served| served.name == resource.plural),
        Err(kube::Error::Api(status)) => status.code != 404,
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use k8s_openapi::api::core::v1::Pod;
    use kube::client::Body;
    use serde_json::json;
    use std::{
        convert::Infallible,
        pin::pin,
        sync::atomic::{AtomicUsize, Ordering},
    };

    /// Counts lists. After the first one it lacks an object.
    #[derive(Default)]
    struct Lists(AtomicUsize);

    impl Lists {
        fn count(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    impl Index<Pod> for Lists {
        fn put(&self, _: &str, _: Option<&Pod>) {}

        fn retain(&self, _: &HashSet<String>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn lacks_objects(&self) -> bool {
            self.count() == 1
        }
    }

    #[tokio::test(start_paused = true)]
    async fn objects_that_had_no_room_are_listed_again_when_there_is_some() {
        let service = tower::service_fn(|request: Request<Body>| {
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            async move {
                if is_watch {
                    std::future::pending::<()>().await;
                }
                let list =
                    json!({"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "9"}, "items": []});
                Ok::<_, Infallible>(Response::new(Body::from(list.to_string().into_bytes())))
            }
        });
        let (lists, stop) = (Lists::default(), CancellationToken::new());
        let pods = Api::<Watched<Pod>>::all(Client::new(service, "default"));
        let listed = oneshot::channel().0;
        let mut following = pin!(follow(pods, watcher::Config::default(), &lists, listed, &stop));
        let are_listed_again = async {
            while lists.count() < 2 {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        tokio::select! {
            () = &mut following => panic!("the watch ended"),
            () = are_listed_again => {}
        }
        let later = tokio::time::timeout(LACKS_CHECK * 3, following).await;
        assert!(later.is_err());
        assert_eq!(lists.count(), 2, "nothing is lacking any more");
    }
}
