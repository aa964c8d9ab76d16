//! How Berth scrubs and validates a node between two tenants.

use super::PauseSpec;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What Berth scrubs on a node between two tenants.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.policy != 'None' || (!has(self.steps) && !has(self.disks) && !has(self.custom) && !has(self.pause))")
    .message("policy None scrubs nothing: remove steps, disks, custom and pause, or set policy to Always"))]
#[x_kube(validation = Rule::new("(has(self.steps) && 'Disks' in self.steps) == (has(self.disks) && self.disks.size() > 0)")
    .message("the step Disks and the list disks go together")
    .field_path(".disks"))]
#[x_kube(validation = Rule::new("!has(self.steps) || self.steps.size() > 0 || (has(self.custom) && self.custom.size() > 0)")
    .message("a scrub without steps scrubs nothing: leave steps out for the default ones, or set policy to None")
    .field_path(".steps"))]
pub struct ScrubSpec {
    /// Whether Berth scrubs nodes. None is for simulated nodes: it leaves the data of a tenant to the next one.
    #[serde(default)]
    pub policy: ScrubPolicy,
    /// Scrub steps, in this order. Defaults to Processes, Claims, Ephemeral, for NVIDIA GPUs MPS, MIG and GPUReset, and Images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub steps: Option<Vec<ScrubStep>>,
    /// Folders on local disks that the step Disks empties.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        inner(length(min = 5, max = 256), regex(pattern = r"^(/[A-Za-z0-9_][-A-Za-z0-9_.]*){2,}$"))
    )]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub disks: Vec<String>,
    /// Labels that Berth changes on a node before its scrub, so that DaemonSets whose programs use GPUs leave it. Without them, those of NVIDIA's GPU Operator
    /// if the steps MPS, MIG or GPUReset run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<PauseSpec>,
    /// Prefixes of the names of images that the step Images keeps, besides pinned images and those that the platform's pods
    /// use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 256)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub keep_images: Vec<String>,
    /// Steps of the platform, run after the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_string()]))]
    pub custom: Vec<NodeProgram>,
    /// Image of Berth's steps. Defaults to the installed one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,
    /// Annotations of the pods that scrub and validate nodes, for admission webhooks of the platform.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub pod_annotations: BTreeMap<String, String>,
}

/// Whether a check or a scrub is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ScrubPolicy {
    /// It is done.
    #[default]
    Always,
    /// It is not done.
    None,
}

/// A scrub step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ScrubStep {
    /// Ends containers and processes that are left of tenants' pods; nothing may hold a GPU. Clears the kernel's keyrings of
    /// users, and its table of connections.
    Processes,
    /// Waits until no device of a tenant's ResourceClaim is prepared any more.
    Claims,
    /// Removes what is left of tenants' pods: emptyDirs and other folders of the kubelet, logs, core dumps, checkpoints.
    Ephemeral,
    /// Waits until NVIDIA's multi-process service has ended, and empties its folder, which containers share.
    #[serde(rename = "MPS")]
    Mps,
    /// Destroys MIG instances.
    #[serde(rename = "MIG")]
    Mig,
    /// Resets GPUs, which clears their memory.
    #[serde(rename = "GPUReset")]
    GpuReset,
    /// Removes images that no pod of the platform uses, by name and by ID, and checks that no content but that of kept images is left.
    Images,
    /// Empties folders on local disks.
    Disks,
}

impl ScrubStep {
    /// Name of its container and of the command of the scrub program.
    pub fn name(self) -> &'static str {
        match self {
            Self::Processes => "processes",
            Self::Claims => "claims",
            Self::Ephemeral => "ephemeral",
            Self::Mps => "mps",
            Self::Mig => "mig",
            Self::GpuReset => "gpu-reset",
            Self::Images => "images",
            Self::Disks => "disks",
        }
    }
}

/// What Berth checks on a scrubbed node before it is free.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.policy != 'None' || self.riskPolicy == 'Report'")
    .message("policy None validates nothing, and so finds no risks: set riskPolicy to Report, or policy to Always")
    .field_path(".riskPolicy"))]
pub struct ValidateSpec {
    /// Whether Berth validates nodes. With None, a node is free once it is scrubbed.
    #[serde(default)]
    pub policy: ScrubPolicy,
    /// What Berth does with a node on which it finds a risk: something in the set-up of the node that lets tenants do more than their class says, or root
    /// on the node more than the node may.
    #[serde(default)]
    pub risk_policy: RiskPolicy,
    /// Risks that Berth neither reports nor refuses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub accepted_risks: Vec<NodeRisk>,
    /// Checks of the platform, run after Berth's own: nothing is left of the tenant, all GPUs are present and healthy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub custom: Vec<NodeProgram>,
}

/// What Berth does with a node on which it finds a risk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RiskPolicy {
    /// An Event on the node and the condition NoKnownRisks of the pool say so. The node can be assigned.
    #[default]
    Report,
    /// The node is quarantined.
    Quarantine,
}

/// A risk in the set-up of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum NodeRisk {
    /// The container runtime restores containers from images that are marked as checkpoints.
    CheckpointRestore,
    /// Credentials with which nodes join the cluster are in files of the node.
    BootstrapCredentials,
    /// Credentials of administrators or of the host's control plane are in files of the node.
    AdminCredentials,
    /// CRI-O completes names of images without a registry by others than Docker Hub. Only if a TenantClass lists images.
    ShortNames,
    /// The node has credentials for registries, which the pods of every tenant can use. Only if a TenantClass lets tenants run every image.
    RegistryCredentials,
}

impl NodeRisk {
    /// Its name, as in the API and in what the scrub program reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::CheckpointRestore => "CheckpointRestore",
            Self::BootstrapCredentials => "BootstrapCredentials",
            Self::AdminCredentials => "AdminCredentials",
            Self::ShortNames => "ShortNames",
            Self::RegistryCredentials => "RegistryCredentials",
        }
    }
}

/// A program that runs on a node as root, with the node's root file system at /host. It succeeds with exit code 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeProgram {
    /// Name, unique in its list.
    #[schemars(length(min = 1, max = 40), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Its image.
    #[schemars(length(min = 1, max = 512))]
    pub image: String,
    /// The command. Defaults to the image's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub command: Vec<String>,
    /// Its arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub args: Vec<String>,
}
