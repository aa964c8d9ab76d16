//! JSON merge patches (RFC 7396).

use serde_json::{Map, Value};

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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

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
                    let mut merged = from;
                    json_patch::merge(&mut merged, &patch);
                    prop_assert_eq!(merged, to);
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
    fn a_patch_that_changes_nothing_is_detected() {
        let object = json!({"a": {"b": 1}, "c": [1]});
        assert!(is_patched(&object, &json!({"a": {"b": 1, "x": null}, "c": [1]})));
        assert!(!is_patched(&object, &json!({"a": {"b": null}})));
        assert!(!is_patched(&object, &json!({"d": 1})));
    }
}
