//! `Project`: namespaces whose TenantClusters share quotas.

use crate::{FairSharing, QuotaSummary, TreeQuota, TreeQuotaStatus, UserQuota, UserStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// In `namespaces` of a [`Project`]: every namespace that no Project names.
pub const ALL_NAMESPACES: &str = "*";

/// Namespaces whose TenantClusters share quotas.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "Project",
    status = "ProjectStatus",
    derive = "PartialEq",
    shortname = "proj",
    category = "berth",
    selectable = ".spec.organizationName",
    doc = "Namespaces whose TenantClusters share quotas.",
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Organization", type_ = "string", json_path = ".spec.organizationName"),
    printcolumn(name = "Tenants", type_ = "integer", json_path = ".status.tenants"),
    printcolumn(name = "Waiting", type_ = "integer", json_path = ".status.waitingTenants", description = "Tenants that wait for quota"),
    printcolumn(name = "GPUs", type_ = "string", json_path = ".status.quotaSummary.gpus", description = "Reserved GPUs of the nominal quota, of the pool or product of which most is reserved"),
    printcolumn(name = "Fullest", type_ = "string", json_path = ".status.quotaSummary.fullest", description = "The quota of which the largest part is reserved"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Namespaces", type_ = "string", json_path = ".spec.namespaces", priority = 1),
    printcolumn(name = "Within-Quota", type_ = "string", json_path = ".status.conditions[?(@.type==\"WithinQuota\")].status", priority = 1, description = "Whether no resource is used beyond the quotas"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1),
    validation = Rule::new("self.metadata.name.size() <= 63 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')")
        .message("the name of a Project must be a DNS label of at most 63 characters that starts with a letter")
)]
#[serde(rename_all = "camelCase")]
pub struct ProjectSpec {
    /// Name of the Organization that the Project belongs to. Without one it is an Organization of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub organization_name: Option<String>,

    /// Namespaces whose TenantClusters belong to the Project. A namespace that several Projects name belongs to the oldest of
    /// them. `*` stands for every namespace that no Project names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 1000),
        inner(length(max = 63), regex(pattern = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?|\*)$"))
    )]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub namespaces: Vec<String>,

    /// How the Project competes with others of its Organization for nodes beyond the nominal quotas.
    #[serde(default)]
    pub fair_sharing: FairSharing,

    /// Quotas of all TenantClusters of the Project together. A resource that is not listed here is limited only by the quotas of
    /// the Organization.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub quotas: Vec<TreeQuota>,

    /// Limits of users within the Project. The pods of a user beyond a limit wait until others of the same user have ended. With an empty
    /// list no user is limited. The limits of all users together may be more than the Project has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["user".to_string()]))]
    pub user_quotas: Vec<UserQuota>,
}

/// Observed state of a Project.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProjectStatus {
    /// Generation of the spec that was observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// TenantClusters of its namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenants: Option<u32>,
    /// TenantClusters of its namespaces that wait for quota.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_tenants: Option<u32>,
    /// What the tenants have of each resource that the Project or its Organization limits.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quotas: Vec<TreeQuotaStatus>,
    /// Which of `quotas` are nearest to full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota_summary: Option<QuotaSummary>,
    /// Users of a Project with `userQuotas` that have pods: at most 100 of them, those whose pods wait first, then those nearest to a
    /// limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["user"]))]
    pub users: Vec<UserStatus>,
    /// Users with pods that are not in `users`, because these are too many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users_not_listed: Option<u32>,
    /// Ready: the Organization exists, the namespaces belong to no other Project, and the quotas are consistent. WithinQuota: no
    /// resource is used beyond what the quotas allow. Deleting: the deletion waits for TenantClusters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
