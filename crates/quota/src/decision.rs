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
    /// Resources for which its class sets no limit, of those that quotas limit or of which it has something.
    pub unlimited: BTreeSet<TreeResource>,
    /// What it has. None: nothing was created for it yet.
    pub reserved: Option<Amounts>,
    /// The most that can exist of each resource until its limits are raised: what exists, or the limit that is enforced, whichever is
    /// more. What is missing is not known, and stays reserved.
    pub at_most: Amounts,
    /// How much the host has counted of resources for which nothing is reserved, or for which its class sets no limit. It counts what it limits, so
    /// that the amounts do not grow. What is missing is not counted yet.
    pub counted: Amounts,
}

impl Claim {
    /// What a tenant that has `held` has once it gets what it requests. Of what it no longer requests, it keeps as much as may exist: the
    /// reservation shrinks as its objects are deleted.
    fn target(&self, held: Option<&Amounts>, requested: &Amounts) -> Amounts {
        let target = requested.iter().map(|(resource, amount)| {
            let held = amount_of(held, resource);
            let needed = self.at_most.get(resource).map_or(held, |exists| held.min(*exists));
            (resource.clone(), needed.max(*amount))
        });
        target.collect()
    }

    /// Whether the tenant has of a resource what the host counts, as no class has limited it so far. `known` is what is reserved.
    fn is_counted(&self, resource: &TreeResource, known: Option<u64>) -> bool {
        let is_requested = |requested: &Amounts| requested.contains_key(resource);
        self.unlimited.contains(resource) || known.is_none() && self.requested.as_ref().is_none_or(is_requested)
    }
}

fn amount_of(amounts: Option<&Amounts>, resource: &TreeResource) -> u64 {
    amounts.and_then(|amounts| amounts.get(resource)).copied().unwrap_or(0)
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
    /// Tenants that share the quota have something of a resource that nothing is reserved for, and the host has not counted it yet.
    NotCounted {
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

/// What a tenant has before anything is granted.
struct Held {
    amounts: Amounts,
    over: OverQuota,
    /// Resources of which it may have more, which the host has not counted yet.
    uncounted: Vec<TreeResource>,
}

/// Levels with tenants of which something is not counted yet, each with the resource.
type Uncounted<'t> = BTreeSet<(LevelKind, &'t str, TreeResource)>;

/// Decides for all tenants that belong to a Project. What tenants have stays reserved, whatever the quotas say. What is left goes to
/// those that request more: to the oldest first, all that it requests or nothing. One that does not fit holds up no other.
pub fn decide<'t>(tree: &'t Tree, claims: &[Claim]) -> Outcome<'t> {
    let mut sorted: Vec<&Claim> = claims.iter().collect();
    sorted.sort_by(|a, b| (a.created, &a.uid).cmp(&(b.created, &b.uid)));
    let mut usage = Usage::new(tree);
    let mut limited: BTreeMap<&str, Vec<TreeResource>> = BTreeMap::new();
    let mut uncounted = Uncounted::new();
    let mut kept = Vec::new();
    for claim in sorted {
        let of_project = limited
            .entry(&claim.project)
            .or_insert_with(|| usage.limited_resources(&claim.project));
        let held = keep(&mut usage, claim, of_project);
        for resource in held.iter().flat_map(|held| &held.uncounted) {
            let levels = usage.limiting_levels(&claim.project, &Key::of(resource.clone()));
            uncounted.extend(levels.into_iter().map(|(kind, name, _)| (kind, name, resource.clone())));
        }
        kept.push((claim, held));
    }
    let decisions = kept.into_iter().map(|(claim, held)| {
        let amounts = held.as_ref().map(|held| &held.amounts);
        let requested = claim.requested.as_ref();
        let requested =
            requested.filter(|requested| find_unlimited(&usage, claim).is_some() || grows(amounts, requested));
        let decision = match (requested, held) {
            (Some(requested), held) => grant(&mut usage, claim, requested, held, &uncounted),
            (None, Some(Held { amounts, over, .. })) => Decision::Reserved { amounts, over },
            (None, None) => Decision::Nothing,
        };
        (claim.uid.clone(), decision)
    });
    let decisions = decisions.collect();
    Outcome { decisions, usage }
}

/// Whether a tenant requests more than it has.
fn grows(held: Option<&Amounts>, requested: &Amounts) -> bool {
    let Some(held) = held else { return true };
    requested
        .iter()
        .any(|(resource, amount)| *amount > amount_of(Some(held), resource))
}

/// Counts what a tenant has; none if nothing was created for it. Less than that is enough if it requests less and nothing more, as far as no more
/// exists. `limited` are the resources that quotas limit for it.
fn keep(usage: &mut Usage<'_>, claim: &Claim, limited: &[TreeResource]) -> Option<Held> {
    let reserved = claim.reserved.as_ref()?;
    let is_enough = |requested: &&Amounts| !grows(Some(reserved), requested) && find_unlimited(usage, claim).is_none();
    let shrunk = claim.requested.as_ref().filter(is_enough);
    let mut amounts = shrunk.map_or_else(|| reserved.clone(), |requested| claim.target(Some(reserved), requested));
    let uncounted = add_counted(claim, limited, &mut amounts);
    let mut over = OverQuota::new();
    for (resource, amount) in &amounts {
        let key = Key::of(resource.clone());
        let available = usage.available(&claim.project, &key);
        if let Some(available) = available.filter(|available| available < amount) {
            over.insert(resource.clone(), available);
        }
        usage.add(&claim.project, &key, *amount);
    }
    Some(Held {
        amounts,
        over,
        uncounted,
    })
}

/// Adds what a tenant has of resources that quotas limit and no class has limited so far. No number says how much it may have of them: so it is what the
/// host counts, once it does, and does not grow, as the host lets no tenant have more than it has reserved. Returns what is not counted yet.
fn add_counted(claim: &Claim, limited: &[TreeResource], amounts: &mut Amounts) -> Vec<TreeResource> {
    amounts.retain(|resource, _| !claim.unlimited.contains(resource) || limited.contains(resource));
    let mut uncounted = Vec::new();
    for resource in limited {
        let known = amounts.get(resource).copied();
        if !claim.is_counted(resource, known) || resource.counted_names().is_empty() {
            continue;
        }
        let counted = claim.counted.get(resource).copied();
        let amount = known.unwrap_or(0).max(counted.unwrap_or(0));
        if amount == 0 && counted.is_none() {
            uncounted.push(resource.clone());
        }
        amounts.insert(resource.clone(), amount);
    }
    uncounted
}

/// Gives a tenant all that it requests, or leaves it with what it has.
fn grant(
    usage: &mut Usage<'_>,
    claim: &Claim,
    requested: &Amounts,
    held: Option<Held>,
    uncounted: &Uncounted<'_>,
) -> Decision {
    let (kept, over) = held.map(|held| (held.amounts, held.over)).unzip();
    let over = over.unwrap_or_default();
    if let Some(shortage) = find_shortage(usage, claim, (requested, kept.as_ref()), uncounted) {
        return Decision::Waiting { kept, over, shortage };
    }
    for (resource, amount) in kept.iter().flatten() {
        usage.remove(&claim.project, &Key::of(resource.clone()), *amount);
    }
    let amounts = claim.target(kept.as_ref(), requested);
    for (resource, amount) in &amounts {
        usage.add(&claim.project, &Key::of(resource.clone()), *amount);
    }
    Decision::Reserved { amounts, over }
}

/// The first resource of which a tenant cannot get what it requests.
fn find_shortage(
    usage: &Usage<'_>,
    claim: &Claim,
    (requested, held): (&Amounts, Option<&Amounts>),
    uncounted: &Uncounted<'_>,
) -> Option<Shortage> {
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
        let key = Key::of(resource.clone());
        let additional = amount.saturating_sub(amount_of(held, resource));
        let available = usage.available(&claim.project, &key)?;
        if additional > 0 && is_uncounted(usage, &claim.project, &key, uncounted) {
            return Some(Shortage::NotCounted {
                resource: resource.clone(),
            });
        }
        (additional > available).then(|| not_enough(usage, claim, resource, additional, available))
    })
}

/// Whether a quota of a resource is shared with tenants of which not all is counted.
fn is_uncounted(usage: &Usage<'_>, project: &str, key: &Key, uncounted: &Uncounted<'_>) -> bool {
    !uncounted.is_empty()
        && usage
            .limiting_levels(project, key)
            .into_iter()
            .any(|(kind, name, _)| uncounted.contains(&(kind, name, key.resource.clone())))
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
                 to set {} in the class",
                resource.as_str(),
                resource.class_field().unwrap_or_default()
            ),
            Self::NotCounted { resource } => write!(
                f,
                "the host has not counted yet what tenants have of {} whose class did not limit it, and until then nobody gets more. That takes a \
                 minute or two; if it takes longer, look at the conditions of these tenants",
                resource.as_str()
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
