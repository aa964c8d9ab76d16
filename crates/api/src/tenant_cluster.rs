//! `TenantCluster`: what a team asks for.

use crate::{ControlPlaneSpec, EndpointSpec, TenantNetwork};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A Kubernetes cluster for one team: its own control plane, and GPU nodes that serve this team alone.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "TenantCluster",
    namespaced,
    status = "TenantClusterStatus",
    derive = "PartialEq",
    shortname = "tc",
    category = "berth",
    doc = "A Kubernetes cluster for one team: its own control plane, and GPU nodes that serve this team alone.",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Version", type_ = "string", json_path = ".spec.version"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodes.assigned", description = "Nodes assigned to the tenant"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".status.nodes.desired", description = "Nodes the tenant should have now"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message"),
    printcolumn(name = "Class", type_ = "string", json_path = ".status.class", priority = 1),
    printcolumn(name = "Endpoint", type_ = "string", json_path = ".status.endpoint", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 40 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')")
        .message("the name of a TenantCluster must be a DNS label of at most 40 characters that starts with a letter")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("int(self.version.split('.')[1]) >= int(oldSelf.version.split('.')[1])")
    .message("the minor version of Kubernetes cannot go down: an API server cannot read what a newer one stored")
    .field_path(".version"))]
#[x_kube(validation = Rule::new("int(self.version.split('.')[1]) <= int(oldSelf.version.split('.')[1]) + 1")
    .message("Kubernetes is upgraded one minor version at a time")
    .field_path(".version"))]
pub struct TenantClusterSpec {
    /// Kubernetes version of the tenant's control plane, for example v1.37.1. Defaults to the newest that Berth ships.
    #[serde(default = "default_version")]
    #[schemars(length(max = 16), regex(pattern = r"^v1\.(0|[1-9][0-9]?)\.(0|[1-9][0-9]?)$"))]
    pub version: String,

    /// TenantClass whose rules apply. Without one it is the class called `default` if there is one, else Berth's own
    /// defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 40), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub class: Option<String>,

    /// Who places the tenant's pods on its nodes. Without a word of the tenant it is as its class says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling: Option<Scheduling>,

    /// How the control plane runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane: Option<ControlPlaneSpec>,

    /// Where the team reaches its API server. Without it, at an address of the host's Services.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<EndpointSpec>,

    /// Groups of nodes that the tenant gets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_string()]))]
    pub nodes: Vec<NodeGroup>,

    /// Who of outside the tenant's pods may talk to, and who to them.
    #[serde(default)]
    pub network: TenantNetwork,
}

impl TenantClusterSpec {
    /// Whether the tenant asks for nodes of a shared pool.
    pub fn shares(&self, pool: &str) -> bool {
        self.nodes
            .iter()
            .any(|group| group.mode == NodeMode::Shared && group.pool == pool)
    }
}

/// Kubernetes version of a tenant that names none.
pub const DEFAULT_VERSION: &str = "v1.37.1";

impl Default for TenantClusterSpec {
    fn default() -> Self {
        Self {
            version: default_version(),
            class: None,
            scheduling: None,
            control_plane: None,
            endpoint: None,
            nodes: Vec::new(),
            network: TenantNetwork::default(),
        }
    }
}

fn default_version() -> String {
    DEFAULT_VERSION.into()
}

/// Nodes out of one pool.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.mode == 'private' ? has(self.count) : !has(self.count)")
    .message("mode private needs a count, and no other mode has one")
    .field_path(".count"))]
#[x_kube(validation = Rule::new("self.mode == 'dynamic' ? has(self.max) : !has(self.max) && !has(self.min)")
    .message("mode dynamic needs a max and may have a min, and no other mode has them")
    .field_path(".max"))]
#[x_kube(validation = Rule::new("!has(self.min) || !has(self.max) || self.min <= self.max")
    .message("min must not be above max")
    .field_path(".min"))]
#[x_kube(validation = Rule::new("self.pool == oldSelf.pool")
    .message("the pool of a node group cannot change; add a group with another name and remove this one")
    .field_path(".pool"))]
pub struct NodeGroup {
    /// Name of the group, unique within the TenantCluster.
    #[schemars(length(min = 1, max = 40), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Name of the NodePool the nodes come from.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub pool: String,
    /// How the nodes are given: reserved for the tenant as long as the spec asks for them (private), as many as its pods
    /// need (dynamic), or shared with other tenants for work without GPUs (shared).
    #[serde(default)]
    pub mode: NodeMode,
    /// Number of nodes, in mode private.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1024))]
    pub count: Option<u32>,
    /// Nodes that the group has whatever its pods need, in mode dynamic. Defaults to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1024))]
    pub min: Option<u32>,
    /// Nodes that the group has at most, in mode dynamic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub max: Option<u32>,
}

impl NodeGroup {
    /// A group of private nodes.
    pub fn private(name: &str, pool: &str, count: u32) -> Self {
        Self {
            name: name.into(),
            pool: pool.into(),
            mode: NodeMode::Private,
            count: Some(count),
            ..Self::default()
        }
    }

    /// A group whose nodes follow demand.
    pub fn dynamic(name: &str, pool: &str, min: u32, max: u32) -> Self {
        Self {
            name: name.into(),
            pool: pool.into(),
            mode: NodeMode::Dynamic,
            min: Some(min),
            max: Some(max),
            ..Self::default()
        }
    }

    /// Nodes that the group has whatever happens. None of its own in mode shared.
    pub fn floor(&self) -> u32 {
        match self.mode {
            NodeMode::Private => self.count.unwrap_or_default(),
            NodeMode::Dynamic => self.min.unwrap_or_default(),
            NodeMode::Shared => 0,
        }
    }

    /// Nodes of its own that the group has at most.
    pub fn ceiling(&self) -> u32 {
        match self.mode {
            NodeMode::Private => self.count.unwrap_or_default(),
            NodeMode::Dynamic => self.max.unwrap_or_default().max(self.floor()),
            NodeMode::Shared => 0,
        }
    }
}

/// How a node group's nodes are given to the tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum NodeMode {
    /// Reserved for one tenant from the moment it asks until it asks no longer.
    #[default]
    Private,
    /// One tenant's at a time, as long as its pods need them.
    Dynamic,
    /// Used by several tenants at the same time, for work without GPUs.
    Shared,
}

/// Who places pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Scheduling {
    /// The scheduler of the host.
    #[default]
    Host,
    /// Schedulers in the tenant: a kube-scheduler that Berth runs, and whatever the team installs beside it. The host's
    /// scheduler only checks what they decide.
    Tenant,
}

/// What Berth found and did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantClusterStatus {
    /// Where the tenant is in its life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Kubernetes version that the control plane runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// TenantClass whose rules the tenant has. None: Berth's own defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Address of the tenant's API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Secret beside the TenantCluster whose key `kubeconfig` gives cluster-admin inside the tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubeconfig_secret_ref: Option<SecretReference>,
    /// Host namespace that holds the tenant's control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_namespace: Option<String>,
    /// Host namespace that holds the tenant's workloads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_namespace: Option<String>,
    /// Counts of the tenant's nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<TenantNodeCounts>,
    /// Where each group of nodes stands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub node_groups: Vec<NodeGroupStatus>,
    /// Accepted, DatastoreReady, ControlPlaneReady, EndpointReady, SyncerReady, NodesReady, Ready; Deleting while it is deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Where a tenant is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// The spec cannot be carried out as it stands; the condition Accepted says why.
    Pending,
    /// The control plane, the syncer or the nodes are being prepared.
    Provisioning,
    /// The kubeconfig works and every node is there.
    Ready,
    /// Everything the tenant had is being removed.
    Deleting,
}

/// A Secret in the namespace of the TenantCluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretReference {
    /// Name of the Secret.
    pub name: String,
}

/// Counts of a tenant's nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TenantNodeCounts {
    /// Nodes that the tenant should have now: what private groups count, and what dynamic ones need.
    pub desired: u32,
    /// Nodes that belong to the tenant.
    pub assigned: u32,
    /// Assigned nodes whose condition Ready is True.
    pub ready: u32,
}

/// Where a group of nodes stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeGroupStatus {
    /// Name of the group. One that the spec has no more is shown until its last node is given back.
    pub name: String,
    /// Pool that its nodes come from.
    pub pool: String,
    /// How its nodes are given.
    pub mode: NodeMode,
    /// Nodes that it should have now.
    #[serde(default)]
    pub desired: u32,
    /// Nodes that serve it.
    #[serde(default)]
    pub assigned: u32,
    /// Nodes that are promised to it or are being prepared.
    #[serde(default)]
    pub joining: u32,
    /// Nodes that it loses: cordoned, or on their way back to the pool.
    #[serde(default)]
    pub returning: u32,
    /// Nodes that its pods wait for.
    #[serde(default)]
    pub waiting: u32,
    /// Nodes that it has beyond what its class is guaranteed: others may ask for them back.
    #[serde(default)]
    pub borrowed: u32,
    /// Why it has what it has and waits for what it waits for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_with_a_count_is_private() {
        let group: NodeGroup =
            serde_json::from_value(serde_json::json!({"name": "a", "pool": "h100", "count": 2})).unwrap();
        assert_eq!(group, NodeGroup::private("a", "h100", 2));
        assert_eq!((group.floor(), group.ceiling()), (2, 2));
    }

    #[test]
    fn a_dynamic_group_has_a_floor_and_a_ceiling() {
        let group: NodeGroup =
            serde_json::from_value(serde_json::json!({"name": "a", "pool": "h100", "mode": "dynamic", "max": 8}))
                .unwrap();
        assert_eq!((group.floor(), group.ceiling()), (0, 8));
        assert_eq!(NodeGroup::dynamic("a", "h100", 2, 8).floor(), 2);
    }
}
