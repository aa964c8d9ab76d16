//! Reasons for the planner's decisions. Programs and tests match these types; [`render`](crate::render) turns
//! them into text where people read it.

use crate::Seconds;
use serde::{Deserialize, Serialize};

/// The GPUs that a limit counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum GpuScope {
    /// Those of a pool.
    Pool(String),
    /// Those of all pools.
    AllPools,
    /// Those of all pools of a product.
    Product(String),
}

/// A request in a message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestName {
    /// Name of the pod or the gang.
    pub name: String,
    /// Whether it is a gang.
    pub gang: bool,
}

/// Why a node is changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ActionReason {
    /// Reserved: a request has waited for it.
    RequestWaited {
        /// The request.
        request: RequestName,
        /// `namespace/name` of its tenant.
        tenant: String,
        /// How long.
        waited: Seconds,
    },
    /// Reserved: a node group has fewer nodes than its minimum.
    BelowMinimum {
        /// `namespace/name` of its tenant.
        tenant: String,
        /// The minimum.
        min_nodes: u32,
    },
    /// Reserved earlier: the number of nodes that must be there before it joins has changed.
    RequiredNodesChanged {
        /// The new number.
        required_nodes: u32,
    },
    /// Reservation cancelled: no request needs it.
    ReservationUnneeded,
    /// Reservation cancelled: other nodes that were reserved with it are gone.
    ReservationIncomplete,
    /// Released: its tenant is deleted.
    TenantDeleted,
    /// Released: its tenant has no such node group in the pool any more.
    NodeGroupRemoved {
        /// `namespace/name` of the tenant.
        tenant: String,
    },
    /// Released: it is not Ready for longer than its pool allows.
    NotReady {
        /// How long.
        not_ready: Seconds,
    },
    /// Released: the node group has more nodes than it may have.
    OverMaximum {
        /// `namespace/name` of the tenant.
        tenant: String,
        /// The most nodes that the group may have.
        max_nodes: u32,
    },
    /// Released, or its reservation cancelled: a quota has more GPUs than its limit.
    OverQuota {
        /// Name of the quota.
        quota: String,
        /// Its limit in GPUs.
        limit: u64,
        /// Which GPUs are limited.
        scope: GpuScope,
        /// When the drain begins, if that is later than now.
        drain_at: Option<Seconds>,
    },
    /// Released: idle for longer than the idle timeout of its pool.
    Idle {
        /// How long.
        idle: Seconds,
    },
    /// The same, and no pod of its tenant ever used it: those that needed it are gone.
    NeverUsed {
        /// How long it is idle.
        idle: Seconds,
    },
    /// Released: idle for too long, although pods wait for which it has room. They cannot start for another reason, and others lack it.
    Unused {
        /// How long it is idle.
        idle: Seconds,
    },
    /// Released: its tenant borrowed it, and a request of another tenant is served first.
    Reclaimed {
        /// The request.
        request: RequestName,
        /// `namespace/name` of the tenant of the request.
        tenant: String,
        /// When the drain begins, if that is later than now.
        drain_at: Option<Seconds>,
    },
    /// Released: its tenant borrowed it, and the minimum of another tenant's group is within a nominal quota.
    ReclaimedForMinimum {
        /// `namespace/name` of the tenant of the group.
        tenant: String,
        /// Name of the node group.
        node_group: String,
        /// When the drain begins, if that is later than now.
        drain_at: Option<Seconds>,
    },
    /// Release cancelled: a request of its tenant needs it.
    NeededAgain {
        /// The request.
        request: RequestName,
    },
    /// Release cancelled: its node group would fall below its minimum.
    NeededForMinimum {
        /// `namespace/name` of its tenant.
        tenant: String,
    },
    /// Release cancelled: it is in use, and no request waits for it.
    StillInUse,
}

/// What a node group waits for, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wait {
    /// What waits.
    pub waiting: Waiting,
    /// How many nodes it lacks.
    pub missing_nodes: u32,
    /// Why it does not have them.
    pub reason: WaitReason,
}

/// What waits for nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Waiting {
    /// The minimum of the node group.
    Minimum {
        /// The number of nodes.
        min_nodes: u32,
    },
    /// A request.
    Request(RequestName),
}

/// Why something waits for nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum WaitReason {
    /// It can never be served as the fleet is.
    Impossible(Impossible),
    /// The node group may not have more nodes.
    MaxNodes {
        /// The most that it may have.
        max_nodes: u32,
    },
    /// A quota may not have more GPUs.
    QuotaLimit {
        /// Name of the quota.
        quota: String,
        /// Its limit in GPUs.
        limit: u64,
        /// Which GPUs are limited.
        scope: GpuScope,
        /// How many of these GPUs it has on nodes that are being drained.
        draining: u64,
    },
    /// A quota above that of the tenant does not exist: what the tenant may have is not known.
    MissingQuota {
        /// Name of the missing quota.
        quota: String,
    },
    /// The free GPUs belong to nominal quotas that do not lend them.
    NotLent {
        /// How many GPUs are not lent.
        gpus: u64,
    },
    /// There are too few free nodes.
    NoFreeNodes(Capacity),
    /// It is next: nodes are on their way.
    NodesComing(Capacity),
}

/// Why a request can never be served as the fleet is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Impossible {
    /// No node is large enough for one of its pods, or carries its labels.
    NoMatchingNode,
    /// It must be in one topology domain, and the pool has none.
    NoTopologyDomains,
    /// It needs more nodes than the node group may have.
    OverMaxNodes {
        /// Nodes that it needs at least.
        needed: u32,
        /// The most that the group may have.
        max_nodes: u32,
    },
    /// It needs more GPUs than a quota may have.
    OverQuota {
        /// GPUs that it needs at least.
        gpus: u64,
        /// Name of the quota.
        quota: String,
        /// Its limit in GPUs.
        limit: u64,
    },
    /// It needs more nodes than the pool may have.
    OverPoolMaximum {
        /// Nodes that it needs at least.
        needed: u32,
        /// The most that the pool may have.
        max_nodes: u32,
    },
    /// All nodes of the pool are too few for it.
    PoolTooSmall,
    /// No topology domain of the pool is large enough.
    DomainTooSmall,
}

/// The nodes of a pool that a request can count on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Capacity {
    /// The pool has no nodes at all.
    pub pool_is_empty: bool,
    /// Free nodes, those that are kept for this request included.
    pub free: u32,
    /// Free nodes that are kept for other requests.
    pub kept_for_others: u32,
    /// Nodes between two tenants.
    pub recycling: u32,
    /// Nodes that are reclaimed from other tenants for this request.
    pub reclaimed: u32,
    /// `namespace/name` of three of these tenants at most.
    pub reclaimed_from: Vec<String>,
    /// When the first of these nodes is drained, if that is later than now.
    pub drain_at: Option<Seconds>,
}

/// Why no more nodes are requested from an autoscaler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScaleUpLimited {
    /// The bound that the first of them meets.
    pub bound: ScaleUpBound,
    /// How many more requests meet a bound.
    pub more: u32,
}

/// A bound on the growth of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ScaleUpBound {
    /// The pool may not have more nodes.
    MaxNodes {
        /// What needs them.
        waiting: Waiting,
        /// Name of the node group.
        node_group: String,
        /// `namespace/name` of its tenant.
        tenant: String,
        /// New nodes that it needs.
        needed: u32,
        /// The most that the pool may have.
        max_nodes: u32,
    },
    /// Nodes are requested for a limited number of pods at the same time.
    MaxPods {
        /// The most.
        max_pods: u32,
    },
}
