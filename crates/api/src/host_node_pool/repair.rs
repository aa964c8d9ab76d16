//! When Berth takes nodes that are not Ready from their tenants.

use crate::KubeDuration;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// When Berth takes nodes that are not Ready from their tenants, so that node groups get others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RepairSpec {
    /// How long an assigned node must be not Ready, or its readiness unknown, before Berth takes it from its tenant. A node that people have cordoned
    /// stays. Defaults to 10m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_ready_after: Option<KubeDuration>,
    /// The most nodes of the pool that may be not Ready at the same time: a number, or a percentage of its nodes, which is rounded down to at least one. If
    /// more are not Ready, as in an outage of the network, Berth takes none. 0: Berth takes none at all. Defaults to 20%.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unhealthy: Option<MaxUnhealthy>,
}

impl RepairSpec {
    /// [`RepairSpec::not_ready_after`] in seconds.
    pub fn not_ready_after(&self) -> i64 {
        self.not_ready_after.as_ref().map_or(600, KubeDuration::seconds)
    }

    /// [`RepairSpec::max_unhealthy`] of a pool with so many nodes. A text that the schema rejects counts as 0.
    pub fn max_unhealthy(&self, nodes: u32) -> u32 {
        let of_percent = |percent: u32| match percent {
            0 => 0,
            percent => u32::try_from(u64::from(nodes) * u64::from(percent) / 100)
                .unwrap_or(u32::MAX)
                .max(1),
        };
        match &self.max_unhealthy {
            None => of_percent(20),
            Some(MaxUnhealthy::Nodes(number)) => *number,
            Some(MaxUnhealthy::Text(text)) => match text.strip_suffix('%') {
                Some(percent) => percent.parse().map_or(0, of_percent),
                None => text.parse().unwrap_or_default(),
            },
        }
    }
}

/// A number of nodes, or a percentage such as `20%`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MaxUnhealthy {
    /// A number of nodes.
    Nodes(u32),
    /// A percentage, or a number as text.
    Text(String),
}

impl JsonSchema for MaxUnhealthy {
    fn schema_name() -> Cow<'static, str> {
        "MaxUnhealthy".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "minimum": 0,
            "maximum": 100_000,
            "pattern": "^([0-9]{1,5}|(100|[0-9]{1,2})%)$",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_most_nodes_are_a_number_or_a_part_of_the_pool() {
        for (value, nodes, expected) in [
            (json!(null), 20, 4),
            (json!(null), 4, 1),
            (json!(null), 0, 1),
            (json!("20%"), 19, 3),
            (json!("1%"), 20, 1),
            (json!("0%"), 20, 0),
            (json!("100%"), 20, 20),
            (json!(0), 20, 0),
            (json!(3), 20, 3),
            (json!("3"), 20, 3),
            (json!("many"), 20, 0),
        ] {
            let spec: RepairSpec = serde_json::from_value(json!({"maxUnhealthy": value})).unwrap();
            assert_eq!(spec.max_unhealthy(nodes), expected, "{value} of {nodes}");
        }
    }

    #[test]
    fn without_fields_the_defaults_hold() {
        assert_eq!(RepairSpec::default().not_ready_after(), 600);
        let spec: RepairSpec = serde_json::from_value(json!({"notReadyAfter": "90s"})).unwrap();
        assert_eq!(spec.not_ready_after(), 90);
    }
}
