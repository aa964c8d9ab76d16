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
