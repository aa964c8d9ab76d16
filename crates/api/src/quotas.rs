//! Quotas of [`Organization`](crate::Organization)s and [`Project`](crate::Project)s.
//!
//! Words and meanings are Kueue's for a tree of cohorts, with one difference: the nominal quota of an Organization contains
//! those of its Projects.

use crate::{TreeResource, quantity};
use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, collections::BTreeMap, fmt};

/// Quota of one resource. GPUs are shared pool by pool; several pools together have a maximum.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.resource == 'gpus' || !has(self.poolName)")
    .message("only the resource gpus has poolName")
    .field_path(".poolName"))]
#[x_kube(validation = Rule::new("self.resource == 'gpus' || !has(self.gpuProduct)")
    .message("only the resource gpus has gpuProduct")
    .field_path(".gpuProduct"))]
#[x_kube(validation = Rule::new("!has(self.poolName) || !has(self.gpuProduct)")
    .message("poolName and gpuProduct exclude each other")
    .field_path(".gpuProduct"))]
#[x_kube(validation = Rule::new("self.resource != 'gpus' || has(self.poolName) || has(self.borrowingLimit)")
    .message("gpus of several pools need borrowingLimit: nominalQuota and borrowingLimit together are their maximum")
    .field_path(".borrowingLimit"))]
#[x_kube(validation = Rule::new("self.resource != 'gpus' || has(self.poolName) || !has(self.lendingLimit)")
    .message("gpus of several pools have no lendingLimit; set it for each pool")
    .field_path(".lendingLimit"))]
pub struct TreeQuota {
    /// Resource that is limited. gpus: GPUs that tenants have (nodes, in a pool without GPUs): of the pool poolName, or of all
    /// pools of the product gpuProduct, or without both of all pools that have GPUs. tenantclusters: TenantClusters. All others: the sum of what the classes of the tenants allow each of them in `limits`. The names of
    /// `limits.resources` of a class, such as requests.cpu, are resources as well.
    pub resource: TreeResource,
    /// Name of the HostNodePool, for the resource gpus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub pool_name: Option<String>,
    /// Product of GPUs, for the resource gpus: spec.gpuProduct of the HostNodePools that count together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = "^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
    )]
    pub gpu_product: Option<String>,
    /// Amount that belongs to this level of the tree. That of an Organization contains those of its Projects; if it is less
    /// than their sum, the sum counts.
    pub nominal_quota: Amount,
    /// Amount that may be borrowed beyond the nominal quota. Defaults to as much as others lend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub borrowing_limit: Option<Amount>,
    /// Amount of the unused nominal quota that others may borrow. Defaults to all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lending_limit: Option<Amount>,
}

/// A whole number or a quantity such as `50Gi`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Amount {
    /// A whole number.
    Number(i64),
    /// A quantity.
    Text(String),
}

impl Amount {
    /// The amount in whole units, rounded up. None if it is negative or no quantity.
    pub fn value(&self) -> Option<u64> {
        match self {
            Self::Number(number) => u64::try_from(*number).ok(),
            Self::Text(text) => {
                let thousandths = quantity::parse(text)?.checked_add(999)?;
                u64::try_from(thousandths.div_euclid(1000)).ok()
            }
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl From<u32> for Amount {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl JsonSchema for Amount {
    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "pattern": "^[0-9]{1,15}(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$",
        })
    }
}

/// What a level has of one quota.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TreeQuotaStatus {
    /// Resource that is limited.
    pub resource: TreeResource,
    /// Name of the HostNodePool, for the resource gpus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_name: Option<String>,
    /// Product of GPUs, for the resource gpus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_product: Option<String>,
    /// Nominal quota; for an Organization at least the sum of those of its Projects.
    pub nominal_quota: u64,
    /// Amount that tenants have reserved: this is what quotas limit. For gpus: GPUs of nodes that are assigned to tenants or reserved for
    /// them.
    #[serde(default)]
    pub reserved: u64,
    /// Part of `reserved` that tenants use, measured about once a minute. For gpus: GPUs that pods on these nodes request. Absent until
    /// Berth has measured it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
    /// Part of `reserved` beyond the nominal quota.
    pub borrowed: u64,
}

/// What a tenant of a Project uses. Updated every five minutes at most.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantUsage {
    /// Amounts by resource, as in `quota.reserved`: objects that exist on the host, and requests of pods and claims. What is not measured
    /// is missing.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resources: BTreeMap<String, u64>,
    /// GPUs by pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["poolName"]))]
    pub gpus: Vec<PoolUsage>,
}

/// GPUs that a tenant has of one pool; nodes, in a pool without GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolUsage {
    /// Name of the HostNodePool.
    pub pool_name: String,
    /// GPUs of nodes that are assigned to the tenant or reserved for it.
    pub reserved: u64,
    /// GPUs that its pods on these nodes request.
    pub used: u64,
}

/// What control has reserved for a tenant of the quotas of its Project and Organization.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuotaReservation {
    /// Name of the Project of the tenant's namespace.
    pub project_name: String,
    /// Amounts by resource.
    #[serde(default)]
    pub reserved: BTreeMap<String, u64>,
    /// Part of `reserved` beyond what the limits of the tenant allow now, by resource. It stays reserved until it is known that so many
    /// objects, or bytes, are deleted.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub above_limits: BTreeMap<String, u64>,
    /// Resources of which the tenant may have something that the host has not counted yet, because no class limited them before. Until the host has,
    /// the tenant creates no more of them, and no tenant gets more of their quota. If no quota limits them, the tenant has the limit of its class meanwhile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uncounted: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn amounts_are_numbers_or_quantities() {
        for (value, amount) in [
            (json!(10), Some(10)),
            (json!("10"), Some(10)),
            (json!("50Gi"), Some(50 << 30)),
            (json!("2k"), Some(2000)),
            (json!("1500m"), Some(2)),
            (json!(-1), None),
            (json!("-1"), None),
            (json!("many"), None),
        ] {
            let read: Amount = serde_json::from_value(value.clone()).unwrap();
            assert_eq!(read.value(), amount, "{value}");
            assert_eq!(serde_json::to_value(read).unwrap(), value);
        }
    }
}
