//! In-use markers of nodes that are shared already. A node is marked before it is shared; but a former version of control did not
//! do that, and people delete ConfigMaps. So each process looks at all of them once.

use super::SharedNodesContext;
use crate::{
    controllers::in_use_markers::{self, Use},
    error::ReconcileError,
};
use berth_api::labels;
use berth_node_lifecycle::{
    Assignment,
    node::{is_or_was_shared, shared_pool_of},
};
use kube::ResourceExt;
use std::collections::BTreeSet;
use tokio::sync::Mutex;

/// Names of nodes that have an in-use marker, as far as this process knows. None until it has listed them.
#[derive(Default)]
pub struct MarkedNodes(Mutex<Option<BTreeSet<String>>>);

impl MarkedNodes {
    /// Marks all nodes that are shared, or were and have not been scrubbed since.
    pub(super) async fn mark_all(&self, context: &SharedNodesContext) -> Result<(), ReconcileError> {
        let mut known = self.0.lock().await;
        let marked = match known.as_mut() {
            Some(marked) => marked,
            None => known.insert(in_use_markers::list_marked_nodes(&context.client).await?),
        };
        let mut all = BTreeSet::new();
        let mut failed = Ok(());
        for node in context.stores.nodes.state() {
            let name = node.name_any();
            // With an assignment it is marked for its recycling.
            if is_or_was_shared(&node) && Assignment::read(&node).is_none() && !marked.contains(&name) {
                let before = node.annotations().get(labels::PREVIOUS_SHARED_POOL);
                let pool = shared_pool_of(&node).or(before).map(String::as_str).unwrap_or_default();
                match in_use_markers::ensure(&context.client, &node, Use::Shared(pool)).await {
                    Ok(()) => {
                        marked.insert(name.clone());
                    }
                    Err(error) => failed = failed.and(Err(error)),
                }
            }
            all.insert(name);
        }
        marked.retain(|name| all.contains(name));
        failed
    }

    /// Keeps that a node was marked.
    pub(super) async fn add(&self, node: String) {
        if let Some(marked) = self.0.lock().await.as_mut() {
            marked.insert(node);
        }
    }
}
