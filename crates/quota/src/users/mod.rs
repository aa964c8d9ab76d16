//! Which pods of which users may start: the limits of users within one Project.
//!
//! Every pod of a Project that limits its users is created on the host with a scheduling gate. [`decide_users`] says which gates may be
//! taken off now. It sees all pods of all tenants of the Project at once, so that two of them cannot both take what is left.

mod limits;
mod report;

#[cfg(test)]
mod tests;

pub use limits::UserLimits;
pub use report::list_users;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// Amounts by resource: `pods`, or the name of an extended resource.
pub type UserAmounts = BTreeMap<String, u64>;

/// A pod of a tenant that has not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserPod {
    /// UID of the host pod.
    pub uid: String,
    /// Names its tenant among all of the Project.
    pub tenant: String,
    /// Its user, as [`UserLimits::find_user`] says.
    pub user: String,
    /// What it requests.
    pub amounts: UserAmounts,
    /// Whether its gate is off, or will be: it counts, whatever the limits say.
    pub is_admitted: bool,
    /// The gang that it belongs to.
    pub gang: Option<UserGang>,
    /// Its priority.
    pub priority: i32,
    /// When it was created, in seconds since the epoch.
    pub since: i64,
}

/// A gang: the pods that one user has in it are admitted together or not at all. Names and sizes of gangs are what users say, so that no user keeps
/// pods of another from starting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserGang {
    /// Names the gang among all of the Project.
    pub name: String,
    /// Number of its pods.
    pub size: u32,
}

/// Why a pod waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitExceeded {
    /// Whose limit it is.
    pub user: String,
    /// The resource.
    pub resource: String,
    /// Most of the resource that the user may have.
    pub limit: u64,
    /// What the pod, or its gang, requests. If that is more than the limit, it waits for ever.
    pub requested: u64,
    /// Whether a gang requests it.
    pub is_of_gang: bool,
    /// Whether it is the limit of what the user has in one tenant.
    pub is_per_tenant: bool,
}

impl fmt::Display for LimitExceeded {
    /// The text stays the same as long as the limit does, whatever other pods do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            user,
            resource,
            limit,
            requested,
            is_of_gang,
            is_per_tenant,
        } = self;
        let subject = if *is_of_gang { "the gang of the pod" } else { "the pod" };
        let place = if *is_per_tenant { " in this tenant" } else { "" };
        if requested > limit {
            return write!(
                f,
                "{subject} requests {requested} {resource}, and all pods of user {user}{place} together may have {limit}: request less, or \
                 ask the platform team to raise spec.userQuotas of the Project"
            );
        }
        write!(
            f,
            "all pods of user {user}{place} together may have {limit} {resource} at the same time, and {subject} requests {requested}: it \
             starts when enough other pods of the user{place} have ended. Delete what is no longer needed, or ask the platform team to \
             raise spec.userQuotas of the Project"
        )
    }
}

/// What one user has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserUse {
    /// What admitted pods request together.
    pub used: UserAmounts,
    /// Pods that wait.
    pub waiting: u32,
    /// Why the first of them waits.
    pub first: Option<LimitExceeded>,
}

/// What was decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserOutcome {
    /// UIDs of pods that waited and may start.
    pub admitted: BTreeSet<String>,
    /// UIDs of pods that wait.
    pub waiting: BTreeMap<String, LimitExceeded>,
    /// Users that have pods.
    pub users: BTreeMap<String, UserUse>,
}

/// Pods of one user that are admitted together.
struct Unit<'a> {
    user: &'a str,
    tenant: &'a str,
    members: Vec<&'a UserPod>,
    /// Members of a gang that do not exist yet.
    missing: u32,
    /// Others of the user's pods in its gang were admitted before.
    is_started: bool,
}

/// The pods of one user in a gang.
#[derive(Default)]
struct OfGang<'a> {
    tenant: &'a str,
    waiting: Vec<&'a UserPod>,
    is_started: bool,
    /// The largest size that they name.
    size: u32,
}

/// What pods of a user have, in one tenant or in all.
#[derive(Default)]
struct Taken {
    /// By pods that are admitted.
    used: UserAmounts,
    /// What the rest of gangs that start now will need, in this decision only: members that ended are not known.
    later: UserAmounts,
}

/// Decides which of the pods that wait may start. What was admitted stays admitted, also above the limits. Of the rest the most important is
/// first, then the oldest; one that does not fit leaves its place to the next that does.
pub fn decide_users(limits: &UserLimits, pods: &[UserPod]) -> UserOutcome {
    let mut outcome = UserOutcome::default();
    let mut of_users: BTreeMap<&str, Taken> = BTreeMap::new();
    let mut in_tenants: BTreeMap<(&str, &str), Taken> = BTreeMap::new();
    for pod in pods {
        let of_user = of_users.entry(&pod.user).or_default();
        if pod.is_admitted {
            add(&mut of_user.used, &pod.amounts, 1);
            let in_tenant = in_tenants.entry((pod.user.as_str(), pod.tenant.as_str())).or_default();
            add(&mut in_tenant.used, &pod.amounts, 1);
        }
    }
    for unit in build_units(pods) {
        let needs = request(&unit);
        let of_user = of_users.entry(unit.user).or_default();
        let in_tenant = in_tenants.entry((unit.user, unit.tenant)).or_default();
        let shortage = find_shortage(limits.of(unit.user), of_user, &needs);
        let in_this = || {
            let shortage = find_shortage(limits.per_tenant(unit.user), in_tenant, &needs)?;
            Some((shortage, true))
        };
        if let Some(((resource, limit, requested), is_per_tenant)) =
            shortage.map(|found| (found, false)).or_else(in_this)
        {
            let shortage = LimitExceeded {
                user: unit.user.to_owned(),
                resource,
                limit,
                requested,
                is_of_gang: unit.members.len() > 1 || unit.missing > 0,
                is_per_tenant,
            };
            let of_user = outcome.users.entry(unit.user.to_owned()).or_default();
            for pod in &unit.members {
                of_user.waiting += 1;
                of_user.first.get_or_insert_with(|| shortage.clone());
                outcome.waiting.insert(pod.uid.clone(), shortage.clone());
            }
        } else {
            for taken in [of_user, in_tenant] {
                add(&mut taken.used, &needs.now, 1);
                add(&mut taken.later, &needs.later, 1);
            }
            outcome.admitted.extend(unit.members.iter().map(|pod| pod.uid.clone()));
        }
    }
    for (user, taken) in of_users {
        outcome.users.entry(user.to_owned()).or_default().used = taken.used;
    }
    outcome
}

fn add(sum: &mut UserAmounts, amounts: &UserAmounts, times: u64) {
    for (resource, amount) in amounts {
        let of_resource = sum.entry(resource.clone()).or_default();
        *of_resource = of_resource.saturating_add(amount.saturating_mul(times));
    }
}

/// The pods that wait, those of a user in a gang together, in the order in which they are admitted. Gangs of which some pods of the user run are first: the
/// others came later, and those that run wait for them.
fn build_units(pods: &[UserPod]) -> Vec<Unit<'_>> {
    let mut gangs: BTreeMap<(&str, &str), OfGang<'_>> = BTreeMap::new();
    // Whoever created them: what others have in a gang is not missing.
    let mut present: BTreeMap<&str, u32> = BTreeMap::new();
    let mut units = Vec::new();
    for pod in pods {
        match &pod.gang {
            Some(gang) => {
                let of_gang = gangs.entry((gang.name.as_str(), pod.user.as_str())).or_default();
                of_gang.tenant = &pod.tenant;
                of_gang.size = of_gang.size.max(gang.size);
                *present.entry(gang.name.as_str()).or_default() += 1;
                if pod.is_admitted {
                    of_gang.is_started = true;
                } else {
                    of_gang.waiting.push(pod);
                }
            }
            None if pod.is_admitted => {}
            None => units.push(Unit {
                user: &pod.user,
                tenant: &pod.tenant,
                members: vec![pod],
                missing: 0,
                is_started: false,
            }),
        }
    }
    let gangs = gangs.into_iter().filter(|(_, of_gang)| !of_gang.waiting.is_empty());
    units.extend(gangs.map(|((name, user), of_gang)| {
        let present = present.get(name).copied().unwrap_or_default();
        let missing = of_gang.size.saturating_sub(present);
        Unit {
            user,
            tenant: of_gang.tenant,
            members: of_gang.waiting,
            missing: if of_gang.is_started { 0 } else { missing },
            is_started: of_gang.is_started,
        }
    }));
    units.sort_by_cached_key(|unit| {
        let priority = unit.members.iter().map(|pod| pod.priority).max();
        let since = unit.members.iter().map(|pod| pod.since).min();
        let first = unit.members.iter().map(|pod| pod.uid.clone()).min();
        (!unit.is_started, std::cmp::Reverse(priority), since, first)
    });
    units
}

/// What a unit needs of its user's limits.
struct Needs {
    /// What its pods request.
    now: UserAmounts,
    /// What the members that do not exist yet will request: each as much as the largest that exists.
    later: UserAmounts,
}

fn request(unit: &Unit<'_>) -> Needs {
    let (mut now, mut largest) = (UserAmounts::new(), UserAmounts::new());
    for pod in &unit.members {
        add(&mut now, &pod.amounts, 1);
        for (resource, amount) in &pod.amounts {
            let most = largest.entry(resource.clone()).or_default();
            *most = (*most).max(*amount);
        }
    }
    let mut later = UserAmounts::new();
    if unit.missing > 0 {
        add(&mut later, &largest, unit.missing.into());
    }
    Needs { now, later }
}

/// The first of these limits that would be exceeded: the resource, the limit, and what is needed of it.
fn find_shortage(limits: Option<&UserAmounts>, taken: &Taken, needs: &Needs) -> Option<(String, u64, u64)> {
    let sum = |a: &UserAmounts, b: &UserAmounts, resource: &str| {
        let amount = |amounts: &UserAmounts| amounts.get(resource).copied().unwrap_or_default();
        amount(a).saturating_add(amount(b))
    };
    let mut limits = limits.into_iter().flatten();
    limits.find_map(|(resource, limit)| {
        let needed = sum(&needs.now, &needs.later, resource);
        let is_exceeded = needed > 0 && sum(&taken.used, &taken.later, resource).saturating_add(needed) > *limit;
        is_exceeded.then(|| (resource.clone(), *limit, needed))
    })
}
