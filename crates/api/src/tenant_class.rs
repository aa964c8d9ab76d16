//! `TenantClass`: the platform's rules for tenants.

use crate::{
    AllowedNamespaces, ClassAudit, ClassAuthentication, ClassControlPlane, ClassEncryption, ClassIntegrations,
    ClassManifest, ClassSleep, ClassSnapshots, DnsPolicy, ExpirationPolicy, FairSharing, IdleReclaim, KubeDuration,
    PoolQuota, SchedulingMode, SyncPolicy, TenantLimits, allowed_namespaces::grace_seconds, network::ClassNetwork,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Name of the class of TenantClusters that do not set one.
pub const DEFAULT_CLASS: &str = "default";

/// The platform's rules for tenants: what they may ask for, and which parts of the host they see and use.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "TenantClass",
    status = "TenantClassStatus",
    derive = "PartialEq",
    shortname = "tclass",
    category = "berth",
    doc = "The platform's rules for tenants: what they may ask for, and which parts of the host they see and use.",
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Scheduling", type_ = "string", json_path = ".spec.schedulingMode"),
    printcolumn(name = "Default-Version", type_ = "string", json_path = ".spec.defaultVersion"),
    printcolumn(name = "Tenants", type_ = "integer", json_path = ".status.tenants"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1),
    validation = Rule::new("self.metadata.name.size() <= 40 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')")
        .message("the name of a TenantClass must be a DNS label of at most 40 characters that starts with a letter")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.defaultVersion) || !has(self.versions) || self.versions.size() == 0 || self.defaultVersion in self.versions")
    .message("defaultVersion must be one of versions")
    .field_path(".defaultVersion"))]
pub struct TenantClassSpec {
    /// Namespaces whose TenantClusters may name the class. Defaults to all. Users need the verb `use` on the class besides.
    #[serde(default)]
    pub allowed_namespaces: AllowedNamespaces,

    /// How long a running tenant keeps what the class no longer allows. Then Berth withdraws it. 0s: at once. Defaults to 24h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement_grace_period: Option<KubeDuration>,

    /// Kubernetes versions that tenants may run. Empty: every version that this Berth can run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 32),
        inner(length(max = 16), regex(pattern = r"^v1\.(0|[1-9][0-9]?)\.(0|[1-9][0-9]?)$"))
    )]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub versions: Vec<String>,

    /// Kubernetes version of new tenants that set no `spec.version`; one of `versions`, unless that list is empty. Berth chooses it before
    /// anything of a tenant runs, and a change upgrades no tenant. Defaults to the newest version that this Berth can run and the class allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), regex(pattern = r"^v1\.(0|[1-9][0-9]?)\.(0|[1-9][0-9]?)$"))]
    pub default_version: Option<String>,

    /// Which scheduler assigns pods to nodes in tenants that do not set spec.schedulingMode.
    #[serde(default)]
    pub scheduling_mode: SchedulingMode,

    /// What tenants may set in spec.controlPlane.
    #[serde(default)]
    pub control_plane: ClassControlPlane,

    /// How users of the tenants authenticate.
    #[serde(default)]
    pub authentication: ClassAuthentication,

    /// What API servers of the tenants write into their audit logs. A change replaces the API servers. Defaults to no audit log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audit: Option<ClassAudit>,

    /// Which objects and fields Berth syncs to the host, and which objects of the host the tenant sees.
    #[serde(default)]
    pub sync: SyncPolicy,

    /// What the tenants' DNS answers besides the tenants' own names.
    #[serde(default)]
    pub dns: DnsPolicy,

    /// Which networks tenants may reach, and which may reach them.
    #[serde(default)]
    pub network: ClassNetwork,

    /// How much each tenant may store and create.
    #[serde(default)]
    pub limits: TenantLimits,

    /// Which objects the API servers of the tenants encrypt before they store them. Without it, none. `encryption: {}` encrypts Secrets.
    /// A change reaches tenants that exist: their objects are rewritten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<ClassEncryption>,

    /// How long tenants exist.
    #[serde(default)]
    pub expiration: ExpirationPolicy,

    /// How tenants sleep that nobody uses.
    #[serde(default)]
    pub sleep: ClassSleep,

    /// How many snapshots tenants may have of what they store, and when Berth takes some by itself. Needs an object store of the platform.
    #[serde(default)]
    pub snapshots: ClassSnapshots,

    /// Objects that Berth applies in each tenant, such as policies, quotas and roles.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_string()]))]
    pub manifests: Vec<ClassManifest>,

    /// Programs of the platform that work in the tenants.
    #[serde(default)]
    pub integrations: ClassIntegrations,

    /// How tenants of this class compete with other classes for nodes beyond the nominal quotas.
    #[serde(default)]
    pub fair_sharing: FairSharing,

    /// Quota of each HostNodePool for all tenants of this class together. A pool that is not listed has no nominal quota and no
    /// borrowing limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["poolName".to_string()]))]
    pub quotas: Vec<PoolQuota>,

    /// How Berth gives back GPUs that are allocated to pods and do nothing. Needs a Prometheus server with metrics of the GPUs.
    #[serde(default)]
    pub idle_reclaim: IdleReclaim,
}

impl TenantClassSpec {
    /// [`TenantClassSpec::enforcement_grace_period`] in seconds.
    pub fn enforcement_grace_period(&self) -> i64 {
        grace_seconds(self.enforcement_grace_period.as_ref())
    }
}

/// Observed state of a TenantClass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantClassStatus {
    /// Generation of the spec that was observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// TenantClusters of this class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenants: Option<u32>,
    /// Ready: the rules are consistent and what they need exists on the host. HostnamesExclusive: no host name is allowed to two
    /// tenants of the class. ImagesExclusive: no entry of `sync.pods.images` with a placeholder is for images that another tenant of the class may use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
