//! Allow-lists: what happens to each field of a structure. A field that no list names is refused by its name, so that
//! nothing unknown reaches the host and nothing is dropped in silence.

use crate::{
    json,
    kinds::{Translated, refusal::Refusal},
};
use serde_json::{Map, Value};

/// What happens to a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Copied as it is.
    Copy,
    /// An object, or a list of objects, whose fields have rules of their own.
    Within(Fields),
    /// Made anew by code beside the table.
    Rewrite,
    /// Refused if it is set, and why.
    Refuse(&'static str),
    /// Not passed on, and nothing is lost by that; the text says why.
    Ignore(&'static str),
    /// Not passed on, and the tenant is told why.
    Note(&'static str),
}

/// The rules of a structure.
pub type Fields = &'static [(&'static str, Rule)];

/// What was found while translating one object.
#[derive(Debug, Default)]
pub struct Findings {
    /// Refused.
    pub refused: Vec<Refusal>,
    /// Without effect.
    pub notes: Vec<Refusal>,
}

impl Findings {
    /// The host object `object`, unless something was refused.
    ///
    /// # Errors
    /// What was refused.
    pub fn into_result(self, object: Value) -> Result<Translated, Vec<Refusal>> {
        if self.refused.is_empty() {
            Ok(Translated {
                object,
                notes: self.notes,
            })
        } else {
            Err(self.refused)
        }
    }

    /// Refuses a field.
    pub fn refuse(&mut self, field: impl Into<String>, why: impl Into<String>) {
        self.refused.push(Refusal::new(field, why));
    }
}

/// The fields of `object` that may be copied; the others are judged by `fields`. `path` names the object in refusals.
pub fn copy(object: &Value, path: &str, fields: Fields, findings: &mut Findings) -> Map<String, Value> {
    let mut copied = Map::new();
    for (key, value) in object.as_object().into_iter().flatten() {
        let rule = fields.iter().find(|(name, _)| name == key).map(|(_, rule)| *rule);
        let field = || format!("{path}.{key}");
        match rule {
            Some(Rule::Copy) => {
                copied.insert(key.clone(), value.clone());
            }
            Some(Rule::Within(inner)) => {
                copied.insert(key.clone(), within(value, &field(), inner, findings));
            }
            Some(Rule::Rewrite | Rule::Ignore(_)) => {}
            _ if json::is_unset(value) => {}
            Some(Rule::Refuse(why)) => findings.refuse(field(), why),
            Some(Rule::Note(why)) => findings.notes.push(Refusal::new(field(), why)),
            None => findings.refuse(field(), "this field is not known here"),
        }
    }
    copied
}

/// The same for an object or a list of objects.
pub fn within(value: &Value, path: &str, fields: Fields, findings: &mut Findings) -> Value {
    match value {
        Value::Array(items) => items
            .iter()
            .enumerate()
            .map(|(index, item)| within(item, &format!("{path}[{index}]"), fields, findings))
            .collect(),
        Value::Object(_) => copy(value, path, fields, findings).into(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const FIELDS: Fields = &[
        ("a", Rule::Copy),
        ("b", Rule::Refuse("no b")),
        ("c", Rule::Ignore("c is for the tenant")),
        ("d", Rule::Note("d does nothing")),
        ("w", Rule::Within(&[("a", Rule::Copy)])),
    ];

    #[test]
    fn what_is_within_is_judged_as_well() {
        let mut findings = Findings::default();
        let object = json!({"w": [{"a": 1}, {"a": 2, "new": 3}, {}]});
        let copied = Value::Object(copy(&object, "spec", FIELDS, &mut findings));
        assert_eq!(copied, json!({"w": [{"a": 1}, {"a": 2}, {}]}));
        assert_eq!(findings.refused[0].field, "spec.w[1].new");
        assert_eq!(copy(&json!({"w": {}}), "spec", FIELDS, &mut findings)["w"], json!({}));
    }

    #[test]
    fn unlisted_fields_are_refused_by_name() {
        let mut findings = Findings::default();
        let object = json!({"a": 1, "b": true, "c": 1, "d": 1, "e": "x", "f": ""});
        assert_eq!(
            Value::Object(copy(&object, "spec", FIELDS, &mut findings)),
            json!({"a": 1})
        );
        let refused: Vec<_> = findings.refused.iter().map(ToString::to_string).collect();
        assert_eq!(refused, ["spec.b: no b", "spec.e: this field is not known here"]);
        assert_eq!(findings.notes, [Refusal::new("spec.d", "d does nothing")]);
    }

    #[test]
    fn a_refused_field_that_says_nothing_is_no_matter() {
        let mut findings = Findings::default();
        copy(&json!({"b": false}), "spec", FIELDS, &mut findings);
        assert!(findings.refused.is_empty());
    }
}
