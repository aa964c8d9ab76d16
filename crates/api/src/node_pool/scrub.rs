//! What is done with a node between two tenants.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What is cleaned on a node before another tenant gets it.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.policy != 'None' || (!has(self.steps) && !has(self.disks) && !has(self.custom))")
    .message("policy None cleans nothing: remove steps, disks and custom, or set policy to Always"))]
#[x_kube(validation = Rule::new("(has(self.steps) && 'disks' in self.steps) == (has(self.disks) && self.disks.size() > 0)")
    .message("the step disks and the list disks go together")
    .field_path(".disks"))]
#[x_kube(validation = Rule::new("!has(self.steps) || self.steps.size() > 0 || (has(self.custom) && self.custom.size() > 0)")
    .message("a scrub without a step cleans nothing: leave steps out for the default ones, or set policy to None")
    .field_path(".steps"))]
pub struct ScrubSpec {
    /// Always, or None: nodes go from one tenant to the next as they are. None is unsafe wherever tenants do not trust each
    /// other with their data; it is for simulated nodes.
    #[serde(default)]
    pub policy: ScrubPolicy,
    /// What is cleaned, in this order [default: processes, claims, ephemeral, and mig and gpuReset for NVIDIA GPUs].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 7))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub steps: Option<Vec<ScrubStep>>,
    /// Folders on local disks, emptied by the step disks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        inner(length(min = 5, max = 256), regex(pattern = r"^(/[A-Za-z0-9_][-A-Za-z0-9_.]*){2,}$"))
    )]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub disks: Vec<String>,
    /// Images that the step images keep beside those that the platform's pods use: beginnings of their names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 256)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub keep_images: Vec<String>,
    /// Steps of the platform's own, after the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_string()]))]
    pub custom: Vec<NodeProgram>,
    /// Image of Berth's own steps [default: as installed].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub image: Option<String>,
    /// Annotations of the pods that clean and check nodes, for what admission webhooks of the platform look at.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub pod_annotations: BTreeMap<String, String>,
}

/// Whether nodes are cleaned between two tenants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ScrubPolicy {
    /// They are.
    #[default]
    Always,
    /// They are not.
    None,
}

/// Something that is cleaned on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ScrubStep {
    /// Ends containers and processes that are left of tenants' pods; nothing may hold a GPU.
    Processes,
    /// Waits until no device of a tenant's ResourceClaim is prepared any more.
    Claims,
    /// Removes what is left of tenants' pods: emptyDirs and other folders of the kubelet, logs.
    Ephemeral,
    /// Destroys MIG instances.
    Mig,
    /// Resets GPUs, which clears their memory.
    GpuReset,
    /// Removes images that no pod of the platform uses.
    Images,
    /// Empties folders on local disks.
    Disks,
}

impl ScrubStep {
    /// Its name, as in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Processes => "processes",
            Self::Claims => "claims",
            Self::Ephemeral => "ephemeral",
            Self::Mig => "mig",
            Self::GpuReset => "gpuReset",
            Self::Images => "images",
            Self::Disks => "disks",
        }
    }
}

/// What is checked on a clean node before it is free.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ValidateSpec {
    /// Always, or None: a node is free as soon as it is clean.
    #[serde(default)]
    pub policy: ScrubPolicy,
    /// Checks of the platform's own, after Berth's: nothing is left of tenants, all GPUs are there and healthy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub custom: Vec<NodeProgram>,
}

/// A program that is run on a node as root, with the node's files at /host. It has done its work when it ends with 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeProgram {
    /// Name, unique in its list.
    #[schemars(length(min = 1, max = 40), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Its image.
    #[schemars(length(min = 1, max = 512))]
    pub image: String,
    /// The command [default: the image's].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub command: Vec<String>,
    /// Its arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub args: Vec<String>,
}
