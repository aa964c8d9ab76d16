//! Small helpers for Kubernetes objects as JSON values. The syncer translates JSON, not typed structs, so that fields
//! newer than this build are seen (and denied by name) instead of lost.

mod hashes;
mod merge;
mod paths;

pub use hashes::{hash, salted_hash};
pub use merge::{is_merged, is_patched, merge_patch};
pub use paths::{count_fields, each, each_field_mut, each_mut};

use serde_json::{Map, Value};
use std::{borrow::Cow, collections::BTreeMap};

/// The value at a path of object keys, if every step exists.
pub fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, key| value.get(key))
}

/// The text at a path; `None` if there is none or it is something else.
pub fn text<'a>(value: &'a Value, path: &[&str]) -> Option<&'a str> {
    at(value, path)?.as_str()
}

/// The same; `None` also if the text is empty.
pub fn filled<'a>(value: &'a Value, path: &[&str]) -> Option<&'a str> {
    text(value, path).filter(|text| !text.is_empty())
}

/// The items of the list at a path; empty if there is none.
pub fn items<'a>(value: &'a Value, path: &[&str]) -> &'a [Value] {
    at(value, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The string map at a path (labels, annotations, selectors), without entries that are not strings.
pub fn strings(value: &Value, path: &[&str]) -> BTreeMap<String, String> {
    at(value, path)
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// Whether an object is being deleted.
pub fn is_deleted(object: &Value) -> bool {
    text(object, &["metadata", "deletionTimestamp"]).is_some()
}

/// An object with these fields. The macro `json!` copies the values that it is given, to the last text; this takes them.
pub fn object<const COUNT: usize>(fields: [(&str, Value); COUNT]) -> Value {
    let fields = fields.into_iter().map(|(key, value)| (key.to_owned(), value));
    Value::Object(fields.collect())
}

/// The JSON text of a value. `to_string` makes the same, piece by piece through a formatter.
pub fn to_text(value: &Value) -> String {
    // No key of a `Value` is anything but a text, so that it can always be written.
    serde_json::to_string(value).unwrap_or_default()
}

/// Whether two values are the same but for some of their fields. Values that are no objects have no fields.
pub fn is_same_except(one: &Value, other: &Value, fields: &[&str]) -> bool {
    let nothing = Map::new();
    let (one, other) = (
        one.as_object().unwrap_or(&nothing),
        other.as_object().unwrap_or(&nothing),
    );
    let is_in = |(key, value): (&String, &Value), map: &Map<String, Value>| {
        fields.contains(&key.as_str()) || map.get(key) == Some(value)
    };
    one.iter().all(|field| is_in(field, other))
        && other
            .keys()
            .all(|key| fields.contains(&key.as_str()) || one.contains_key(key))
}

/// Sets the value at a path, making objects on the way.
pub fn set(value: &mut Value, path: &[&str], new: impl Into<Value>) {
    let mut current = value;
    for key in path {
        if !current.is_object() {
            *current = Value::Object(Map::new());
        }
        current = &mut current[*key];
    }
    *current = new.into();
}

/// Whether `text` occurs in any key or string.
pub fn mentions(value: &Value, text: &str) -> bool {
    match value {
        Value::String(string) => string.contains(text),
        Value::Array(items) => items.iter().any(|item| mentions(item, text)),
        Value::Object(fields) => fields
            .iter()
            .any(|(key, value)| key.contains(text) || mentions(value, text)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Whether a value has no meaning: null, false, zero, or an empty text, list or object. An API server stores such values
/// for fields that a user never set.
pub fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// Removes every null below a value. API servers write some unset fields as null and leave others out; both mean the
/// same.
pub fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// A value without the nulls below it; the value itself, not a copy, if there are none.
pub fn without_nulls(value: &Value) -> Cow<'_, Value> {
    if !has_nulls(value) {
        return Cow::Borrowed(value);
    }
    let mut copy = value.clone();
    drop_nulls(&mut copy);
    Cow::Owned(copy)
}

/// Whether there is a null below a value that [`drop_nulls`] removes.
fn has_nulls(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.values().any(|field| field.is_null() || has_nulls(field)),
        Value::Array(items) => items.iter().any(has_nulls),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_value_without_nulls_is_not_copied() {
        let value = json!({"a": [null, {"b": 1}], "c": "d"});
        assert!(matches!(without_nulls(&value), Cow::Borrowed(_)), "items of lists stay");
        let value = json!({"a": [{"b": null, "c": {"d": null}}]});
        assert_eq!(*without_nulls(&value), json!({"a": [{"c": {}}]}));
    }

    #[test]
    fn values_are_compared_but_for_some_fields() {
        let same = |one: Value, other: Value| is_same_except(&one, &other, &["x", "y"]);
        assert!(same(json!({"a": {"x": 1}, "x": 1}), json!({"a": {"x": 1}, "y": 2})));
        assert!(
            !same(json!({"a": {"x": 1}}), json!({"a": {"x": 2}})),
            "fields further down count"
        );
        assert!(!same(json!({"a": 1}), json!({})));
        assert!(!same(json!({}), json!({"a": null})));
        assert!(same(json!(null), json!({"x": 1})));
    }

    #[test]
    fn the_text_of_a_value_is_that_of_its_formatter() {
        let value = json!({"é\n": [null, 1.5, "\u{1f600}\"\\"], "b": {}});
        assert_eq!(to_text(&value), value.to_string());
    }

    #[test]
    fn set_creates_the_path() {
        let mut value = json!({});
        set(&mut value, &["a", "b"], 1);
        assert_eq!(value, json!({"a": {"b": 1}}));
    }
}
