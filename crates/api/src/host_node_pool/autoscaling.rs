//! Nodes that Cluster Autoscaler or Karpenter adds to a pool.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// How Berth requests nodes from an autoscaler.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AutoscalingSpec {
    /// Maximum number of nodes up to which Berth requests more. Defaults to no limit of Berth's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000))]
    pub max_nodes: Option<u32>,
    /// GPUs of a node that the autoscaler adds, before it is assigned. Used only while the pool has no node, and with
    /// gpusPerAssignedNode; without it each waiting pod counts as a node towards maxNodes while the pool has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub gpus_per_node: Option<u32>,
    /// Keys of taints that the pool's nodes keep for good, such as `dedicated`. A taint whose key is that of
    /// spec.gpuResourceName need not be listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        inner(
            length(min = 1, max = 317),
            regex(pattern = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
        )
    )]
    #[x_kube(merge_strategy = ListMerge::Set)]
    #[x_kube(validation = Rule::new("self.all(k, !k.startsWith('berth.dev/'))")
        .message("taints under berth.dev/ are set by Berth itself and keep all pods off"))]
    pub tolerated_taints: Vec<String>,
}
