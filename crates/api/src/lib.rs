//! Berth's API: custom resource types, the labels and annotations it reserves, and the names it derives.
//!
//! Everything here is pure: no client, no clock, no I/O. Control, the syncer, the command line and the
//! tests all build on these definitions, so a name or a label is decided in exactly one place.

#![warn(missing_docs)]

mod allowed_namespaces;
mod audit;
mod authentication;
pub mod conditions;
mod control_plane;
pub mod crd;
mod credentials;
mod dns_policy;
mod duration;
mod encryption;
mod expiration;
mod fair_sharing;
mod gateway;
pub mod host_finalizers;
mod host_node_pool;
mod host_quota;
mod host_resource;
pub mod hostnames;
mod idle_reclaim;
mod idle_status;
pub mod images;
mod integrations;
mod kubeconfig;
pub mod labels;
mod limits;
mod manifests;
pub mod names;
pub mod network;
mod node_group_status;
mod organization;
pub mod pod_labels;
pub mod policy_annotations;
mod project;
pub mod qualified_name;
pub mod quantity;
mod quota_summary;
mod quotas;
pub mod ranges;
mod rate_card;
mod readiness;
pub mod requests;
mod schedule_policy;
mod shared_nodes;
mod sleep;
mod storage_offer;
pub mod sync_policy;
pub mod system;
mod tenant_class;
mod tenant_cluster;
mod tenant_node;
mod tenant_schedule;
mod tenant_snapshot;
mod tenant_version;
pub mod text;
mod times;
mod tree_amounts;
mod tree_resource;
mod usage_record;
mod user_quotas;
mod validate;

pub use allowed_namespaces::{AllowedNamespaces, LabelOperator, LabelRequirement, LabelSelector, NamespacesFrom};
pub use audit::{AuditLevel, AuditPreset, AuditResources, AuditRule, AuditStage, ClassAudit};
pub use authentication::{
    AccessSubject, AudienceMatchPolicy, ClaimMappings, ClaimOrExpression, ClaimValidationRule, ClassAuthentication,
    ExtraMapping, Issuer, JwtAuthenticator, PrefixedClaimOrExpression, RESERVED_PREFIXES, ServiceAccountIssuer,
    SubjectKind, TenantAccess, TenantAuthentication, UserValidationRule, is_reserved_identity,
};
pub use control_plane::{
    ClassControlPlane, ControlPlaneService, ControlPlaneServicePolicy, ControlPlaneServiceType, ControlPlaneSpec,
};
pub use credentials::{CredentialsStatus, RotationPhase, RotationRequest};
pub use dns_policy::{DnsPolicy, dns_server};
pub use duration::KubeDuration;
pub use encryption::{ClassEncryption, EncryptionPhase, EncryptionStatus};
pub use expiration::{ExpirationLimit, ExpirationLimits, ExpirationPolicy};
pub use fair_sharing::{FairSharing, PoolQuota};
pub use gateway::GatewayDomain;
pub use host_node_pool::{
    AutoscalingSpec, HostNodePool, HostNodePoolSpec, HostNodePoolStatus, MaxUnhealthy, NodeCounts, NodeProgram,
    NodeRisk, NvidiaSpec, PauseSpec, PoolOrder, PoolPolicy, PoolReclaim, RecyclingTimeouts, RepairSpec, RequestedNodes,
    RiskPolicy, ScrubPolicy, ScrubSpec, ScrubStep, Sharing, UnavailableNode, ValidateSpec,
};
pub use host_quota::{QuotaResource, counted_custom_kind, quota_resource};
pub use host_resource::{DEVICES_BY_CLASS, describe_host_resource, device_class_resource};
pub use idle_reclaim::{
    GpuHourPrice, IdleLastStep, IdleOptOut, IdleProduct, IdleProfile, IdleReclaim, IdleReclaimMode, IdleSignal,
    OwnerKind, OwnerSuspend,
};
pub use idle_status::{
    ALL_STOPPED_OWNERS, IdleNode, IdleOwner, IdleStatus, IdleStep, IdleWorkload, MOST_IDLE_NODES, MOST_IDLE_WORKLOADS,
    MOST_STOPPED_OWNERS, StoppedOwner, UnknownGpus, UnlistedNodes, UnlistedWorkloads,
};
pub use integrations::{
    ARGO_CD_DOMAIN, ArgoCdPolicy, ArgoCdRegistration, ArgoCdServer, ClassIntegrations, RegistrationPolicy,
    TenantIntegrations,
};
pub use kubeconfig::{KubeconfigSignIn, KubeconfigStatus, LoopbackUrl, is_plain_https_url};
pub use limits::{
    BYTES_OF_REFERENCE, DefaultRequest, LIMITS_NAME, ResourceLimit, TenantLimits, extension_bytes, most_references,
};
pub use manifests::{ClassManifest, ManifestConfigMap, ManifestMode, ManifestStatus};
pub use network::{NetworkLimits, TenantNetwork};
pub use node_group_status::{NodeGroupStatus, UnusedNodesStatus};
pub use organization::{Organization, OrganizationSpec, OrganizationStatus};
pub use project::{ALL_NAMESPACES, Project, ProjectSpec, ProjectStatus};
pub use quota_summary::QuotaSummary;
pub use quotas::{Amount, PoolUsage, QuotaReservation, TenantUsage, TreeQuota, TreeQuotaStatus};
pub use rate_card::{PriceList, Rate, RateCard, RateCardSpec, RateCardTarget, RateCardTargetKind};
pub use readiness::{is_node_ready, is_pod_ready};
pub use schedule_policy::{
    ScheduleAction, SchedulePolicy, SchedulePolicySpec, SchedulePolicyStatus, ScheduleState, ScheduleTarget,
    ScheduleTargetKind, ScheduleTransition, ScheduleWindow, WorkloadSelector,
};
pub use sleep::{ClassSleep, SleepCause, SleepMode, SleepSpec, SleepState, SleepStatus};
pub use storage_offer::{StorageOffer, UnknownStorageOffer};
pub use sync_policy::SyncPolicy;
pub use tenant_class::{DEFAULT_CLASS, TenantClass, TenantClassSpec, TenantClassStatus};
pub use tenant_cluster::{
    DatastoreUsage, HostUsage, NodeGroup, NodeMode, Phase, SchedulingMode, SecretReference, TenantCluster,
    TenantClusterSpec, TenantClusterStatus, TenantNodeCounts, Violation,
};
pub use tenant_node::{NodeResourceSlice, TenantNode, TenantNodeSpec, TenantNodeStatus};
pub use tenant_schedule::{
    MAX_WORKLOAD_SCHEDULES, SchedulePeriod, TENANT_SCHEDULE, TenantSchedule, TenantScheduleSpec, WorkloadSchedule,
};
pub use tenant_snapshot::{
    ClassSnapshots, MOST_SNAPSHOT_ATTEMPTS, RestoreStatus, SnapshotPhase, SnapshotSchedule, SnapshotTrigger,
    TenantSnapshot, TenantSnapshotSpec, TenantSnapshotStatus,
};
pub use times::whole_seconds;
pub use tree_resource::TreeResource;
pub use usage_record::{
    MAX_USAGE_LINES, MonthlyUsage, ResourceHours, UsageLine, UsageRecord, UsageRecordSpec, UsageResource, UsageTenant,
};
pub use user_quotas::{
    ALL_USERS, MOST_LISTED_USERS, PLATFORM_USER, PODS, SERVICE_ACCOUNTS, UNKNOWN_USER, UserLimit, UserQuota,
    UserResourceStatus, UserStatus,
};
pub use validate::{KubernetesVersion, VersionError};

/// API group of every kind Berth defines.
pub const GROUP: &str = "berth.dev";
/// The one served and stored API version.
pub const VERSION: &str = "v1alpha1";
