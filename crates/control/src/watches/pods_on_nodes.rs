//! Watches of the pods on nodes, the platform's own and those on shared nodes. Of each only a part is kept, in a
//! [`NodeIndex`].

use super::{
    FLEET_PAUSE,
    follow::{Index, follow},
};
use crate::key::Key;
use berth_api::{HostNodePool, TenantCluster, labels};
use berth_node_lifecycle::{
    Assignment, NodeIndex, node,
    platform_pods::{PlatformPod, is_placeholder},
    shared_nodes::{self, SharedPod},
};
use berth_runtime::queue::Queue;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client, ResourceExt,
    runtime::{
        reflector::{ObjectRef, Store},
        watcher,
    },
};
use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};
use tokio::{sync::oneshot, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// Finds the tenants that a change on a node affects.
#[derive(Clone)]
pub(super) struct Owners {
    pub(super) nodes: Store<Node>,
    pub(super) pools: Store<HostNodePool>,
    pub(super) tenants: Store<TenantCluster>,
    pub(super) queue: Queue<Key>,
}

impl Owners {
    /// Puts the tenants of these nodes into the queue. What changed on a node that no tenant has may decide whether one gets it.
    pub(super) fn wake(&self, nodes: &BTreeSet<String>) {
        for node in nodes {
            let Some(node) = self.nodes.get(&ObjectRef::new(node)) else {
                continue;
            };
            if let Some(pool) = node::shared_pool_of(&node) {
                let tenants = self.tenants.state();
                for tenant in tenants.iter().filter(|tenant| tenant.spec.uses_shared_pool(pool)) {
                    let key = Key::of_tenant(tenant);
                    self.queue.add_after(key, FLEET_PAUSE);
                }
            }
            let owner = Assignment::read(&node);
            if owner.is_none() && node::shared_pool_of(&node).is_none() && self.is_in_a_pool(&node) {
                self.queue.add_after(Key::Fleet, FLEET_PAUSE);
            }
            let Some(uid) = owner.map(|record| record.uid).filter(|uid| !uid.is_empty()) else {
                continue;
            };
            let tenants = self.tenants.state();
            if let Some(tenant) = tenants.iter().find(|tenant| tenant.uid().as_ref() == Some(&uid)) {
                let key = Key::of_tenant(tenant);
                self.queue.add_after(key, FLEET_PAUSE);
            }
        }
    }

    fn is_in_a_pool(&self, node: &Node) -> bool {
        let pools = self.pools.state();
        pools.iter().any(|pool| pool.spec.selects(node.labels()))
    }
}

/// Watches the pods on nodes that no syncer made. Placeholders are left out, which every pod preempts. The receiver resolves when the first list is
/// complete.
pub(super) fn platform_pods(
    client: &Client,
    owners: Owners,
    tasks: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> (Arc<NodeIndex<PlatformPod>>, oneshot::Receiver<()>) {
    let index = Arc::new(NodeIndex::default());
    let (listed, is_listed) = oneshot::channel();
    let api = Api::all(client.clone());
    let config = watcher::Config::default()
        .labels(&format!("{}!={}", labels::MANAGED_BY, labels::MANAGED_BY_SYNCER))
        .fields("spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed");
    let (of_task, stop) = (Arc::clone(&index), stop.clone());
    tasks.spawn(async move {
        let place = |pod: &Pod| {
            let node = pod.spec.as_ref()?.node_name.clone()?;
            (!is_placeholder(pod)).then(|| (node, PlatformPod::read(pod)))
        };
        let places = Places {
            index: &of_task,
            place,
            wake: |nodes: &BTreeSet<String>| owners.wake(nodes),
        };
        follow(api, config, &places, listed, &stop).await;
    });
    (index, is_listed)
}

/// Watches the host pods that may run on shared nodes. The receiver resolves when the first list is complete.
pub(super) fn shared_pods(
    client: &Client,
    queue: Queue<Key>,
    tasks: &mut JoinSet<()>,
    stop: &CancellationToken,
) -> (Arc<NodeIndex<SharedPod>>, oneshot::Receiver<()>) {
    let index = Arc::new(NodeIndex::default());
    let (listed, is_listed) = oneshot::channel();
    let api = Api::all(client.clone());
    let config = watcher::Config::default()
        .labels(labels::SHARED_NODES)
        .fields("status.phase!=Succeeded,status.phase!=Failed");
    let (of_task, stop) = (Arc::clone(&index), stop.clone());
    tasks.spawn(async move {
        let places = Places {
            index: &of_task,
            place: shared_nodes::locate_pod,
            wake: |nodes: &BTreeSet<String>| {
                if !nodes.is_empty() {
                    queue.add_after(Key::SharedNodes, FLEET_PAUSE);
                }
            },
        };
        follow(api, config, &places, listed, &stop).await;
    });
    (index, is_listed)
}

/// Objects by the node that they are on.
pub(super) struct Places<'a, V, P, W> {
    pub(super) index: &'a NodeIndex<V>,
    /// Returns the node of an object, and what is kept of the object.
    pub(super) place: P,
    /// Called with the nodes for which something changed.
    pub(super) wake: W,
}

impl<K, V, P, W> Index<K> for Places<'_, V, P, W>
where
    V: PartialEq,
    P: Fn(&K) -> Option<(String, V)>,
    W: Fn(&BTreeSet<String>),
{
    fn put(&self, name: &str, object: Option<&K>) {
        (self.wake)(&self.index.put(name, object.and_then(&self.place)));
    }

    fn retain(&self, names: &HashSet<String>) {
        (self.wake)(&self.index.retain(names));
    }
}
