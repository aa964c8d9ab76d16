//! How classes share the fleet: quotas and weights. Part of a [`TenantClass`](crate::TenantClass); weights also of
//! [`Organization`](crate::Organization)s and [`Project`](crate::Project)s.
//!
//! Words and meanings are Kueue's, with two differences: an amount counts the GPUs of a pool (its nodes, in a pool without
//! GPUs), and the weight is a whole number.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a class, a Project or an Organization competes with others for what is beyond the nominal quotas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FairSharing {
    /// Weight among those that compete.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000))]
    pub weight: u32,
}

impl Default for FairSharing {
    fn default() -> Self {
        Self { weight: one() }
    }
}

fn one() -> u32 {
    1
}

/// Quota of one pool. Amounts are GPUs, or nodes in a pool without GPUs.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.lendingLimit) || self.lendingLimit <= self.nominalQuota")
    .message("lendingLimit must not be greater than nominalQuota")
    .field_path(".lendingLimit"))]
pub struct PoolQuota {
    /// Name of the HostNodePool.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub pool_name: String,
    /// Amount that the class gets whenever its tenants need it. Berth reclaims it from classes that borrowed it.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub nominal_quota: u64,
    /// Amount of the unused nominal quota that other classes may borrow. Defaults to all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub lending_limit: Option<u64>,
    /// Amount that the class may borrow beyond its nominal quota. Defaults to no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub borrowing_limit: Option<u64>,
}
