//! Watches of the host cluster: they keep the [`Stores`] current and put into the queue whom a change concerns.

mod by_node;
mod devices;
mod follow;
mod workloads;

use crate::{
    context::{Key, Stores},
    nodes::{NodeRecord, shared},
};
use berth_api::{DEFAULT_CLASS, HostNodePool, TenantClass, TenantCluster, TenantNode, labels, system};
use berth_runtime::queue::Queue;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Namespace, Node, Pod, Secret},
    networking::v1::NetworkPolicy,
    scheduling::v1::PriorityClass,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    core::PartialObjectMeta,
    runtime::{
        WatchStreamExt, reflector,
        watcher::{self, Event, watcher},
    },
};
use serde::de::DeserializeOwned;
use std::{collections::HashMap, fmt::Debug, hash::Hash, time::Duration};
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

/// Pause by which the fleet waits for further changes before it is planned.
const FLEET_PAUSE: Duration = Duration::from_millis(20);

/// Starts all watches as tasks that end with `stop`, and waits until each has listed what there is. With `uses_pods` the
/// Deployments of control planes are watched as well.
///
/// # Errors
/// A store was dropped before it was filled: the process is ending.
#[expect(clippy::too_many_lines, reason = "one watch after the other, each of a few lines")]
pub async fn start(
    client: &Client,
    queue: &Queue<Key>,
    tasks: &mut JoinSet<()>,
    stop: &CancellationToken,
    uses_pods: bool,
) -> Result<Stores, reflector::store::WriterDropped> {
    let starter = Starter { tasks, stop };
    let tenant_queue = queue.clone();
    let (tenants, starter) = starter.watch(
        Api::<TenantCluster>::all(client.clone()),
        watcher::Config::default(),
        move |tenant, _| {
            tenant_queue.add(tenant_key(&tenant.namespace().unwrap_or_default(), &tenant.name_any()));
            tenant_queue.add_after(Key::Fleet, FLEET_PAUSE);
            // Its class, old and new, counts its tenants.
            let earlier = tenant.status.as_ref().and_then(|status| status.class_name.as_deref());
            for class in [tenant.spec.class_name.as_deref().unwrap_or(DEFAULT_CLASS)]
                .into_iter()
                .chain(earlier)
            {
                tenant_queue.add_after(Key::Class(class.into()), FLEET_PAUSE);
            }
        },
    );
    let class_queue = queue.clone();
    let of_classes = tenants.clone();
    let (classes, starter) = starter.watch(
        Api::<TenantClass>::all(client.clone()),
        watcher::Config::default(),
        move |class, seen| {
            let name = class.name_any();
            class_queue.add(Key::Class(name.clone()));
            // Rules that change, and kinds that can be synced from now on.
            let conditions = class.status.iter().flat_map(|status| &status.conditions);
            let reasons: Vec<&str> = conditions.map(|condition| condition.reason.as_str()).collect();
            if seen.is_news(
                &name,
                &(class.metadata.generation, class.metadata.uid.as_ref(), reasons),
            ) {
                class_queue.add_after(Key::Fleet, FLEET_PAUSE);
                for tenant in of_classes.state() {
                    let earlier = tenant.status.as_ref().and_then(|status| status.class_name.as_deref());
                    if tenant.spec.class_name.as_deref().unwrap_or(DEFAULT_CLASS) == name || earlier == Some(&name) {
                        class_queue.add(tenant_key(&tenant.namespace().unwrap_or_default(), &tenant.name_any()));
                    }
                }
            }
        },
    );
    let pool_queue = queue.clone();
    let of_pools = tenants.clone();
    let (pools, starter) = starter.watch(
        Api::<HostNodePool>::all(client.clone()),
        watcher::Config::default(),
        move |pool, seen| {
            pool_queue.add(Key::Pool(pool.name_any()));
            // The pool's own status says nothing new to anybody.
            if seen.is_news(
                &pool.name_any(),
                &(pool.metadata.generation, pool.metadata.deletion_timestamp.is_some()),
            ) {
                pool_queue.add_after(Key::Fleet, FLEET_PAUSE);
                pool_queue.add_after(Key::SharedNodes, FLEET_PAUSE);
                // Whether a spec can be carried out depends on the pools.
                for tenant in of_pools.state() {
                    pool_queue.add(tenant_key(&tenant.namespace().unwrap_or_default(), &tenant.name_any()));
                }
            }
        },
    );
    let priority_queue = queue.clone();
    let (priority_classes, starter) = starter.watch(
        Api::<PriorityClass>::all(client.clone()),
        watcher::Config::default(),
        move |priority, _| {
            if let Some(class) = priority.labels().get(labels::CLASS) {
                priority_queue.add_after(Key::Class(class.clone()), FLEET_PAUSE);
            }
        },
    );
    let node_queue = queue.clone();
    let (of_tenants, of_pools) = (tenants.clone(), pools.clone());
    let (nodes, starter) = starter.watch(
        Api::<Node>::all(client.clone()),
        watcher::Config::default(),
        move |node, seen| {
            if !seen.is_news(&node.name_any(), &without_heartbeats(node)) {
                return;
            }
            node_queue.add_after(Key::Fleet, FLEET_PAUSE);
            node_queue.add_after(Key::SharedNodes, FLEET_PAUSE);
            for pool in of_pools.state() {
                node_queue.add_after(Key::Pool(pool.name_any()), FLEET_PAUSE);
            }
            let owner = NodeRecord::read(node).map(|record| record.uid);
            let pool = shared::pool_of(node).or_else(|| node.annotations().get(labels::PREVIOUS_SHARED_POOL));
            for tenant in of_tenants.state() {
                // Those who wait for nodes, and the one whose node it is.
                let waits = tenant
                    .status
                    .as_ref()
                    .is_none_or(|status| status.phase != Some(berth_api::Phase::Ready));
                let shares = pool.is_some_and(|pool| tenant.spec.uses_shared_pool(pool));
                if waits
                    || shares
                    || owner == tenant.uid()
                    || seen.had_owner(&node.name_any(), &tenant.uid().unwrap_or_default())
                {
                    node_queue.add_after(
                        tenant_key(&tenant.namespace().unwrap_or_default(), &tenant.name_any()),
                        FLEET_PAUSE,
                    );
                }
            }
            seen.note_owner(node.name_any(), owner.unwrap_or_default());
        },
    );
    let child_queue = queue.clone();
    let (tenant_nodes, starter) = starter.watch(
        Api::<TenantNode>::all(client.clone()),
        watcher::Config::default(),
        move |node, seen| {
            if seen.is_news(
                &format!("{:?}/{}", node.namespace(), node.name_any()),
                &node.metadata.generation,
            ) {
                enqueue_owner(&child_queue, node.labels());
            }
        },
    );
    // Of namespaces and Secrets only the metadata is looked at: what was deleted or changed by hand is made again.
    let ours = watcher::Config::default().labels(labels::TENANT);
    let child_queue = queue.clone();
    let (namespaces, starter) = starter.watch(
        Api::<PartialObjectMeta<Namespace>>::all(client.clone()),
        ours.clone(),
        move |namespace, seen| {
            enqueue_owner(&child_queue, namespace.labels());
            let allowed = namespace.annotations().get(berth_api::policy_annotations::SHARED_POOLS);
            if seen.is_news(&namespace.name_any(), &allowed) {
                child_queue.add_after(Key::SharedNodes, FLEET_PAUSE);
            }
        },
    );
    let child_queue = queue.clone();
    let (secrets, starter) = starter.watch(
        Api::<PartialObjectMeta<Secret>>::all(client.clone()),
        ours.clone(),
        move |secret, _| {
            enqueue_owner(&child_queue, secret.labels());
        },
    );
    let child_queue = queue.clone();
    let made_by_control = format!("{}={}", labels::MANAGED_BY, labels::MANAGED_BY_CONTROL);
    let (network_policies, starter) = starter.watch(
        Api::<NetworkPolicy>::all(client.clone()),
        watcher::Config::default().labels(&made_by_control),
        move |policy, seen| {
            let name = format!("{:?}/{}", policy.namespace(), policy.name_any());
            if seen.is_news(&name, &(policy.uid(), policy.metadata.generation)) {
                enqueue_owner(&child_queue, policy.labels());
            }
        },
    );
    let placeholder_queue = queue.clone();
    let (placeholders, starter) = starter.watch(
        Api::<Pod>::namespaced(client.clone(), system::NAMESPACE),
        watcher::Config::default().labels(labels::PLACEHOLDER),
        move |pod, seen| {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
            let deleted = pod.metadata.deletion_timestamp.is_some();
            if seen.is_news(&pod.name_any(), &(pod.uid(), node, phase, deleted)) {
                placeholder_queue.add_after(Key::Fleet, FLEET_PAUSE);
            }
        },
    );
    if uses_pods {
        // Their status is read when a tenant is reconciled; that it changed is seen in the metadata.
        let child_queue = queue.clone();
        starter.watch(
            Api::<PartialObjectMeta<Deployment>>::all(client.clone()),
            ours,
            move |deployment, _| {
                enqueue_owner(&child_queue, deployment.labels());
            },
        );
    }
    let owners = by_node::Owners {
        nodes: nodes.clone(),
        tenants: tenants.clone(),
        queue: queue.clone(),
    };
    let (workloads, workloads_listed) = workloads::start(client, tenants.clone(), queue.clone(), tasks, stop);
    let (usage, usage_listed) = by_node::platform_pods(client, owners.clone(), tasks, stop);
    let devices::Watched {
        devices,
        slices,
        listed: devices_listed,
    } = devices::start(client, &owners, &pools, tasks, stop);
    let (shared_pods, shared_listed) = by_node::shared_pods(client, queue.clone(), tasks, stop);
    tenants.wait_until_ready().await?;
    pools.wait_until_ready().await?;
    classes.wait_until_ready().await?;
    priority_classes.wait_until_ready().await?;
    nodes.wait_until_ready().await?;
    tenant_nodes.wait_until_ready().await?;
    namespaces.wait_until_ready().await?;
    secrets.wait_until_ready().await?;
    placeholders.wait_until_ready().await?;
    network_policies.wait_until_ready().await?;
    // Those that end without a word have nothing to list.
    let _ = tokio::join!(
        usage_listed,
        futures::future::join_all(devices_listed),
        shared_listed,
        workloads_listed
    );
    Ok(Stores {
        tenants,
        pools,
        classes,
        priority_classes,
        nodes,
        usage,
        workloads,
        slices,
        devices,
        shared_pods,
        placeholders,
        namespaces,
        network_policies,
        tenant_nodes,
    })
}

fn tenant_key(namespace: &str, name: &str) -> Key {
    Key::Tenant {
        namespace: namespace.into(),
        name: name.into(),
    }
}

fn enqueue_owner(queue: &Queue<Key>, all: &std::collections::BTreeMap<String, String>) {
    if let (Some(namespace), Some(name)) = (all.get(labels::TENANT_NAMESPACE), all.get(labels::TENANT_NAME)) {
        // Briefly later: most of these changes are control's own, several at a time.
        queue.add_after(tenant_key(namespace, name), FLEET_PAUSE);
    }
}

/// What of a node concerns anybody: everything but heartbeats and versions.
fn without_heartbeats(node: &Node) -> impl Hash + use<> {
    let mut node = node.clone();
    node.metadata.resource_version = None;
    node.metadata.managed_fields = None;
    for condition in node
        .status
        .iter_mut()
        .filter_map(|status| status.conditions.as_mut())
        .flatten()
    {
        condition.last_heartbeat_time = None;
    }
    serde_json::to_string(&node).unwrap_or_default()
}

/// What a watch saw of each object, as hashes, to tell news from echoes.
#[derive(Default)]
struct Seen {
    hashes: HashMap<String, u64>,
    owners: HashMap<String, String>,
}

impl Seen {
    fn is_news(&mut self, name: &str, value: &impl Hash) -> bool {
        use std::hash::{DefaultHasher, Hasher};
        let mut hasher = DefaultHasher::new();
        value.hash(&mut hasher);
        self.hashes.insert(name.to_owned(), hasher.finish()) != Some(hasher.finish())
    }

    fn had_owner(&self, name: &str, owner: &str) -> bool {
        self.owners.get(name).is_some_and(|earlier| earlier == owner)
    }

    fn note_owner(&mut self, name: String, owner: String) {
        self.owners.insert(name, owner);
    }
}

struct Starter<'a> {
    tasks: &'a mut JoinSet<()>,
    stop: &'a CancellationToken,
}

impl<'a> Starter<'a> {
    /// Watches one kind; `on_change` hears of every object that came, changed or went.
    fn watch<K, F>(self, api: Api<K>, config: watcher::Config, mut on_change: F) -> (reflector::Store<K>, Starter<'a>)
    where
        K: Resource<DynamicType = ()>
            + reflector::Lookup<DynamicType = ()>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + Sync
            + 'static,
        F: FnMut(&K, &mut Seen) + Send + 'static,
    {
        let (store, writer) = reflector::store();
        let stop = self.stop.clone();
        let kind = <K as Resource>::kind(&());
        self.tasks.spawn(async move {
            let mut seen = Seen::default();
            let mut first_error: Option<Instant> = None;
            let mut stream = watcher(api, config)
                .default_backoff()
                .modify(|object| object.meta_mut().managed_fields = None)
                .reflect(writer)
                .boxed();
            loop {
                let next = tokio::select! {
                    () = stop.cancelled() => return,
                    next = stream.try_next() => next,
                };
                match next {
                    Ok(Some(Event::Apply(object) | Event::InitApply(object))) => {
                        first_error = None;
                        on_change(&object, &mut seen);
                    }
                    Ok(Some(Event::Delete(object))) => {
                        seen.hashes.remove(&object.name_any());
                        on_change(&object, &mut seen);
                    }
                    Ok(Some(Event::Init | Event::InitDone)) => {}
                    Ok(None) => return,
                    Err(error) => {
                        let since = *first_error.get_or_insert_with(Instant::now);
                        tracing::warn!(%kind, %error, failing_for = ?since.elapsed(), "watch interrupted; trying again");
                    }
                }
            }
        });
        (store, self)
    }
}
