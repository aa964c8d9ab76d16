//! Rules for pods of several tenants on the same node. Part of a [`SyncPolicy`](crate::SyncPolicy).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Rules for nodes that several tenants use at the same time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SharedNodesPolicy {
    /// HostNodePools of mode `Shared` that tenants may ask for; `*` for all.
    #[schemars(length(max = 64), inner(length(min = 1, max = 63)))]
    pub pools: Vec<String>,
    /// Whether pods there have a user namespace of their own (`hostUsers: false`), in which root has no rights on the node.
    /// Pods that use the node's user namespace stay on the tenant's own nodes.
    pub user_namespaces: bool,
    /// Whether pods there may use images that are on the node already without a request to their registry. Else every image
    /// is pulled with the tenant's own credentials (`imagePullPolicy: Always`).
    pub cached_images: bool,
}
