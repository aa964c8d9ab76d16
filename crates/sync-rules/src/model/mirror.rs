//! Kinds that are mirrored from the host: classes, volumes, devices. The tenant may read the objects and not change them:
//! its changes are undone, with an Event. Objects of such a kind that the tenant made itself are left alone.

use crate::model::{
    Cache, json,
    resource::{Name, Resource},
};
use berth_api::{SyncPolicy, labels};
use serde_json::{Value, json};

/// Rules of a kind that is mirrored.
pub trait Mirror: Sync {
    /// The API resource in the tenant.
    fn resource(&self) -> Resource;

    /// The object that the tenant should see under this name: labels, annotations and everything besides metadata; the
    /// engine adds kind and name. With a `status` if the kind has a subresource for it. `None` if there should be none.
    fn mirrored_object(&self, cache: &Cache, name: &Name) -> Option<Value>;

    /// Whether the status is a subresource.
    fn has_status(&self) -> bool {
        false
    }

    /// Whether a class with this policy offers anything of the kind; if not, the host's objects are not watched.
    fn is_offered(&self, _policy: &SyncPolicy) -> bool {
        true
    }

    /// Fields of the status to write before an object is removed, if the tenant's controllers require that.
    fn status_before_deletion(&self) -> Option<Value> {
        None
    }

    /// The message of the Event about objects of this kind that the tenant makes itself, if they have no effect.
    fn unmanaged_message(&self) -> Option<&'static str> {
        None
    }
}

/// Whether an object in the tenant is a mirrored one.
pub fn is_mirrored(object: &Value) -> bool {
    json::text(object, &["metadata", "labels", labels::MANAGED_BY]) == Some(labels::MANAGED_BY_SYNCER)
}

/// A mirrored object with its kind, name and the label of its manager. Finalizers of `live` stay: the tenant's
/// controllers set them.
pub fn with_metadata(resource: Resource, name: &Name, mut object: Value, live: Option<&Value>) -> Value {
    object["apiVersion"] = resource.api_version().into();
    object["kind"] = resource.kind.into();
    object["metadata"]["name"] = (*name.name).into();
    if !name.namespace.is_empty() {
        object["metadata"]["namespace"] = (*name.namespace).into();
    }
    object["metadata"]["labels"][labels::MANAGED_BY] = labels::MANAGED_BY_SYNCER.into();
    if let Some(live) = live {
        for field in ["uid", "resourceVersion", "finalizers", "ownerReferences"] {
            if let Some(value) = live["metadata"].get(field) {
                object["metadata"][field] = value.clone();
            }
        }
    }
    object
}

/// What is compared of a mirrored object: everything but the status and what the API server keeps itself.
pub fn comparable_content(object: &Value) -> Value {
    let mut content = object.clone();
    if let Some(fields) = content.as_object_mut() {
        for field in ["apiVersion", "kind", "status"] {
            fields.remove(field);
        }
    }
    content["metadata"] = json!({
        "labels": json::strings(object, &["metadata", "labels"]),
        "annotations": json::strings(object, &["metadata", "annotations"]),
    });
    json::drop_nulls(&mut content);
    content
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_fields_are_ignored_and_changes_of_the_tenant_are_found() {
        let resource = Resource::new("storage.k8s.io", "v1", "StorageClass", "storageclasses");
        let desired = json!({"metadata": {"annotations": {"a": "b"}}, "provisioner": "x", "parameters": null});
        let name = Name::new("", "fast");
        let mut live = with_metadata(resource, &name, desired.clone(), None);
        live["metadata"]["uid"] = "u".into();
        live["metadata"]["resourceVersion"] = "7".into();
        live["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
        let wanted = with_metadata(resource, &name, desired, Some(&live));
        assert!(is_mirrored(&live) && comparable_content(&wanted) == comparable_content(&live));
        live["metadata"]["labels"]["mine"] = "x".into();
        assert_ne!(comparable_content(&wanted), comparable_content(&live));
        assert_eq!(wanted["metadata"]["resourceVersion"], "7");
    }
}
