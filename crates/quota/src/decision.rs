//! Which tenants get what they reserve.

use crate::{
    tree::{Key, LevelKind, Tree},
    usage::Usage,
    validate::UNKNOWN_ORGANIZATION,
};
use berth_api::TreeResource;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// Amounts of resources. GPUs are never among them: they follow demand.
pub type Amounts = BTreeMap<TreeResource, u64>;

/// What a tenant has and requests of the quotas of its Project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// UID of the TenantCluster.
    pub uid: String,
    /// Second in which it was created: the oldest tenant comes first.
    pub created: i64,
    /// Its Project.
    pub project: String,
    /// What its spec and class need. None: its spec is not accepted, so that it keeps what it has.
    pub requested: Option<Amounts>,
    /// Resources for which its class sets no limit.
    pub unlimited: BTreeSet<TreeResource>,
    /// What it has. None: nothing was created for it yet.
    pub reserved: Option<Amounts>,
    /// The most that can exist of each resource until its limits are raised: what exists, or the limit that is enforced, whichever is
    /// more. What is missing is not known, and stays reserved.
    pub at_most: Amounts,
}

impl Claim {
    /// What the tenant has once it gets what it requests. Of what it no longer requests, it keeps as much as may exist: the
    /// reservation shrinks as its objects are deleted.
    fn target(&self, requested: &Amounts) -> Amounts {
        let target = requested.iter().map(|(resource, amount)| {
            let held = self
                .reserved
                .as_ref()
                .and_then(|amounts| amounts.get(resource))
                .copied();
            let held = held.unwrap_or(0);
            let needed = self.at_most.get(resource).map_or(held, |exists| held.min(*exists));
            (resource.clone(), needed.max(*amount))
        });
        target.collect()
    }
}

/// Resources of which a tenant has reserved more than the quotas allow now, because a quota was lowered or the tenant came with its
/// namespace, each with what they allow. Older tenants come first, so that the youngest are over the quota.
pub type OverQuota = BTreeMap<TreeResource, u64>;

/// What is decided for a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It has, or gets now, all that it requests.
    Reserved {
        /// What is reserved for it.
        amounts: Amounts,
        /// See [`OverQuota`].
        over: OverQuota,
    },
    /// It does not get what it requests.
    Waiting {
        /// What it keeps. None: nothing may be created for it.
        kept: Option<Amounts>,
        /// Of what it keeps, see [`OverQuota`].
        over: OverQuota,
        /// The first resource that is short.
        shortage: Shortage,
    },
    /// It requests nothing and has nothing.
    Nothing,
}

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
    /// The Project names an Organization that does not exist.
    UnknownOrganization {
        /// The Project.
        project: String,
        /// The Organization.
        organization: String,
    },
}

/// All decisions, and the use that follows from them.
#[derive(Debug)]
pub struct Outcome<'t> {
    /// By UID.
    pub decisions: BTreeMap<String, Decision>,
    /// With everything that is reserved.
    pub usage: Usage<'t>,
}

/// Decides for all tenants that belong to a Project. What tenants have stays reserved, whatever the quotas say. What is left goes to
/// those that request more: to the oldest first, all that it requests or nothing. One that does not fit holds up no other.
pub fn decide<'t>(tree: &'t Tree, claims: &[Claim]) -> Outcome<'t> {
    let mut sorted: Vec<&Claim> = claims.iter().collect();
    sorted.sort_by(|a, b| (a.created, &a.uid).cmp(&(b.created, &b.uid)));
    let mut usage = Usage::new(tree);
    let mut decisions = BTreeMap::new();
    for claim in &sorted {
        let decision = keep(&mut usage, claim);
        decisions.insert(claim.uid.clone(), decision);
    }
    for claim in sorted {
        let Some(requested) = &claim.requested else { continue };
        let is_short = find_unlimited(&usage, claim).is_some();
        if is_short || grows(claim, requested) {
            // A tenant that waits for more is over the quota as before.
            let over = match decisions.remove(&claim.uid) {
                Some(Decision::Reserved { over, .. }) => over,
                _ => OverQuota::new(),
            };
            let decision = grant(&mut usage, claim, requested, over);
            decisions.insert(claim.uid.clone(), decision);
        }
    }
    Outcome { decisions, usage }
}

/// Whether a tenant requests more than it has.
fn grows(claim: &Claim, requested: &Amounts) -> bool {
    let Some(reserved) = &claim.reserved else { return true };
    requested
        .iter()
        .any(|(resource, amount)| *amount > reserved.get(resource).copied().unwrap_or(0))
}

/// Counts what a tenant has. Less than that is enough if it requests less and nothing more, as far as no more exists.
fn keep(usage: &mut Usage<'_>, claim: &Claim) -> Decision {
    let Some(reserved) = &claim.reserved else {
        return Decision::Nothing;
    };
    let is_enough = |requested: &&Amounts| !grows(claim, requested) && find_unlimited(usage, claim).is_none();
    let shrunk = claim.requested.as_ref().filter(is_enough);
    let amounts = shrunk.map_or_else(|| reserved.clone(), |requested| claim.target(requested));
    let mut over = OverQuota::new();
    for (resource, amount) in &amounts {
        let key = Key::of(resource.clone());
        let available = usage.available(&claim.project, &key);
        if let Some(available) = available.filter(|available| available < amount) {
            over.insert(resource.clone(), available);
        }
        usage.add(&claim.project, &key, *amount);
    }
    Decision::Reserved { amounts, over }
}

/// Gives a tenant all that it requests, or leaves it with what it has, of which this is `over` the quota.
fn grant(usage: &mut Usage<'_>, claim: &Claim, requested: &Amounts, over: OverQuota) -> Decision {
    if let Some(shortage) = find_shortage(usage, claim, requested) {
        return Decision::Waiting {
            kept: claim.reserved.clone(),
            over,
            shortage,
        };
    }
    for (resource, amount) in claim.reserved.iter().flatten() {
        usage.remove(&claim.project, &Key::of(resource.clone()), *amount);
    }
    let amounts = claim.target(requested);
    for (resource, amount) in &amounts {
        usage.add(&claim.project, &Key::of(resource.clone()), *amount);
    }
    Decision::Reserved { amounts, over }
}

/// The first resource of which a tenant cannot get what it requests.
fn find_shortage(usage: &Usage<'_>, claim: &Claim, requested: &Amounts) -> Option<Shortage> {
    if let Some(organization) = usage.missing_organization(&claim.project) {
        return Some(Shortage::UnknownOrganization {
            project: claim.project.clone(),
            organization: organization.to_owned(),
        });
    }
    if let Some(resource) = find_unlimited(usage, claim) {
        return Some(Shortage::NoLimit { resource });
    }
    requested.iter().find_map(|(resource, amount)| {
        let held = claim.reserved.as_ref().and_then(|amounts| amounts.get(resource));
        let additional = amount.saturating_sub(held.copied().unwrap_or(0));
        let available = usage.available(&claim.project, &Key::of(resource.clone()))?;
        (additional > available).then(|| not_enough(usage, claim, resource, additional, available))
    })
}

/// A resource that a quota limits and the tenant's class does not.
fn find_unlimited(usage: &Usage<'_>, claim: &Claim) -> Option<TreeResource> {
    let is_limited =
        |resource: &&TreeResource| usage.available(&claim.project, &Key::of((*resource).clone())).is_some();
    claim.unlimited.iter().find(is_limited).cloned()
}

fn not_enough(usage: &Usage<'_>, claim: &Claim, resource: &TreeResource, additional: u64, available: u64) -> Shortage {
    let levels = usage.limiting_levels(&claim.project, &Key::of(resource.clone()));
    Shortage::NotEnough {
        resource: resource.clone(),
        additional,
        available,
        levels: levels
            .into_iter()
            .map(|(kind, name, at)| (kind, name.to_owned(), at.reserved, at.nominal))
            .collect(),
    }
}

impl Shortage {
    /// CamelCase reason.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::NotEnough { .. } => "QuotaExceeded",
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
                "a quota limits {} and the class of the tenant does not; ask the platform team to set {} in the class",
                resource.as_str(),
                resource.class_field().unwrap_or_default()
            ),
            Self::UnknownOrganization { project, organization } => write!(
                f,
                "Project {project} names Organization {organization}, which does not exist, so that its tenants keep what they have and get \
                 no more; ask the platform team to create it, or to correct spec.organizationName"
            ),
        }
    }
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
