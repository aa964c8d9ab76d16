//! Allow-lists: what happens to each field of a structure. A field that no list names is denied by its name, so that
//! nothing unknown reaches the host and nothing is dropped in silence.

use crate::model::{DeniedField, DeniedParts, Translated, json};
use serde_json::{Map, Value};

/// Denied fields that are described, and as many ignored ones. A message has some 1,000 bytes.
const MOST_DESCRIBED: usize = 200;

/// What happens to a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Copied as it is.
    Copy,
    /// An object, or a list of objects, whose fields have rules of their own.
    Within(Fields),
    /// Translated by code beside the table.
    Rewrite,
    /// Denied if it is set, and why.
    Deny(&'static str),
    /// Not passed on, and nothing is lost by that; the text says why.
    Ignore(&'static str),
    /// Not passed on, and an Event says why.
    NoEffect(&'static str),
}

/// The rules of a structure.
pub type Fields = &'static [(&'static str, Rule)];

/// Fields of an object that are not synced as they are.
#[derive(Debug, Default)]
pub struct FieldIssues {
    /// Denied.
    pub denied: Vec<DeniedField>,
    /// Without effect.
    pub ignored: Vec<DeniedField>,
    /// Denied although the rest of the object is synced.
    pub parts: DeniedParts,
}

impl FieldIssues {
    /// The host object `object`, unless a field was denied.
    ///
    /// # Errors
    /// The denied fields.
    pub fn into_result(self, object: Value) -> Result<Translated, Vec<DeniedField>> {
        if self.denied.is_empty() {
            Ok(Translated {
                object,
                ignored: self.ignored,
                parts: self.parts,
            })
        } else {
            Err(self.denied)
        }
    }

    /// Denies a field. Of more than a message has room for, nothing is kept but that they are: an object may have some hundred thousand, and each reason may
    /// list what a class offers.
    pub fn deny(&mut self, field: impl Into<String>, why: impl Into<String>) {
        describe(&mut self.denied, field, why);
    }

    /// Says that a field has no effect, with the same limit.
    pub fn ignore(&mut self, field: impl Into<String>, why: impl Into<String>) {
        describe(&mut self.ignored, field, why);
    }

    /// Leaves something out of the host object because of these denials, with the same limit.
    pub fn leave_out(&mut self, denied: Vec<DeniedField>) {
        for DeniedField { field, why } in denied {
            describe(&mut self.parts.left_out, field, why);
        }
    }

    /// Says that the host object has what is denied here, and keeps it, with the same limit.
    pub fn keep(&mut self, denied: Vec<DeniedField>) {
        for DeniedField { field, why } in denied {
            describe(&mut self.parts.kept, field, why);
        }
    }
}

fn describe(fields: &mut Vec<DeniedField>, field: impl Into<String>, why: impl Into<String>) {
    let described = if fields.len() < MOST_DESCRIBED {
        DeniedField::new(field, why)
    } else {
        DeniedField::new("", "")
    };
    fields.push(described);
}

/// The fields of `object` that may be copied; `fields` decides about the others. `path` names the object in messages.
pub fn copy(object: &Value, path: &str, fields: Fields, issues: &mut FieldIssues) -> Map<String, Value> {
    let mut copied = Map::new();
    for (key, value) in object.as_object().into_iter().flatten() {
        let rule = fields.iter().find(|(name, _)| name == key).map(|(_, rule)| *rule);
        let field = || format!("{path}.{key}");
        match rule {
            Some(Rule::Copy) => {
                copied.insert(key.clone(), value.clone());
            }
            Some(Rule::Within(inner)) => {
                copied.insert(key.clone(), within(value, &field(), inner, issues));
            }
            Some(Rule::Rewrite | Rule::Ignore(_)) => {}
            _ if json::is_unset(value) => {}
            Some(Rule::Deny(why)) => issues.deny(field(), why),
            Some(Rule::NoEffect(why)) => issues.ignore(field(), why),
            None => issues.deny(field(), "this field is not supported"),
        }
    }
    copied
}

/// The same for an object or a list of objects.
pub fn within(value: &Value, path: &str, fields: Fields, issues: &mut FieldIssues) -> Value {
    match value {
        Value::Array(items) => items
            .iter()
            .enumerate()
            .map(|(index, item)| within(item, &format!("{path}[{index}]"), fields, issues))
            .collect(),
        Value::Object(_) => copy(value, path, fields, issues).into(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::denied_field;
    use serde_json::json;

    const FIELDS: Fields = &[
        ("a", Rule::Copy),
        ("b", Rule::Deny("no b")),
        ("c", Rule::Ignore("c is for the tenant")),
        ("d", Rule::NoEffect("d does nothing")),
        ("w", Rule::Within(&[("a", Rule::Copy)])),
    ];

    #[test]
    fn nested_fields_follow_their_own_rules() {
        let mut issues = FieldIssues::default();
        let object = json!({"w": [{"a": 1}, {"a": 2, "new": 3}, {}]});
        let copied = Value::Object(copy(&object, "spec", FIELDS, &mut issues));
        assert_eq!(copied, json!({"w": [{"a": 1}, {"a": 2}, {}]}));
        assert_eq!(issues.denied[0].field, "spec.w[1].new");
        assert_eq!(copy(&json!({"w": {}}), "spec", FIELDS, &mut issues)["w"], json!({}));
    }

    #[test]
    fn of_very_many_fields_that_are_not_synced_the_first_are_described() {
        let mut issues = FieldIssues::default();
        for number in 0..100_000 {
            issues.deny(format!("spec.hosts[{number}]"), "x".repeat(1000));
            issues.ignore(format!("spec.hosts[{number}]"), "x".repeat(1000));
        }
        let bytes = |field: &DeniedField| field.field.capacity() + field.why.capacity();
        for fields in [issues.denied, issues.ignored] {
            assert_eq!(fields.len(), 100_000, "all count");
            assert!(fields.iter().map(bytes).sum::<usize>() < 300_000);
            let message = denied_field::message(&fields);
            assert!(message.starts_with("spec.hosts[0]: xxx"), "{message}");
        }
    }

    #[test]
    fn unlisted_fields_are_denied_by_name() {
        let mut issues = FieldIssues::default();
        let object = json!({"a": 1, "b": true, "c": 1, "d": 1, "e": "x", "f": ""});
        assert_eq!(
            Value::Object(copy(&object, "spec", FIELDS, &mut issues)),
            json!({"a": 1})
        );
        let denied: Vec<_> = issues.denied.iter().map(ToString::to_string).collect();
        assert_eq!(denied, ["spec.b: no b", "spec.e: this field is not supported"]);
        assert_eq!(issues.ignored, [DeniedField::new("spec.d", "d does nothing")]);
    }

    #[test]
    fn an_unset_denied_field_passes() {
        let mut issues = FieldIssues::default();
        copy(&json!({"b": false}), "spec", FIELDS, &mut issues);
        assert!(issues.denied.is_empty());
    }
}
