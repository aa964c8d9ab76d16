//! An object as it comes from an API server, for kube-runtime's watcher.

use super::content::Content;
use berth_sync_rules::model::resource::Resource;
use kube::core::{DynamicResourceScope, ObjectMeta};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, value::RawValue};
use std::borrow::Cow;

/// An object as it comes from an API server: its JSON text, with the metadata that kube-runtime's watcher asks for. It is parsed
/// only if it is needed. With `METADATA_ONLY`, requests ask for metadata only.
#[derive(Clone, Debug)]
pub struct Object<const METADATA_ONLY: bool> {
    text: Box<RawValue>,
    meta: ObjectMeta,
}

/// The only metadata that is read of every object.
#[derive(Deserialize)]
struct Versioned<'a> {
    #[serde(borrow)]
    metadata: Option<Version<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version<'a> {
    #[serde(borrow)]
    resource_version: Option<Cow<'a, str>>,
    #[serde(borrow)]
    uid: Option<Cow<'a, str>>,
}

impl<const METADATA_ONLY: bool> Object<METADATA_ONLY> {
    /// The resource version as a number; 0 if it is none.
    pub fn version(&self) -> u64 {
        let version = self.meta.resource_version.as_deref();
        version.and_then(|version| version.parse().ok()).unwrap_or_default()
    }

    /// The UID, if it has one.
    pub fn uid(&self) -> &str {
        self.meta.uid.as_deref().unwrap_or_default()
    }

    /// The object without `managedFields`.
    pub fn parse(&self) -> Value {
        // It was valid JSON when it was read.
        serde_json::from_str(self.text.get()).map_or(Value::Null, |Content(json)| json)
    }
}

impl<'de, const METADATA_ONLY: bool> Deserialize<'de> for Object<METADATA_ONLY> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let versioned: Versioned<'_> = serde_json::from_str(text.get()).map_err(serde::de::Error::custom)?;
        let (version, uid) = versioned
            .metadata
            .map_or((None, None), |metadata| (metadata.resource_version, metadata.uid));
        let meta = ObjectMeta {
            resource_version: version.map(Cow::into_owned),
            uid: uid.map(Cow::into_owned),
            ..ObjectMeta::default()
        };
        Ok(Self { text, meta })
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

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::WatchEvent;

    #[test]
    fn an_object_of_a_watch_is_read() {
        let event = r#"{"type":"ADDED","object":{"kind":"Pod","metadata":{"name":"a","managedFields":[{"x":1}],"resourceVersion":"7"},
            "spec":{"metadata":{"managedFields":1}}}}"#;
        let event: WatchEvent<Object<false>> = serde_json::from_str(event).unwrap();
        let WatchEvent::Added(object) = event else {
            panic!("{event:?}")
        };
        assert_eq!(object.version(), 7);
        let expected = serde_json::json!({"kind": "Pod", "metadata": {"name": "a", "resourceVersion": "7"},
            "spec": {"metadata": {"managedFields": 1}}});
        assert_eq!(object.parse(), expected);
    }
}
