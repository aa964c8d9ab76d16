//! Selectors of pods.

use super::pod_labels;
use crate::model::{Cache, json};
use berth_api::labels;
use serde_json::{Value, json};

/// A selector of the tenant's pods as one of host pods, narrowed to the tenant and, unless `None`, to some of its namespaces.
pub fn scoped(cache: &Cache, selector: &Value, namespaces: Option<&[&str]>) -> Value {
    let mut scoped = pod_labels::selector(selector);
    json::set(&mut scoped, &["matchLabels", labels::TENANT], cache.tenant.slug.clone());
    match namespaces {
        None => {}
        Some([one]) => json::set(&mut scoped, &["matchLabels", labels::TENANT_OBJECT_NAMESPACE], *one),
        Some(several) => {
            let mut expressions = json::items(&scoped, &["matchExpressions"]).to_vec();
            expressions.push(json!({"key": labels::TENANT_OBJECT_NAMESPACE, "operator": "In", "values": several}));
            json::set(&mut scoped, &["matchExpressions"], expressions);
        }
    }
    scoped
}

/// A selector of host pods for a NetworkPolicy. If it asks for pods without a label, or without a value of it, it selects only pods that carry all of their
/// labels: others may have this one in the tenant.
pub fn of_pods_with_all_labels(mut selector: Value) -> Value {
    // Every pod has the label of its namespace's name.
    let asks_for_absence = |expression: &Value| {
        matches!(json::text(expression, &["operator"]), Some("NotIn" | "DoesNotExist"))
            && json::text(expression, &["key"]) != Some(labels::TENANT_OBJECT_NAMESPACE)
    };
    let expressions = json::items(&selector, &["matchExpressions"]);
    if expressions.iter().any(asks_for_absence)
        && let Some(expressions) = selector["matchExpressions"].as_array_mut()
    {
        expressions.push(json!({"key": labels::LABELS_LEFT_OUT, "operator": "DoesNotExist"}));
    }
    selector
}
