//! What a pool consists of.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the pool consists of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodePoolStatus {
    /// Generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// GPU product that labels and ResourceSlices of the nodes name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    /// How the nodes' labels and ResourceSlices say that GPUs are shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<String>,
    /// Version of the GPU driver on the nodes, as labels and ResourceSlices name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Counts of nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodeCounts>,
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
    /// What an autoscaler is asked for. Only for pools with autoscaling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<RequestedNodes>,
    /// Ready: nodes were found, all of one product, none of them in another pool. Healthy: no node is quarantined.
    /// NodesRequested: an autoscaler is asked for nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// What an autoscaler is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RequestedNodes {
    /// Nodes that have to come, as far as Berth knows how large they will be.
    pub nodes: u32,
    /// Pending pods in the namespace berth-system that ask for them.
    pub pods: u32,
}

/// Counts of a pool's nodes. Each node is in one of them, and in the total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeCounts {
    /// Nodes whose labels match.
    pub total: u32,
    /// Nodes that could be assigned now: no owner, Ready, schedulable.
    pub free: u32,
    /// Nodes that are promised to a tenant or being prepared for it.
    #[serde(default)]
    pub joining: u32,
    /// Nodes that serve a tenant.
    pub assigned: u32,
    /// Nodes between two tenants: being drained, cleaned or checked.
    #[serde(default)]
    pub returning: u32,
    /// Nodes that could not be handed on; the annotation berth.dev/quarantine on each says why.
    #[serde(default)]
    pub quarantined: u32,
    /// Nodes without an owner that cannot be assigned: not Ready, cordoned, or being deleted.
    pub unavailable: u32,
}
