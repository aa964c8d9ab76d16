//! Writes on nodes since when they are idle, so that idle times survive a restart of control.

use super::NodesContext;
use crate::{
    apply::is_status,
    error::{ReconcileError, api},
};
use berth_node_lifecycle::idle::idle_since_patch;
use berth_planner::{Fleet, NodeState};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{Patch, PatchParams},
    runtime::reflector::ObjectRef,
};
use serde_json::Value;

/// How many nodes are written at once.
const CONCURRENCY: usize = 16;

/// Writes on nodes since when they are idle, where that changed.
///
/// # Errors
/// The host's API server refuses or does not answer for some node. The others are written all the same.
pub async fn write_idle_times(context: &NodesContext, fleet: &Fleet) -> Result<(), ReconcileError> {
    let nodes: Api<Node> = Api::all(context.client.clone());
    let changed = fleet.nodes.iter().filter_map(|planned| {
        if !matches!(planned.state, NodeState::Owned(_)) {
            return None;
        }
        let node = context.stores.nodes.get(&ObjectRef::new(&planned.name))?;
        let body = idle_since_patch(&node, planned.idle_since)?;
        Some(patch_idle_since(nodes.clone(), planned.name.clone(), body))
    });
    let changed: Vec<_> = changed.collect();
    // The next plan is not made before this is done.
    let written: Vec<Result<(), ReconcileError>> = stream::iter(changed).buffer_unordered(CONCURRENCY).collect().await;
    written.into_iter().collect()
}

async fn patch_idle_since(nodes: Api<Node>, name: String, body: Value) -> Result<(), ReconcileError> {
    match nodes.patch(&name, &PatchParams::default(), &Patch::Merge(&body)).await {
        Ok(_) => Ok(()),
        // It changed meanwhile: the next plan writes it.
        Err(error) if is_status(&error, 409) || is_status(&error, 404) => Ok(()),
        Err(error) => match api("write the idle time of a node")(error) {
            // It is counted in memory all the same.
            error if error.refusal().is_some() => {
                tracing::debug!(node = name, %error, "not written");
                Ok(())
            }
            error => Err(error),
        },
    }
}
