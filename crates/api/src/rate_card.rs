//! `RateCard`: what usage costs.

use crate::{NodeMode, UsageResource};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Prices of what tenants use, in one currency. `berth usage` applies them when it makes a report; nothing else reads them.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "RateCard",
    derive = "PartialEq",
    shortname = "rates",
    category = "berth",
    doc = "Prices of what tenants use, in one currency. Reports apply them; they change nothing that is recorded.",
    printcolumn(name = "Currency", type_ = "string", json_path = ".spec.currency"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Targets",
        type_ = "string",
        json_path = ".spec.targets",
        priority = 1,
        description = "For which Organizations and Projects it is; for all without any"
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.prices.all(a, self.prices.exists_one(b, (has(a.effectiveFrom) ? a.effectiveFrom : '') == (has(b.effectiveFrom) ? b.effectiveFrom : '')))")
    .message("effectiveFrom must be unique, and only one price list may be without it")
    .field_path(".prices"))]
pub struct RateCardSpec {
    /// Currency of the prices, its code in ISO 4217, for example EUR.
    #[schemars(length(max = 3), regex(pattern = "^[A-Z]{3}$"))]
    pub currency: String,

    /// For whose usage the prices are. Empty: for all usage. Usage is priced by the card that names its Project. What that card has no
    /// price for is priced by the card that names its Organization, and then by the one without targets. Two cards of one currency must not have the
    /// same target: its usage has no price then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["kind".to_string(), "name".to_string()]))]
    pub targets: Vec<RateCardTarget>,

    /// Price lists. The usage of a day is priced by the latest that is effective on that day, and by no other.
    #[schemars(length(min = 1, max = 36))]
    pub prices: Vec<PriceList>,
}

/// An Organization or a Project.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RateCardTarget {
    /// Kind of the target.
    pub kind: RateCardTargetKind,
    /// Name of the target. It need not exist any more.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
}

/// Kind of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum RateCardTargetKind {
    /// Usage of the Projects of an Organization.
    Organization,
    /// Usage of a Project.
    Project,
}

impl RateCardTargetKind {
    /// Its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Organization => "Organization",
            Self::Project => "Project",
        }
    }
}

/// Prices from a day on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PriceList {
    /// The first day, in UTC, for example 2026-01-01. The list applies until the next one is effective. Without it, from the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 10),
        regex(
            pattern = "^2[0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|[12][0-9]))$"
        )
    )]
    pub effective_from: Option<String>,
    /// The prices. Of several that match, the one with most fields applies; of those with as many, first one with `poolName`, then one with
    /// `gpuProduct`. No two may have the same fields with the same values.
    #[schemars(length(min = 1, max = 128))]
    pub rates: Vec<Rate>,
}

/// The price of a resource, or of a part of it.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(self.resource in ['Storage', 'ControlPlane']) || !has(self.poolName) && !has(self.mode)")
    .message("resources Storage and ControlPlane have no poolName and no mode"))]
#[x_kube(validation = Rule::new("self.resource in ['GPU', 'Node'] || !has(self.gpuProduct)")
    .message("only the resources GPU and Node have a gpuProduct")
    .field_path(".gpuProduct"))]
#[x_kube(validation = Rule::new("self.resource == 'Storage' || !has(self.storageClassName)")
    .message("only the resource Storage has a storageClassName")
    .field_path(".storageClassName"))]
pub struct Rate {
    /// The resource. GPUs of a node are usage of the resource GPU, the node itself is usage of the resource Node: with prices of both, both are
    /// charged. A rate for Node without `poolName` is also for nodes with GPUs.
    pub resource: UsageResource,
    /// Only on nodes of this HostNodePool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub pool_name: Option<String>,
    /// Only GPUs, or nodes with GPUs, of this product, as HostNodePools have it in `gpuProduct`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = "^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
    )]
    pub gpu_product: Option<String>,
    /// Only in node groups of this mode. The nodes of a Dynamic group that are kept as its minimum are Private.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<NodeMode>,
    /// Only for Storage of this StorageClass of the host. For VolumeSnapshots whose claim was deleted, the name of their VolumeSnapshotClass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub storage_class_name: Option<String>,
    /// Price of one hour, for example 2.10: of a GPU, a node, a core, a GiB, or a control plane. 0: it is free.
    #[schemars(length(max = 19), regex(pattern = r"^[0-9]{1,9}(\.[0-9]{1,9})?$"))]
    pub price: String,
}
