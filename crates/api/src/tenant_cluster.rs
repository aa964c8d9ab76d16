//! `TenantCluster`: the Kubernetes cluster that a team requests.

use crate::{
    ControlPlaneService, ControlPlaneSpec, CredentialsStatus, EncryptionStatus, ExpirationLimits, IdleStatus,
    KubeDuration, KubeconfigStatus, ManifestStatus, MonthlyUsage, NodeGroupStatus, QuotaReservation, RestoreStatus,
    SleepSpec, SleepStatus, TenantAccess, TenantAuthentication, TenantIntegrations, TenantNetwork, TenantUsage,
    UnusedNodesStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A Kubernetes cluster for one team: its own control plane, and GPU nodes that serve this team alone.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "TenantCluster",
    namespaced,
    status = "TenantClusterStatus",
    derive = "PartialEq",
    shortname = "tc",
    category = "berth",
    selectable = ".status.phase",
    selectable = ".status.className",
    doc = "A Kubernetes cluster for one team: its own control plane, and GPU nodes that serve this team alone.",
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.version", description = "Kubernetes version that runs"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodes.assigned", description = "Nodes assigned to the tenant"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".status.nodes.desired", description = "Nodes the tenant should have now"),
    printcolumn(name = "GPUs", type_ = "integer", json_path = ".status.nodes.gpus", description = "GPUs of the assigned nodes"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Requested-Version", type_ = "string", json_path = ".spec.version", priority = 1, description = "Kubernetes version that the spec asks for"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase", priority = 1),
    printcolumn(name = "Class", type_ = "string", json_path = ".status.className", priority = 1),
    printcolumn(name = "Schedule", type_ = "string", json_path = ".status.conditions[?(@.type==\"WithinSchedule\")].reason", priority = 1, description = "What SchedulePolicies let the tenant do now"),
    printcolumn(name = "Expires", type_ = "string", json_path = ".status.expiresAt", priority = 1),
    printcolumn(name = "Endpoint", type_ = "string", json_path = ".status.endpoint", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1),
    validation = Rule::new("self.metadata.name.size() <= 40 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')")
        .message("the name of a TenantCluster must be a DNS label of at most 40 characters that starts with a letter"),
    validation = Rule::new("!has(self.spec.version) || (has(oldSelf.spec.version) && self.spec.version == oldSelf.spec.version) || !has(self.status) || !has(self.status.version) || int(self.spec.version.split('.')[1]) <= int(self.status.version.split('.')[1]) + 1")
        .message("Kubernetes is upgraded one minor version at a time: set the one after that of status.version, and the next once status.version has changed")
        .field_path(".spec.version"),
    validation = Rule::new("!has(self.spec.version) || (has(oldSelf.spec.version) && self.spec.version == oldSelf.spec.version) || !has(self.status) || !has(self.status.version) || int(self.spec.version.split('.')[1]) >= int((has(self.status.upgradingTo) ? self.status.upgradingTo : self.status.version).split('.')[1])")
        .message("the minor version of Kubernetes cannot go down: an API server cannot read what a newer one stored. status.version and status.upgradingTo say what has run")
        .field_path(".spec.version")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.ttl) || duration(self.ttl) >= duration('1m')")
    .message("ttl must be at least 1m")
    .field_path(".ttl"))]
#[x_kube(validation = Rule::new("!has(self.expireAfterIdle) || duration(self.expireAfterIdle) >= duration('1m')")
    .message("expireAfterIdle must be at least 1m")
    .field_path(".expireAfterIdle"))]
pub struct TenantClusterSpec {
    /// Kubernetes version of the tenant's control plane, for example v1.37.1. Compared with `status.version`, the minor version goes up by
    /// one at a time. It cannot go below one that has run. Without it, Berth chooses a version before anything of the tenant runs:
    /// the `defaultVersion` of the class, or else the newest version that Berth can run and the class allows. The tenant keeps that
    /// version. If you remove the field later, the tenant keeps the version that was started last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), regex(pattern = r"^v1\.(0|[1-9][0-9]?)\.(0|[1-9][0-9]?)$"))]
    pub version: Option<String>,

    /// Name of the TenantClass whose rules apply. Defaults to the class named `default`. If that does not exist, the
    /// TenantCluster is not accepted, unless the platform lets Berth's built-in defaults apply. You need the verb `use` on the TenantClass, or on `default` if the field is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 40), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub class_name: Option<String>,

    /// Which scheduler assigns the tenant's pods to nodes. Defaults to the mode of the class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduling_mode: Option<SchedulingMode>,

    /// How the control plane runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane: Option<ControlPlaneSpec>,

    /// Groups of host nodes that Berth assigns to the tenant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_string()]))]
    pub node_groups: Vec<NodeGroup>,

    /// Which networks outside the tenant its pods may reach, and which may reach them.
    #[serde(default)]
    pub network: TenantNetwork,

    /// Programs of the platform that work in the tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub integrations: Option<TenantIntegrations>,

    /// How long the tenant exists, counted from its creation, for example 72h. Then Berth deletes it with everything in it. Set a
    /// greater value to keep it longer. Defaults to that of the class, which may also set a maximum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<KubeDuration>,

    /// How long the tenant may have no pods before Berth deletes it, for example 8h. Pods that have ended do not count, nor do
    /// requests to its API server. Defaults to that of the class, which may also set a maximum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expire_after_idle: Option<KubeDuration>,

    /// Which OIDC issuers' tokens the tenant's API server accepts. Defaults to those of the class, which may forbid others. A change
    /// replaces the API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authentication: Option<TenantAuthentication>,

    /// Users and groups that have a role in the whole tenant.
    #[serde(default)]
    pub access: TenantAccess,

    /// When the tenant sleeps: its control plane and its pods do not run, its nodes are given back, and everything that it stores
    /// stays. It wakes when it is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sleep: Option<SleepSpec>,
}

impl TenantClusterSpec {
    /// Whether a node group of the tenant uses this shared pool.
    pub fn uses_shared_pool(&self, pool: &str) -> bool {
        self.node_groups
            .iter()
            .any(|group| group.mode == NodeMode::Shared && group.pool_name == pool)
    }

    /// How clients outside the host cluster reach the API server.
    pub fn service(&self) -> ControlPlaneService {
        self.control_plane
            .as_ref()
            .map(|control_plane| control_plane.service.clone())
            .unwrap_or_default()
    }
}

/// Nodes of one HostNodePool.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.mode == 'Private' ? has(self.replicas) : !has(self.replicas)")
    .message("mode Private needs replicas, and no other mode has them")
    .field_path(".replicas"))]
#[x_kube(validation = Rule::new("self.mode == 'Dynamic' ? has(self.maxReplicas) : !has(self.maxReplicas) && !has(self.minReplicas)")
    .message("mode Dynamic needs maxReplicas and may have minReplicas, and no other mode has them")
    .field_path(".maxReplicas"))]
#[x_kube(validation = Rule::new("!has(self.minReplicas) || !has(self.maxReplicas) || self.minReplicas <= self.maxReplicas")
    .message("minReplicas must not be greater than maxReplicas")
    .field_path(".minReplicas"))]
#[x_kube(validation = Rule::new("self.poolName == oldSelf.poolName")
    .message("the poolName of a node group is immutable; add a group with another name and remove this one")
    .field_path(".poolName"))]
pub struct NodeGroup {
    /// Name of the group, unique within the TenantCluster.
    #[schemars(length(min = 1, max = 40), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Name of the HostNodePool that the nodes come from. You need the verb `use` on it.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub pool_name: String,
    /// How Berth assigns nodes to the group. Private: a fixed number, reserved for the tenant. Dynamic: as many as the tenant's
    /// pods need, between minReplicas and maxReplicas. Shared: the group uses the nodes of a shared pool together with other
    /// tenants, for workloads without GPUs.
    #[serde(default)]
    pub mode: NodeMode,
    /// Number of nodes, in mode Private.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1024))]
    pub replicas: Option<u32>,
    /// Minimum number of nodes, in mode Dynamic. Defaults to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1024))]
    pub min_replicas: Option<u32>,
    /// Maximum number of nodes, in mode Dynamic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub max_replicas: Option<u32>,
}

impl NodeGroup {
    /// A group of private nodes.
    pub fn private(name: &str, pool: &str, replicas: u32) -> Self {
        Self {
            name: name.into(),
            pool_name: pool.into(),
            mode: NodeMode::Private,
            replicas: Some(replicas),
            ..Self::default()
        }
    }

    /// A group whose nodes follow demand.
    pub fn dynamic(name: &str, pool: &str, min: u32, max: u32) -> Self {
        Self {
            name: name.into(),
            pool_name: pool.into(),
            mode: NodeMode::Dynamic,
            min_replicas: Some(min),
            max_replicas: Some(max),
            ..Self::default()
        }
    }

    /// Minimum number of nodes of its own; 0 in mode Shared.
    pub fn minimum(&self) -> u32 {
        match self.mode {
            NodeMode::Private => self.replicas.unwrap_or_default(),
            NodeMode::Dynamic => self.min_replicas.unwrap_or_default(),
            NodeMode::Shared => 0,
        }
    }

    /// Maximum number of nodes of its own; 0 in mode Shared.
    pub fn maximum(&self) -> u32 {
        match self.mode {
            NodeMode::Private => self.replicas.unwrap_or_default(),
            NodeMode::Dynamic => self.max_replicas.unwrap_or_default().max(self.minimum()),
            NodeMode::Shared => 0,
        }
    }
}

/// How Berth assigns nodes to a node group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum NodeMode {
    /// A fixed number of nodes, reserved for one tenant.
    #[default]
    Private,
    /// As many nodes as the tenant's pods need. A node belongs to one tenant at a time.
    Dynamic,
    /// Nodes that several tenants use at the same time, for workloads without GPUs.
    Shared,
}

/// Which scheduler assigns pods to nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum SchedulingMode {
    /// The host's scheduler.
    #[default]
    Host,
    /// Schedulers in the tenant: the kube-scheduler that Berth runs there, and those that the team installs.
    Tenant,
}

/// Observed state of a TenantCluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantClusterStatus {
    /// Phase of the tenant's life. Use the conditions to make decisions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Generation of the spec that was observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Kubernetes version that the control plane runs; during an upgrade the older one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub version: Option<String>,
    /// Kubernetes version that the control plane is being upgraded to. It is recorded before an API server of it starts, and absent
    /// once all of them have it. For a new tenant without `spec.version`, it is the version that Berth has chosen, until `version` says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub upgrading_to: Option<String>,
    /// Name of the TenantClass whose rules apply. Empty if Berth's built-in defaults apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_name: Option<String>,
    /// Address of the tenant's API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Secret in the namespace of the TenantCluster with the kubeconfig of the tenant's cluster-admin, under the keys `kubeconfig`
    /// and `value`, in the form of Cluster API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubeconfig_secret_ref: Option<SecretReference>,
    /// From this, `berth kubeconfig` makes a kubeconfig that holds no secret: people sign in with it. Absent if `spec.authentication.kubeconfig`
    /// names no issuer, nor does that of the class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubeconfig: Option<KubeconfigStatus>,
    /// Host namespace that holds the tenant's control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_namespace: Option<String>,
    /// Host namespace that holds the tenant's workloads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_namespace: Option<String>,
    /// What is reserved for the tenant of the quotas of its Project and Organization.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<QuotaReservation>,
    /// What the tenant uses of what `quota` reserves for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<TenantUsage>,
    /// How much of its share of the datastore the tenant uses. Updated in steps of five percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datastore: Option<DatastoreUsage>,
    /// How much of what its class allows the tenant's objects have on the host. Updated in steps of five percent. Absent while the tenant
    /// sleeps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_usage: Option<HostUsage>,
    /// When Berth deletes the tenant, as far as that is known. An idle tenant that gets pods again may expire later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// Since when the tenant has no pods. Absent if it has, or if it does not expire for that reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_since: Option<Time>,
    /// How long the tenant may exist and have no pods, and what that was before the platform reduced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiration_limits: Option<ExpirationLimits>,
    /// Whether the tenant sleeps, and until when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sleep: Option<SleepStatus>,
    /// The last time that the tenant's credentials were replaced, if somebody asked for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<CredentialsStatus>,
    /// What is encrypted of what the tenant stores. Absent if its class encrypts nothing, and nothing is encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<EncryptionStatus>,
    /// The last time that the tenant was set back to a snapshot, if it ever was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore: Option<RestoreStatus>,
    /// The manifests of the class that were applied in the tenant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub manifests: Vec<ManifestStatus>,
    /// Counts of the tenant's nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<TenantNodeCounts>,
    /// Status of each node group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub node_groups: Vec<NodeGroupStatus>,
    /// Nodes that the tenant got for its pods and that none of them used, by pool. Empty once it uses as many others, and after a day.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["poolName"]))]
    pub unused_nodes: Vec<UnusedNodesStatus>,
    /// GPUs of the tenant that do nothing: those of its pods, if its class reclaims such GPUs, and nodes of which no pod requests a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<IdleStatus>,
    /// What the tenant used in this month and in the month before, in UTC, the later one first. The platform has it by day in UsageRecords. Updated when
    /// those are, up to four times an hour.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["month"]))]
    pub monthly_usage: Vec<MonthlyUsage>,
    /// What the tenant has and its class or a pool no longer allows, and when Berth withdraws it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["reason", "object"]))]
    pub violations: Vec<Violation>,
    /// Accepted, QuotaReserved, InfrastructureReady, DatastoreReady, ControlPlaneReady, EndpointReady, SyncerReady, NodesReady, Ready; Compliant;
    /// DatastoreWithinLimits, HostWithinLimits, WithinSchedule, Expiring, Awake, ManifestsApplied, AuthenticationApplied, ArgoCDRegistered, CredentialsRotated, EncryptedAtRest
    /// and Restored where they apply; Deleting while it is deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Phase of a tenant's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// The spec cannot be carried out as it stands, or waits for quota; the conditions Accepted and QuotaReserved say why.
    Pending,
    /// The control plane, the syncer or the nodes are being prepared.
    Provisioning,
    /// The kubeconfig works and every node is there.
    Ready,
    /// Nothing of the tenant runs until it is needed.
    Sleeping,
    /// The control plane of a tenant that slept is being started.
    Waking,
    /// Everything the tenant had is being removed.
    Deleting,
}

/// Something that a running tenant has and that its class or a pool no longer allows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Violation {
    /// What is not allowed, as the reason of an Event.
    pub reason: String,
    /// The object that does not allow it, for example `HostNodePool/h100`.
    pub object: String,
    /// What is not allowed, and what to do, for people.
    pub message: String,
    /// Since when Berth knows of it.
    pub since: Time,
    /// When Berth withdraws it. Empty if Berth only reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// Whether the deadline is over, and Berth withdraws it.
    #[serde(default)]
    pub enforced: bool,
}

/// A Secret in the namespace of the TenantCluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SecretReference {
    /// Name of the Secret.
    pub name: String,
}

/// How much of its share of the datastore a tenant uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DatastoreUsage {
    /// Size of all objects: the estimate of the API server, and what etcd has besides.
    pub bytes: u64,
    /// Number of all objects, or of the tenant's keys in etcd if these are more.
    pub objects: u64,
    /// The larger of both, in percent of what the class allows.
    pub percent: u32,
    /// Whether the API server creates nothing more. It creates objects again below 95 percent.
    pub full: bool,
    /// Whether the API server also denies updates that make an object larger: from 110 percent on, until less than 105 percent is
    /// used.
    #[serde(default)]
    pub growth_denied: bool,
    /// Number of CustomResourceDefinitions.
    #[serde(default)]
    pub custom_resource_definitions: u64,
    /// Whether the API server creates no CustomResourceDefinitions, because the tenant has as many as its class allows. It
    /// creates them again below 95 percent.
    #[serde(default)]
    pub definitions_full: bool,
}

/// How much of its share of the host's etcd a tenant uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostUsage {
    /// Size of all objects that the tenant's syncer has on the host, as the syncer counts it.
    pub bytes: u64,
    /// Its `bytes` in percent of what the class allows.
    pub percent: u32,
}

/// Counts of a tenant's nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TenantNodeCounts {
    /// Nodes that the tenant should have now: the replicas of Private groups, and what the pods of Dynamic groups need.
    pub desired: u32,
    /// Nodes that belong to the tenant.
    pub assigned: u32,
    /// Assigned nodes whose condition Ready is True.
    pub ready: u32,
    /// GPUs of the assigned nodes: the most that each has had since the tenant has it.
    #[serde(default)]
    pub gpus: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_group_with_replicas_only_is_private() {
        let group: NodeGroup =
            serde_json::from_value(serde_json::json!({"name": "a", "poolName": "h100", "replicas": 2})).unwrap();
        assert_eq!(group, NodeGroup::private("a", "h100", 2));
        assert_eq!((group.minimum(), group.maximum()), (2, 2));
    }

    #[test]
    fn a_dynamic_node_group_has_a_minimum_and_a_maximum() {
        let group: NodeGroup = serde_json::from_value(
            serde_json::json!({"name": "a", "poolName": "h100", "mode": "Dynamic", "maxReplicas": 8}),
        )
        .unwrap();
        assert_eq!((group.minimum(), group.maximum()), (0, 8));
        assert_eq!(NodeGroup::dynamic("a", "h100", 2, 8).minimum(), 2);
    }
}
