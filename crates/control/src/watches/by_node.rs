//! Watches of what is on nodes: the platform's own pods, and devices. Of each object only what counts is kept, in a
//! [`ByNode`] index.

use super::{FLEET_PAUSE, tenant_key};
use crate::{
    context::Key,
    nodes::{
        ByNode, NodeRecord,
        requests::{self, Requests},
        shared::{self, SharedPod},
    },
};
use berth_api::{TenantCluster, labels};
use berth_runtime::queue::Queue;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, GroupVersionKind},
    runtime::{
        WatchStreamExt,
        reflector::{ObjectRef, Store},
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::{
    collections::{BTreeSet, HashSet},
    fmt::Debug,
    sync::Arc,
    time::Duration,
};
use tokio::{sync::oneshot, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// Pause after which a host that does not serve devices is asked again.
const NOT_SERVED_PAUSE: Duration = Duration::from_secs(300);

/// Whom a change on a node concerns.
#[derive(Clone)]
pub(super) struct Owners {
    pub(super) nodes: Store<Node>,
    pub(super) tenants: Store<TenantCluster>,
    pub(super) queue: Queue<Key>,
}

impl Owners {
    /// Puts the tenants of these nodes into the queue.
    fn wake(&self, nodes: &BTreeSet<String>) {
        for node in nodes {
            let Some(node) = self.nodes.get(&ObjectRef::new(node)) else {
                continue;
            };
            if let Some(pool) = shared::pool_of(&node) {
                let tenants = self.tenants.state();
                for tenant in tenants.iter().filter(|tenant| tenant.spec.shares(pool)) {
                    let key = tenant_key(&tenant.namespace().unwrap_or_default(), &tenant.name_any());
                    self.queue.add_after(key, FLEET_PAUSE);
                }
            }
            let owner = NodeRecord::read(&node);
            let Some(uid) = owner.map(|record| record.uid).filter(|uid| !uid.is_empty()) else {
                continue;
            };
            let tenants = self.tenants.state();
            if let Some(tenant) = tenants.iter().find(|tenant| tenant.uid().as_ref() == Some(&uid)) {
                let key = tenant_key(&tenant.namespace().unwrap_or_default(), &tenant.name_any());
                self.queue.add_after(key, FLEET_PAUSE);
            }
        }
    }
}

/// Watches the pods on nodes that are no tenant's. The receiver hears when the first list is complete.
pub(super) fn platform_pods(
    client: &Client,
    owners: Owners,
    tasks: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> (Arc<ByNode<Requests>>, oneshot::Receiver<()>) {
    let index = Arc::new(ByNode::default());
    let (listed, is_listed) = oneshot::channel();
    let api = Api::<Pod>::all(client.clone());
    let config = watcher::Config::default()
        .labels(&format!("!{}", labels::TENANT))
        .fields("spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed");
    let (of_task, stop) = (Arc::clone(&index), stop.clone());
    tasks.spawn(async move {
        let place = |pod: &Pod| Some((pod.spec.as_ref()?.node_name.clone()?, requests::of_pod(pod)));
        let wake = |nodes: &BTreeSet<String>| owners.wake(nodes);
        follow(api, config, &of_task, &wake, place, listed, &stop).await;
    });
    (index, is_listed)
}

/// Watches the host pods that may run on shared nodes. The receiver hears when the first list is complete.
pub(super) fn shared_pods(
    client: &Client,
    queue: Queue<Key>,
    tasks: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> (Arc<ByNode<SharedPod>>, oneshot::Receiver<()>) {
    let index = Arc::new(ByNode::default());
    let (listed, is_listed) = oneshot::channel();
    let api = Api::<Pod>::all(client.clone());
    let config = watcher::Config::default()
        .labels(labels::MAY_SHARE)
        .fields("status.phase!=Succeeded,status.phase!=Failed");
    let (of_task, stop) = (Arc::clone(&index), stop.clone());
    tasks.spawn(async move {
        let wake = |nodes: &BTreeSet<String>| {
            if !nodes.is_empty() {
                queue.add_after(Key::SharedNodes, FLEET_PAUSE);
            }
        };
        follow(api, config, &of_task, &wake, shared::place_of, listed, &stop).await;
    });
    (index, is_listed)
}

/// Watches the devices that drivers publish for single nodes (`ResourceSlice`), if the host serves them. The receiver
/// hears when the first list is complete, or it is known that there is none.
pub(super) fn device_slices(
    client: &Client,
    owners: Owners,
    tasks: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> (Arc<ByNode<Value>>, oneshot::Receiver<()>) {
    let index = Arc::new(ByNode::default());
    let (listed, is_listed) = oneshot::channel();
    let resource = ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("resource.k8s.io", "v1", "ResourceSlice"),
        "resourceslices",
    );
    let client = client.clone();
    let (of_task, stop) = (Arc::clone(&index), stop.clone());
    tasks.spawn(async move {
        let mut listed = Some(listed);
        while !is_served(&client, &resource).await {
            // Nothing to wait for.
            drop(listed.take());
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(NOT_SERVED_PAUSE) => {}
            }
        }
        let api = Api::<DynamicObject>::all_with(client, &resource);
        let place = |slice: &DynamicObject| {
            let spec = slice.data.get("spec")?;
            Some((spec.get("nodeName")?.as_str()?.to_owned(), spec.clone()))
        };
        let listed = listed.unwrap_or_else(|| oneshot::channel().0);
        let wake = |nodes: &BTreeSet<String>| {
            owners.wake(nodes);
            // A node that has devices is not one to share.
            if !nodes.is_empty() {
                owners.queue.add_after(Key::SharedNodes, FLEET_PAUSE);
            }
        };
        follow(api, watcher::Config::default(), &of_task, &wake, place, listed, &stop).await;
    });
    (index, is_listed)
}

/// Whether the host serves a resource. An API server that does not answer serves it perhaps: the watch tries again.
async fn is_served(client: &Client, resource: &ApiResource) -> bool {
    match client.list_api_group_resources(&resource.api_version).await {
        Ok(list) => list.resources.iter().any(|served| served.name == resource.plural),
        Err(kube::Error::Api(status)) => status.code != 404,
        Err(_) => true,
    }
}

/// Keeps `index` current until `stop`.
async fn follow<K, V>(
    api: Api<K>,
    config: watcher::Config,
    index: &ByNode<V>,
    wake: &impl Fn(&BTreeSet<String>),
    place: impl Fn(&K) -> Option<(String, V)>,
    listed: oneshot::Sender<()>,
    stop: &CancellationToken,
) where
    K: kube::Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    V: Clone + PartialEq,
{
    let mut listed = Some(listed);
    let mut seen = HashSet::new();
    let mut stream = watcher(api, config).default_backoff().boxed();
    let name = |object: &K| match object.namespace() {
        Some(namespace) => format!("{namespace}/{}", object.name_any()),
        None => object.name_any(),
    };
    let put = |object: &K| {
        let found = place(object);
        let changed = index.put(
            &name(object),
            found.as_ref().map(|(node, value)| (node.as_str(), value.clone())),
        );
        wake(&changed);
    };
    loop {
        let next = tokio::select! {
            () = stop.cancelled() => return,
            next = stream.try_next() => next,
        };
        match next {
            Ok(Some(Event::Init)) => seen.clear(),
            Ok(Some(Event::InitApply(object))) => {
                seen.insert(name(&object));
                put(&object);
            }
            Ok(Some(Event::InitDone)) => {
                wake(&index.retain(&seen));
                seen = HashSet::new();
                if let Some(listed) = listed.take() {
                    // Whoever waited may have gone.
                    let _ = listed.send(());
                }
            }
            Ok(Some(Event::Apply(object))) => put(&object),
            Ok(Some(Event::Delete(object))) => wake(&index.put(&name(&object), None)),
            Ok(None) => return,
            Err(error) => tracing::warn!(%error, "watch of what is on nodes interrupted; trying again"),
        }
    }
}
