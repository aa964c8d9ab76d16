//! In which groups usage is reported.

use super::{RecordInScope, name_of};
use crate::item::LineKey;
use jiff::civil::Date;

/// What the usage of a group has in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupBy {
    /// Namespace and name of the TenantCluster, as `namespace/name`. One that was deleted and created again is the same.
    Tenant,
    /// Namespace of the TenantCluster.
    Namespace,
    /// Its Project.
    Project,
    /// Its Organization.
    Organization,
    /// The HostNodePool.
    Pool,
    /// The product of the GPUs.
    Product,
    /// The TenantClass.
    Class,
    /// The mode of the node group.
    Mode,
    /// The resource.
    Resource,
    /// The day, in UTC.
    Day,
    /// The month, in UTC.
    Month,
}

impl GroupBy {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Tenant,
        Self::Namespace,
        Self::Project,
        Self::Organization,
        Self::Pool,
        Self::Product,
        Self::Class,
        Self::Mode,
        Self::Resource,
        Self::Day,
        Self::Month,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::Namespace => "namespace",
            Self::Project => "project",
            Self::Organization => "organization",
            Self::Pool => "pool",
            Self::Product => "product",
            Self::Class => "class",
            Self::Mode => "mode",
            Self::Resource => "resource",
            Self::Day => "day",
            Self::Month => "month",
        }
    }

    /// What a line of a record has on a day.
    pub(super) fn value(self, record: &RecordInScope<'_>, key: &LineKey, day: Date) -> Option<String> {
        let tenant = record.tenant();
        match self {
            Self::Tenant => Some(name_of(tenant)),
            Self::Namespace => Some(tenant.namespace.clone()),
            Self::Project => key.project_name.clone(),
            Self::Organization => key.organization_name.clone(),
            Self::Pool => key.pool_name.clone(),
            Self::Product => key.gpu_product.clone(),
            Self::Class => key.class_name.clone(),
            Self::Mode => key.mode.map(|mode| format!("{mode:?}")),
            Self::Resource => Some(key.resource.name().into()),
            Self::Day => Some(day.to_string()),
            Self::Month => Some(record.month().to_string()),
        }
    }
}
