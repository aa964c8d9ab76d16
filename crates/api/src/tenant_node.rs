//! `TenantNode`: a host node as its tenant may see it.

use k8s_openapi::api::core::v1::Taint;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A host node as its tenant may see it. Control publishes it in the tenant's control-plane namespace, so that the
/// syncer needs no access to the host's nodes.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "TenantNode",
    namespaced,
    status = "TenantNodeStatus",
    derive = "PartialEq",
    shortname = "tn",
    category = "berth",
    doc = "A host node as its tenant may see it. Made by Berth; not meant to be edited.",
    printcolumn(name = "Node", type_ = "string", json_path = ".spec.nodeName"),
    printcolumn(name = "Pool", type_ = "string", json_path = ".spec.poolName"),
    printcolumn(name = "Group", type_ = "string", json_path = ".spec.nodeGroupName"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.node.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Cordoned",
        type_ = "boolean",
        json_path = ".spec.unschedulable",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub struct TenantNodeSpec {
    /// Name of the host node, which is also its name in the tenant.
    pub node_name: String,
    /// Name of the HostNodePool the node was assigned from.
    pub pool_name: String,
    /// Name of the tenant's node group the node was assigned to.
    pub node_group_name: String,
    /// Labels the tenant sees.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Taints the tenant sees.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// Whether the node is cordoned.
    #[serde(default)]
    pub unschedulable: bool,
}

/// Status of the host node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantNodeStatus {
    /// The node's status as the kubelet reports it, kept as it is so that newer fields are not lost; without images
    /// and heartbeat times. `allocatable` excludes what the platform's pods use.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    #[schemars(extend("type" = "object", "x-kubernetes-preserve-unknown-fields" = true))]
    pub node: serde_json::Value,
    /// The ResourceSlices that drivers publish for this node only. Slices of several nodes are not visible to the tenant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resource_slices: Vec<NodeResourceSlice>,
}

/// A ResourceSlice of the host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeResourceSlice {
    /// Its name on the host.
    pub name: String,
    /// Its spec, kept as it is so that newer fields are not lost.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    #[schemars(extend("type" = "object", "x-kubernetes-preserve-unknown-fields" = true))]
    pub spec: serde_json::Value,
}
