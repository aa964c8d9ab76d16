//! Which tenants get what they reserve.

use crate::{
    shortage::Shortage,
    tree::{Key, LevelKind, Tree},
    usage::Usage,
};
use berth_api::TreeResource;
use std::collections::{BTreeMap, BTreeSet};

/// Amounts of resources. GPUs are never among them: they follow demand.
pub type Amounts = BTreeMap<TreeResource, u64>;

/// What a tenant has and requests of the quotas of its Project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// UID of the TenantCluster.
    pub uid: String,
    /// Its namespace and name, for messages.
    pub name: String,
    /// Second in which it was created: the oldest tenant comes first.
    pub created: i64,
    /// Its Project.
    pub project: String,
    /// What its spec and class need. None: its spec is not accepted, so that it keeps what it has.
    pub requested: Option<Amounts>,
    /// Resources for which its class sets no limit, of those that quotas limit or of which it has something.
    pub unlimited: BTreeSet<TreeResource>,
    /// What it has. None: nothing was created for it yet. What is missing of what it may have, the host has to count first: also what was reserved by a
    /// limit and was not counted.
    pub reserved: Option<Amounts>,
    /// The most that can exist of each resource until its limits are raised: what exists, or the limit that is enforced, whichever is
    /// more. What is missing is not known, and stays reserved.
    pub at_most: Amounts,
    /// How much the host has counted of resources for which nothing is reserved, whether quotas limit them or not, or for which its class sets no limit. It counts what it limits, so
    /// that the amounts do not grow. What is missing is not counted yet. Of a tenant of which nothing exists, or that is deleted, nothing is missing.
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

/// All decisions, and the use that follows from them.
#[derive(Debug)]
pub struct Outcome<'t> {
    /// By UID.
    pub decisions: BTreeMap<String, Decision>,
    /// Resources of which a tenant may have something that the host has not counted yet, by UID. It gets none of them until then, and nothing is
    /// reserved for it: 0 is an amount that was counted. Of a resource that no quota limits so far, the limit of its class is reserved meanwhile, which is
    /// no count either.
    pub uncounted: BTreeMap<String, BTreeSet<TreeResource>>,
    /// With everything that is reserved.
    pub usage: Usage<'t>,
}

/// What a tenant has before anything is granted.
struct Held {
    amounts: Amounts,
    over: OverQuota,
    /// See [`Outcome::uncounted`].
    uncounted: BTreeSet<TreeResource>,
}

/// Levels with tenants of which something is not counted yet, each with the resource: Project and name of the tenants.
type Uncounted<'t, 'c> = BTreeMap<(LevelKind, &'t str, TreeResource), BTreeSet<(&'c str, &'c str)>>;

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
            for (kind, name, _) in usage.limiting_levels(&claim.project, &Key::of(resource.clone())) {
                let tenants = uncounted.entry((kind, name, resource.clone())).or_default();
                tenants.insert((claim.project.as_str(), claim.name.as_str()));
            }
        }
        kept.push((claim, held));
    }
    let by_tenant = kept.iter().filter_map(|(claim, held)| {
        let uncounted = held.as_ref().map(|held| held.uncounted.clone());
        Some((claim.uid.clone(), uncounted.filter(|uncounted| !uncounted.is_empty())?))
    });
    let mut by_tenant: BTreeMap<String, BTreeSet<TreeResource>> = by_tenant.collect();
    let mut decisions = BTreeMap::new();
    for (claim, held) in kept {
        let requested = claim.requested.as_ref();
        let requested = requested.filter(|requested| waits_or_grows(&usage, claim, requested, held.as_ref()));
        let mut decision = match (requested, held) {
            (Some(requested), held) => grant(&mut usage, claim, requested, held, &uncounted),
            (None, Some(Held { amounts, over, .. })) => Decision::Reserved { amounts, over },
            (None, None) => Decision::Nothing,
        };
        if let Decision::Reserved { amounts, .. } = &mut decision {
            let first = add_first_counts(&usage, claim, amounts);
            if !first.is_empty() {
                by_tenant.entry(claim.uid.clone()).or_default().extend(first);
            }
        }
        decisions.insert(claim.uid.clone(), decision);
    }
    Outcome {
        decisions,
        uncounted: by_tenant,
        usage,
    }
}

/// Whether a tenant does not simply go on with what it has: it requests more, or something of what it requests is not limited or not counted.
fn waits_or_grows(usage: &Usage<'_>, claim: &Claim, requested: &Amounts, held: Option<&Held>) -> bool {
    let is_uncounted = |held: &Held| held.find_uncounted(requested).is_some();
    find_unlimited(usage, claim).is_some()
        || held.is_some_and(is_uncounted)
        || grows(held.map(|held| &held.amounts), requested)
}

impl Held {
    /// A resource that the tenant requests and of which the host has not counted yet what it has.
    fn find_uncounted<'r>(&self, requested: &'r Amounts) -> Option<&'r TreeResource> {
        requested.keys().find(|resource| self.uncounted.contains(*resource))
    }
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
    let uncounted = add_counted(claim, reserved, limited, &mut amounts);
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

/// Adds what a tenant that has `reserved` has of resources that quotas limit and no class has limited so far. No number says how much it may have of
/// them: so it is what the host counts, once it does, and does not grow, as the host lets no tenant have more than it has reserved. Returns what is
/// not counted yet. Nothing is reserved of that, so that the next decision knows that it still has to be counted.
fn add_counted(
    claim: &Claim,
    reserved: &Amounts,
    limited: &[TreeResource],
    amounts: &mut Amounts,
) -> BTreeSet<TreeResource> {
    amounts.retain(|resource, _| !claim.unlimited.contains(resource) || limited.contains(resource));
    let mut uncounted = BTreeSet::new();
    for resource in limited {
        let known = reserved.get(resource).copied();
        if !claim.is_counted(resource, known) || resource.counted_names().is_empty() {
            continue;
        }
        if let Some(amount) = known.max(claim.counted.get(resource).copied()) {
            amounts.insert(resource.clone(), amount);
        } else {
            amounts.remove(resource);
            uncounted.insert(resource.clone());
        }
    }
    uncounted
}

/// Adds to `amounts` what a tenant that runs has of resources that its class has come to limit and no quota limits: what exists may be more than the limit. A
/// quota that comes later finds the count. Returns what is not counted yet.
fn add_first_counts(usage: &Usage<'_>, claim: &Claim, amounts: &mut Amounts) -> BTreeSet<TreeResource> {
    let Some(reserved) = &claim.reserved else {
        return BTreeSet::new();
    };
    let mut uncounted = BTreeSet::new();
    for (resource, amount) in amounts {
        let is_limited = usage.is_limited(&claim.project, &Key::of(resource.clone()));
        if is_limited || reserved.contains_key(resource) || resource.counted_names().is_empty() {
            continue;
        }
        match claim.counted.get(resource) {
            Some(counted) => *amount = (*amount).max(*counted),
            None => {
                uncounted.insert(resource.clone());
            }
        }
    }
    uncounted
}

/// Gives a tenant all that it requests, or leaves it with what it has.
fn grant(
    usage: &mut Usage<'_>,
    claim: &Claim,
    requested: &Amounts,
    held: Option<Held>,
    uncounted: &Uncounted<'_, '_>,
) -> Decision {
    let shortage = find_shortage(usage, claim, (requested, held.as_ref()), uncounted);
    let (kept, over) = held.map(|held| (held.amounts, held.over)).unzip();
    let over = over.unwrap_or_default();
    if let Some(shortage) = shortage {
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
    (requested, held): (&Amounts, Option<&Held>),
    uncounted: &Uncounted<'_, '_>,
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
    let own = held.and_then(|held| held.find_uncounted(requested));
    if let Some(shortage) = own.and_then(|resource| not_counted(usage, claim, resource, uncounted)) {
        return Some(shortage);
    }
    let amounts = held.map(|held| &held.amounts);
    requested.iter().find_map(|(resource, amount)| {
        let additional = amount.saturating_sub(amount_of(amounts, resource));
        let available = usage.available(&claim.project, &Key::of(resource.clone()))?;
        let is_not_counted = (additional > 0).then(|| not_counted(usage, claim, resource, uncounted));
        let is_not_enough =
            || (additional > available).then(|| not_enough(usage, claim, resource, additional, available));
        is_not_counted.flatten().or_else(is_not_enough)
    })
}

/// That a quota of a resource is shared with tenants of which not all is counted; none if it is not.
fn not_counted(
    usage: &Usage<'_>,
    claim: &Claim,
    resource: &TreeResource,
    uncounted: &Uncounted<'_, '_>,
) -> Option<Shortage> {
    if uncounted.is_empty() {
        return None;
    }
    let levels = usage.limiting_levels(&claim.project, &Key::of(resource.clone()));
    let of_levels = levels
        .into_iter()
        .filter_map(|(kind, name, _)| uncounted.get(&(kind, name, resource.clone())));
    let found: BTreeSet<_> = of_levels.flatten().collect();
    let own = found.iter().filter(|(project, _)| *project == claim.project);
    let tenants: Vec<String> = own.map(|(_, name)| (*name).to_owned()).collect();
    (!found.is_empty()).then(|| Shortage::NotCounted {
        resource: resource.clone(),
        others: found.len() - tenants.len(),
        tenants,
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
