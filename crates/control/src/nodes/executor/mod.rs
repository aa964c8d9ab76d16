//! Carries out what the planner decided, and moves every node on that is between two tenants, one change at a time. Every
//! patch carries the resource version it was decided on, so that a stale view or a second control changes nothing.
//!
//! What the next step of a node is, [`step`] says; here it is only looked at what that depends on, and done. Control may end
//! at any point: all that is known is on the Node, in Jobs with names that follow from it, and in marks.

mod advance;
mod job;
mod marks;
mod notes;
mod pods;
mod reserve;

use super::{
    NodeRecord, Selectors, gather, placeholders,
    record::{State, free_patch},
};
use crate::{
    apply::is_status,
    context::Context,
    error::{ReconcileError, api},
    metrics::{ActionLabels, NodeStateLabels, ViolationLabels},
};
use berth_api::{HostNodePoolSpec, TenantCluster, names::TenantId};
use berth_planner::{Action, ActionKind, Fleet, Plan};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Resource, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::Value;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::sync::OnceCell;

/// What counts GPUs on a node whose pool is gone.
const NVIDIA: &str = "nvidia.com/gpu";
/// Pause after which a plan that was made on an old view is made anew.
const STALE_POLL: Duration = Duration::from_millis(100);

/// Pause after a change of a node was refused.
const REFUSED_POLL: Duration = Duration::from_secs(5);

/// Plans once and carries the plan out. Returns when to look again, if something is under way.
///
/// # Errors
/// The host's API server refuses or does not answer. Conflicts are no errors: the watch brings the newer node, and with
/// it the next plan.
pub async fn reconcile(context: &Context) -> Result<Option<Duration>, ReconcileError> {
    let now = context.clock.now();
    let (fleet, needs) = gather::fleet(context, now);
    let plan = berth_planner::plan(&fleet);
    report_violations(context, &fleet, &plan);
    gather::tell(context, &plan);
    let soonest = carry_out(context, &plan.actions).await?;
    gather::write_idle(context, &fleet).await?;
    let repeat = placeholders::reconcile(context, &plan, &needs).await;
    let again = plan.replan_at.map(|at| {
        let seconds = u64::try_from(at - fleet.now).unwrap_or_default();
        Duration::from_secs(seconds.max(1))
    });
    let rested = context.refusals.soonest(now.as_second());
    let rested = rested.map(|seconds| Duration::from_secs(seconds.unsigned_abs()));
    Ok([soonest, again, repeat, rested].into_iter().flatten().min())
}

/// Counts and logs the rules that a plan breaks: there should be none. The plan is carried out all the same, since each of its
/// actions is checked against its node again.
fn report_violations(context: &Context, fleet: &Fleet, plan: &Plan) {
    for violation in berth_planner::check(fleet, plan) {
        let kind = violation.kind();
        let labels = ViolationLabels { kind };
        context.metrics.plan_violations.get_or_create(&labels).inc();
        tracing::error!(kind, %violation, "a plan breaks a rule");
    }
}

/// Carries out a plan and moves nodes on. Returns when to look again, if something is under way.
///
/// # Errors
/// The host's API server refuses or does not answer.
pub async fn carry_out(context: &Context, actions: &[Action]) -> Result<Option<Duration>, ReconcileError> {
    let mut pass = Pass::new(context);
    let mut again = None;
    for action in actions {
        match change(&mut pass, action).await {
            Ok(true) => {}
            Ok(false) => again = Some(STALE_POLL),
            // What cannot be done on one node must not hold up the others.
            Err(error) if error.refusal().is_some() => {
                tracing::warn!(node = action.node, %error, "a node could not be changed");
                again = again.or(Some(REFUSED_POLL));
            }
            Err(error) => return Err(error),
        }
    }
    let promised = reserve::all(&mut pass, actions).await?;
    again = [again, promised].into_iter().flatten().min();
    let soonest = advance::all(&mut pass).await?;
    count(&pass);
    Ok([again, soonest].into_iter().flatten().min())
}

/// Everything one pass works with: the view of the host, and what was changed meanwhile.
struct Pass<'a> {
    context: &'a Context,
    now: Timestamp,
    nodes: BTreeMap<String, Arc<Node>>,
    tenants: BTreeMap<String, Arc<TenantCluster>>,
    pools: Selectors,
    specs: BTreeMap<String, HostNodePoolSpec>,
    /// UIDs of all `TenantClusters`, asked of the API server once if one is missing in the view.
    known: OnceCell<Vec<String>>,
}

impl<'a> Pass<'a> {
    fn new(context: &'a Context) -> Self {
        let stores = &context.stores;
        let nodes = stores.nodes.state().into_iter().map(|node| (node.name_any(), node));
        let tenants = stores.tenants.state().into_iter();
        let specs = stores.pools.state().into_iter();
        Self {
            context,
            now: context.clock.now(),
            nodes: nodes.collect(),
            tenants: tenants.filter_map(|tenant| Some((tenant.uid()?, tenant))).collect(),
            pools: Selectors::of(context),
            specs: specs.map(|pool| (pool.name_any(), pool.spec.clone())).collect(),
            known: OnceCell::new(),
        }
    }

    /// The slug of a tenant that is not gone.
    fn slug(&self, uid: &str) -> Option<String> {
        let cluster = self.tenants.get(uid)?;
        let is_gone = cluster.meta().deletion_timestamp.is_some() && self.context.tenants.workloads_gone(uid);
        (!is_gone).then(|| TenantId::new(&cluster.name_any(), uid).slug().to_owned())
    }

    /// Whether a tenant that [`Self::slug`] does not find is gone, and not only unknown to a view that lags.
    async fn is_gone(&self, uid: &str) -> Result<bool, ReconcileError> {
        if uid.is_empty() || self.tenants.contains_key(uid) {
            return Ok(true);
        }
        let ask = async || {
            let clusters: Api<TenantCluster> = Api::all(self.context.client.clone());
            let list = clusters.list_metadata(&ListParams::default()).await;
            let list = list.map_err(api("list the tenants"))?;
            Ok::<_, ReconcileError>(list.items.iter().filter_map(ResourceExt::uid).collect::<Vec<_>>())
        };
        let known = self.known.get_or_try_init(ask).await?;
        Ok(!known.iter().any(|known| known == uid))
    }

    /// The name of a node's pool, as its labels say.
    fn pool_name(&self, node: &Node) -> String {
        let pool = self.pools.pool_of(node.labels()).ok().flatten();
        pool.unwrap_or_default().to_owned()
    }

    /// What a node's pool asks for. A node whose pool is gone is treated as the defaults say.
    fn pool_spec(&self, node: &Node, record: &NodeRecord) -> HostNodePoolSpec {
        let by_labels = || self.specs.get(&self.pool_name(node));
        if let Some(spec) = self.specs.get(&record.pool).or_else(by_labels) {
            return spec.clone();
        }
        let capacity = node.status.as_ref().and_then(|status| status.capacity.as_ref());
        let has_gpus = capacity.is_some_and(|capacity| capacity.contains_key(NVIDIA));
        HostNodePoolSpec {
            gpu_resource_name: has_gpus.then(|| NVIDIA.to_owned()),
            ..HostNodePoolSpec::default()
        }
    }

    /// Takes note of a node as it is after a change.
    fn saw(&mut self, node: Node) {
        self.nodes.insert(node.name_any(), Arc::new(node));
    }

    /// Writes a record on a node and tells of it. None: the node changed meanwhile, or is gone.
    async fn write(
        &self,
        node: &Node,
        record: &NodeRecord,
        more: &[(String, Option<String>)],
    ) -> Result<Option<Node>, ReconcileError> {
        let patched = self.put(node, record, more, record.state.name()).await?;
        if patched.is_some() {
            notes::changed(self, node, NodeRecord::read(node).as_ref(), Some(record)).await;
        }
        Ok(patched)
    }

    /// Writes a record anew on a node whose record somebody changed.
    async fn mend(&self, node: &Node, record: &NodeRecord) -> Result<Option<Node>, ReconcileError> {
        let patched = self.put(node, record, &[], "Mend").await?;
        if patched.is_some() {
            notes::mended(self, node, record).await;
        }
        Ok(patched)
    }

    /// Applies the patch of a record.
    async fn put(
        &self,
        node: &Node,
        record: &NodeRecord,
        more: &[(String, Option<String>)],
        action: &'static str,
    ) -> Result<Option<Node>, ReconcileError> {
        let patched = self.patch(node, &record.patch(node, more), action).await?;
        let before = NodeRecord::read(node).filter(|before| before.handover != record.handover);
        if let Some(before) = before.filter(|_| patched.is_some()) {
            // What was begun under the old name proves nothing, and must not go on beside the new one.
            job::remove(self.context, &node.name_any(), &before).await?;
        }
        Ok(patched)
    }

    /// Takes the record off a node, and everything else that was kept of the hand-over.
    async fn free(&self, node: &Node, record: Option<&NodeRecord>, why: &str) -> Result<Option<Node>, ReconcileError> {
        let patched = self.patch(node, &free_patch(node), "Free").await?;
        if patched.is_some() {
            let name = node.name_any();
            marks::remove(self.context, &name).await?;
            if let Some(record) = record {
                job::remove(self.context, &name, record).await?;
            }
            tracing::info!(node = name, why, "node is free");
            notes::changed(self, node, record, None).await;
        }
        Ok(patched)
    }

    /// Applies a merge patch with a resource version in it.
    async fn patch(&self, node: &Node, body: &Value, action: &'static str) -> Result<Option<Node>, ReconcileError> {
        let nodes: Api<Node> = Api::all(self.context.client.clone());
        match nodes
            .patch(&node.name_any(), &PatchParams::default(), &Patch::Merge(body))
            .await
        {
            Ok(node) => {
                let labels = ActionLabels { action };
                self.context.metrics.node_actions.get_or_create(&labels).inc();
                Ok(Some(node))
            }
            Err(error) if is_status(&error, 409) || is_status(&error, 404) => Ok(None),
            Err(error) => Err(api("change a node")(error)),
        }
    }
}

/// Carries out one action other than a promise. `false`: the node changed meanwhile.
async fn change(pass: &mut Pass<'_>, action: &Action) -> Result<bool, ReconcileError> {
    let Some(node) = pass.nodes.get(&action.node).cloned() else {
        return Ok(true);
    };
    let Some(record) = NodeRecord::read(&node) else {
        return Ok(true);
    };
    let reason = action.reason.to_string();
    let patched = match &action.kind {
        // Nothing of the tenant was ever on it.
        ActionKind::CancelReservation | ActionKind::Release { .. } if record.state.is_coming() => {
            pass.free(&node, Some(&record), &reason).await?
        }
        ActionKind::Reserve { .. } | ActionKind::CancelReservation => return Ok(true),
        ActionKind::Release { drain_at: until } => {
            let until = Timestamp::from_second(*until).unwrap_or(pass.now);
            let released = match record.state {
                State::Assigned => NodeRecord {
                    cordoned_until: Some(until),
                    ..record.to(State::Cordoned, pass.now, &reason)
                },
                State::Cordoned if record.cordoned_until.is_none_or(|earlier| until < earlier) => NodeRecord {
                    cordoned_until: Some(until),
                    reason: reason.clone(),
                    ..record
                },
                _ => return Ok(true),
            };
            pass.write(&node, &released, &[]).await?
        }
        ActionKind::CancelRelease => match record.state {
            State::Cordoned => {
                let kept = record.to(State::Assigned, pass.now, &reason);
                pass.write(&node, &kept, &[]).await?
            }
            _ => return Ok(true),
        },
    };
    match patched {
        Some(node) => {
            pass.saw(node);
            Ok(true)
        }
        None => Ok(false),
    }
}

/// Counts nodes by state for the metrics.
fn count(pass: &Pass<'_>) {
    let mut counts: BTreeMap<(String, &'static str), i64> = BTreeMap::new();
    for node in pass.nodes.values() {
        let record = NodeRecord::read(node);
        let pool = match &record {
            Some(record) if !record.pool.is_empty() => record.pool.clone(),
            _ => pass.pool_name(node),
        };
        let state = record.map_or("Free", |record| record.state.name());
        if !pool.is_empty() {
            *counts.entry((pool, state)).or_default() += 1;
        }
    }
    let gauges = &pass.context.metrics.nodes;
    for pool in pass.specs.keys() {
        for state in State::ALL.map(State::name).into_iter().chain(["Free"]) {
            let count = counts.get(&(pool.clone(), state)).copied().unwrap_or_default();
            let labels = NodeStateLabels {
                pool: pool.clone(),
                state,
            };
            gauges.get_or_create(&labels).set(count);
        }
    }
}
