//! Counters of control.

mod encryption;
mod repair;
mod sleep;
mod snapshots;
mod syncers;
mod usage;

pub use encryption::{EncryptionLabels, EncryptionMetrics};
pub use repair::RepairMetrics;
pub use sleep::{SleepMetrics, SleepStateLabels, WakeLabels};
pub use snapshots::{SnapshotMetrics, SnapshotPhaseLabels};
pub use syncers::SyncerMetrics;
pub use usage::UsageMetrics;

use crate::gauges::Gauges;
use berth_runtime::metrics::{QueueMetrics, duration_histogram};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// What was reconciled and how it ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReconcileLabels {
    /// tenant, pool, class, schedule-policy, quotas, user-quotas, fleet, shared-nodes, usage or snapshots.
    pub kind: &'static str,
    /// ok, or the category of the error.
    pub result: &'static str,
}

/// Nodes of a pool in one state.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct NodeStateLabels {
    /// The pool.
    pub pool: String,
    /// The state; Free without one.
    pub state: &'static str,
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PoolLabels {
    /// Its name.
    pub pool: String,
}

/// A tenant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct TenantLabels {
    /// Namespace of its `TenantCluster`.
    pub tenant_namespace: String,
    /// Name of its `TenantCluster`.
    pub tenant: String,
}

/// A quota of one level of the tree.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct QuotaLabels {
    /// root, organization or project.
    pub level: &'static str,
    /// Its name; empty for the root.
    pub name: String,
    /// The resource.
    pub resource: String,
    /// The pool, for GPUs.
    pub pool: String,
    /// The product, for GPUs.
    pub product: String,
}

/// What a tenant has of one resource that is limited for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct TenantQuotaLabels {
    /// Namespace of its `TenantCluster`.
    pub tenant_namespace: String,
    /// Name of its `TenantCluster`.
    pub tenant: String,
    /// The resource.
    pub resource: String,
    /// The pool, for GPUs.
    pub pool: String,
}

/// What a user of a Project has of one resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct UserQuotaLabels {
    /// Name of the Project.
    pub project: String,
    /// Name of the user.
    pub user: String,
    /// The resource.
    pub resource: String,
}

/// A user of a Project.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct UserLabels {
    /// Name of the Project.
    pub project: String,
    /// Name of the user.
    pub user: String,
}

/// A state of its recycling that a node has left.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RecyclingLabels {
    /// The state.
    pub state: &'static str,
}

/// An action on a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ActionLabels {
    /// The new state of the node, or Free, CorrectDrift, RestoreLabels, share, unshare or drain.
    pub action: &'static str,
}

/// GPUs of a tenant by what they do.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct GpuActivityLabels {
    /// Namespace of its `TenantCluster`.
    pub tenant_namespace: String,
    /// Name of its `TenantCluster`.
    pub tenant: String,
    /// active, idle or unknown.
    pub activity: &'static str,
}

/// GPUs of nodes of a tenant that no pod requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct UnrequestedGpuLabels {
    /// Namespace of its `TenantCluster`.
    pub tenant_namespace: String,
    /// Name of its `TenantCluster`.
    pub tenant: String,
    /// The pool of the nodes.
    pub pool: String,
    /// idle: no GPU of the node is requested; in_use: others are.
    pub node: &'static str,
}

/// How something ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ResultLabels {
    /// ok, or one of few reasons.
    pub result: &'static str,
}

/// The rule that a plan broke.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ViolationLabels {
    /// Its kind.
    pub kind: &'static str,
}

/// Control's metrics.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Reconciles by kind and result.
    pub reconciles: Family<ReconcileLabels, Counter>,
    /// Seconds a reconcile took.
    pub reconcile_seconds: Histogram,
    /// The queue of keys.
    pub queue: QueueMetrics,
    /// Changes of nodes.
    pub node_actions: Family<ActionLabels, Counter>,
    /// Nodes by pool and state.
    pub nodes: Gauges<NodeStateLabels>,
    /// Rules that plans broke, by kind. Should stay at zero.
    pub plan_violations: Family<ViolationLabels, Counter>,
    /// Seconds that nodes were in the states of their recycling.
    pub recycling_seconds: Family<RecyclingLabels, Histogram>,
    /// Nodes that could not be recycled.
    pub quarantines: Counter,
    /// Nodes that are not Ready, in pools that repair their nodes.
    pub repair: RepairMetrics,
    /// Placeholders by pool.
    pub placeholders: Gauges<PoolLabels>,
    /// `TenantClusters` that exist.
    pub tenants: Gauge,
    /// How tenants sleep and wake.
    pub sleep: SleepMetrics,
    /// What is known of syncers.
    pub syncers: SyncerMetrics,
    /// The encryption of what tenants store.
    pub encryption: EncryptionMetrics,
    /// Rotations of credentials of tenants that are complete.
    pub rotations: Counter,
    /// Percent of its share of the datastore that each tenant uses.
    pub datastore_used: Family<TenantLabels, Gauge>,
    /// Percent of its share of the host that each tenant uses.
    pub host_used: Family<TenantLabels, Gauge>,
    /// Events that API servers could not write into their audit log.
    pub audit_errors: Family<TenantLabels, Counter>,
    /// Bytes that all tenants together may store.
    pub datastore_limits: Gauge,
    /// Bytes above which the datastore rejects writes; 0 if it does not say.
    pub datastore_quota: Gauge,
    /// Nominal quota of each level and resource.
    pub quota_nominal: Gauges<QuotaLabels>,
    /// What the tenants of each level have reserved of each resource.
    pub quota_reserved: Gauges<QuotaLabels>,
    /// What they use of it.
    pub quota_used: Gauges<QuotaLabels>,
    /// What each level borrows of each resource: what is reserved beyond its nominal quota.
    pub quota_borrowed: Gauges<QuotaLabels>,
    /// What each tenant has reserved of each resource that is limited for it.
    pub tenant_quota_reserved: Gauges<TenantQuotaLabels>,
    /// What it uses of it.
    pub tenant_quota_used: Gauges<TenantQuotaLabels>,
    /// Limits of the users that the status of a Project lists.
    pub user_quota_limit: Gauges<UserQuotaLabels>,
    /// What they use.
    pub user_quota_used: Gauges<UserQuotaLabels>,
    /// Their pods that wait because of a limit.
    pub user_waiting_pods: Gauges<UserLabels>,
    /// How often history was dropped before etcd would have done it.
    pub datastore_compactions: Counter,
    /// GPUs of tenants whose class reclaims idle ones, by what they do.
    pub gpus: Gauges<GpuActivityLabels>,
    /// GPUs of nodes of tenants that no pod requests.
    pub unrequested_gpus: Gauges<UnrequestedGpuLabels>,
    /// Seconds in which GPUs were idle.
    pub idle_gpu_seconds: Family<TenantLabels, Counter>,
    /// Passes over all GPUs, by how they ended.
    pub idle_passes: Family<ResultLabels, Counter>,
    /// Seconds that a pass over all GPUs took.
    pub idle_pass_seconds: Histogram,
    /// Pods with idle GPUs that were to leave, by how that ended.
    pub idle_evictions: Family<ResultLabels, Counter>,
    /// Records of what tenants use.
    pub usage: UsageMetrics,
    /// Snapshots of what tenants store.
    pub snapshots: SnapshotMetrics,
}

impl Metrics {
    /// Metrics, registered in `registry`.
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            reconciles: Family::default(),
            reconcile_seconds: duration_histogram(),
            queue: QueueMetrics::default(),
            node_actions: Family::default(),
            nodes: Gauges::default(),
            recycling_seconds: Family::new_with_constructor(|| {
                Histogram::new([1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 86_400.0])
            }),
            quarantines: Counter::default(),
            plan_violations: Family::default(),
            repair: RepairMetrics::default(),
            placeholders: Gauges::default(),
            tenants: Gauge::default(),
            sleep: SleepMetrics::default(),
            syncers: SyncerMetrics::default(),
            encryption: EncryptionMetrics::default(),
            rotations: Counter::default(),
            datastore_used: Family::default(),
            host_used: Family::default(),
            audit_errors: Family::default(),
            datastore_limits: Gauge::default(),
            datastore_quota: Gauge::default(),
            quota_nominal: Gauges::default(),
            quota_reserved: Gauges::default(),
            quota_used: Gauges::default(),
            quota_borrowed: Gauges::default(),
            tenant_quota_reserved: Gauges::default(),
            tenant_quota_used: Gauges::default(),
            user_quota_limit: Gauges::default(),
            user_quota_used: Gauges::default(),
            user_waiting_pods: Gauges::default(),
            datastore_compactions: Counter::default(),
            gpus: Gauges::default(),
            unrequested_gpus: Gauges::default(),
            idle_gpu_seconds: Family::default(),
            idle_passes: Family::default(),
            idle_pass_seconds: duration_histogram(),
            idle_evictions: Family::default(),
            usage: UsageMetrics::default(),
            snapshots: SnapshotMetrics::default(),
        };
        let registry = registry.sub_registry_with_prefix("berth_control");
        registry.register(
            "reconciles",
            "Reconciles by kind and result",
            metrics.reconciles.clone(),
        );
        registry.register(
            "reconcile_seconds",
            "Duration of a reconcile",
            metrics.reconcile_seconds.clone(),
        );
        metrics.queue.register(registry);
        registry.register("node_actions", "Changes of nodes by kind", metrics.node_actions.clone());
        registry.register("nodes", "Nodes by pool and state", metrics.nodes.family.clone());
        registry.register(
            "plan_violations",
            "Rules that plans of node assignment broke, by kind; should stay at zero",
            metrics.plan_violations.clone(),
        );
        registry.register(
            "node_recycling_seconds",
            "Time that nodes were in a state of their recycling, by the state they left",
            metrics.recycling_seconds.clone(),
        );
        registry.register(
            "quarantines",
            "Nodes that could not be recycled",
            metrics.quarantines.clone(),
        );
        registry.register(
            "placeholders",
            "Placeholders, the pods that make autoscalers add nodes, by pool",
            metrics.placeholders.family.clone(),
        );
        registry.register("tenants", "TenantClusters that exist", metrics.tenants.clone());
        metrics.register_limits(registry);
        metrics.repair.register(registry);
        metrics.sleep.register(registry);
        metrics.syncers.register(registry);
        metrics.encryption.register(registry);
        registry.register(
            "credential_rotations",
            "Rotations of the credentials of tenants that are complete",
            metrics.rotations.clone(),
        );
        metrics.register_quotas(registry);
        metrics.register_idle_reclaim(registry);
        metrics.usage.register(registry);
        metrics.snapshots.register(registry);
        metrics
    }

    fn register_limits(&self, registry: &mut Registry) {
        registry.register(
            "audit_errors",
            "Events that API servers of a tenant could not write into their audit log and have written to their standard error, without content: the sum of apiserver_audit_error_total of those that control has read, since control was started; of tenants whose class writes an audit log",
            self.audit_errors.clone(),
        );
        registry.register(
            "datastore_used_percent",
            "Share of the datastore that a tenant uses, in percent of what its class allows",
            self.datastore_used.clone(),
        );
        registry.register(
            "host_used_percent",
            "Bytes that a tenant's objects have on the host, in percent of what its class allows",
            self.host_used.clone(),
        );
        registry.register(
            "datastore_limits_bytes",
            "What all tenants together may store by the limits of their classes",
            self.datastore_limits.clone(),
        );
        registry.register(
            "datastore_quota_bytes",
            "Size above which the tenants' datastore rejects writes; 0 if it does not say",
            self.datastore_quota.clone(),
        );
        registry.register(
            "datastore_compactions",
            "How often control dropped the history of the datastore because half of its quota was in use",
            self.datastore_compactions.clone(),
        );
    }

    fn register_quotas(&self, registry: &mut Registry) {
        registry.register(
            "quota_nominal",
            "Nominal quota of a Project, of an Organization, or of all together (level root), by resource",
            self.quota_nominal.family.clone(),
        );
        registry.register(
            "quota_reserved",
            "What is reserved of the quotas of a Project, of an Organization, or of all together (level root), by resource",
            self.quota_reserved.family.clone(),
        );
        registry.register(
            "quota_used",
            "What tenants use of what is reserved, of a Project, of an Organization, or of all together, by resource; measured once a minute",
            self.quota_used.family.clone(),
        );
        registry.register(
            "quota_borrowed",
            "What is reserved beyond the nominal quota of a Project or an Organization, by resource",
            self.quota_borrowed.family.clone(),
        );
        registry.register(
            "tenant_quota_reserved",
            "What is reserved for a tenant, by resource that its Project or its Organization limits",
            self.tenant_quota_reserved.family.clone(),
        );
        registry.register(
            "tenant_quota_used",
            "What a tenant uses of what is reserved for it, by resource that its Project or its Organization limits; measured once a minute",
            self.tenant_quota_used.family.clone(),
        );
        registry.register(
            "user_quota_limit",
            "Limit of a user within a Project, by resource; of at most 100 users of a Project",
            self.user_quota_limit.family.clone(),
        );
        registry.register(
            "user_quota_used",
            "What a user has within a Project, by resource; of at most 100 users of a Project",
            self.user_quota_used.family.clone(),
        );
        registry.register(
            "user_waiting_pods",
            "Pods of a user that wait on the host because of a limit within a Project; of at most 100 users of a Project",
            self.user_waiting_pods.family.clone(),
        );
    }

    /// Removes the quotas of all levels and tenants.
    pub fn remove_quotas(&self) {
        for of_levels in [
            &self.quota_nominal,
            &self.quota_reserved,
            &self.quota_used,
            &self.quota_borrowed,
        ] {
            of_levels.set_all([]);
        }
        for of_tenants in [&self.tenant_quota_reserved, &self.tenant_quota_used] {
            of_tenants.set_all([]);
        }
    }

    fn register_idle_reclaim(&self, registry: &mut Registry) {
        registry.register(
            "gpus",
            "GPUs of tenants whose class reclaims idle GPUs, by what they do: active, idle or unknown",
            self.gpus.family.clone(),
        );
        registry.register(
            "unrequested_gpus",
            "GPUs of nodes that serve tenants and that no pod requests, by whether other GPUs of their node are requested: idle (none is) or in_use",
            self.unrequested_gpus.family.clone(),
        );
        registry.register(
            "idle_gpu_seconds",
            "Seconds in which GPUs of a tenant were idle, summed over the GPUs; not those before the first pass of a control",
            self.idle_gpu_seconds.clone(),
        );
        registry.register(
            "idle_passes",
            "Passes over all GPUs that look for idle ones, by result; only those with the result ok change anything",
            self.idle_passes.clone(),
        );
        registry.register(
            "idle_pass_seconds",
            "Duration of a pass over all GPUs, queries included",
            self.idle_pass_seconds.clone(),
        );
        registry.register(
            "idle_evictions",
            "Pods with idle GPUs that were due for eviction, by result: ok (evicted), stopped (their owner was scaled to zero or suspended), kept (a last check did not find their GPUs idle), blocked (by a disruption budget), forced (deleted after evictionTimeout in spite of a disruption budget), gone (the pod no longer existed), or failed (any other error)",
            self.idle_evictions.clone(),
        );
    }
}
