//! Labels of the tenant's namespaces: host pods carry them, so that selectors of namespaces can be translated.
//!
//! One change of a namespace changes all of its pods on the host, and many labels make many small pods large. So their number is limited.

use super::{fields::FieldIssues, sizes::MAX_NAMESPACE_LABELS};
use crate::model::{Cache, KindId, json, resource::Name};
use berth_api::{labels, names::host_name};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The label that every API server puts on namespaces: their name.
const NAME: &str = "kubernetes.io/metadata.name";

/// The label of host pods that stands for a label of the tenant's namespace. A label's key can have one slash only, so
/// the tenant's key is a readable part and a hash.
pub fn label(key: &str) -> String {
    if key == NAME {
        return labels::TENANT_OBJECT_NAMESPACE.into();
    }
    format!("{}{}", labels::NAMESPACE_LABELS, host_name("Label", "", key))
}

/// Labels of host pods for those of the namespace `namespace`, without the one of its name, which every object has. They are the first by
/// their keys, [`MAX_NAMESPACE_LABELS`] at most. If there are more, [`labels::LABELS_LEFT_OUT`] says so.
pub fn labels_of(cache: &Cache, namespace: &str) -> Map<String, Value> {
    let own = own_labels(cache, namespace);
    let are_too_many = own.len() > MAX_NAMESPACE_LABELS;
    let carried = own.into_iter().take(MAX_NAMESPACE_LABELS);
    let mut labels: Map<String, Value> = carried.map(|(key, value)| (label(&key), value.into())).collect();
    if are_too_many {
        labels.insert(labels::LABELS_LEFT_OUT.into(), "true".into());
    }
    labels
}

/// Denies a new pod in a namespace with more labels than its pods carry: selectors would not find the others, and some would take that for
/// a permission.
pub fn check(cache: &Cache, namespace: &str, issues: &mut FieldIssues) {
    let count = own_labels(cache, namespace).len();
    if count > MAX_NAMESPACE_LABELS {
        let why = format!(
            "the namespace {namespace} has {count} labels, and may have at most {MAX_NAMESPACE_LABELS}: each of its pods carries all of them \
             on the host, where selectors of namespaces find them. Use annotations for what nothing selects"
        );
        issues.deny("metadata.namespace", why);
    }
}

/// The labels that a namespace has besides that of its name, by their keys.
fn own_labels(cache: &Cache, namespace: &str) -> BTreeMap<String, String> {
    let Some(stored) = cache.stores.tenant(KindId::Namespace).get(&Name::new("", namespace)) else {
        return BTreeMap::new();
    };
    let mut labels = json::strings(&stored.object(), &["metadata", "labels"]);
    labels.remove(NAME);
    labels
}

/// A selector of namespaces as a selector of the labels that their host pods carry.
pub fn selector(selector: &Value) -> Value {
    let mut translated = json!({});
    for (key, value) in json::strings(selector, &["matchLabels"]) {
        translated["matchLabels"][label(&key)] = value.into();
    }
    let expressions: Vec<Value> = json::items(selector, &["matchExpressions"])
        .iter()
        .map(|expression| {
            let mut expression = expression.clone();
            let key = json::text(&expression, &["key"]).map(label).unwrap_or_default();
            json::set(&mut expression, &["key"], key);
            expression
        })
        .collect();
    if !expressions.is_empty() {
        translated["matchExpressions"] = expressions.into();
    }
    translated
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{store::Stored, tenant::test_tenant};
    use crate::registry;

    #[test]
    fn selectors_of_a_namespace_match_the_labels_of_its_pods() {
        let cache = registry::new_cache(test_tenant());
        let namespace = json!({"metadata": {"name": "shop", "resourceVersion": "1",
            "labels": {NAME: "shop", "team": "web", "example.com/tier": "front"}}});
        cache
            .stores
            .tenant(KindId::Namespace)
            .written(Name::new("", "shop"), Stored::new(&namespace));
        let labels = labels_of(&cache, "shop");
        let selector = selector(&json!({
            "matchLabels": {NAME: "shop", "team": "web"},
            "matchExpressions": [{"key": "example.com/tier", "operator": "In", "values": ["front"]}]
        }));
        assert_eq!(labels.len(), 2);
        assert_eq!(labels[&label("team")], "web");
        assert_eq!(selector["matchLabels"][label("team")], "web");
        assert_eq!(selector["matchLabels"]["berth.dev/namespace"], "shop");
        assert_eq!(selector["matchExpressions"][0]["key"], label("example.com/tier"));
        for key in labels.keys() {
            let (prefix, name) = key.split_once('/').unwrap();
            assert!(prefix.len() <= 253 && name.len() <= 63, "{key}");
        }
    }

    #[test]
    fn pods_carry_the_first_labels_of_a_namespace_and_new_ones_are_denied_if_there_are_more() {
        let in_namespace_with = |count: usize| {
            let cache = registry::new_cache(test_tenant());
            let mut labels: Map<String, Value> = (0..count).map(|n| (format!("key-{n:03}"), "v".into())).collect();
            labels.insert(NAME.into(), "shop".into());
            let namespace = json!({"metadata": {"name": "shop", "resourceVersion": "1", "labels": labels}});
            let namespaces = cache.stores.tenant(KindId::Namespace);
            namespaces.written(Name::new("", "shop"), Stored::new(&namespace));
            let mut issues = FieldIssues::default();
            check(&cache, "shop", &mut issues);
            (labels_of(&cache, "shop"), issues.denied)
        };
        let (labels, denied) = in_namespace_with(MAX_NAMESPACE_LABELS);
        assert_eq!((labels.len(), denied.len()), (MAX_NAMESPACE_LABELS, 0));
        let (labels, denied) = in_namespace_with(MAX_NAMESPACE_LABELS + 1);
        assert_eq!(labels.len(), MAX_NAMESPACE_LABELS + 1);
        assert!(labels.contains_key(&label("key-000")) && !labels.contains_key(&label("key-064")));
        assert_eq!(labels[labels::LABELS_LEFT_OUT], "true");
        assert_eq!(denied[0].field, "metadata.namespace");
        assert!(denied[0].why.contains("shop has 65 labels"), "{}", denied[0].why);
    }

    #[test]
    fn similar_keys_get_different_labels() {
        assert_ne!(label("a.b/c"), label("a-b/c"));
        assert_ne!(label("team"), label("x/team"));
    }
}
