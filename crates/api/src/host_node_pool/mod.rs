//! `HostNodePool`: host nodes of one GPU product that Berth assigns to tenants.

mod autoscaling;
mod pause;
mod policy;
mod repair;
mod scrub;
mod status;

pub use autoscaling::AutoscalingSpec;
pub use pause::PauseSpec;
pub use policy::{PoolOrder, PoolPolicy, PoolReclaim, RecyclingTimeouts};
pub use repair::{MaxUnhealthy, RepairSpec};
pub use scrub::{NodeProgram, NodeRisk, RiskPolicy, ScrubPolicy, ScrubSpec, ScrubStep, ValidateSpec};
pub use status::{HostNodePoolStatus, NodeCounts, RequestedNodes, UnavailableNode};

use crate::{AllowedNamespaces, KubeDuration, NodeMode, allowed_namespaces::grace_seconds};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Host nodes of one GPU product that Berth assigns to tenants.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "HostNodePool",
    status = "HostNodePoolStatus",
    derive = "PartialEq",
    shortname = "hnp",
    category = "berth",
    doc = "Host nodes of one GPU product that Berth assigns to tenants.",
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Product", type_ = "string", json_path = ".status.product"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodes.total"),
    printcolumn(name = "Free", type_ = "integer", json_path = ".status.nodes.free"),
    printcolumn(name = "Assigned", type_ = "integer", json_path = ".status.nodes.assigned"),
    printcolumn(name = "Recycling", type_ = "integer", json_path = ".status.nodes.recycling"),
    printcolumn(name = "Quarantined", type_ = "integer", json_path = ".status.nodes.quarantined"),
    printcolumn(name = "GPUs", type_ = "integer", json_path = ".status.gpus"),
    printcolumn(name = "Free-GPUs", type_ = "integer", json_path = ".status.freeGpus", description = "GPUs on free nodes"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Joining",
        type_ = "integer",
        json_path = ".status.nodes.joining",
        priority = 1,
        description = "Nodes that are reserved for a tenant or being prepared for it"
    ),
    printcolumn(
        name = "Unavailable",
        type_ = "integer",
        json_path = ".status.nodes.unavailable",
        priority = 1,
        description = "Nodes without an owner that cannot be assigned"
    ),
    printcolumn(
        name = "Requested",
        type_ = "integer",
        json_path = ".status.requested.nodes",
        priority = 1,
        description = "Nodes that are requested from an autoscaler"
    ),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1),
    validation = Rule::new("self.metadata.name.size() <= 63 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')")
        .message("the name of a HostNodePool must be a DNS label of at most 63 characters that starts with a letter")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.nvidia) || !has(self.nvidia.migConfig) || self.sharing == 'MIG'")
    .message("nvidia.migConfig requires sharing: MIG")
    .field_path(".nvidia.migConfig"))]
#[x_kube(validation = Rule::new("!has(self.nvidia) || !has(self.nvidia.devicePluginConfig) || self.sharing in ['MIG', 'TimeSlicing', 'MPS']")
    .message("nvidia.devicePluginConfig requires sharing: MIG, TimeSlicing or MPS")
    .field_path(".nvidia.devicePluginConfig"))]
#[x_kube(validation = Rule::new("self.sharing != 'MPS' || self.scrub.policy == 'None' || (has(self.nvidia) && has(self.nvidia.devicePluginConfig))")
    .message("sharing: MPS requires nvidia.devicePluginConfig: Berth ends MPS between two tenants by taking this configuration away")
    .field_path(".sharing"))]
#[x_kube(validation = Rule::new("self.sharing != 'MPS' || !has(self.scrub.steps) || 'MPS' in self.scrub.steps")
    .message("sharing: MPS requires the step MPS in scrub.steps")
    .field_path(".scrub.steps"))]
#[x_kube(validation = Rule::new("!has(self.scrub.pause) || !has(self.scrub.pause.labels) || self.scrub.pause.labels.all(k, !(k in self.nodeSelector))")
    .message("scrub.pause must not change labels of nodeSelector: a node would leave its pool while it is scrubbed")
    .field_path(".scrub"))]
#[x_kube(validation = Rule::new("!('Shared' in self.modes) || !has(self.gpuResourceName)")
    .message("a node with GPUs belongs to one tenant at a time: a pool with spec.gpuResourceName cannot offer the mode Shared")
    .field_path(".modes"))]
#[x_kube(validation = Rule::new("!has(self.gpuProduct) || has(self.gpuResourceName)")
    .message("gpuProduct requires spec.gpuResourceName")
    .field_path(".gpuProduct"))]
#[x_kube(validation = Rule::new("!has(self.gpuResourceName) || !has(self.nvidia) || !(has(self.nvidia.migConfig) || has(self.nvidia.devicePluginConfig)) || has(self.gpusPerAssignedNode)")
    .message("with nvidia.migConfig or nvidia.devicePluginConfig a node has another number of GPUs once it is assigned: set gpusPerAssignedNode, so that quotas count them beforehand")
    .field_path(".gpusPerAssignedNode"))]
#[x_kube(validation = Rule::new("!has(self.gpusPerAssignedNode) || has(self.gpuResourceName)")
    .message("gpusPerAssignedNode requires spec.gpuResourceName")
    .field_path(".gpusPerAssignedNode"))]
#[x_kube(validation = Rule::new("!('Shared' in self.modes) || self.modes.size() == 1")
    .message("a pool that offers the mode Shared offers no other mode")
    .field_path(".modes"))]
#[x_kube(validation = Rule::new("!('Shared' in self.modes) || !has(self.autoscaling)")
    .message("autoscaling is for nodes that are assigned to one tenant, not for pools of mode Shared")
    .field_path(".autoscaling"))]
#[x_kube(validation = Rule::new("!('Shared' in self.modes) || !has(self.repair)")
    .message("repair is for nodes that are assigned to one tenant, not for pools of mode Shared")
    .field_path(".repair"))]
#[x_kube(validation = Rule::new("!has(self.autoscaling) || !has(self.autoscaling.gpusPerNode) || has(self.gpuResourceName)")
    .message("autoscaling.gpusPerNode requires spec.gpuResourceName")
    .field_path(".autoscaling"))]
#[x_kube(validation = Rule::new("('Shared' in self.modes) == ('Shared' in oldSelf.modes)")
    .message("whether a pool offers the mode Shared is immutable; create another pool")
    .field_path(".modes"))]
pub struct HostNodePoolSpec {
    /// Labels that a host node must carry, all of them, to belong to the pool.
    #[schemars(extend("minProperties" = 1, "maxProperties" = 16))]
    #[x_kube(validation = Rule::new("self.all(k, !k.startsWith('berth.dev/'))")
        .message("labels under berth.dev/ are set by Berth itself and cannot select a pool's nodes"))]
    pub node_selector: BTreeMap<String, String>,

    /// Namespaces whose TenantClusters may name the pool. Defaults to all. Users need the verb `use` on the pool besides.
    #[serde(default)]
    pub allowed_namespaces: AllowedNamespaces,

    /// How long a running tenant keeps nodes that the pool no longer allows it. Then Berth releases them. 0s: at once. Defaults
    /// to 24h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement_grace_period: Option<KubeDuration>,

    /// Extended resource that counts the GPUs of a node, for example nvidia.com/gpu. Without one the pool has no GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 3, max = 128),
        regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
    )]
    pub gpu_resource_name: Option<String>,

    /// How many of gpuResourceName a node has once it is assigned: its MIG instances, or its GPUs times the replicas of each. Quotas and the
    /// demand of pods count a node with at least so many, also while it is free and has fewer. Required with nvidia.migConfig and
    /// nvidia.devicePluginConfig.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65_536))]
    pub gpus_per_assigned_node: Option<u32>,

    /// Name of the product of its GPUs, for example H100. Quotas of Organizations and Projects can limit all pools of a product
    /// together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = "^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
    )]
    pub gpu_product: Option<String>,

    /// Modes in which node groups may use the pool.
    #[serde(default = "default_modes")]
    #[schemars(length(min = 1, max = 4))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub modes: Vec<NodeMode>,

    /// Label whose values group nodes that belong together, such as nvidia.com/gpu.clique (one NVLink domain) or a rack.
    /// Whole groups are kept free for large tenants where that is possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub topology_key: Option<String>,

    /// How the pods of the tenant that a node is assigned to share its GPUs.
    #[serde(default)]
    pub sharing: Sharing,

    /// Configuration of NVIDIA's software on the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvidia: Option<NvidiaSpec>,

    /// How Berth assigns and reclaims nodes.
    #[serde(default)]
    pub policy: PoolPolicy,

    /// What Berth scrubs on a node between two tenants.
    #[serde(default)]
    pub scrub: ScrubSpec,

    /// What Berth checks on a scrubbed node before it is free.
    #[serde(default)]
    pub validate: ValidateSpec,

    /// How long a node may be in each state of its recycling.
    #[serde(default)]
    pub timeouts: RecyclingTimeouts,

    /// Lets Berth take nodes that are not Ready for too long from their tenants: a node group gets another node for its minimum, and the node is scrubbed
    /// once it is Ready again. Without it, nodes stay with their tenants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repair: Option<RepairSpec>,

    /// Lets an autoscaler add nodes to the pool: Berth creates pending placeholder pods for the nodes that tenants wait for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<AutoscalingSpec>,
}

impl Default for HostNodePoolSpec {
    fn default() -> Self {
        Self {
            node_selector: BTreeMap::new(),
            allowed_namespaces: AllowedNamespaces::default(),
            enforcement_grace_period: None,
            gpu_resource_name: None,
            gpus_per_assigned_node: None,
            gpu_product: None,
            modes: default_modes(),
            topology_key: None,
            sharing: Sharing::default(),
            nvidia: None,
            policy: PoolPolicy::default(),
            scrub: ScrubSpec::default(),
            validate: ValidateSpec::default(),
            timeouts: RecyclingTimeouts::default(),
            repair: None,
            autoscaling: None,
        }
    }
}

impl HostNodePoolSpec {
    /// [`HostNodePoolSpec::enforcement_grace_period`] in seconds.
    pub fn enforcement_grace_period(&self) -> i64 {
        grace_seconds(self.enforcement_grace_period.as_ref())
    }

    /// Whether several tenants use the pool's nodes at the same time.
    pub fn is_shared(&self) -> bool {
        self.modes.contains(&NodeMode::Shared)
    }

    /// Value of the label nvidia.com/mig.config on assigned nodes.
    pub fn mig_config(&self) -> Option<&str> {
        self.nvidia.as_ref()?.mig_config.as_deref()
    }

    /// Value of the label nvidia.com/device-plugin.config on assigned nodes.
    pub fn device_plugin_config(&self) -> Option<&str> {
        self.nvidia.as_ref()?.device_plugin_config.as_deref()
    }

    /// Folder of the daemon of the multi-process service on the nodes, if it is not the default one.
    pub fn mps_root(&self) -> Option<&str> {
        self.nvidia.as_ref()?.mps_root.as_deref()
    }

    /// Folder of NVIDIA's driver on the nodes, if the pool names one.
    pub fn driver_root(&self) -> Option<&str> {
        self.nvidia.as_ref()?.driver_root.as_deref()
    }

    /// Whether Berth sets up the sharing of GPUs when it assigns a node, and takes it away between two tenants.
    pub fn sets_up_sharing(&self) -> bool {
        match self.sharing {
            Sharing::Mig => self.mig_config().is_some(),
            Sharing::Mps => self.device_plugin_config().is_some(),
            Sharing::Exclusive | Sharing::TimeSlicing | Sharing::Dra => false,
        }
    }

    /// Whether a node with these labels belongs to the pool.
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        !self.node_selector.is_empty()
            && self
                .node_selector
                .iter()
                .all(|(key, value)| labels.get(key) == Some(value))
    }

    /// What Berth scrubs between two tenants, in order.
    pub fn scrub_steps(&self) -> Vec<ScrubStep> {
        if self.scrub.policy == ScrubPolicy::None {
            return Vec::new();
        }
        self.scrub.steps.clone().unwrap_or_else(|| {
            let mut steps = vec![ScrubStep::Processes, ScrubStep::Claims, ScrubStep::Ephemeral];
            let is_nvidia = |resource: &String| resource.starts_with("nvidia.com/");
            // A node can have GPUs that its pool does not count, which its tenants use all the same. On a node without NVIDIA GPUs these steps do nothing.
            if self.gpu_resource_name.as_ref().is_none_or(is_nvidia) || self.sharing == Sharing::Dra {
                // The daemon of MPS holds GPUs.
                steps.extend([ScrubStep::Mps, ScrubStep::Mig, ScrubStep::GpuReset]);
            }
            steps.push(ScrubStep::Images);
            steps
        })
    }

    /// The labels that Berth changes on a node before its scrub, so that the platform's own programs leave its GPUs. Each has the value that it must have
    /// for that; none: the node must not have the label.
    pub fn labels_to_pause(&self) -> BTreeMap<&str, Option<&str>> {
        if self.scrub.policy == ScrubPolicy::None {
            return BTreeMap::new();
        }
        let uses_gpus = |step: &ScrubStep| matches!(step, ScrubStep::Mps | ScrubStep::Mig | ScrubStep::GpuReset);
        let mut labels = pause::labels(self.scrub.pause.as_ref(), self.scrub_steps().iter().any(uses_gpus));
        labels.retain(|key, _| !self.node_selector.contains_key(*key));
        labels
    }
}

/// How GPUs are shared by pods of one tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Sharing {
    /// A GPU serves one container.
    #[default]
    Exclusive,
    /// GPUs are cut into MIG instances.
    #[serde(rename = "MIG")]
    Mig,
    /// Containers take turns on a GPU.
    TimeSlicing,
    /// Containers share a GPU through NVIDIA's multi-process service.
    #[serde(rename = "MPS")]
    Mps,
    /// Pods claim devices through dynamic resource allocation.
    #[serde(rename = "DRA")]
    Dra,
}

impl Sharing {
    /// Its name, as in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exclusive => "Exclusive",
            Self::Mig => "MIG",
            Self::TimeSlicing => "TimeSlicing",
            Self::Mps => "MPS",
            Self::Dra => "DRA",
        }
    }
}

/// Configuration of NVIDIA's software on the nodes of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NvidiaSpec {
    /// MIG layout: value of the label nvidia.com/mig.config. The node is assigned once NVIDIA's MIG manager reports success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
    )]
    pub mig_config: Option<String>,
    /// Configuration of the device plugin: value of the label nvidia.com/device-plugin.config on assigned nodes. With sharing: MPS it is
    /// taken away between two tenants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
    )]
    pub device_plugin_config: Option<String>,
    /// Folder of the daemon of the multi-process service (MPS) on the nodes, as in the values of NVIDIA's chart (mps.root). Berth empties it
    /// between two tenants. Defaults to /run/nvidia/mps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 5, max = 256), regex(pattern = r"^(/[A-Za-z0-9_][-A-Za-z0-9_.]*){2,}$"))]
    pub mps_root: Option<String>,
    /// Folder of NVIDIA's driver on the nodes, in which Berth finds nvidia-smi: the root of a driver container, or a folder with bin and lib64, as in the
    /// values of the GPU Operator (hostPaths.driverInstallDir). Defaults to the first of /, /run/nvidia/driver and /home/kubernetes/bin/nvidia that has
    /// nvidia-smi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 256),
        regex(pattern = r"^(/|(/[A-Za-z0-9_][-A-Za-z0-9_.]*)+)$")
    )]
    pub driver_root: Option<String>,
}

fn default_modes() -> Vec<NodeMode> {
    vec![NodeMode::Private]
}
