//! Why a tenant waits, and the message that says so.

use crate::{tree::LevelKind, validate::UNKNOWN_ORGANIZATION};
use berth_api::TreeResource;
use std::fmt;

/// Tenants that a message names at most.
const MAX_NAMES: usize = 10;

/// Why a tenant waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// There is not enough of a resource.
    NotEnough {
        /// The resource.
        resource: TreeResource,
        /// How much more the tenant requests.
        additional: u64,
        /// How much more it may have.
        available: u64,
        /// The levels that limit it: kind, name, what is reserved and the nominal quota.
        levels: Vec<(LevelKind, String, u64, u64)>,
    },
    /// A quota limits a resource, and the tenant's class sets no limit for it.
    NoLimit {
        /// The resource.
        resource: TreeResource,
    },
    /// Tenants that share the quota have something of a resource that nothing is reserved for, and the host has not counted it yet.
    NotCounted {
        /// The resource.
        resource: TreeResource,
        /// Namespace and name of those of the same Project.
        tenants: Vec<String>,
        /// Number of those of other Projects, whose names are not for the team.
        others: usize,
    },
    /// The Project names an Organization that does not exist.
    UnknownOrganization {
        /// The Project.
        project: String,
        /// The Organization.
        organization: String,
    },
}

impl Shortage {
    /// CamelCase reason.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::NotEnough { .. } | Self::NotCounted { .. } => "QuotaExceeded",
            Self::NoLimit { .. } => "ClassWithoutLimit",
            Self::UnknownOrganization { .. } => UNKNOWN_ORGANIZATION,
        }
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotEnough {
                resource,
                additional,
                available,
                levels,
            } => {
                let name = resource.as_str();
                let amount = |amount: u64| resource.format_amount(amount);
                let (additional, available) = (amount(*additional), amount(*available));
                write!(f, "the tenant needs {additional} of {name} and {available} are left")?;
                for (index, (kind, level, reserved, nominal)) in levels.iter().enumerate() {
                    let before = if index == 0 { ": " } else { ", " };
                    let (reserved, nominal) = (amount(*reserved), amount(*nominal));
                    write!(f, "{before}{kind} {level} has reserved {reserved} of {nominal}")?;
                }
                match resource.class_field() {
                    Some(field) => write!(
                        f,
                        "; delete tenants, or ask the platform team for more quota or a class with a lower {field}"
                    ),
                    None => write!(f, "; delete tenants, or ask the platform team for more quota"),
                }
            }
            Self::NoLimit { resource } => write!(
                f,
                "a quota limits {} and the class of the tenant does not, so that it gets no more than the host has counted; ask the platform team \
                 to set {} in the class, or to correct the name in spec.quotas",
                resource.as_str(),
                resource.class_field().unwrap_or_default()
            ),
            Self::NotCounted {
                resource,
                tenants,
                others,
            } => write!(
                f,
                "the host has not counted yet what tenants have of {name} whose class did not limit it, and until then nobody gets more: {}. That \
                 takes a minute or two. If it takes longer, the conditions of these tenants say why, or the host counts nothing of this name: ask the \
                 platform team to correct {name} in spec.quotas, or to remove it there",
                list_tenants(tenants, *others),
                name = resource.as_str()
            ),
            Self::UnknownOrganization { project, organization } => write!(
                f,
                "Project {project} names Organization {organization}, which does not exist, so that its tenants keep what they have and get \
                 no more; ask the platform team to create it, or to correct spec.organizationName"
            ),
        }
    }
}

/// Some tenants by their names, and how many there are besides.
fn list_tenants(tenants: &[String], others: usize) -> String {
    let named = tenants.iter().take(MAX_NAMES).cloned();
    let more = tenants.len().saturating_sub(MAX_NAMES);
    let more = (more > 0).then(|| format!("{more} more"));
    let others = (others > 0).then(|| format!("{others} of other Projects"));
    let parts: Vec<String> = named.chain(more).chain(others).collect();
    parts.join(", ")
}

impl fmt::Display for LevelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Root => "all",
            Self::Organization => "Organization",
            Self::Project => "Project",
        })
    }
}
