//! The rules that a plan can break.

use crate::GpuScope;
use std::fmt::{self, Display, Formatter};

/// A rule that a plan breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Two actions for one node.
    SeveralActions {
        /// Name of the node.
        node: String,
    },
    /// An action that the state of its node does not allow: a node is reserved that is not free, or released that has no owner.
    ImpossibleAction {
        /// Name of the node.
        node: String,
    },
    /// A node group gets more nodes than it may have.
    OverMaximum {
        /// `namespace/name` of the tenant.
        tenant: String,
        /// Name of the node group.
        node_group: String,
        /// Nodes that it would have.
        held: u32,
        /// The most that it may have.
        max_nodes: u32,
    },
    /// A node group loses nodes of its minimum, although no quota is over its limit and no other tenant is owed them.
    BelowMinimum {
        /// `namespace/name` of the tenant.
        tenant: String,
        /// Name of the node group.
        node_group: String,
        /// Nodes that would stay.
        staying: u32,
        /// The minimum.
        min_nodes: u32,
    },
    /// A node is reserved together with others that are missing.
    IncompleteReservation {
        /// Name of the node.
        node: String,
        /// Nodes that its group must have.
        required: u32,
        /// Nodes that its group would have.
        staying: u32,
    },
    /// A quota gets more GPUs than its limit.
    OverQuota {
        /// Name of the quota.
        quota: String,
        /// Which GPUs are limited.
        scope: GpuScope,
        /// GPUs that it would have.
        gpus: u64,
        /// Its limit.
        limit: u64,
    },
    /// A quota gets more GPUs, and the quota above it does not exist.
    BelowMissingQuota {
        /// Name of the quota.
        quota: String,
        /// Name of the one above it.
        missing: String,
        /// GPUs that it would have.
        gpus: u64,
    },
    /// More nodes of a pool are reclaimed than requests wait for.
    NeedlessReclaim {
        /// Name of the pool.
        pool: String,
        /// Nodes that are reclaimed.
        reclaimed: u32,
        /// Nodes that requests wait for.
        waiting: u32,
    },
    /// A node is taken from its group as not Ready that is Ready, or not so for long, or while too many nodes of its pool are not Ready.
    NeedlessRepair {
        /// Name of the node.
        node: String,
    },
}

impl Violation {
    /// Its kind, for metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::SeveralActions { .. } => "SeveralActions",
            Self::ImpossibleAction { .. } => "ImpossibleAction",
            Self::OverMaximum { .. } => "OverMaximum",
            Self::BelowMinimum { .. } => "BelowMinimum",
            Self::IncompleteReservation { .. } => "IncompleteReservation",
            Self::OverQuota { .. } => "OverQuota",
            Self::BelowMissingQuota { .. } => "BelowMissingQuota",
            Self::NeedlessReclaim { .. } => "NeedlessReclaim",
            Self::NeedlessRepair { .. } => "NeedlessRepair",
        }
    }
}

impl Display for Violation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::SeveralActions { node } => write!(f, "node {node} has several actions"),
            Self::ImpossibleAction { node } => write!(f, "the state of node {node} does not allow its action"),
            Self::OverMaximum {
                tenant,
                node_group,
                held,
                max_nodes,
            } => write!(
                f,
                "group {node_group} of {tenant} gets {held} nodes, but may have at most {max_nodes}"
            ),
            Self::BelowMinimum {
                tenant,
                node_group,
                staying,
                min_nodes,
            } => write!(
                f,
                "group {node_group} of {tenant} keeps {staying} nodes and its minimum is {min_nodes}"
            ),
            Self::IncompleteReservation {
                node,
                required,
                staying,
            } => write!(f, "node {node} waits for {required} nodes, but its group has {staying}"),
            Self::OverQuota {
                quota,
                scope,
                gpus,
                limit,
            } => write!(f, "{quota} gets {gpus} GPUs of {scope} and its limit is {limit}"),
            Self::BelowMissingQuota { quota, missing, gpus } => {
                write!(f, "{quota} gets {gpus} GPUs and {missing} above it does not exist")
            }
            Self::NeedlessReclaim {
                pool,
                reclaimed,
                waiting,
            } => write!(
                f,
                "{reclaimed} nodes of pool {pool} are reclaimed, but requests wait for only {waiting}"
            ),
            Self::NeedlessRepair { node } => {
                write!(f, "node {node} is taken as not Ready, and its pool does not allow that")
            }
        }
    }
}
