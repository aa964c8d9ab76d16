//! `NodePool`: host nodes of one GPU product that tenants can be given.

use crate::NodeMode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Host nodes of one GPU product that tenants can be given.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "NodePool",
    status = "NodePoolStatus",
    derive = "PartialEq",
    shortname = "np",
    category = "berth",
    doc = "Host nodes of one GPU product that tenants can be given.",
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Product", type_ = "string", json_path = ".status.product"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodes.total"),
    printcolumn(name = "Free", type_ = "integer", json_path = ".status.nodes.free"),
    printcolumn(name = "Assigned", type_ = "integer", json_path = ".status.nodes.assigned"),
    printcolumn(name = "GPUs", type_ = "integer", json_path = ".status.gpus"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 63 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')")
        .message("the name of a NodePool must be a DNS label of at most 63 characters that starts with a letter")
)]
#[serde(rename_all = "camelCase")]
pub struct NodePoolSpec {
    /// Labels that a host node must carry, all of them, to belong to the pool.
    #[schemars(extend("minProperties" = 1, "maxProperties" = 16))]
    #[x_kube(validation = Rule::new("self.all(k, !k.startsWith('berth.dev/'))")
        .message("labels under berth.dev/ are set by Berth itself and cannot select a pool's nodes"))]
    pub node_selector: BTreeMap<String, String>,

    /// Extended resource that counts the GPUs of a node, for example nvidia.com/gpu. Without one the pool has no GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 3, max = 128),
        regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
    )]
    pub resource: Option<String>,

    /// Ways in which tenants may be given nodes of this pool.
    #[serde(default = "default_modes")]
    #[schemars(length(min = 1, max = 4))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub modes: Vec<NodeMode>,

    /// Label whose values group nodes that belong together, such as nvidia.com/gpu.clique (one NVLink domain) or a rack.
    /// Whole groups are kept free for large tenants where that is possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub topology_key: Option<String>,
}

fn default_modes() -> Vec<NodeMode> {
    vec![NodeMode::Private]
}

/// What the pool consists of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodePoolStatus {
    /// Generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// GPU product that the nodes' labels name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    /// Counts of nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodeCounts>,
    /// GPUs on all nodes of the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<i64>,
    /// Ready: nodes were found, all of one product, none of them in another pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Counts of a pool's nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeCounts {
    /// Nodes whose labels match.
    pub total: u32,
    /// Nodes that could be assigned now: no owner, Ready, schedulable.
    pub free: u32,
    /// Nodes that belong to a tenant.
    pub assigned: u32,
    /// Nodes without an owner that cannot be assigned: not Ready, cordoned, or being deleted.
    pub unavailable: u32,
}
