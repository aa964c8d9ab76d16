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

/// A gang: its pods are admitted together or not at all.
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
        } = self;
        let subject = if *is_of_gang { "the gang of the pod" } else { "the pod" };
        if requested > limit {
            return write!(
                f,
                "{subject} requests {requested} {resource}, and all pods of user {user} together may have {limit}: request less, or ask \
                 the platform team to raise spec.userQuotas of the Project"
            );
        }
        write!(
            f,
            "all pods of user {user} together may have {limit} {resource} at the same time, and {subject} requests {requested}: it starts \
             when enough other pods of the user have ended. Delete what is no longer needed, or ask the platform team to raise \
             spec.userQuotas of the Project"
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

/// Pods that are admitted together.
struct Unit<'a> {
    members: Vec<&'a UserPod>,
    /// Members of a gang that do not exist yet.
    missing: u32,
    /// Others of its gang were admitted before.
    is_started: bool,
}

/// Decides which of the pods that wait may start. What was admitted stays admitted, also above the limits. Of the rest the most important is
/// first, then the oldest; one that does not fit leaves its place to the next that does.
pub fn decide_users(limits: &UserLimits, pods: &[UserPod]) -> UserOutcome {
    let mut outcome = UserOutcome::default();
    for pod in pods {
        let of_user = outcome.users.entry(pod.user.clone()).or_default();
        if pod.is_admitted {
            add(&mut of_user.used, &pod.amounts, 1);
        }
    }
    // What the rest of gangs that start now will need, in this decision only: members that ended are not known.
    let mut promised: BTreeMap<&str, UserAmounts> = BTreeMap::new();
    for unit in build_units(pods) {
        let (requested, rest) = request(&unit);
        if let Some(shortage) = find_shortage(limits, &outcome, &promised, &requested, &rest) {
            let shortage = LimitExceeded {
                is_of_gang: unit.members.len() > 1 || unit.missing > 0,
                ..shortage
            };
            for pod in &unit.members {
                let of_user = outcome.users.entry(pod.user.clone()).or_default();
                of_user.waiting += 1;
                of_user.first.get_or_insert_with(|| shortage.clone());
                outcome.waiting.insert(pod.uid.clone(), shortage.clone());
            }
        } else {
            for (user, amounts) in rest {
                add(promised.entry(user).or_default(), &amounts, 1);
            }
            for pod in &unit.members {
                let of_user = outcome.users.entry(pod.user.clone()).or_default();
                add(&mut of_user.used, &pod.amounts, 1);
                outcome.admitted.insert(pod.uid.clone());
            }
        }
    }
    outcome
}

fn add(sum: &mut UserAmounts, amounts: &UserAmounts, times: u64) {
    for (resource, amount) in amounts {
        let of_resource = sum.entry(resource.clone()).or_default();
        *of_resource = of_resource.saturating_add(amount.saturating_mul(times));
    }
}

/// The pods that wait, gangs together, in the order in which they are admitted. Gangs of which some members run are first: the others
/// came later, and those that run wait for them.
fn build_units(pods: &[UserPod]) -> Vec<Unit<'_>> {
    let mut gangs: BTreeMap<&str, (Vec<&UserPod>, u32, u32)> = BTreeMap::new();
    let mut units = Vec::new();
    for pod in pods {
        match &pod.gang {
            Some(gang) => {
                let (waiting, admitted, size) = gangs.entry(&gang.name).or_default();
                *size = (*size).max(gang.size);
                if pod.is_admitted {
                    *admitted += 1;
                } else {
                    waiting.push(pod);
                }
            }
            None if pod.is_admitted => {}
            None => units.push(Unit {
                members: vec![pod],
                missing: 0,
                is_started: false,
            }),
        }
    }
    let gangs = gangs.into_values().filter(|(waiting, ..)| !waiting.is_empty());
    units.extend(gangs.map(|(members, admitted, size)| {
        let present = admitted.saturating_add(u32::try_from(members.len()).unwrap_or(u32::MAX));
        Unit {
            members,
            missing: if admitted > 0 { 0 } else { size.saturating_sub(present) },
            is_started: admitted > 0,
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

/// What a unit requests of each user's limits, and what the members that do not exist yet will request: as much as the largest that
/// exists.
fn request<'a>(unit: &Unit<'a>) -> (BTreeMap<&'a str, UserAmounts>, BTreeMap<&'a str, UserAmounts>) {
    let mut requested: BTreeMap<&str, UserAmounts> = BTreeMap::new();
    for pod in &unit.members {
        add(requested.entry(&pod.user).or_default(), &pod.amounts, 1);
    }
    let mut rest = BTreeMap::new();
    if unit.missing > 0
        && let Some(first) = unit.members.iter().min_by_key(|pod| &pod.uid)
    {
        let mut largest = UserAmounts::new();
        for (resource, amount) in unit.members.iter().flat_map(|pod| &pod.amounts) {
            let most = largest.entry(resource.clone()).or_default();
            *most = (*most).max(*amount);
        }
        let mut all = UserAmounts::new();
        add(&mut all, &largest, unit.missing.into());
        rest.insert(first.user.as_str(), all);
    }
    (requested, rest)
}

/// The first limit that a request exceeds.
fn find_shortage(
    limits: &UserLimits,
    outcome: &UserOutcome,
    promised: &BTreeMap<&str, UserAmounts>,
    requested: &BTreeMap<&str, UserAmounts>,
    rest: &BTreeMap<&str, UserAmounts>,
) -> Option<LimitExceeded> {
    let amount = |amounts: Option<&UserAmounts>, resource: &str| {
        amounts
            .and_then(|amounts| amounts.get(resource))
            .copied()
            .unwrap_or_default()
    };
    for (user, amounts) in requested {
        for (resource, limit) in limits.of(user).into_iter().flatten() {
            let needs = amount(Some(amounts), resource).saturating_add(amount(rest.get(user), resource));
            let used = amount(outcome.users.get(*user).map(|of_user| &of_user.used), resource);
            let taken = used.saturating_add(amount(promised.get(user), resource));
            if needs > 0 && taken.saturating_add(needs) > *limit {
                return Some(LimitExceeded {
                    user: (*user).to_owned(),
                    resource: resource.clone(),
                    limit: *limit,
                    requested: needs,
                    is_of_gang: false,
                });
            }
        }
    }
    None
}
