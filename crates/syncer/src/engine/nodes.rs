//! Reconciles a node, and renews the Leases that say that nodes are alive.

use super::{
    Engine, Outcome,
    api::{CallError, Delete},
    lock,
    recorder::Level,
    status_sync::status_patch,
};
use berth_api::labels;
use berth_sync_rules::{
    kinds::node,
    model::{
        KindId, json,
        resource::{self, Name, Side},
    },
};
use futures::{StreamExt, stream};
use jiff::Timestamp;
use kube::api::Patch;
use serde_json::{Value, json};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Time between renewals of a node's Lease.
const LEASE_RENEWAL: Duration = Duration::from_secs(10);
/// Nodes that are brought up to date, or whose Leases are renewed, at a time.
const CONCURRENCY: usize = 8;
/// How long everything else waits for the Nodes after a start.
const NODES_FIRST: Duration = Duration::from_secs(2);
/// Interval of checks whether the last host pod has left a node that is going away.
const DRAIN_POLL: Duration = Duration::from_secs(2);

pub(super) async fn reconcile(engine: &Engine, name: &Name, observed_at: Instant) -> Result<Outcome, CallError> {
    let stores = &engine.cache.stores;
    let published = stores
        .host(KindId::Node)
        .get(name)
        .filter(|node| node.deletion.is_none());
    let live = stores.tenant(KindId::Node).get(name);
    let live_object = live.as_ref().map(|node| node.object());
    // A Node that is none of the platform's is deleted, however often it is made: no pod can run there.
    note_placement(engine, name, live_object.as_deref().filter(|_| published.is_some()));
    match (published, live, live_object) {
        (None, Some(live), Some(object)) => {
            if node::has_running_pods(&engine.cache, &name.name) {
                return Ok(Outcome::requeue("draining", DRAIN_POLL));
            }
            if !node::is_ours(&object) {
                let message = "This Node does not represent a node of the platform, so it was deleted.";
                engine
                    .record_event(&KindId::Node.key(name.clone()), Level::Warning, "NodeRejected", message)
                    .await;
            }
            let how = Delete {
                uid: &live.uid,
                version: None,
                grace_seconds: None,
            };
            match engine.tenant.delete(resource::NODE, "", &name.name, how).await {
                Ok(_) | Err(CallError::Conflict(_)) => Ok(Outcome::new("deleted")),
                Err(error) => Err(error),
            }
        }
        (Some(published), _, object) => {
            bring_up_to_date(engine, name, &published.object(), object.as_deref(), observed_at).await
        }
        (None, _, _) => Ok(Outcome::new("nothing")),
    }
}

/// Lets the pods that wait for a node follow it if a Node has other labels or taints than before, or was cordoned or uncordoned:
/// some may run on it now. The same if a Node comes or goes. `node` is the tenant's.
fn note_placement(engine: &Engine, name: &Name, node: Option<&Value>) {
    let has = node.map(node::placement);
    let before = match &has {
        Some(has) => lock(&engine.node_placements).insert(name.clone(), has.clone()),
        None => lock(&engine.node_placements).remove(name),
    };
    if before != has {
        engine.note_changed_nodes();
    }
}

async fn bring_up_to_date(
    engine: &Engine,
    name: &Name,
    published: &Value,
    live: Option<&Value>,
    observed_at: Instant,
) -> Result<Outcome, CallError> {
    let mut desired = node::desired(&name.name, published, live);
    let hash = node::hash(published);
    let applied = live.and_then(|live| json::text(live, &["metadata", "annotations", labels::APPLIED_HASH]));
    let mut result = "nothing";
    let mut current = live.cloned();
    if applied != Some(&hash) || live.is_none_or(|live| node::differs(&desired, live)) {
        desired["metadata"]["annotations"][labels::APPLIED_HASH] = hash.into();
        let written = engine.tenant.apply(resource::NODE, "", &name.name, &desired).await?;
        engine.store_written(Side::Tenant, KindId::Node, name, written.clone());
        current = Some(written);
        result = "applied";
    }
    if let Some(status) = node::status(&name.name, published)
        && let Some(difference) = status_patch(current.as_ref().unwrap_or(&Value::Null), &status)
    {
        let uid = current.as_ref().and_then(|node| json::text(node, &["metadata", "uid"]));
        let patch = Patch::Merge(json!({"metadata": {"uid": uid}, "status": difference}));
        let written = engine
            .tenant
            .patch(resource::NODE, "", &name.name, "status", &patch)
            .await?;
        engine.store_written(Side::Tenant, KindId::Node, name, written);
        result = "reported";
    }
    if result != "nothing" {
        engine
            .metrics
            .sync_to_tenant
            .observe(observed_at.elapsed().as_secs_f64());
    }
    if live.is_none() {
        renew_lease(engine, name).await;
    }
    Ok(Outcome::new(result))
}

impl Engine {
    /// Brings the Nodes up to date before pods are created. A Node that the tenant gets back after it slept is still cordoned in the
    /// tenant: its pods would be kept away from it, and made again a moment later.
    pub(super) async fn begin_with_nodes(&self) {
        let nodes = stream::iter(self.cache.stores.host(KindId::Node).names());
        let all = nodes.for_each_concurrent(CONCURRENCY, async |name| {
            if let Err(error) = reconcile(self, &name, Instant::now()).await {
                tracing::debug!(node = %name, %error, "left to the queue");
            }
        });
        // The queue has all of them, too.
        let _ = tokio::time::timeout(NODES_FIRST, all).await;
    }

    /// Keeps the Leases of the tenant's nodes fresh.
    pub(super) async fn renew_leases(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(LEASE_RENEWAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let nodes = self.cache.stores.host(KindId::Node).names();
            stream::iter(nodes)
                .for_each_concurrent(CONCURRENCY, |name| {
                    let engine = Arc::clone(&self);
                    async move { renew_lease(&engine, &name).await }
                })
                .await;
        }
    }
}

async fn renew_lease(engine: &Engine, name: &Name) {
    let Some(node) = engine.cache.stores.tenant(KindId::Node).get(name) else {
        return;
    };
    let lease = node::lease(&name.name, &node.uid, Timestamp::now());
    let (resource, namespace) = (resource::LEASE, node::LEASE_NAMESPACE);
    let patch = Patch::Merge(lease.clone());
    let mut result = engine.tenant.patch(resource, namespace, &name.name, "", &patch).await;
    if matches!(result, Err(CallError::NotFound)) {
        result = engine.tenant.create(resource, namespace, &lease).await;
    }
    if let Err(error) = result {
        tracing::warn!(node = %name, %error, "could not renew a node's Lease");
    }
}
