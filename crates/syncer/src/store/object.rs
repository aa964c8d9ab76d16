//! An object as it comes from an API server, for kube-runtime's watcher.

use super::{content::Parts, tree_size::TreeSize};
use berth_runtime::tree::Tree;
use berth_sync_rules::model::resource::Resource;
use kube::core::{DynamicResourceScope, ObjectMeta};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, Visitor},
};
use serde_json::{Value, value::RawValue};
use std::{borrow::Cow, fmt};

/// An object as it comes from an API server: its JSON text, with the metadata that kube-runtime's watcher asks for. It is parsed
/// only if it is needed. With `METADATA_ONLY`, requests ask for metadata only.
#[derive(Clone, Debug)]
pub struct Object<const METADATA_ONLY: bool> {
    text: Box<RawValue>,
    meta: ObjectMeta,
}

/// What is read of every object.
#[derive(Debug, Default, PartialEq, Eq)]
struct Head {
    resource_version: Option<String>,
    uid: Option<String>,
}

impl Head {
    /// Reads the head of an object with this JSON text, and nothing after it: of most objects a tenth of the text.
    fn read(text: &str) -> serde_json::Result<Self> {
        let mut head = Self::default();
        let whole = HeadOf {
            head: &mut head,
            in_metadata: false,
        };
        let read = whole.deserialize(&mut serde_json::Deserializer::from_str(text));
        // The parser misses the end of the object if it is left early.
        if !head.is_complete() {
            read?;
        }
        Ok(head)
    }

    fn is_complete(&self) -> bool {
        self.resource_version.is_some() && self.uid.is_some()
    }
}

/// Reads the head from an object, or from its metadata.
struct HeadOf<'a> {
    head: &'a mut Head,
    in_metadata: bool,
}

/// A field of an object or its metadata.
#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
enum Field {
    Metadata,
    ResourceVersion,
    Uid,
    #[serde(other)]
    Other,
}

impl<'de> DeserializeSeed<'de> for HeadOf<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for HeadOf<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let Self { head, in_metadata } = self;
        while !head.is_complete()
            && let Some(field) = fields.next_key()?
        {
            match field {
                Field::Metadata if !in_metadata => {
                    let metadata = HeadOf {
                        head: &mut *head,
                        in_metadata: true,
                    };
                    fields.next_value_seed(metadata)?;
                }
                Field::ResourceVersion if in_metadata => head.resource_version = fields.next_value()?,
                Field::Uid if in_metadata => head.uid = fields.next_value()?,
                _ => {
                    fields.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }

    /// No metadata.
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
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

    /// Bytes of the JSON text.
    pub fn bytes(&self) -> usize {
        self.text.get().len()
    }

    /// Memory that the object may take once it is parsed.
    pub fn memory(&self) -> u64 {
        Tree::of(self.text.get().as_bytes()).bytes()
    }

    /// The same of what is parsed of it, if it is large.
    pub(super) fn tree_size(&self) -> TreeSize {
        TreeSize::of_text(self.text.get())
    }

    /// These parts of the object, which was valid JSON when it was read.
    pub fn parse(&self, parts: Parts) -> Value {
        parts.parse(self.text.get())
    }
}

impl<'de, const METADATA_ONLY: bool> Deserialize<'de> for Object<METADATA_ONLY> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let Head { resource_version, uid } = Head::read(text.get()).map_err(Error::custom)?;
        let meta = ObjectMeta {
            resource_version,
            uid,
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
        assert_eq!(object.parse(Parts::All), expected);
    }

    #[test]
    fn the_head_is_read_wherever_it_is() {
        let head = |version: Option<&str>, uid: Option<&str>| Head {
            resource_version: version.map(Into::into),
            uid: uid.map(Into::into),
        };
        let both = head(Some("7"), Some("u"));
        for (text, expected) in [
            (
                r#"{"kind":"Pod","metadata":{"uid":"u","resourceVersion":"7","x":1},"spec":{}}"#,
                &both,
            ),
            (
                r#"{"spec":{"uid":"x"},"uid":"x","metadata":{"resourceVersion":"7","labels":{"uid":"x"},"uid":"u"}}"#,
                &both,
            ),
            (
                r#"{"metadata":{"metadata":{"uid":"x"},"uid":"u\u0041","resourceVersion":"7"}}"#,
                &head(Some("7"), Some("uA")),
            ),
            (
                r#"{"metadata":{"uid":"u"},"spec":{"metadata":{"resourceVersion":"7"}}}"#,
                &head(None, Some("u")),
            ),
            (
                r#"{"metadata":{"uid":null,"resourceVersion":"7"}}"#,
                &head(Some("7"), None),
            ),
            (r#"{"metadata":null}"#, &head(None, None)),
            (r"{}", &head(None, None)),
        ] {
            assert_eq!(&Head::read(text).unwrap(), expected, "{text}");
        }
        assert!(Head::read(r#"{"metadata":{"uid":7}}"#).is_err());
        assert!(Head::read("[]").is_err());
    }
}
