//! Namespaces whose TenantClusters may name a TenantClass or a HostNodePool.

use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Grace period of a class or a pool that sets none: a day.
const DEFAULT_GRACE_SECONDS: i64 = 24 * 3600;

/// The grace period in seconds before Berth withdraws what a class or a pool forbids.
pub(crate) fn grace_seconds(period: Option<&crate::KubeDuration>) -> i64 {
    period.map_or(DEFAULT_GRACE_SECONDS, crate::KubeDuration::seconds)
}

/// Which namespaces may use an object, with the words of the Gateway API. `Same` is not among them: the object is in no namespace.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("(self.from == 'Selector') == has(self.selector)")
    .message("from: Selector needs a selector, and nothing else has one")
    .field_path(".selector"))]
pub struct AllowedNamespaces {
    /// All: every namespace. Selector: namespaces with the labels of `selector`. None: no namespace.
    #[serde(default)]
    pub from: NamespacesFrom,
    /// Labels of the namespaces, with from: Selector. An empty selector matches every namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// Where the namespaces of [`AllowedNamespaces`] come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NamespacesFrom {
    /// Every namespace.
    #[default]
    All,
    /// Namespaces with the labels of the selector.
    Selector,
    /// No namespace.
    None,
}

/// A label selector of Kubernetes. All of its requirements must hold.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LabelSelector {
    /// Labels that must be present, with these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "labels")]
    pub match_labels: BTreeMap<String, String>,
    /// Further requirements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub match_expressions: Vec<LabelRequirement>,
}

/// What a selector requires of one label.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)")
    .message("operators In and NotIn need values, and Exists and DoesNotExist have none")
    .field_path(".operator"))]
pub struct LabelRequirement {
    /// Key of the label.
    #[schemars(length(min = 1, max = 317))]
    pub key: String,
    /// In, NotIn, Exists or DoesNotExist. NotIn also holds where the label is missing.
    pub operator: LabelOperator,
    /// Values for In and NotIn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 63)))]
    pub values: Vec<String>,
}

/// How a requirement relates a label to its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum LabelOperator {
    /// The label has one of the values.
    In,
    /// The label has none of the values, or is missing.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is missing.
    DoesNotExist,
}

impl AllowedNamespaces {
    /// Whether a namespace with these labels is allowed. `labels` are none if they are not known; the answer is none if it
    /// depends on them.
    pub fn allows(&self, labels: Option<&BTreeMap<String, String>>) -> Option<bool> {
        match self.from {
            NamespacesFrom::All => Some(true),
            NamespacesFrom::None => Some(false),
            // The schema requires the selector.
            NamespacesFrom::Selector => {
                labels.map(|labels| self.selector.as_ref().is_some_and(|selector| selector.matches(labels)))
            }
        }
    }
}

impl LabelSelector {
    /// Whether the labels meet all requirements.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let Self {
            match_labels,
            match_expressions,
        } = self;
        match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && match_expressions.iter().all(|requirement| requirement.holds(labels))
    }
}

impl LabelRequirement {
    fn holds(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        let is_listed = value.is_some_and(|value| self.values.contains(value));
        match self.operator {
            LabelOperator::In => is_listed,
            LabelOperator::NotIn => !is_listed,
            LabelOperator::Exists => value.is_some(),
            LabelOperator::DoesNotExist => value.is_none(),
        }
    }
}

/// Schema of labels.
pub(crate) fn labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 16,
        "additionalProperties": {"type": "string", "maxLength": 63},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn allowed(value: Value) -> AllowedNamespaces {
        serde_json::from_value(value).unwrap()
    }

    fn selecting(selector: &Value) -> AllowedNamespaces {
        allowed(json!({"from": "Selector", "selector": selector}))
    }

    #[test]
    fn without_a_rule_every_namespace_is_allowed() {
        for rule in [
            AllowedNamespaces::default(),
            allowed(json!({})),
            allowed(json!({"from": "All"})),
        ] {
            assert_eq!(rule.allows(Some(&labels(&[]))), Some(true));
            assert_eq!(rule.allows(None), Some(true), "labels do not matter");
        }
        assert_eq!(allowed(json!({"from": "None"})).allows(None), Some(false));
    }

    #[test]
    fn a_selector_needs_the_labels() {
        let rule = selecting(&json!({"matchLabels": {"team": "vision"}}));
        assert_eq!(rule.allows(None), None);
        assert_eq!(rule.allows(Some(&labels(&[("team", "vision")]))), Some(true));
        assert_eq!(rule.allows(Some(&labels(&[("team", "speech")]))), Some(false));
        assert_eq!(selecting(&json!({})).allows(Some(&labels(&[]))), Some(true), "empty");
        let without = allowed(json!({"from": "Selector"}));
        assert_eq!(without.allows(Some(&labels(&[]))), Some(false), "the schema rejects it");
    }

    #[test]
    fn operators_mean_what_they_mean_in_kubernetes() {
        let cases = [
            ("In", json!(["a", "b"]), [false, true, false]),
            ("NotIn", json!(["a", "b"]), [true, false, true]),
            ("Exists", json!([]), [false, true, true]),
            ("DoesNotExist", json!([]), [true, false, false]),
        ];
        let namespaces = [labels(&[]), labels(&[("stage", "a")]), labels(&[("stage", "c")])];
        for (operator, values, expected) in cases {
            let rule =
                selecting(&json!({"matchExpressions": [{"key": "stage", "operator": operator, "values": values}]}));
            let found = namespaces
                .each_ref()
                .map(|labels| rule.allows(Some(labels)) == Some(true));
            assert_eq!(found, expected, "{operator}");
        }
    }

    #[test]
    fn all_requirements_must_hold() {
        let rule = selecting(&json!({
            "matchLabels": {"team": "vision"},
            "matchExpressions": [{"key": "frozen", "operator": "DoesNotExist"}],
        }));
        assert_eq!(rule.allows(Some(&labels(&[("team", "vision")]))), Some(true));
        let frozen = labels(&[("team", "vision"), ("frozen", "")]);
        assert_eq!(rule.allows(Some(&frozen)), Some(false));
    }

    #[test]
    fn the_grace_period_is_a_day_unless_it_is_set() {
        assert_eq!(grace_seconds(None), 86_400);
        assert_eq!(grace_seconds(Some(&"0s".into())), 0);
    }
}
