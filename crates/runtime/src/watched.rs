//! Objects that are watched for everybody, of which one must not end the watch for all others.
//!
//! A client parses a page of a list as a whole. Kubernetes accepts objects that the types of this client do not: times at the end of the year 9999,
//! which anybody may write into `metadata.managedFields` of what they may change, and JSON that is nested more than 128 times. One such object in
//! a page would make the list fail again and again, and with it everything that waits for the list. [`corrected`](crate::corrected) makes most of them
//! readable; what it does not know of must not end a watch either.

use kube::{
    Resource,
    core::ObjectMeta,
    runtime::watcher::{self, Event},
};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};
use std::{borrow::Cow, collections::BTreeMap, future};

/// An object of a list or a watch, if it can be read.
#[derive(Clone, Debug)]
pub struct Watched<K>(Result<K, Unreadable>);

/// What is known of an object that cannot be read.
#[derive(Clone, Debug)]
struct Unreadable {
    meta: ObjectMeta,
    error: String,
}

/// The part of an object by which it is found.
#[derive(Default, Deserialize)]
struct Head {
    #[serde(default)]
    metadata: Names,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Names {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Watched<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        Ok(Self(read(text.get()).map_err(|error| {
            // What does not count is not parsed, however deep it is.
            let Names {
                name,
                namespace,
                uid,
                resource_version,
            } = serde_json::from_str::<Head>(text.get()).unwrap_or_default().metadata;
            let meta = ObjectMeta {
                name,
                namespace,
                uid,
                resource_version,
                ..ObjectMeta::default()
            };
            Unreadable {
                meta,
                error: error.to_string(),
            }
        })))
    }
}

/// Reads an object, without `managedFields` if it cannot be read with them.
fn read<K: DeserializeOwned>(text: &str) -> serde_json::Result<K> {
    serde_json::from_str(text).or_else(|_| serde_json::from_value(without_managed_fields(text)?))
}

/// The object with this JSON text without `metadata.managedFields`, which are not parsed.
fn without_managed_fields(text: &str) -> serde_json::Result<Value> {
    let fields: BTreeMap<String, &RawValue> = serde_json::from_str(text)?;
    let mut object = serde_json::Map::new();
    for (key, value) in fields {
        let value = if key == "metadata" {
            let mut metadata: BTreeMap<String, &RawValue> = serde_json::from_str(value.get())?;
            metadata.remove("managedFields");
            let parsed = metadata
                .into_iter()
                .map(|(key, value)| Ok((key, serde_json::from_str(value.get())?)));
            Value::Object(parsed.collect::<serde_json::Result<_>>()?)
        } else {
            serde_json::from_str(value.get())?
        };
        object.insert(key, value);
    }
    Ok(Value::Object(object))
}

impl<K: Resource> Resource for Watched<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn metadata_api() -> bool {
        K::metadata_api()
    }

    fn kind(kind: &K::DynamicType) -> Cow<'_, str> {
        K::kind(kind)
    }

    fn group(kind: &K::DynamicType) -> Cow<'_, str> {
        K::group(kind)
    }

    fn version(kind: &K::DynamicType) -> Cow<'_, str> {
        K::version(kind)
    }

    fn plural(kind: &K::DynamicType) -> Cow<'_, str> {
        K::plural(kind)
    }

    fn meta(&self) -> &ObjectMeta {
        match &self.0 {
            Ok(object) => object.meta(),
            Err(unreadable) => &unreadable.meta,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match &mut self.0 {
            Ok(object) => object.meta_mut(),
            Err(unreadable) => &mut unreadable.meta,
        }
    }
}

impl<K: Resource + DeserializeOwned> Watched<K> {
    /// The object. One that cannot be read is logged, and left out.
    pub fn readable(self) -> Option<K> {
        let Unreadable { meta, error } = match self.0 {
            Ok(object) => return Some(object),
            Err(unreadable) => unreadable,
        };
        tracing::error!(
            object = std::any::type_name::<K>(),
            namespace = meta.namespace,
            name = meta.name,
            error,
            "an object cannot be read, and is as it was before, or as if it did not exist: look who wrote it"
        );
        None
    }

    /// The object that was deleted, or another one with its name if it cannot be read.
    fn deleted(self) -> Option<K> {
        match self.0 {
            Ok(object) => Some(object),
            Err(Unreadable { meta, .. }) => serde_json::from_value(serde_json::json!({ "metadata": meta })).ok(),
        }
    }
}

/// The events of a watch that are of objects that can be read. Use it with `try_filter_map`.
pub fn readable<K: Resource + DeserializeOwned>(
    event: Event<Watched<K>>,
) -> future::Ready<Result<Option<Event<K>>, watcher::Error>> {
    future::ready(Ok(match event {
        Event::Apply(object) => object.readable().map(Event::Apply),
        Event::InitApply(object) => object.readable().map(Event::InitApply),
        Event::Delete(object) => object.deleted().map(Event::Delete),
        Event::Init => Some(Event::Init),
        Event::InitDone => Some(Event::InitDone),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{Pod, Secret};
    use kube::{
        ResourceExt,
        core::{ObjectList, PartialObjectMeta, WatchEvent},
    };

    /// Kubernetes stores it, and it is later than any time of this program.
    const LATE: &str = "9999-12-31T00:00:00Z";

    fn nested(levels: usize) -> String {
        format!("{}1{}", r#"{"f:a":"#.repeat(levels), "}".repeat(levels))
    }

    fn list(items: &[String]) -> String {
        format!(
            r#"{{"apiVersion":"v1","kind":"PodList","metadata":{{"resourceVersion":"9"}},"items":[{}]}}"#,
            items.join(",")
        )
    }

    fn item(name: &str, metadata: &str, status: &str) -> String {
        format!(
            r#"{{"metadata":{{"name":"{name}","namespace":"n","uid":"u","resourceVersion":"7"{metadata}}},"status":{{{status}}}}}"#
        )
    }

    fn managed(time: &str, fields: &str) -> String {
        format!(
            r#","managedFields":[{{"manager":"x","operation":"Update","apiVersion":"v1","time":"{time}","fieldsV1":{fields}}}]"#
        )
    }

    #[test]
    fn one_object_that_cannot_be_read_takes_no_other_with_it() {
        let condition = format!(r#""conditions":[{{"type":"a.b/c","status":"True","lastTransitionTime":"{LATE}"}}]"#);
        let items = [
            item("plain", "", ""),
            item("late", &managed(LATE, "{}"), ""),
            item("deep", &managed("2026-01-01T00:00:00Z", &nested(200)), ""),
            item("late-status", "", &condition),
            item("last", "", r#""phase":"Running""#),
        ];
        let text = list(&items);
        assert!(serde_json::from_str::<ObjectList<Pod>>(&text).is_err(), "the attack");
        let all: ObjectList<Watched<Pod>> = serde_json::from_str(&text).unwrap();
        let names: Vec<String> = all.items.iter().map(ResourceExt::name_any).collect();
        assert_eq!(names, ["plain", "late", "deep", "late-status", "last"]);
        let readable: Vec<Option<Pod>> = all.items.into_iter().map(Watched::readable).collect();
        let found: Vec<Option<String>> = readable
            .iter()
            .map(|pod| pod.as_ref().map(ResourceExt::name_any))
            .collect();
        assert_eq!(
            found,
            ["plain", "late", "deep", "", "last"].map(|name| (!name.is_empty()).then(|| name.to_owned()))
        );
        assert_eq!(
            readable[4].as_ref().unwrap().status.as_ref().unwrap().phase.as_deref(),
            Some("Running")
        );
    }

    #[test]
    fn metadata_alone_is_read_the_same_way() {
        let text = list(&[item("late", &managed(LATE, &nested(200)), "")]);
        let all: ObjectList<Watched<PartialObjectMeta<Secret>>> = serde_json::from_str(&text).unwrap();
        let object = all.items.into_iter().next().unwrap().readable().unwrap();
        assert_eq!(
            (object.name_any().as_str(), object.metadata.managed_fields),
            ("late", None)
        );
    }

    #[test]
    fn an_event_of_an_object_that_cannot_be_read_is_one() {
        let status = format!(r#""startTime":"{LATE}""#);
        for (kind, is_left_out) in [("MODIFIED", true), ("DELETED", false)] {
            let text = format!(r#"{{"type":"{kind}","object":{}}}"#, item("late", "", &status));
            let event: WatchEvent<Watched<Pod>> = serde_json::from_str(&text).unwrap();
            let found = match event {
                WatchEvent::Modified(object) => object.readable(),
                WatchEvent::Deleted(object) => object.deleted(),
                other => panic!("{other:?}"),
            };
            assert_eq!(found.is_none(), is_left_out, "{kind}");
            assert!(found.is_none_or(|pod| pod.name_any() == "late" && pod.uid().as_deref() == Some("u")));
        }
        let bookmark =
            r#"{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"8"}}}"#;
        assert!(matches!(
            serde_json::from_str::<WatchEvent<Watched<Pod>>>(bookmark),
            Ok(WatchEvent::Bookmark(_))
        ));
    }
}
