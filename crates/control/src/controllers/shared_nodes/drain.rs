//! The drain of nodes that have left their shared pool, in bounded time: the stages of [`find_drain`], as for nodes that leave
//! their tenant.

use super::{DRAIN_POLL, SharedNodesContext, patch_node};
use crate::{
    controllers::{
        pods_on_node::{DeletionLimits, PodsOnNode},
        recycling_events,
    },
    error::{ReconcileError, api},
};
use berth_api::{HostNodePool, RecyclingTimeouts, labels};
use berth_node_lifecycle::{
    shared_nodes::drain::{SharedNodeDrain, find_drain, pool_after_sharing, timeouts_after_sharing},
    transitions::{DrainStage, requires_scrub},
};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt, runtime::events::EventType};
use serde_json::json;
use std::{sync::Arc, time::Duration};

/// Pause before checking again a node on which no running pod is known. Pods that have finished hold up its scrub as well.
const IDLE_POLL: Duration = Duration::from_secs(30);

/// Advances the drain of a node, if it has left its shared pool. Returns when to check again, if pods may be left.
pub(super) async fn advance(
    context: &SharedNodesContext,
    node: &Node,
    pools: &[Arc<HostNodePool>],
) -> Result<Option<Duration>, ReconcileError> {
    let name = node.name_any();
    let pods: Vec<String> = context.stores.shared_pods.of(&name).into_keys().collect();
    let timeouts = timeouts_after_sharing(node, pools);
    let Some(drain) = find_drain(node, &pods, &timeouts, context.clock.now()) else {
        return Ok(None);
    };
    let next_pool = pool_after_sharing(node, pools);
    if pods.is_empty() && next_pool.is_none() {
        // No pod is left, and no tenant waits for the node.
        return Ok(None);
    }
    if !drain.is_recorded || drain.announcement.is_some() {
        record(context, node, &drain).await?;
    } else if drain.stage == DrainStage::Delete {
        let removes_overdue = next_pool.is_some_and(|pool| requires_scrub(&pool.spec));
        delete_pods(context, &name, &timeouts, removes_overdue).await?;
    }
    Ok(Some(if pods.is_empty() { IDLE_POLL } else { DRAIN_POLL }))
}

/// Writes the start and the stage of the drain on the node, and then publishes the stage.
async fn record(context: &SharedNodesContext, node: &Node, drain: &SharedNodeDrain) -> Result<(), ReconcileError> {
    let mut body = json!({"metadata": {
        "resourceVersion": node.resource_version(),
        "annotations": {labels::SHARED_UNTIL: drain.since.to_string()},
    }});
    if let Some(announcement) = &drain.announcement {
        body["metadata"]["annotations"][labels::REASON] = announcement.as_str().into();
    }
    let is_written = patch_node(context, node, &body, "drain").await?;
    let Some(announcement) = drain.announcement.as_ref().filter(|_| is_written) else {
        return Ok(());
    };
    let name = node.name_any();
    tracing::warn!(
        node = name,
        announcement,
        "pods hold up the drain of a node that was shared"
    );
    let reason = recycling_events::drain_reason(drain.stage);
    recycling_events::publish(&context.recorder, node, EventType::Warning, reason, announcement).await;
    let pods = PodsOnNode::list(&context.client, &name).await?;
    let message = format!("node {name} is no longer shared: {announcement}");
    recycling_events::warn_pods(&context.recorder, &pods.of_tenants, &message).await;
    Ok(())
}

/// Deletes what is left on a node, whatever budgets say. Pods that are overdue are removed without their kubelet only if a
/// scrub then ends their processes.
async fn delete_pods(
    context: &SharedNodesContext,
    name: &str,
    timeouts: &RecyclingTimeouts,
    removes_overdue: bool,
) -> Result<(), ReconcileError> {
    let now = context.clock.now();
    // The view may lag: the node may be shared again.
    let nodes: Api<Node> = Api::all(context.client.clone());
    let Some(node) = nodes.get_opt(name).await.map_err(api("get a node"))? else {
        return Ok(());
    };
    if find_drain(&node, &[], timeouts, now).is_none_or(|drain| drain.stage != DrainStage::Delete) {
        return Ok(());
    }
    let limits = DeletionLimits {
        max_grace_seconds: timeouts.terminate(),
        removes_overdue,
        now,
    };
    let pods = PodsOnNode::list(&context.client, name).await?;
    pods.delete(&context.client, limits).await
}
