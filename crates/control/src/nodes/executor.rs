//! Carries out what the planner decided, one change at a time. Every patch carries the resource version it was decided
//! on, so that a stale view or a second control changes nothing.

use super::{
    NodeRecord, fleet, is_available,
    planner::{Action, Plan, plan},
    record::{DRAINING, assign_patch, draining_patch, release_patch},
};
use crate::{
    apply::is_status,
    context::Context,
    error::{ReconcileError, api},
    metrics::ActionLabels,
};
use berth_api::{TenantCluster, labels, names::TenantId};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{EvictParams, ListParams, Patch, PatchParams},
};
use serde_json::Value;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// Pause before looking again at nodes that are not empty yet.
const DRAIN_POLL: Duration = Duration::from_secs(1);
/// Pause after which a plan that was made on an old view is made anew.
const STALE_POLL: Duration = Duration::from_millis(100);

/// Plans once and carries the plan out. Returns when to look again, if something is under way.
///
/// # Errors
/// The host's API server refuses or does not answer. Conflicts are no errors: the watch brings the newer node, and with
/// it the next plan.
pub async fn reconcile(context: &Context) -> Result<Option<Duration>, ReconcileError> {
    let fleet = fleet(context);
    let Plan { actions, waiting } = plan(&fleet);
    context.tenants.set_waiting(waiting);
    let nodes: BTreeMap<String, Arc<Node>> = context
        .stores
        .nodes
        .state()
        .into_iter()
        .map(|node| (node.name_any(), node))
        .collect();
    let tenants: BTreeMap<String, Arc<TenantCluster>> = context
        .stores
        .tenants
        .state()
        .into_iter()
        .filter_map(|tenant| Some((tenant.uid()?, tenant)))
        .collect();
    let mut again = None;
    for action in &actions {
        let (Action::Assign { node, .. } | Action::Drain { node } | Action::Keep { node } | Action::Release { node }) =
            action;
        let Some(node) = nodes.get(node) else { continue };
        match action {
            // Below, all nodes of a tenant together.
            Action::Assign { .. } => {}
            Action::Drain { .. } => {
                patch(context, node, &draining_patch(node, true), "drain").await?;
            }
            Action::Keep { .. } => {
                patch(context, node, &draining_patch(node, false), "keep").await?;
            }
            Action::Release { .. } => {
                if !release_if_empty(context, node).await? {
                    again = Some(DRAIN_POLL);
                }
            }
        }
    }
    for (uid, cluster) in &tenants {
        if !assign_all(context, cluster, uid, &actions).await? {
            again = Some(STALE_POLL);
        }
    }
    for node in nodes.values() {
        let Some(record) = NodeRecord::read(node) else { continue };
        let Some(cluster) = tenants.get(&record.uid) else {
            continue;
        };
        let id = TenantId::new(&cluster.name_any(), &record.uid);
        let touched = actions.iter().any(|action| {
            let (Action::Assign { node: n, .. }
            | Action::Drain { node: n }
            | Action::Keep { node: n }
            | Action::Release { node: n }) = action;
            *n == node.name_any()
        });
        if touched {
            continue;
        }
        if !record.is_complete(node, &id) {
            tracing::warn!(
                node = node.name_any(),
                tenant = id.slug(),
                "mending the owner's label, state or taint"
            );
            let mut mended = assign_patch(node, &id, &record.uid, &record.group, &record.pool);
            if record.draining {
                mended["metadata"]["labels"][labels::NODE_STATE] = DRAINING.into();
            }
            patch(context, node, &mended, "repair").await?;
        } else if record.draining && !release_if_empty(context, node).await? {
            evict(context, node).await?;
            again = Some(DRAIN_POLL);
        }
    }
    Ok(again)
}

/// Gives a tenant every node that the plan has for it, or none. The plan was made on a view that may lag behind, even
/// behind this control's own last changes: all nodes are looked at anew before the first of them is given.
/// `false`: one of them is not free any more, so that the plan is void.
async fn assign_all(
    context: &Context,
    cluster: &TenantCluster,
    uid: &str,
    actions: &[Action],
) -> Result<bool, ReconcileError> {
    let id = TenantId::new(&cluster.name_any(), uid);
    let mut fresh = Vec::new();
    for action in actions {
        let Action::Assign {
            node,
            tenant,
            group,
            pool,
        } = action
        else {
            continue;
        };
        if tenant != uid {
            continue;
        }
        match free_node(context, node).await? {
            Some(node) => fresh.push((node, group, pool)),
            None => return Ok(false),
        }
    }
    for (mut node, group, pool) in fresh {
        // A heartbeat may come in between: that is no reason to leave the tenant with a part of its nodes.
        while !patch(context, &node, &assign_patch(&node, &id, uid, group, pool), "assign").await? {
            match free_node(context, &node.name_any()).await? {
                Some(newer) => node = newer,
                None => return Ok(false),
            }
        }
        tracing::info!(node = node.name_any(), tenant = id.slug(), group, pool, "node assigned");
    }
    Ok(true)
}

/// A node as it is now, if it has no owner and could be assigned.
async fn free_node(context: &Context, name: &str) -> Result<Option<Node>, ReconcileError> {
    let nodes: Api<Node> = Api::all(context.client.clone());
    let node = nodes.get_opt(name).await.map_err(api("look at a node"))?;
    Ok(node.filter(|node| NodeRecord::read(node).is_none() && is_available(node)))
}

/// Applies a merge patch with a resource version in it. `false`: the node changed meanwhile, or is gone.
async fn patch(context: &Context, node: &Node, body: &Value, action: &'static str) -> Result<bool, ReconcileError> {
    let api_nodes: Api<Node> = Api::all(context.client.clone());
    match api_nodes
        .patch(&node.name_any(), &PatchParams::default(), &Patch::Merge(body))
        .await
    {
        Ok(_) => {
            context
                .metrics
                .node_actions
                .get_or_create(&ActionLabels { action })
                .inc();
            Ok(true)
        }
        Err(error) if is_status(&error, 409) || is_status(&error, 404) => Ok(false),
        Err(error) => Err(api("change a node")(error)),
    }
}

/// Pods that syncers made on a node, asked of the API server itself: a view that lags could free a node too early.
async fn tenant_pods(context: &Context, node: &Node) -> Result<Vec<Pod>, ReconcileError> {
    let pods: Api<Pod> = Api::all(context.client.clone());
    let params = ListParams::default()
        .fields(&format!("spec.nodeName={}", node.name_any()))
        .labels(&format!("{}={}", labels::MANAGED_BY, labels::MANAGED_BY_SYNCER));
    Ok(pods.list(&params).await.map_err(api("list the pods of a node"))?.items)
}

/// Takes the owner off a node that no tenant's pod is on any more.
async fn release_if_empty(context: &Context, node: &Node) -> Result<bool, ReconcileError> {
    if !tenant_pods(context, node).await?.is_empty() {
        return Ok(false);
    }
    if patch(context, node, &release_patch(node), "release").await? {
        tracing::info!(node = node.name_any(), "node released");
    }
    Ok(true)
}

/// Asks the pods of a node to leave, as `kubectl drain` does. Disruption budgets may say "not yet" (429).
async fn evict(context: &Context, node: &Node) -> Result<(), ReconcileError> {
    for pod in tenant_pods(context, node).await? {
        if pod.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let namespace = pod.namespace().unwrap_or_default();
        let pods: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
        match pods.evict(&pod.name_any(), &EvictParams::default()).await {
            Ok(_) => {}
            Err(error) if is_status(&error, 429) || is_status(&error, 404) => {}
            Err(error) => return Err(api("evict a pod")(error)),
        }
    }
    Ok(())
}
