//! Small helpers for Kubernetes objects as JSON values. The syncer translates JSON, not typed structs, so that fields
//! newer than this build are seen (and denied by name) instead of lost.

use serde::Serialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::{borrow::Cow, collections::BTreeMap, fmt::Write};

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

/// Calls `visit` for every value at a path such as `spec.tls[].secretName`, where `[]` stands for each item of a list.
pub fn each(value: &Value, path: &str, visit: &mut dyn FnMut(&Value)) {
    let Some((step, rest)) = path
        .split_once('.')
        .map_or_else(|| (!path.is_empty()).then_some((path, "")), Some)
    else {
        return visit(value);
    };
    let (field, is_list) = step.strip_suffix("[]").map_or((step, false), |field| (field, true));
    match value.get(field) {
        Some(Value::Array(items)) if is_list => items.iter().for_each(|item| each(item, rest, visit)),
        Some(value) if !is_list => each(value, rest, visit),
        _ => {}
    }
}

/// The same as [`each`] for values that are changed.
pub fn each_mut(value: &mut Value, path: &str, visit: &mut dyn FnMut(&mut Value)) {
    let Some((step, rest)) = path
        .split_once('.')
        .map_or_else(|| (!path.is_empty()).then_some((path, "")), Some)
    else {
        return visit(value);
    };
    let (field, is_list) = step.strip_suffix("[]").map_or((step, false), |field| (field, true));
    match value.get_mut(field) {
        Some(Value::Array(items)) if is_list => items.iter_mut().for_each(|item| each_mut(item, rest, visit)),
        Some(value) if !is_list => each_mut(value, rest, visit),
        _ => {}
    }
}

/// As [`each_mut`]; the last field of the path is also visited where an object has none. It is null there, and stays if the visit leaves it.
pub fn each_field_mut(value: &mut Value, path: &str, visit: &mut dyn FnMut(&mut Value)) {
    if path.ends_with("[]") {
        return each_mut(value, path, visit);
    }
    let (parents, last) = path.rsplit_once('.').unwrap_or(("", path));
    each_mut(value, parents, &mut |parent| {
        if let Some(fields) = parent.as_object_mut() {
            visit(fields.entry(last).or_insert(Value::Null));
        }
    });
}

/// How many values [`each_field_mut`] visits. Nothing is made for that.
pub fn count_fields(value: &Value, path: &str) -> usize {
    let mut count = 0;
    if path.ends_with("[]") {
        each(value, path, &mut |_| count += 1);
    } else {
        let (parents, _) = path.rsplit_once('.').unwrap_or(("", path));
        each(value, parents, &mut |parent| count += usize::from(parent.is_object()));
    }
    count
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

/// A JSON merge patch (RFC 7396) that turns `from` into `to`; `None` if they are equal.
pub fn merge_patch(from: &Value, to: &Value) -> Option<Value> {
    if from == to {
        return None;
    }
    let (Value::Object(before), Value::Object(after)) = (from, to) else {
        return Some(to.clone());
    };
    let mut patch = Map::new();
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, value) in after {
        match before.get(key) {
            Some(old) => {
                if let Some(difference) = merge_patch(old, value) {
                    patch.insert(key.clone(), difference);
                }
            }
            None => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// Whether a JSON merge patch would leave an object as it is.
pub fn is_patched(object: &Value, patch: &Value) -> bool {
    match patch {
        Value::Object(changes) => changes.iter().all(|(key, change)| match object.get(key) {
            Some(value) => is_patched(value, change),
            None => change.is_null(),
        }),
        other => object == other,
    }
}

/// Whether a JSON merge patch turns `before` into `after`.
pub fn is_merged(before: &Value, patch: &Value, after: &Value) -> bool {
    let Value::Object(changes) = patch else {
        return patch == after;
    };
    let Value::Object(after) = after else {
        return false;
    };
    let nothing = Map::new();
    let before = before.as_object().unwrap_or(&nothing);
    let is_right = |(key, value): (&String, &Value)| match changes.get(key) {
        Some(change) => is_merged(before.get(key).unwrap_or(&Value::Null), change, value),
        None => before.get(key) == Some(value),
    };
    let is_removed = |key: &String| changes.get(key).is_some_and(Value::is_null);
    let removed = before.keys().filter(|key| !after.contains_key(*key));
    after.iter().all(is_right) && removed.into_iter().all(is_removed) && added_all(changes, after)
}

/// Whether `after` has every key that `changes` sets.
fn added_all(changes: &Map<String, Value>, after: &Map<String, Value>) -> bool {
    changes
        .iter()
        .all(|(key, change)| change.is_null() || after.contains_key(key))
}

/// A hash of a JSON value that does not depend on the order of keys: 26 lower-case hexadecimal characters (104 bits).
pub fn hash(value: &Value) -> String {
    salted_hash("", value)
}

/// The same, but another one for each salt. Without a salt it is [`hash`].
pub fn salted_hash(salt: &str, value: &Value) -> String {
    let (mut digest, mut buffer) = (Sha256::new(), Vec::new());
    if !salt.is_empty() {
        feed_scalar(&salt, &mut digest, &mut buffer);
    }
    feed(value, &mut digest, &mut buffer);
    let mut text = String::with_capacity(26);
    for byte in digest.finalize().iter().take(13) {
        // Writing to a String cannot fail.
        let _: std::fmt::Result = write!(text, "{byte:02x}");
    }
    text
}

/// Feeds a value to a digest. `text` is a buffer.
fn feed(value: &Value, digest: &mut Sha256, text: &mut Vec<u8>) {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_unstable_by_key(|(a, _)| *a);
            digest.update(b"{");
            for (key, value) in fields {
                feed_scalar(key, digest, text);
                feed(value, digest, text);
            }
            digest.update(b"}");
        }
        Value::Array(items) => {
            digest.update(b"[");
            for item in items {
                feed(item, digest, text);
            }
            digest.update(b"]");
        }
        scalar => feed_scalar(scalar, digest, text),
    }
}

/// Feeds the JSON text of a key or scalar to a digest, with its length before it.
fn feed_scalar(scalar: &impl Serialize, digest: &mut Sha256, text: &mut Vec<u8>) {
    text.clear();
    // Writing a scalar to a Vec cannot fail.
    let _: serde_json::Result<()> = serde_json::to_writer(&mut *text, scalar);
    digest.update((text.len() as u64).to_be_bytes());
    digest.update(&*text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    /// What a server does with a merge patch.
    fn merged(target: &Value, patch: &Value) -> Value {
        let Value::Object(changes) = patch else {
            return patch.clone();
        };
        let mut result = target.as_object().cloned().unwrap_or_default();
        for (key, change) in changes {
            if change.is_null() {
                result.remove(key);
            } else {
                let before = result.remove(key).unwrap_or(Value::Null);
                result.insert(key.clone(), merged(&before, change));
            }
        }
        Value::Object(result)
    }

    fn object() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[a-c]{0,2}".prop_map(Value::from)
        ];
        let value = leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[a-d]", inner, 0..4).prop_map(|m| Value::Object(m.into_iter().collect())),
            ]
        });
        prop::collection::btree_map("[a-d]", value, 0..4).prop_map(|m| Value::Object(m.into_iter().collect()))
    }

    proptest! {
        #[test]
        fn a_merge_patch_turns_one_into_the_other(from in object(), to in object()) {
            match merge_patch(&from, &to) {
                None => prop_assert_eq!(from, to),
                Some(patch) => {
                    prop_assert!(is_merged(&from, &patch, &to));
                    prop_assert_eq!(merged(&from, &patch), to);
                }
            }
        }

        #[test]
        fn what_a_merge_patch_does_not_explain_is_found(from in object(), to in object(), other in object()) {
            let patch = merge_patch(&from, &to).unwrap_or_else(|| json!({}));
            prop_assert_eq!(is_merged(&from, &patch, &other), other == to);
        }
    }

    #[test]
    fn a_value_without_nulls_is_not_copied() {
        let value = json!({"a": [null, {"b": 1}], "c": "d"});
        assert!(matches!(without_nulls(&value), Cow::Borrowed(_)), "items of lists stay");
        let value = json!({"a": [{"b": null, "c": {"d": null}}]});
        assert_eq!(*without_nulls(&value), json!({"a": [{"c": {}}]}));
    }

    #[test]
    fn a_patch_that_changes_nothing_is_detected() {
        let object = json!({"a": {"b": 1}, "c": [1]});
        assert!(is_patched(&object, &json!({"a": {"b": 1, "x": null}, "c": [1]})));
        assert!(!is_patched(&object, &json!({"a": {"b": null}})));
        assert!(!is_patched(&object, &json!({"d": 1})));
    }

    #[test]
    fn hashes_depend_on_values_and_not_on_key_order() {
        let one: Value = serde_json::from_str(r#"{"a":1,"b":[1,2]}"#).unwrap();
        let two: Value = serde_json::from_str(r#"{"b":[1,2],"a":1}"#).unwrap();
        assert_eq!(hash(&one), hash(&two));
        assert_ne!(hash(&one), hash(&json!({"a": 1, "b": [2, 1]})));
        assert_ne!(hash(&json!(["a", "b"])), hash(&json!(["ab"])));
    }

    #[test]
    fn a_hash_that_is_on_record_stays_valid() {
        // Host objects have it as an annotation: another one would write all of them again after an upgrade.
        let value = json!({"z": [true, "é\n", null, -7], "a\"b": 1.5});
        assert_eq!(hash(&value), "efa68dbfcc1ac6154a21ee5e9f");
    }

    #[test]
    fn a_salt_changes_every_hash() {
        let value = json!({"a": 1});
        assert_eq!(salted_hash("", &value), hash(&value));
        assert_eq!(salted_hash("s", &value), salted_hash("s", &value));
        assert_ne!(salted_hash("s", &value), hash(&value));
        assert_ne!(salted_hash("s", &value), salted_hash("t", &value));
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
    fn paths_go_through_lists() {
        let mut value = json!({"a": [{"b": {"c": 1}}, {"b": {"c": 2}}, {}], "d": 3});
        let mut seen = Vec::new();
        each(&value, "a[].b.c", &mut |value| seen.push(value.clone()));
        each(&value, "d", &mut |value| seen.push(value.clone()));
        for nothing in ["a.b", "d[]", "d.e", "x"] {
            each(&value, nothing, &mut |_| panic!("{nothing}"));
        }
        assert_eq!(seen, [1, 2, 3]);
        each_mut(&mut value, "a[].b.c", &mut |value| *value = 0.into());
        assert_eq!(value["a"][1]["b"]["c"], 0);
    }

    #[test]
    fn a_last_field_that_is_missing_is_visited() {
        let mut value = json!({"a": [{"b": 1}, {}, {"b": null}, 7], "c": {}});
        let mut seen = Vec::new();
        let paths = ["a[].b", "c.d", "e"];
        assert_eq!(paths.map(|path| count_fields(&value, path)), [3, 1, 1]);
        assert_eq!([count_fields(&value, "a[]"), count_fields(&value, "x.y")], [4, 0]);
        for path in paths {
            each_field_mut(&mut value, path, &mut |field| seen.push(field.clone()));
        }
        assert_eq!(seen, [json!(1), json!(null), json!(null), json!(null), json!(null)]);
        for nothing in ["x.y", "a.b", "c.d[]", "e[]"] {
            each_field_mut(&mut value, nothing, &mut |_| panic!("{nothing}"));
        }
        each_field_mut(&mut value, "a[].b", &mut |field| *field = 2.into());
        assert_eq!(value["a"], json!([{"b": 2}, {"b": 2}, {"b": 2}, 7]));
    }

    #[test]
    fn set_creates_the_path() {
        let mut value = json!({});
        set(&mut value, &["a", "b"], 1);
        assert_eq!(value, json!({"a": {"b": 1}}));
    }
}
