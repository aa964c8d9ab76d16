//! Writes on nodes what has to survive a restart of control: since when they are idle, and the most GPUs that they had.

use super::NodesContext;
use crate::{
    apply::is_status,
    error::{ReconcileError, api},
};
use berth_api::labels;
use berth_node_lifecycle::{idle, recorded_gpus};
use berth_planner::{Fleet, Node as PlannedNode, NodeState};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
    runtime::reflector::ObjectRef,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// How many nodes are written at once.
const CONCURRENCY: usize = 16;

/// Writes the records of nodes that tenants have, where they changed.
///
/// # Errors
/// The host's API server refuses or does not answer for some node. The others are written all the same.
pub async fn write_records(context: &NodesContext, fleet: &Fleet) -> Result<(), ReconcileError> {
    let nodes: Api<Node> = Api::all(context.client.clone());
    let gpu_resources: BTreeMap<&str, &str> = fleet
        .pools
        .iter()
        .filter_map(|pool| Some((pool.name.as_str(), pool.gpu_resource_name.as_deref()?)))
        .collect();
    let changed = fleet.nodes.iter().filter_map(|planned| {
        let NodeState::Owned(owner) = &planned.state else {
            return None;
        };
        let node = context.stores.nodes.get(&ObjectRef::new(&planned.name))?;
        // It may have been released since the plan was made.
        if node.annotations().get(labels::OWNER_UID) != Some(&owner.tenant) {
            return None;
        }
        let body = build_patch(&node, planned, gpu_resources.get(planned.pool.as_str()).copied())?;
        Some(patch_records(nodes.clone(), planned.name.clone(), body))
    });
    let changed: Vec<_> = changed.collect();
    // The next plan is not made before this is done.
    let written: Vec<Result<(), ReconcileError>> = stream::iter(changed).buffer_unordered(CONCURRENCY).collect().await;
    written.into_iter().collect()
}

/// The merge patch that writes the records; none if the node has them already.
fn build_patch(node: &Node, planned: &PlannedNode, gpu_resource: Option<&str>) -> Option<Value> {
    let gpus = gpu_resource.and_then(|resource| recorded_gpus::annotation(node, resource, planned.recorded_gpus));
    let changes: BTreeMap<&str, Option<String>> = idle::annotation(node, planned.idle_since)
        .into_iter()
        .chain(gpus)
        .collect();
    (!changes.is_empty())
        .then(|| json!({"metadata": {"resourceVersion": node.resource_version(), "annotations": changes}}))
}

async fn patch_records(nodes: Api<Node>, name: String, body: Value) -> Result<(), ReconcileError> {
    match nodes.patch(&name, &PatchParams::default(), &Patch::Merge(&body)).await {
        Ok(_) => Ok(()),
        // It changed meanwhile: the next plan writes it.
        Err(error) if is_status(&error, 409) || is_status(&error, 404) => Ok(()),
        Err(error) => match api("write the records of a node")(error) {
            // Idle time is counted in memory all the same.
            error if error.refusal().is_some() => {
                tracing::debug!(node = name, %error, "not written");
                Ok(())
            }
            error => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_patch_writes_what_changed() {
        let annotations = json!({labels::IDLE_SINCE: "1970-01-01T00:01:40Z"});
        let node = json!({"metadata": {"name": "n", "resourceVersion": "7", "annotations": annotations}});
        let node: Node = serde_json::from_value(node).unwrap();
        let patch = |idle_since, recorded_gpus, resource| {
            let planned = PlannedNode {
                idle_since,
                recorded_gpus,
                ..PlannedNode::default()
            };
            build_patch(&node, &planned, resource)
        };
        assert_eq!(patch(Some(100), 0, Some("nvidia.com/gpu")), None);
        assert_eq!(patch(Some(100), 8, None), None, "a pool without GPUs");
        let both = json!({labels::IDLE_SINCE: null, labels::RECORDED_GPUS: "nvidia.com/gpu=8"});
        assert_eq!(
            patch(None, 8, Some("nvidia.com/gpu")),
            Some(json!({"metadata": {"resourceVersion": "7", "annotations": both}}))
        );
    }
}
