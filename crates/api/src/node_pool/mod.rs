//! `NodePool`: host nodes of one GPU product that tenants can be given.

mod autoscaling;
mod policy;
mod scrub;
mod status;

pub use autoscaling::AutoscalingSpec;
pub use policy::{HandoverTimeouts, PoolOrder, PoolPolicy};
pub use scrub::{NodeProgram, ScrubPolicy, ScrubSpec, ScrubStep, ValidateSpec};
pub use status::{NodeCounts, NodePoolStatus, RequestedNodes};

use crate::NodeMode;
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
    printcolumn(name = "Returning", type_ = "integer", json_path = ".status.nodes.returning"),
    printcolumn(name = "Quarantined", type_ = "integer", json_path = ".status.nodes.quarantined"),
    printcolumn(name = "GPUs", type_ = "integer", json_path = ".status.gpus"),
    printcolumn(name = "Requested", type_ = "integer", json_path = ".status.requested.nodes", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name.size() <= 63 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')")
        .message("the name of a NodePool must be a DNS label of at most 63 characters that starts with a letter")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.migConfig) || self.sharing == 'mig'")
    .message("migConfig is for pools whose sharing is mig")
    .field_path(".migConfig"))]
#[x_kube(validation = Rule::new("!has(self.devicePluginConfig) || self.sharing in ['mig', 'timeSlicing', 'mps']")
    .message("devicePluginConfig is for pools whose sharing is mig, timeSlicing or mps")
    .field_path(".devicePluginConfig"))]
#[x_kube(validation = Rule::new("!('shared' in self.modes) || !has(self.resource)")
    .message("nodes with GPUs serve one tenant at a time: a pool with spec.resource cannot offer the mode shared")
    .field_path(".modes"))]
#[x_kube(validation = Rule::new("!('shared' in self.modes) || self.modes.size() == 1")
    .message("a pool whose nodes several tenants use at the same time has no other mode")
    .field_path(".modes"))]
#[x_kube(validation = Rule::new("!('shared' in self.modes) || !has(self.autoscaling)")
    .message("autoscaling is for nodes that are assigned to one tenant; nodes that several tenants use at the same time are asked \
        for by nobody")
    .field_path(".autoscaling"))]
#[x_kube(validation = Rule::new("!has(self.autoscaling) || !has(self.autoscaling.gpusPerNode) || has(self.resource)")
    .message("autoscaling.gpusPerNode counts what spec.resource names")
    .field_path(".autoscaling"))]
#[x_kube(validation = Rule::new("('shared' in self.modes) == ('shared' in oldSelf.modes)")
    .message("whether a pool is shared cannot change; make another pool")
    .field_path(".modes"))]
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

    /// How GPUs of the pool's nodes are shared by pods of the one tenant that has the node.
    #[serde(default)]
    pub sharing: Sharing,

    /// MIG layout that a node gets when it is handed to a tenant: value of the label nvidia.com/mig.config. The node serves
    /// the tenant once NVIDIA's MIG manager reports success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
    )]
    pub mig_config: Option<String>,

    /// Configuration of NVIDIA's device plugin that a node gets when it is handed to a tenant: value of the label
    /// nvidia.com/device-plugin.config.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
    )]
    pub device_plugin_config: Option<String>,

    /// Whether the nodes may be taken away by whoever provides them at short notice.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spot: bool,

    /// Sensitivity of what may run on these nodes, in the platform's own words, such as `public` or `restricted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub tier: Option<String>,

    /// How nodes are handed out and taken back.
    #[serde(default)]
    pub policy: PoolPolicy,

    /// What is cleaned on a node before another tenant gets it.
    #[serde(default)]
    pub scrub: ScrubSpec,

    /// What is checked on a clean node before it is free.
    #[serde(default)]
    pub validate: ValidateSpec,

    /// How long a node may be in each state of its hand-over.
    #[serde(default)]
    pub timeouts: HandoverTimeouts,

    /// Whether an autoscaler adds nodes to the pool: what tenants wait for is shown to it as pending pods. Without this
    /// nothing is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<AutoscalingSpec>,
}

impl Default for NodePoolSpec {
    fn default() -> Self {
        Self {
            node_selector: BTreeMap::new(),
            resource: None,
            modes: default_modes(),
            topology_key: None,
            sharing: Sharing::default(),
            mig_config: None,
            device_plugin_config: None,
            spot: false,
            tier: None,
            policy: PoolPolicy::default(),
            scrub: ScrubSpec::default(),
            validate: ValidateSpec::default(),
            timeouts: HandoverTimeouts::default(),
            autoscaling: None,
        }
    }
}

impl NodePoolSpec {
    /// Whether several tenants use the pool's nodes at the same time.
    pub fn is_shared(&self) -> bool {
        self.modes.contains(&NodeMode::Shared)
    }

    /// Whether a node with these labels belongs to the pool.
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        !self.node_selector.is_empty()
            && self
                .node_selector
                .iter()
                .all(|(key, value)| labels.get(key) == Some(value))
    }

    /// What is cleaned between two tenants, in order.
    pub fn scrub_steps(&self) -> Vec<ScrubStep> {
        if self.scrub.policy == ScrubPolicy::None {
            return Vec::new();
        }
        self.scrub.steps.clone().unwrap_or_else(|| {
            let mut steps = vec![ScrubStep::Processes, ScrubStep::Claims, ScrubStep::Ephemeral];
            let is_nvidia = |resource: &String| resource.starts_with("nvidia.com/");
            if self.resource.as_ref().is_some_and(is_nvidia) || self.sharing == Sharing::Dra {
                steps.extend([ScrubStep::Mig, ScrubStep::GpuReset]);
            }
            steps
        })
    }
}

/// How GPUs are shared by pods of one tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Sharing {
    /// A GPU serves one container.
    #[default]
    Exclusive,
    /// GPUs are cut into MIG instances.
    Mig,
    /// Containers take turns on a GPU.
    TimeSlicing,
    /// Containers share a GPU through NVIDIA's multi-process service.
    Mps,
    /// Devices are claimed through dynamic resource allocation.
    Dra,
}

impl Sharing {
    /// Its name, as in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Mig => "mig",
            Self::TimeSlicing => "timeSlicing",
            Self::Mps => "mps",
            Self::Dra => "dra",
        }
    }
}

fn default_modes() -> Vec<NodeMode> {
    vec![NodeMode::Private]
}
