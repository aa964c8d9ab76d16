//! Labels of the tenant's namespaces: host pods carry them, so that selectors of namespaces can be translated.

use crate::model::{Cache, KindId, json, resource::Name};
use berth_api::labels;
use serde_json::{Map, Value, json};

/// The label that every API server puts on namespaces: their name.
const NAME: &str = "kubernetes.io/metadata.name";

/// The label of host pods that stands for a label of the tenant's namespace. A label's key can have one slash only, so
/// the tenant's key is a readable part and a hash.
pub fn label(key: &str) -> String {
    if key == NAME {
        return labels::TENANT_OBJECT_NAMESPACE.into();
    }
    format!("namespace.berth.dev/{}", berth_api::names::host_name("Label", "", key))
}

/// Labels of host pods for those of the namespace `namespace`, without the one of its name, which every object has.
pub fn labels_of(cache: &Cache, namespace: &str) -> Map<String, Value> {
    let Some(stored) = cache.stores.tenant(KindId::Namespace).get(&Name::new("", namespace)) else {
        return Map::new();
    };
    json::strings(&stored.object(), &["metadata", "labels"])
        .into_iter()
        .filter(|(key, _)| key != NAME)
        .map(|(key, value)| (label(&key), value.into()))
        .collect()
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
    fn similar_keys_get_different_labels() {
        assert_ne!(label("a.b/c"), label("a-b/c"));
        assert_ne!(label("team"), label("x/team"));
    }
}
