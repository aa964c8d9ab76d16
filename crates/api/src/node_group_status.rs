//! What the status of a [`TenantCluster`](crate::TenantCluster) says of its node groups.

use crate::NodeMode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Status of a node group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeGroupStatus {
    /// Name of the group. A group that was removed from the spec is listed until its last node is released.
    pub name: String,
    /// Name of the HostNodePool that its nodes come from.
    pub pool_name: String,
    /// How Berth assigns its nodes.
    pub mode: NodeMode,
    /// Nodes that it should have now.
    #[serde(default)]
    pub desired: u32,
    /// Nodes that are assigned to it and ready for its pods.
    #[serde(default)]
    pub assigned: u32,
    /// Nodes that are reserved for it or being prepared.
    #[serde(default)]
    pub joining: u32,
    /// Nodes that are being released: cordoned, draining or being scrubbed.
    #[serde(default)]
    pub releasing: u32,
    /// Nodes that its pods need and that it does not have yet.
    #[serde(default)]
    pub pending: u32,
    /// Nodes beyond the nominal quota of its class or Project, also of its minimum. Berth may reclaim them.
    #[serde(default)]
    pub borrowed: u32,
    /// Why the group has these nodes, and why it waits for more.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Nodes of a pool that a tenant got for its pods and that none of them used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnusedNodesStatus {
    /// Name of the HostNodePool.
    pub pool_name: String,
    /// How many nodes.
    pub nodes: u32,
    /// How many times in a row that happened.
    pub times: u32,
    /// When the first of them were released. Absent: all were released at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began_at: Option<Time>,
    /// When the last of them were released.
    pub released_at: Time,
    /// Until when other tenants are served first in the pool, and no nodes are reclaimed for this one. Absent: it was spared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_until: Option<Time>,
}
