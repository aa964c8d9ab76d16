//! `UsageRecord`: what one tenant used in one month.

use crate::NodeMode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The most entries of [`UsageRecordSpec::lines`], as in its schema.
pub const MAX_USAGE_LINES: usize = 512;

/// What one tenant used in one month, in UTC. Control makes it, and keeps it when the tenant, its namespace or its Project is deleted. It
/// has amounts and no prices: those are applied when a report is made. A record without a namespace says what a HostNodePool had, with and without a tenant.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "UsageRecord",
    derive = "PartialEq",
    shortname = "usage",
    category = "berth",
    doc = "What one tenant used in one month, in UTC, or, without a namespace, the nodes that one HostNodePool had. Made by Berth; not meant to be edited.",
    printcolumn(name = "Month", type_ = "string", json_path = ".spec.month"),
    printcolumn(
        name = "Namespace",
        type_ = "string",
        json_path = ".spec.tenant.namespace",
        description = "Namespace of the TenantCluster"
    ),
    printcolumn(name = "Tenant", type_ = "string", json_path = ".spec.tenant.name"),
    printcolumn(name = "GPU-Hours", type_ = "string", json_path = ".spec.gpuHours"),
    printcolumn(
        name = "Through",
        type_ = "date",
        json_path = ".spec.meteredThrough",
        description = "Time since which usage is not recorded yet"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "In-Use",
        type_ = "boolean",
        json_path = ".spec.inUse",
        priority = 1,
        description = "Whether the tenant used something when its usage was recorded last"
    ),
    printcolumn(
        name = "UID",
        type_ = "string",
        json_path = ".spec.tenant.uid",
        priority = 1,
        description = "UID of the TenantCluster or the HostNodePool"
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.month == oldSelf.month")
    .message("the month of a UsageRecord is immutable")
    .field_path(".month"))]
#[x_kube(validation = Rule::new("self.meteredThrough >= oldSelf.meteredThrough")
    .message("must not be earlier than before: usage would be counted twice")
    .field_path(".meteredThrough"))]
pub struct UsageRecordSpec {
    /// The month, in UTC, for example 2026-11.
    #[schemars(length(max = 7), regex(pattern = "^[0-9]{4}-(0[1-9]|1[0-2])$"))]
    pub month: String,
    /// The tenant, or the pool.
    pub tenant: UsageTenant,
    /// Everything that the tenant used in the month before this time is in `lines`. It never goes back.
    pub metered_through: Time,
    /// Whether the tenant used something at that time. If not, it used nothing later, up to the next change of the record.
    #[serde(default)]
    pub in_use: bool,
    /// GPU-hours of all lines together, with one decimal.
    #[schemars(length(max = 32))]
    pub gpu_hours: String,
    /// What the tenant used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 512), extend("x-kubernetes-list-type" = "atomic"))]
    pub lines: Vec<UsageLine>,
}

/// A tenant, as it was when its usage was recorded, or a pool.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self == oldSelf")
    .message("the tenant of a UsageRecord is immutable"))]
pub struct UsageTenant {
    /// Namespace of the TenantCluster. Empty: the record says what a HostNodePool had.
    #[schemars(length(max = 63))]
    pub namespace: String,
    /// Name of the TenantCluster, or of the HostNodePool.
    #[schemars(length(max = 253))]
    pub name: String,
    /// UID of the TenantCluster or the HostNodePool: one that was deleted and created again has another one, and other records.
    #[schemars(length(max = 128))]
    pub uid: String,
    /// What Berth names the tenant's objects on the host after. Of a pool, it is the name of its records alone.
    #[schemars(length(max = 63))]
    pub slug: String,
}

impl UsageTenant {
    /// Whether it is a HostNodePool: the record says which nodes the pool had, not what somebody used.
    pub fn is_pool(&self) -> bool {
        self.namespace.is_empty()
    }
}

/// How much of one resource the tenant used, on nodes, with a class and in a Project that were the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsageLine {
    /// The resource.
    pub resource: UsageResource,
    /// Name of the HostNodePool of the nodes, for GPU, Node, CPU and Memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_name: Option<String>,
    /// Product of the GPUs of the pool, for GPU and Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_product: Option<String>,
    /// Mode of the node group, for GPU, Node, CPU and Memory. The nodes of a Dynamic group that are kept as its minimum are Private.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<NodeMode>,
    /// Name of the TenantClass of the tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_name: Option<String>,
    /// Name of the Project of the tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_name: Option<String>,
    /// Name of the Organization of the Project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organization_name: Option<String>,
    /// For Storage, the name of the StorageClass of the host. For VolumeSnapshots whose claim was deleted, the name of their VolumeSnapshotClass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
    /// Amount of each day, from the first of the month on, in units of the resource multiplied by seconds: GPU: GPUs; Node: nodes; CPU:
    /// thousandths of a core; Memory and Storage: MiB; ControlPlane: 1. Days that are missing at the end have 0.
    #[schemars(length(max = 31), inner(range(min = 0)), extend("x-kubernetes-list-type" = "atomic"))]
    pub daily: Vec<i64>,
}

/// What a tenant used in a month: the sums of its UsageRecord, for those who may not read the records of all tenants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MonthlyUsage {
    /// The month, in UTC, for example 2026-11.
    #[schemars(length(max = 7))]
    pub month: String,
    /// Everything that the tenant used in the month before this time is in `hours`.
    pub metered_through: Time,
    /// Whether the tenant used something at that time. If not, it used nothing later, up to the next change.
    #[serde(default)]
    pub in_use: bool,
    /// What the tenant used, by resource. What it did not use is missing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 6), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["resource"]))]
    pub hours: Vec<ResourceHours>,
}

/// How much of a resource a tenant used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceHours {
    /// The resource.
    pub resource: UsageResource,
    /// Hours with one decimal: of a GPU, a node, a core, a GiB, or a control plane.
    #[schemars(length(max = 32))]
    pub hours: String,
}

/// A resource of which usage is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum UsageResource {
    /// GPUs of the nodes that are assigned to the tenant, whether or not a pod uses them.
    #[serde(rename = "GPU")]
    Gpu,
    /// The nodes that are assigned to the tenant, with and without GPUs.
    Node,
    /// CPU that the tenant's pods on shared nodes request.
    #[serde(rename = "CPU")]
    Cpu,
    /// Memory that the tenant's pods on shared nodes request.
    Memory,
    /// Storage that the tenant's PersistentVolumeClaims request, or have if their volumes are larger, and that snapshots keep of claims that are gone.
    Storage,
    /// The control plane of the tenant, while it does not sleep.
    ControlPlane,
}

impl UsageResource {
    /// All resources, in the order in which reports show them.
    pub const ALL: [Self; 6] = [
        Self::Gpu,
        Self::Node,
        Self::Cpu,
        Self::Memory,
        Self::Storage,
        Self::ControlPlane,
    ];

    /// Its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpu => "GPU",
            Self::Node => "Node",
            Self::Cpu => "CPU",
            Self::Memory => "Memory",
            Self::Storage => "Storage",
            Self::ControlPlane => "ControlPlane",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_written_by_their_names() {
        for resource in UsageResource::ALL {
            assert_eq!(serde_json::to_value(resource).unwrap(), resource.name());
        }
    }

    #[test]
    fn a_record_is_written_without_what_it_does_not_have() {
        let record = serde_json::json!({
            "month": "2026-11",
            "tenant": {"namespace": "ai", "name": "vision", "uid": "6f2c", "slug": "vision-aaaaaaaaaaaaa"},
            "meteredThrough": "2026-11-02T00:00:00Z",
            "inUse": true,
            "gpuHours": "24.0",
            "lines": [{"resource": "GPU", "poolName": "h100", "mode": "Private", "daily": [86_400]}],
        });
        let spec: UsageRecordSpec = serde_json::from_value(record.clone()).unwrap();
        assert_eq!(spec.lines[0].mode, Some(NodeMode::Private));
        assert_eq!(serde_json::to_value(&spec).unwrap(), record);
    }
}
