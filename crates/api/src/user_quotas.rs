//! Quotas of users within a [`Project`](crate::Project): what the pods of one user may have at the same time.

use crate::{Project, TenantLimits};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// In `user` of a [`UserQuota`]: every user that no other entry names.
pub const ALL_USERS: &str = "*";
/// The user that all ServiceAccounts are together which no entry names. Somebody who may create ServiceAccounts would
/// otherwise get the limit of `*` once more for each of them.
pub const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";
/// The user of pods that do not say who created them. No API server of a tenant gives a user this name.
pub const UNKNOWN_USER: &str = "system:unknown";
/// The user that control is in tenants. What it creates there is the platform's: it has limits only if an entry names it.
pub const PLATFORM_USER: &str = "berth:control";
/// The resource of a [`UserLimit`] that counts pods. All others count devices.
pub const PODS: &str = "pods";
/// Users in [`ProjectStatus::users`](crate::ProjectStatus) at most.
pub const MOST_LISTED_USERS: usize = 100;

/// Limits of one user, or of each user that no other entry names.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UserQuota {
    /// Name of the user as the API servers of the tenants know it, for example `alice@example.com` or
    /// `system:serviceaccount:ci:runner`. `*` stands for each user that no other entry names; all ServiceAccounts that no entry names
    /// count as one user, `system:serviceaccounts`, and pods without a known creator as another, `system:unknown`. `*` is not for
    /// `berth:control`, which applies the platform's manifests.
    #[serde(default = "all_users")]
    #[schemars(length(min = 1, max = 253))]
    pub user: String,
    /// What all pods of the user in all TenantClusters of the Project may have together at the same time. A resource that is not listed
    /// here is not limited for the user.
    #[schemars(length(min = 1, max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["resource".to_string()]))]
    pub limits: Vec<UserLimit>,
}

fn all_users() -> String {
    ALL_USERS.to_owned()
}

/// Limit of one resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UserLimit {
    /// `pods`, an extended resource that pods request, for example `nvidia.com/gpu`, or devices of a DeviceClass that pods request or claim,
    /// for example `gpu.nvidia.com.deviceclass.resource.k8s.io/devices`.
    #[schemars(
        length(max = 253),
        regex(pattern = r"^(pods|[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)$")
    )]
    pub resource: String,
    /// Most of it at the same time.
    pub limit: u32,
    /// Most of `limit` that pods of one TenantCluster may have. Administrators of a TenantCluster can create pods in the name of every user,
    /// and take all of a limit without this from the pods that the user has in the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_per_tenant: Option<u32>,
}

/// What one user has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UserStatus {
    /// Name of the user.
    pub user: String,
    /// Use of each resource that is limited for the user.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<UserResourceStatus>,
    /// Pods of the user that wait on the host because of a limit. More may wait in the TenantClusters.
    #[serde(default)]
    pub waiting_pods: u32,
    /// Why the first of them waits.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Use of one resource by one user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UserResourceStatus {
    /// Resource.
    pub resource: String,
    /// Most of it at the same time.
    pub limit: u64,
    /// What pods have that have not ended and do not wait because of a limit.
    pub used: u64,
}

/// What [`TenantLimits::waiting_pods_of_user`] is where a tenant may have many pods.
const MOST_WAITING_PODS: u32 = 100;

impl TenantLimits {
    /// Pods of one user with limits that are on the host until control lets them start. They count there towards `pods` and `waitingPods`, so a
    /// tenth of these at most, to leave room for those of others. More than a hundred give no better choice of the pod that starts next.
    pub fn waiting_pods_of_user(&self) -> u32 {
        (self.pods.min(self.waiting_pods) / 10).clamp(1, MOST_WAITING_PODS)
    }
}

impl Project {
    /// Whether it limits its users.
    pub fn limits_users(&self) -> bool {
        !self.spec.user_quotas.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_that_wait_leave_room_for_those_of_others() {
        let waiting = |pods: u32| {
            let limits = TenantLimits {
                pods,
                ..TenantLimits::default()
            };
            limits.waiting_pods_of_user()
        };
        assert_eq!([1, 20, 999, 15_000].map(waiting), [1, 2, 99, 100]);
        let limits = TenantLimits {
            waiting_pods: 50,
            ..TenantLimits::default()
        };
        assert_eq!(limits.waiting_pods_of_user(), 5);
    }
}
