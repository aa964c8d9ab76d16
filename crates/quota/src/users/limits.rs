//! Which limits apply to whom.

use super::UserAmounts;
use berth_api::{ALL_USERS, PLATFORM_USER, SERVICE_ACCOUNTS, UNKNOWN_USER, UserQuota};
use std::collections::BTreeMap;

/// Prefix of the names of ServiceAccounts as users.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// The limits of the users of one Project.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserLimits {
    named: BTreeMap<String, UserAmounts>,
    /// Of each user without a name here.
    others: UserAmounts,
}

impl UserLimits {
    /// The limits of a Project. Of several entries for a user the first counts; the API server accepts only one.
    pub fn new(quotas: &[UserQuota]) -> Self {
        let mut limits = Self::default();
        for quota in quotas.iter().rev() {
            let amounts = quota.limits.iter().rev();
            let amounts = amounts
                .map(|limit| (limit.resource.clone(), u64::from(limit.limit)))
                .collect();
            if quota.user == ALL_USERS {
                limits.others = amounts;
            } else {
                limits.named.insert(quota.user.clone(), amounts);
            }
        }
        limits
    }

    /// The user that a pod counts for, whose host pod has this annotation.
    ///
    /// ServiceAccounts that no entry names are one user together: a user who may create pods may run them with any ServiceAccount of the
    /// namespace, and who may create ServiceAccounts could get the limit again and again.
    pub fn find_user<'a>(&self, created_by: Option<&'a str>) -> &'a str {
        match created_by {
            None | Some("") => UNKNOWN_USER,
            Some(user) if self.named.contains_key(user) => user,
            Some(user) if user.starts_with(SERVICE_ACCOUNT) => SERVICE_ACCOUNTS,
            Some(user) => user,
        }
    }

    /// The limits of a user, by resource. Without an entry there are none.
    pub fn of(&self, user: &str) -> Option<&UserAmounts> {
        let limits = match self.named.get(user) {
            None if user == PLATFORM_USER => return None,
            None => &self.others,
            Some(own) => own,
        };
        (!limits.is_empty()).then_some(limits)
    }
}
