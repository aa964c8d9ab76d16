//! What of the fleet belongs to whom. Part of a [`TenantClass`](crate::TenantClass).

use kube::KubeSchema;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What of the fleet is the tenants' of a class, all of them together. Amounts are GPUs (nodes, in a pool without GPUs) by
/// the name of their pool.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.guaranteed) || !has(self.limit) || \
    self.guaranteed.all(pool, !(pool in self.limit) || self.guaranteed[pool] <= self.limit[pool])")
    .message("guaranteed must not be above limit")
    .field_path(".guaranteed"))]
pub struct SharePolicy {
    /// Weight among the classes where they compete for what nobody is guaranteed.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000))]
    pub weight: u32,
    /// GPUs that the class gets whenever it asks for them, back from those who borrowed them if need be.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "amounts")]
    pub guaranteed: BTreeMap<String, u64>,
    /// How many of the guaranteed GPUs others may borrow as long as the class does not ask for them. A pool that is not
    /// named: all.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "amounts")]
    pub lendable: BTreeMap<String, u64>,
    /// GPUs that the class has at most, borrowed ones included. A pool that is not named: no limit.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "amounts")]
    pub limit: BTreeMap<String, u64>,
}

impl Default for SharePolicy {
    fn default() -> Self {
        Self {
            weight: one(),
            guaranteed: BTreeMap::new(),
            lendable: BTreeMap::new(),
            limit: BTreeMap::new(),
        }
    }
}

fn one() -> u32 {
    1
}

fn amounts(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 64,
        "additionalProperties": {"type": "integer", "format": "int64", "minimum": 0, "maximum": 1_000_000},
    })
}
