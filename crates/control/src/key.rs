//! What waits to be reconciled.

use berth_api::TenantCluster;
use berth_runtime::{hashes::hash_of, queue::QueueKey};
use kube::ResourceExt;

/// An object that waits to be reconciled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// Reconcile one `TenantCluster`.
    Tenant {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// Report the nodes of one `HostNodePool`.
    Pool(String),
    /// Reconcile one `TenantClass`.
    Class(String),
    /// Reconcile one `SchedulePolicy`.
    SchedulePolicy(String),
    /// Decide what the quotas of Projects and Organizations give each tenant.
    Quotas,
    /// Decide which pods of limited users may start.
    UserQuotas,
    /// Plan and execute node assignments for the whole fleet.
    Fleet,
    /// Reconcile the nodes that several tenants use.
    SharedNodes,
    /// Count what tenants use, and write it down.
    Usage,
    /// Take and delete snapshots of what tenants store.
    Snapshots,
}

impl Key {
    /// The key of a `TenantCluster`.
    pub fn of_tenant(cluster: &TenantCluster) -> Self {
        Self::Tenant {
            namespace: cluster.namespace().unwrap_or_default(),
            name: cluster.name_any(),
        }
    }
}

impl QueueKey for Key {
    /// Namespaces of tenants take turns; the platform's own objects have theirs.
    fn group(&self) -> u64 {
        match self {
            Self::Tenant { namespace, .. } => hash_of(namespace),
            Self::Pool(_)
            | Self::Class(_)
            | Self::SchedulePolicy(_)
            | Self::Quotas
            | Self::UserQuotas
            | Self::Fleet
            | Self::SharedNodes
            | Self::Usage
            | Self::Snapshots => hash_of(&()),
        }
    }
}
