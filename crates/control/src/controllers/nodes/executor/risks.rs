//! Risks in the set-up of a node, which its validation reports: they stay on the node as an annotation until it is validated again.

use super::{Pass, events, jobs};
use crate::{controllers::nodes::jobs::OnNode, error::ReconcileError};
use berth_api::{ScrubPolicy, labels};
use berth_node_lifecycle::AssignmentState;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

/// The risks that the validation of a node has reported, which ends with this pass; none if there was no validation, or it has reported nothing.
pub(super) async fn get_reported(pass: &Pass<'_>, on: &OnNode<'_>) -> Result<Option<String>, ReconcileError> {
    let is_validated =
        on.assignment.state == AssignmentState::Validating && on.pool.validate.policy == ScrubPolicy::Always;
    if !is_validated {
        return Ok(None);
    }
    jobs::get_reported_risks(&pass.client, on.node, on.assignment).await
}

/// Publishes the risks of a node, unless they were on it before.
pub(super) async fn publish_new(pass: &Pass<'_>, node: &Node, risks: &str) {
    let known = node.annotations().get(labels::NODE_RISKS).map(String::as_str);
    if risks != labels::NODE_RISKS_NONE && known != Some(risks) {
        events::publish_risks(pass, node, risks).await;
    }
}
