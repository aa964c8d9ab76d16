//! Which limits apply to whom.

use super::UserAmounts;
use berth_api::{ALL_USERS, PLATFORM_USER, SERVICE_ACCOUNTS, UNKNOWN_USER, UserQuota};
use std::collections::BTreeMap;

/// Prefix of the names of ServiceAccounts as users.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// The limits of the users of one Project.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserLimits {
    named: BTreeMap<String, OfUser>,
    /// Of each user without a name here.
    others: OfUser,
}

/// The limits of one user, by resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OfUser {
    /// Of all pods together.
    all: UserAmounts,
    /// Of the pods in one tenant.
    per_tenant: UserAmounts,
}

impl OfUser {
    /// Of several limits of a resource the first counts.
    fn new(quota: &UserQuota) -> Self {
        let mut limits = Self::default();
        for limit in quota.limits.iter().rev() {
            let resource = || limit.resource.clone();
            limits.all.insert(resource(), limit.limit.into());
            let per_tenant = limit.limit_per_tenant;
            limits
                .per_tenant
                .extend(per_tenant.map(|most| (resource(), most.into())));
        }
        limits
    }
}

impl UserLimits {
    /// The limits of a Project. Of several entries for a user the first counts; the API server accepts only one.
    pub fn new(quotas: &[UserQuota]) -> Self {
        let mut limits = Self::default();
        for quota in quotas.iter().rev() {
            let own = OfUser::new(quota);
            if quota.user == ALL_USERS {
                limits.others = own;
            } else {
                limits.named.insert(quota.user.clone(), own);
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
        let limits = &self.find(user)?.all;
        (!limits.is_empty()).then_some(limits)
    }

    /// The limits of what a user has in one tenant, by resource. Each is one of a resource that [`UserLimits::of`] limits as well.
    pub fn per_tenant(&self, user: &str) -> Option<&UserAmounts> {
        Some(&self.find(user)?.per_tenant)
    }

    fn find(&self, user: &str) -> Option<&OfUser> {
        match self.named.get(user) {
            None if user == PLATFORM_USER => None,
            None => Some(&self.others),
            own => own,
        }
    }
}
