//! Users for the status of a Project.

use super::{UserLimits, UserOutcome, UserUse};
use berth_api::{UserResourceStatus, UserStatus};
use std::cmp::Reverse;

/// The users with pods, at most `most`: those whose pods wait first, then those nearest to a limit. And the number of the others.
pub fn list_users(limits: &UserLimits, outcome: &UserOutcome, most: usize) -> (Vec<UserStatus>, u32) {
    let mut users: Vec<UserStatus> = outcome
        .users
        .iter()
        .map(|(user, of_user)| build_status(limits, user, of_user))
        .collect();
    users.sort_by_cached_key(|user| {
        let thousandths = user.resources.iter().map(|resource| {
            let used = resource.used.saturating_mul(1000);
            used.checked_div(resource.limit).unwrap_or(used)
        });
        (
            Reverse(user.waiting_pods),
            Reverse(thousandths.max()),
            user.user.clone(),
        )
    });
    let others = users.len().saturating_sub(most);
    users.truncate(most);
    (users, u32::try_from(others).unwrap_or(u32::MAX))
}

fn build_status(limits: &UserLimits, user: &str, of_user: &UserUse) -> UserStatus {
    let resources = limits.of(user).into_iter().flatten();
    UserStatus {
        user: user.to_owned(),
        resources: resources
            .map(|(resource, limit)| UserResourceStatus {
                resource: resource.clone(),
                limit: *limit,
                used: of_user.used.get(resource).copied().unwrap_or_default(),
            })
            .collect(),
        waiting_pods: of_user.waiting,
        message: of_user.first.as_ref().map(ToString::to_string).unwrap_or_default(),
    }
}
