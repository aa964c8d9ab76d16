//! Selectors of pods.

use crate::model::{Cache, json};
use berth_api::labels;
use serde_json::{Value, json};

/// A selector of pods narrowed to the tenant and, unless `None`, to some of its namespaces.
pub fn scoped(cache: &Cache, selector: &Value, namespaces: Option<&[&str]>) -> Value {
    let mut scoped = selector.clone();
    json::set(&mut scoped, &["matchLabels", labels::TENANT], cache.tenant.slug.clone());
    match namespaces {
        None => {}
        Some([one]) => json::set(&mut scoped, &["matchLabels", labels::TENANT_OBJECT_NAMESPACE], *one),
        Some(several) => {
            let mut expressions = json::items(selector, &["matchExpressions"]).to_vec();
            expressions.push(json!({"key": labels::TENANT_OBJECT_NAMESPACE, "operator": "In", "values": several}));
            json::set(&mut scoped, &["matchExpressions"], expressions);
        }
    }
    scoped
}
