//! The text of an object without what nobody here reads.

use kube::core::ObjectMeta;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::ops::Range;

/// What counts of an object here. All else is skipped and not parsed, however deep and large it is.
#[derive(Default, Deserialize)]
struct Head<'a> {
    #[serde(borrow, default)]
    metadata: Option<&'a RawValue>,
}

/// The part of its metadata by which an object is found, and what is taken away.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata<'a> {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    #[serde(borrow)]
    managed_fields: Option<&'a RawValue>,
}

/// Takes `metadata.managedFields` away from the JSON text of an object: one map for each field that somebody wrote. Also returns name, namespace,
/// UID and resource version.
pub(super) fn trim(text: Box<str>) -> (ObjectMeta, Box<str>) {
    let (meta, managed) = read_head(&text);
    let Some(Range { start, end }) = managed else {
        return (meta, text);
    };
    let trimmed = [&text[..start], "null", &text[end..]].concat();
    (meta, trimmed.into())
}

/// The metadata of an object, and where its `managedFields` are in the text.
fn read_head(text: &str) -> (ObjectMeta, Option<Range<usize>>) {
    let Head { metadata } = serde_json::from_str(text).unwrap_or_default();
    let metadata = metadata.and_then(|metadata| serde_json::from_str::<Metadata<'_>>(metadata.get()).ok());
    let Metadata {
        name,
        namespace,
        uid,
        resource_version,
        managed_fields,
    } = metadata.unwrap_or_default();
    let managed = managed_fields.and_then(|fields| find_part(text, fields.get()));
    let meta = ObjectMeta {
        name,
        namespace,
        uid,
        resource_version,
        ..ObjectMeta::default()
    };
    (meta, managed)
}

/// Where a part of a text, which is borrowed from it, begins and ends.
fn find_part(text: &str, part: &str) -> Option<Range<usize>> {
    let start = part.as_ptr().addr().checked_sub(text.as_ptr().addr())?;
    let range = start..start.checked_add(part.len())?;
    text.get(range.clone()).map(|_| range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_managed_fields_is_taken_away() {
        for (text, expected) in [
            (
                r#"{"kind":"Pod","metadata":{"name":"a","managedFields":[{"fieldsV1":{"f:a":{}}}],"uid":"u"},"spec":{"managedFields":[1]}}"#,
                r#"{"kind":"Pod","metadata":{"name":"a","managedFields":null,"uid":"u"},"spec":{"managedFields":[1]}}"#,
            ),
            (
                r#"{"metadata": {"managedFields": [ {} ] , "labels": {"ä": "\"managedFields\":[]"}}}"#,
                r#"{"metadata": {"managedFields": null , "labels": {"ä": "\"managedFields\":[]"}}}"#,
            ),
            (r#"{"metadata":{"name":"a"}}"#, r#"{"metadata":{"name":"a"}}"#),
            (r#"{"metadata":null}"#, r#"{"metadata":null}"#),
            ("[1]", "[1]"),
        ] {
            assert_eq!(&*trim(text.into()).1, expected);
        }
    }

    #[test]
    fn an_object_is_found_by_its_metadata() {
        let text = r#"{"metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7","labels":{"b":"c"}}}"#;
        let expected = ObjectMeta {
            name: Some("a".into()),
            namespace: Some("n".into()),
            uid: Some("u".into()),
            resource_version: Some("7".into()),
            ..ObjectMeta::default()
        };
        assert_eq!(trim(text.into()).0, expected);
    }
}
