//! Writing assignments on nodes.

use super::{Pass, events, jobs, risks};
use crate::{
    apply::is_status,
    controllers::in_use_markers,
    error::{ReconcileError, api},
    metrics::ActionLabels,
};
use berth_api::labels;
use berth_node_lifecycle::{Assignment, assignment::clear_assignment_patch};
use k8s_openapi::api::core::v1::Node;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

impl Pass<'_> {
    /// Writes an assignment on a node and publishes the change. None: the node changed meanwhile, or is gone.
    pub(super) async fn write_assignment(
        &self,
        node: &Node,
        assignment: &Assignment,
        more_labels: &[(String, Option<String>)],
    ) -> Result<Option<Node>, ReconcileError> {
        let action = assignment.state.name();
        let patched = self.patch_assignment(node, assignment, more_labels, action).await?;
        if patched.is_some() {
            events::publish_change(self, node, Assignment::read(node).as_ref(), Some(assignment)).await;
        }
        Ok(patched)
    }

    /// Writes an assignment again on a node on which a part of it was removed or changed.
    pub(super) async fn correct_drift(
        &self,
        node: &Node,
        assignment: &Assignment,
    ) -> Result<Option<Node>, ReconcileError> {
        let patched = self.patch_assignment(node, assignment, &[], "CorrectDrift").await?;
        if patched.is_some() {
            events::publish_drift_corrected(self, node, assignment).await;
        }
        Ok(patched)
    }

    async fn patch_assignment(
        &self,
        node: &Node,
        assignment: &Assignment,
        more_labels: &[(String, Option<String>)],
        action: &'static str,
    ) -> Result<Option<Node>, ReconcileError> {
        let body = assignment.to_patch(node, more_labels);
        let before = Assignment::read(node).filter(|before| before.recycling_id != assignment.recycling_id);
        if let Some(before) = before {
            // Jobs of the earlier recycling prove nothing, and must not run beside those of the new one, or beside the next tenant. They are deleted first: their
            // names follow from the recycling that the node has now, and nothing finds them once it has another one. If the node is not changed, its Job is
            // made again.
            jobs::delete_jobs(&self.client, &node.name_any(), &before).await?;
        }
        self.patch_node(node, &body, action).await
    }

    /// Removes the assignment of a node, its in-use marker and the Jobs of its recycling. The marker of a node whose pool is gone stays:
    /// the node was scrubbed as the defaults say, and is scrubbed as its next pool says before a tenant gets it. `risks`: what its validation has reported.
    pub(super) async fn free_node(
        &self,
        node: &Node,
        assignment: Option<&Assignment>,
        why: &str,
        risks: Option<&str>,
    ) -> Result<Option<Node>, ReconcileError> {
        let name = node.name_any();
        let is_clean =
            |assignment: &Assignment| assignment.state.is_pending() || self.find_pool_spec(node, assignment).is_some();
        // Read before the node is free: a later marker is of its next use.
        let marker = if assignment.is_none_or(is_clean) {
            // If another machine took the name meanwhile, the former one is not clean.
            in_use_markers::set_machine(&self.client, node).await?;
            in_use_markers::read_version(&self.client, &name).await?
        } else {
            None
        };
        let mut body = clear_assignment_patch(node);
        if let Some(risks) = risks {
            body["metadata"]["annotations"][labels::NODE_RISKS] = risks.into();
        }
        let patched = self.patch_node(node, &body, "Free").await?;
        if patched.is_some() {
            if let Some(risks) = risks {
                risks::publish_new(self, node, risks).await;
            }
            if let Some(marker) = &marker {
                in_use_markers::delete(&self.client, marker).await?;
            }
            if let Some(assignment) = assignment {
                jobs::delete_jobs(&self.client, &name, assignment).await?;
            }
            tracing::info!(node = name, why, "node is free");
            events::publish_change(self, node, assignment, None).await;
        }
        Ok(patched)
    }

    /// Gives a free node back the labels of NVIDIA's software that it had, with this metadata. None: the node changed meanwhile, or is gone.
    pub(super) async fn restore_labels(
        &self,
        node: &Node,
        mut metadata: Value,
    ) -> Result<Option<Node>, ReconcileError> {
        metadata["resourceVersion"] = json!(node.resource_version());
        let body = json!({ "metadata": metadata });
        let patched = self.patch_node(node, &body, "RestoreLabels").await?;
        if patched.is_some() {
            tracing::info!(
                node = node.name_any(),
                "the node has the labels of NVIDIA's software that it had before"
            );
        }
        Ok(patched)
    }

    /// Applies a merge patch that has a resource version in it.
    async fn patch_node(
        &self,
        node: &Node,
        body: &Value,
        action: &'static str,
    ) -> Result<Option<Node>, ReconcileError> {
        let params = PatchParams::default();
        match self
            .node_api()
            .patch(&node.name_any(), &params, &Patch::Merge(body))
            .await
        {
            Ok(node) => {
                self.metrics.node_actions.get_or_create(&ActionLabels { action }).inc();
                Ok(Some(node))
            }
            Err(error) if is_status(&error, 409) || is_status(&error, 404) => Ok(None),
            Err(error) => Err(api("change a node")(error)),
        }
    }
}
