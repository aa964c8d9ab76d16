//! `Organization`: the upper level of the quota tree.

use crate::{FairSharing, QuotaSummary, TreeQuota, TreeQuotaStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Projects that share quotas.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "Organization",
    status = "OrganizationStatus",
    derive = "PartialEq",
    shortname = "org",
    category = "berth",
    doc = "Projects that share quotas.",
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Projects", type_ = "integer", json_path = ".status.projects"),
    printcolumn(name = "Tenants", type_ = "integer", json_path = ".status.tenants"),
    printcolumn(name = "Waiting", type_ = "integer", json_path = ".status.waitingTenants", description = "Tenants that wait for quota"),
    printcolumn(name = "GPUs", type_ = "string", json_path = ".status.quotaSummary.gpus", description = "Reserved GPUs of the nominal quota, of the pool or product of which most is reserved"),
    printcolumn(name = "Fullest", type_ = "string", json_path = ".status.quotaSummary.fullest", description = "The quota of which the largest part is reserved"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Within-Quota", type_ = "string", json_path = ".status.conditions[?(@.type==\"WithinQuota\")].status", priority = 1, description = "Whether no resource is used beyond the quotas"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1),
    validation = Rule::new("self.metadata.name.size() <= 63 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')")
        .message("the name of an Organization must be a DNS label of at most 63 characters that starts with a letter")
)]
#[serde(rename_all = "camelCase")]
pub struct OrganizationSpec {
    /// How the Organization competes with others for nodes beyond the nominal quotas.
    #[serde(default)]
    pub fair_sharing: FairSharing,

    /// Quotas of all Projects of the Organization together. A resource that is not listed here is limited only by the quotas of
    /// its Projects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub quotas: Vec<TreeQuota>,
}

/// Observed state of an Organization.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrganizationStatus {
    /// Generation of the spec that was observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Projects that name the Organization.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub projects: Option<u32>,
    /// TenantClusters of its Projects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenants: Option<u32>,
    /// TenantClusters of its Projects that wait for quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_tenants: Option<u32>,
    /// What the tenants have of each resource that the Organization limits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quotas: Vec<TreeQuotaStatus>,
    /// Which of `quotas` are nearest to full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_summary: Option<QuotaSummary>,
    /// Ready: the quotas are consistent. WithinQuota: no resource is used beyond what the quotas allow. Deleting: the deletion waits
    /// for TenantClusters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
