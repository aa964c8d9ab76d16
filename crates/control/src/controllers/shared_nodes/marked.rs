//! In-use markers of nodes that are in use already. A node is marked before it is shared; but a former version of control did not
//! do that, nor say in a marker which machine the node is, and people delete ConfigMaps. So each process looks at all of them once.

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
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use std::{collections::BTreeMap, sync::Arc};
use tokio::sync::Mutex;

/// How many nodes are marked at once.
const CONCURRENCY: usize = 8;

/// Names of nodes that have an in-use marker, as far as this process knows, and whether it says which machine the node is. None
/// until it has listed them.
#[derive(Default)]
pub struct MarkedNodes(Mutex<Option<BTreeMap<String, bool>>>);

impl MarkedNodes {
    /// Marks all nodes that are shared, or were and have not been scrubbed since. Markers of all nodes in use get their machine.
    pub(super) async fn mark_all(&self, context: &SharedNodesContext) -> Result<(), ReconcileError> {
        let mut known = self.0.lock().await;
        let marked = match known.as_mut() {
            Some(marked) => marked,
            None => known.insert(in_use_markers::list_marked_nodes(&context.client).await?),
        };
        let all: BTreeMap<String, Arc<Node>> = { context.stores.nodes.state().into_iter() }
            .map(|node| (node.name_any(), node))
            .collect();
        marked.retain(|name, _| all.contains_key(name));
        let is_due = |node: &Node| {
            let has_assignment = Assignment::read(node).is_some();
            match marked.get(&node.name_any()) {
                Some(has_machine) => !has_machine && (has_assignment || is_or_was_shared(node)),
                // With an assignment it is marked for its recycling.
                None => !has_assignment && is_or_was_shared(node),
            }
        };
        let due: Vec<Arc<Node>> = all.into_values().filter(|node| is_due(node)).collect();
        let outcomes: Vec<_> = stream::iter(due.into_iter().map(|node| mark(context, node)))
            .buffer_unordered(CONCURRENCY)
            .collect()
            .await;
        let mut failed = Ok(());
        for outcome in outcomes {
            match outcome {
                Ok(name) => {
                    marked.insert(name, true);
                }
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        failed
    }

    /// Keeps that a node was marked.
    pub(super) async fn add(&self, node: String) {
        if let Some(marked) = self.0.lock().await.as_mut() {
            marked.insert(node, true);
        }
    }
}

/// Marks a node that is in use. Returns its name.
async fn mark(context: &SharedNodesContext, node: Arc<Node>) -> Result<String, ReconcileError> {
    if Assignment::read(&node).is_some() {
        // It may be free by now: then it has no marker, and gets none.
        in_use_markers::set_machine(&context.client, &node).await?;
    } else {
        let before = node.annotations().get(labels::PREVIOUS_SHARED_POOL);
        let pool = shared_pool_of(&node).or(before).map(String::as_str).unwrap_or_default();
        in_use_markers::ensure(&context.client, &node, Use::Shared(pool)).await?;
    }
    Ok(node.name_any())
}
