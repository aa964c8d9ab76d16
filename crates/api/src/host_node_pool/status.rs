//! Observed state of a pool.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Observed state of a HostNodePool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostNodePoolStatus {
    /// Generation of the spec that was observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// GPU product, from the labels and ResourceSlices of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    /// How GPUs are shared, from the labels and ResourceSlices of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<String>,
    /// Version of the GPU driver, from the labels and ResourceSlices of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Counts of nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodeCounts>,
    /// Nodes without an owner that cannot be assigned, and why: the first 50 by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unavailable_nodes: Vec<UnavailableNode>,
    /// GPUs on all nodes of the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<i64>,
    /// GPUs on free nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_gpus: Option<i64>,
    /// Share of the free GPUs, in percent, on nodes of topology domains that are not free as a whole. Only for pools with a
    /// topologyKey.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fragmentation: Option<i64>,
    /// Nodes that Berth requests from an autoscaler. Only for pools with autoscaling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<RequestedNodes>,
    /// Ready: nodes were found, all of one product, none of them in another pool. Healthy: no node is quarantined, and the devices of all nodes are known.
    /// NoKnownRisks: no node that has passed its validation has a risk in its set-up. NodesRequested: nodes are requested from an autoscaler. RepairAllowed: no
    /// more nodes are not Ready than spec.repair.maxUnhealthy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// A node that cannot be assigned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnavailableNode {
    /// Name of the node.
    pub name: String,
    /// Why it cannot be assigned.
    pub reason: String,
}

/// Nodes that Berth requests from an autoscaler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RequestedNodes {
    /// Nodes that are still missing, as far as Berth knows how large they will be.
    pub nodes: u32,
    /// Pending pods in the namespace berth-system that request them.
    pub pods: u32,
}

/// Counts of a pool's nodes. Each node is in one of them, and in the total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeCounts {
    /// Nodes whose labels match.
    pub total: u32,
    /// Nodes that could be assigned now: no owner, Ready, schedulable, not in use.
    pub free: u32,
    /// Nodes that are reserved for a tenant or being prepared for it.
    #[serde(default)]
    pub joining: u32,
    /// Nodes that are assigned to a tenant.
    pub assigned: u32,
    /// Nodes between two tenants: being drained, scrubbed or validated.
    #[serde(default)]
    pub recycling: u32,
    /// Nodes that could not be recycled. The annotation berth.dev/quarantine of each says why.
    #[serde(default)]
    pub quarantined: u32,
    /// Nodes without an owner that cannot be assigned: not Ready, cordoned, in use, or being deleted.
    pub unavailable: u32,
}
