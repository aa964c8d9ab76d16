//! Risks in the set-up of a node, which its validation reports: they stay on the node as an annotation until it is validated again.

use super::{Pass, events, jobs};
use crate::{controllers::nodes::jobs::OnNode, error::ReconcileError};
use berth_api::{ScrubPolicy, labels};
use berth_node_lifecycle::AssignmentState;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde_json::json;
use std::borrow::Cow;

/// Records the risks of a node that is free after this. Returns the node as it is then; none if it changed meanwhile.
pub(super) async fn record_risks<'n>(
    pass: &Pass<'_>,
    node: &'n Node,
    on: &OnNode<'_>,
) -> Result<Option<Cow<'n, Node>>, ReconcileError> {
    let is_validated =
        on.assignment.state == AssignmentState::Validating && on.pool.validate.policy == ScrubPolicy::Always;
    if !is_validated {
        return Ok(Some(Cow::Borrowed(node)));
    }
    let Some(risks) = jobs::get_reported_risks(&pass.client, on.node, on.assignment).await? else {
        return Ok(Some(Cow::Borrowed(node)));
    };
    let known = node.annotations().get(labels::NODE_RISKS).map(String::as_str);
    if known == Some(risks.as_str()) {
        return Ok(Some(Cow::Borrowed(node)));
    }
    let body = json!({"metadata": {
        "resourceVersion": node.resource_version(), "annotations": {labels::NODE_RISKS: risks},
    }});
    let Some(patched) = pass.patch_node(node, &body, "RecordRisks").await? else {
        return Ok(None);
    };
    if risks != labels::NODE_RISKS_NONE {
        events::publish_risks(pass, node, &risks).await;
    }
    Ok(Some(Cow::Owned(patched)))
}
