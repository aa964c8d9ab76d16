//! An object as it comes from an API server, for kube-runtime's watcher.

use berth_sync_rules::model::{json, resource::Resource};
use kube::core::{DynamicResourceScope, ObjectMeta};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use std::borrow::Cow;

/// An object as it comes from an API server: JSON, with the metadata that kube-runtime's watcher asks for. With
/// `METADATA_ONLY`, requests ask for metadata only.
#[derive(Clone, Debug)]
pub struct Object<const METADATA_ONLY: bool> {
    /// The object without `managedFields`.
    pub json: Value,
    meta: ObjectMeta,
}

impl<'de, const METADATA_ONLY: bool> Deserialize<'de> for Object<METADATA_ONLY> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut json = Value::deserialize(deserializer)?;
        if let Some(metadata) = json.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        let resource_version = json::text(&json, &["metadata", "resourceVersion"]).map(ToOwned::to_owned);
        Ok(Self {
            json,
            meta: ObjectMeta {
                resource_version,
                ..ObjectMeta::default()
            },
        })
    }
}

impl<const METADATA_ONLY: bool> kube::Resource for Object<METADATA_ONLY> {
    type DynamicType = Resource;
    type Scope = DynamicResourceScope;

    fn metadata_api() -> bool {
        METADATA_ONLY
    }

    fn kind(resource: &Resource) -> Cow<'_, str> {
        resource.kind.into()
    }

    fn group(resource: &Resource) -> Cow<'_, str> {
        resource.group.into()
    }

    fn version(resource: &Resource) -> Cow<'_, str> {
        resource.version.into()
    }

    fn plural(resource: &Resource) -> Cow<'_, str> {
        resource.plural.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}
