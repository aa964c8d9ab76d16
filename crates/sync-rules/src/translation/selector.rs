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

/// The selector with other keys.
pub fn with_keys(selector: &Value, key: impl Fn(&str) -> String) -> Value {
    let mut translated = selector.clone();
    if let Some(labels) = translated.get_mut("matchLabels").and_then(Value::as_object_mut) {
        *labels = std::mem::take(labels)
            .into_iter()
            .map(|(label, value)| (key(&label), value))
            .collect();
    }
    json::each_mut(&mut translated, "matchExpressions[].key", &mut |label| {
        if let Some(text) = label.as_str() {
            *label = key(text).into();
        }
    });
    translated
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
    fn keys_of_labels_and_expressions_are_replaced() {
        let selector = json!({"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]});
        let replaced = json!({"matchLabels": {"xa": "1"}, "matchExpressions": [{"key": "xb", "operator": "Exists"}]});
        assert_eq!(with_keys(&selector, |key| format!("x{key}")), replaced);
        assert_eq!(with_keys(&json!({}), |_| "x".to_owned()), json!({}));
    }
}
