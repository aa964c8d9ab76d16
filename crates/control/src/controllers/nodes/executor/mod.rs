//! Executes what the planner decided, and advances every node that is between two tenants, one change at a time. Every patch
//! carries the resource version it was decided on, so that a stale view or a second control changes nothing.
//!
//! [`berth_node_lifecycle::transitions`] decides the next transition of a node; here the facts for it are observed, and it is
//! applied. Control may end at any point: all that is known is on the Node, in Jobs whose names follow from it, and in in-use
//! markers.
//!
//! Steps that do not depend on each other go on when one fails, see [`failures`].

mod actions;
mod events;
mod failures;
mod jobs;
mod reserve;
mod risks;
mod transitions;
mod unused_claims;
mod write;

#[cfg(test)]
mod tests;

use crate::{
    controllers::nodes::NodesContext,
    controllers::nodes::jobs::{ImageRules, NodeJobs},
    controllers::tenant_class::class_of,
    error::{ReconcileError, api},
    events::EventRecorder,
    metrics::{Metrics, NodeStateLabels},
    tenant_state::is_created,
};
use berth_api::{HostNodePoolSpec, TenantClass, TenantCluster, names::TenantId};
use berth_node_lifecycle::{Assignment, AssignmentState, PoolSelectors, devices::Devices, rejections::RejectedNodes};
use berth_planner::{Action, ActionKind};
use berth_runtime::watched::{Watched, for_each};
use failures::StepFailures;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, Resource, ResourceExt, api::ListParams, core::PartialObjectMeta};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::sync::OnceCell;

/// The resource that counts the GPUs of a node whose pool is gone.
const NVIDIA: &str = "nvidia.com/gpu";
/// Pause before planning again after a plan that was made on an outdated view.
const STALE_POLL: Duration = Duration::from_millis(100);
/// Pause before trying again what the API server rejected or failed to do.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// Executes a plan and advances nodes. Returns when to check again, if something is in progress, or the error if the host's API server
/// failed so often that the rest was given up; and the nodes that are not released, although the plan says so.
pub async fn execute_plan(
    context: &NodesContext,
    actions: &[Action],
) -> (Result<Option<Duration>, ReconcileError>, BTreeSet<String>) {
    let mut pass = Pass::new(context);
    let executed = execute(&mut pass, actions).await;
    let kept = pass.list_kept(actions);
    (executed, kept)
}

async fn execute(pass: &mut Pass<'_>, actions: &[Action]) -> Result<Option<Duration>, ReconcileError> {
    let mut failures = StepFailures::default();
    let again = [
        actions::apply_actions(pass, actions, &mut failures).await,
        reserve::reserve_nodes(pass, actions, &mut failures).await,
        transitions::advance_nodes(pass, &mut failures).await,
    ];
    pass.update_node_metrics();
    let retry = failures.into_pause()?;
    Ok(again.into_iter().chain([retry]).flatten().min())
}

/// What classes say of images. A tenant that runs without a class may run every image.
fn find_image_rules(classes: &[Arc<TenantClass>], tenants: &[Arc<TenantCluster>]) -> ImageRules {
    let exists = |name: &str| classes.iter().any(|class| class.name_any() == name);
    let runs_without_class = |cluster: &Arc<TenantCluster>| {
        // One that loses its class keeps the rules with which it runs, and one that is not accepted runs nothing.
        let running = cluster.status.as_ref().and_then(|status| status.class_name.as_ref());
        is_created(cluster) && running.is_none() && class_of(cluster, exists).is_none()
    };
    let without_class = tenants.iter().any(runs_without_class).then_some(None);
    let lists = classes.iter().map(|class| class.spec.sync.pods.images.as_deref());
    ImageRules::of(lists.chain(without_class))
}

/// What one pass of the executor works with: the host's API, the view of the host, and what was changed meanwhile.
struct Pass<'a> {
    client: Client,
    recorder: &'a EventRecorder,
    metrics: &'a Metrics,
    rejected_nodes: &'a RejectedNodes,
    job_settings: &'a NodeJobs,
    devices: &'a Devices,
    /// What classes say of images, and what tenants without a class may run.
    images: ImageRules,
    now: Timestamp,
    nodes: BTreeMap<String, Arc<Node>>,
    /// Slugs of tenants by UID; none for a tenant whose workloads are gone.
    tenants: BTreeMap<String, Option<String>>,
    pools: PoolSelectors,
    pool_specs: BTreeMap<String, HostNodePoolSpec>,
    /// UIDs of all `TenantClusters`, listed at the API server once if one is missing in the view.
    listed_tenants: OnceCell<Vec<String>>,
}

impl<'a> Pass<'a> {
    fn new(context: &'a NodesContext) -> Self {
        let stores = &context.stores;
        let nodes = stores.nodes.state().into_iter().map(|node| (node.name_any(), node));
        let pools = stores.pools.state();
        let clusters = stores.tenants.state();
        let images = find_image_rules(&stores.classes.state(), &clusters);
        let tenants = clusters.into_iter().filter_map(|cluster| {
            let uid = cluster.uid()?;
            let is_gone = cluster.meta().deletion_timestamp.is_some() && context.tenants.workloads_gone(&uid);
            let slug = (!is_gone).then(|| TenantId::new(&cluster.name_any(), &uid).slug().to_owned());
            Some((uid, slug))
        });
        Self {
            client: context.client.clone(),
            recorder: &context.recorder,
            metrics: &context.metrics,
            rejected_nodes: &context.rejected_nodes,
            job_settings: &context.node_jobs,
            devices: &stores.devices,
            images,
            now: context.clock.now(),
            nodes: nodes.collect(),
            tenants: tenants.collect(),
            pool_specs: pools.iter().map(|pool| (pool.name_any(), pool.spec.clone())).collect(),
            pools: PoolSelectors::from_pools(&pools),
            listed_tenants: OnceCell::new(),
        }
    }

    fn node_api(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// The node as it is now; none if it is gone.
    async fn get_node(&self, name: &str) -> Result<Option<Node>, ReconcileError> {
        self.node_api().get_opt(name).await.map_err(api("get a node"))
    }

    /// The slug of a tenant that is not gone.
    fn tenant_slug(&self, uid: &str) -> Option<String> {
        self.tenants.get(uid)?.clone()
    }

    /// Whether a tenant that [`Self::tenant_slug`] does not find is gone, and not only unknown to a view that lags.
    async fn is_tenant_gone(&self, uid: &str) -> Result<bool, ReconcileError> {
        if uid.is_empty() || self.tenants.contains_key(uid) {
            return Ok(true);
        }
        let list_uids = async || {
            // One that cannot be read is there as well.
            let clusters: Api<Watched<PartialObjectMeta<TenantCluster>>> = Api::all(self.client.clone());
            let mut uids = Vec::new();
            let listed = for_each(&clusters, ListParams::default(), |cluster| uids.extend(cluster.uid()));
            listed.await.map_err(api("list the tenants"))?;
            Ok::<_, ReconcileError>(uids)
        };
        let listed = self.listed_tenants.get_or_try_init(list_uids).await?;
        Ok(!listed.iter().any(|listed| listed == uid))
    }

    /// The name of a node's pool, as its labels say.
    fn pool_name(&self, node: &Node) -> String {
        let pool = self.pools.pool_of(node.labels()).ok().flatten();
        pool.unwrap_or_default().to_owned()
    }

    /// The spec of a node's pool; none if the pool is gone.
    fn find_pool_spec(&self, node: &Node, assignment: &Assignment) -> Option<&HostNodePoolSpec> {
        let by_labels = || self.pool_specs.get(&self.pool_name(node));
        self.pool_specs.get(&assignment.pool).or_else(by_labels)
    }

    /// The spec of a node's pool. A node whose pool is gone is treated as the defaults say.
    fn pool_spec(&self, node: &Node, assignment: &Assignment) -> HostNodePoolSpec {
        if let Some(spec) = self.find_pool_spec(node, assignment) {
            return spec.clone();
        }
        let capacity = node.status.as_ref().and_then(|status| status.capacity.as_ref());
        let has_gpus = capacity.is_some_and(|capacity| capacity.contains_key(NVIDIA));
        HostNodePoolSpec {
            gpu_resource_name: has_gpus.then(|| NVIDIA.to_owned()),
            ..HostNodePoolSpec::default()
        }
    }

    /// Nodes that are to be released and still serve their tenant.
    fn list_kept(&self, actions: &[Action]) -> BTreeSet<String> {
        let released = actions
            .iter()
            .filter(|action| matches!(action.kind, ActionKind::Release { .. }));
        let kept = released.filter(|action| {
            let assignment = self.nodes.get(&action.node).and_then(|node| Assignment::read(node));
            assignment.is_some_and(|assignment| assignment.state == AssignmentState::Assigned)
        });
        kept.map(|action| action.node.clone()).collect()
    }

    /// Keeps a node as it is after a change, for the steps that follow.
    fn update_view(&mut self, node: Node) {
        self.nodes.insert(node.name_any(), Arc::new(node));
    }

    fn update_node_metrics(&self) {
        let mut counts: BTreeMap<(String, &'static str), i64> = BTreeMap::new();
        for node in self.nodes.values() {
            let assignment = Assignment::read(node);
            let pool = match &assignment {
                Some(assignment) if !assignment.pool.is_empty() => assignment.pool.clone(),
                _ => self.pool_name(node),
            };
            let state = assignment.map_or("Free", |assignment| assignment.state.name());
            if !pool.is_empty() {
                *counts.entry((pool, state)).or_default() += 1;
            }
        }
        let states = AssignmentState::ALL.map(AssignmentState::name);
        let all = self.pool_specs.keys().flat_map(|pool| {
            let states = states.into_iter().chain(["Free"]);
            states.map(move |state| (pool.clone(), state))
        });
        self.metrics.nodes.set_all(all.map(|(pool, state)| {
            let count = counts.get(&(pool.clone(), state)).copied().unwrap_or_default();
            (NodeStateLabels { pool, state }, count)
        }));
    }
}
