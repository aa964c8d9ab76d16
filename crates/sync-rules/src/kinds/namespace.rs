//! Namespaces: not synced, because all objects of a tenant are in one namespace of the host. Their labels are put on
//! pods, so that selectors of namespaces can be translated.
//!
//! | field | rule |
//! |---|---|
//! | `metadata.labels` | each becomes a label of the namespace's host pods, under a name of its own; see [`label`] |
//! | `kubernetes.io/metadata.name` | is `berth.dev/namespace` on every host object |
//! | everything else | stays in the tenant |

use crate::model::{Kind, resource, store::WatchSpec};
use serde_json::{Value, json};

/// The kind.
pub const KIND: Kind = Kind::read_only(WatchSpec::own(resource::NAMESPACE).metadata_only().trimmed(trim)).essential();

fn trim(namespace: &mut Value) {
    let metadata = namespace.get_mut("metadata").map(Value::take).unwrap_or_default();
    let field = |key: &str| metadata.get(key).cloned().unwrap_or_default();
    *namespace = json!({"metadata": {
        "name": field("name"), "uid": field("uid"), "resourceVersion": field("resourceVersion"), "labels": field("labels"),
    }});
}
