//! Label selectors as an API server matches them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube_core::{Selector, SelectorExt};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

use crate::model::json;

/// Whether a label selector matches; `None` if it cannot be read.
pub fn matches(selector: &Value, labels: &BTreeMap<String, String>) -> Option<bool> {
    let selector = LabelSelector::deserialize(selector).ok()?;
    Some(Selector::try_from(selector).ok()?.matches(labels))
}

/// The label keys that a selector asks for.
pub fn keys(selector: &Value) -> impl Iterator<Item = String> {
    let expressions = json::items(selector, &["matchExpressions"]).iter();
    let of_expressions = expressions.filter_map(|expression| json::text(expression, &["key"]));
    let of_labels = json::strings(selector, &["matchLabels"]).into_keys();
    of_labels.chain(of_expressions.map(ToOwned::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn operators_match_as_in_an_api_server() {
        let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
        let expression = |key: &str, operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        for (selector, expected) in [
            (json!({}), Some(true)),
            (json!({"matchLabels": {"app": "web"}}), Some(true)),
            (json!({"matchLabels": {"app": "web", "x": "y"}}), Some(false)),
            (expression("app", "In", &["api", "web"]), Some(true)),
            (expression("app", "NotIn", &["web"]), Some(false)),
            (expression("x", "NotIn", &["web"]), Some(true)),
            (expression("x", "Exists", &[]), Some(false)),
            (expression("x", "DoesNotExist", &[]), Some(true)),
            (expression("app", "Resembles", &["web"]), None),
            (json!({"matchLabels": [1]}), None),
        ] {
            assert_eq!(matches(&selector, &labels), expected, "{selector}");
        }
    }

    #[test]
    fn keys_of_labels_and_expressions() {
        let selector = json!({"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]});
        assert_eq!(keys(&selector).collect::<Vec<_>>(), ["a", "b"]);
    }
}
