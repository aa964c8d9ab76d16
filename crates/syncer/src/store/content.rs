//! Parses objects without what is never read, such as `managedFields`, which are half of many objects. What is left out costs no memory
//! for a tree.

use berth_sync_rules::kinds::pod::METADATA;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor},
};
use serde_json::{Map, Value};
use std::fmt;

/// The content of an object, without `metadata.managedFields`.
pub(crate) struct Content(pub(crate) Value);

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let all = Fields {
            level: Level::Object,
            parts: Parts::All,
        };
        deserializer.deserialize_map(all).map(Self)
    }
}

/// Which parts of an object are parsed. `metadata.managedFields` never is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parts {
    /// All.
    All,
    /// All, but of the spec only these fields.
    SpecFields(&'static [&'static str]),
    /// Only the metadata.
    Metadata,
    /// Only what says which object it is and whether it is deleted, few of its labels, annotations and finalizers, and these fields of the spec: what is left
    /// of an object with too much structure. All but the last can be what it has too much of.
    Cut(&'static [&'static str]),
}

/// Most labels, annotations and finalizers each that are parsed of an object that is cut.
const MOST_IN_CUT: usize = 1000;

impl Parts {
    /// These parts of an object with this JSON text; null if the text is no object.
    pub(crate) fn parse(self, text: &str) -> Value {
        let parts = Fields {
            level: Level::Object,
            parts: self,
        };
        let mut json = serde_json::Deserializer::from_str(text);
        parts.deserialize(&mut json).unwrap_or_default()
    }

    /// Whether a field of an object, its metadata or its spec is left out.
    fn leave_out(self, level: Level, field: &str) -> bool {
        match (level, self) {
            (Level::Object, Self::Metadata) => field != "metadata",
            // Rules tell a spec that is not known from one without fields.
            (Level::Object, Self::Cut(kept)) => field != "metadata" && (field != "spec" || kept.is_empty()),
            (Level::Metadata, Self::Cut(_)) => !METADATA.contains(&field),
            (Level::Metadata, _) => field == "managedFields",
            (Level::Spec, Self::SpecFields(kept) | Self::Cut(kept)) => !kept.contains(&field),
            (Level::Object, Self::All | Self::SpecFields(_))
            | (Level::Spec, Self::All | Self::Metadata)
            | (Level::Few, _) => false,
        }
    }
}

/// What is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Object,
    Metadata,
    Spec,
    /// Entries of a map or a list, of which [`MOST_IN_CUT`] are read.
    Few,
}

/// Reads an object, its metadata or its spec, or few entries of a map or a list.
#[derive(Clone, Copy)]
struct Fields {
    level: Level,
    parts: Parts,
}

impl Fields {
    /// How the value of a field is read, if its own fields count.
    fn within(self, field: &str) -> Option<Self> {
        let level = match (self.level, field) {
            (Level::Object, "metadata") => Level::Metadata,
            (Level::Object, "spec") if matches!(self.parts, Parts::SpecFields(_) | Parts::Cut(_)) => Level::Spec,
            (Level::Metadata, "annotations" | "finalizers" | "labels") if matches!(self.parts, Parts::Cut(_)) => {
                Level::Few
            }
            _ => return None,
        };
        Some(Self { level, ..self })
    }
}

impl<'de> DeserializeSeed<'de> for Fields {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Fields {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            let is_beyond = self.level == Level::Few && object.len() >= MOST_IN_CUT;
            if is_beyond || self.parts.leave_out(self.level, &key) {
                fields.next_value::<IgnoredAny>()?;
            } else if let Some(inner) = self.within(&key) {
                let value = fields.next_value_seed(inner)?;
                object.insert(key, value);
            } else {
                object.insert(key, fields.next_value()?);
            }
        }
        Ok(Value::Object(object))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        if self.level != Level::Few {
            return Err(Error::invalid_type(Unexpected::Seq, &self));
        }
        let mut kept = Vec::new();
        while kept.len() < MOST_IN_CUT
            && let Some(item) = items.next_element::<Value>()?
        {
            kept.push(item);
        }
        if kept.len() == MOST_IN_CUT {
            while items.next_element::<IgnoredAny>()?.is_some() {}
        }
        Ok(kept.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_the_wanted_parts_are_parsed() {
        let text = json!({
            "kind": "Pod",
            "metadata": {"name": "a", "managedFields": [{"spec": 1}], "spec": 2},
            "spec": {"nodeName": "n", "containers": [{"nodeName": "x"}], "metadata": {"managedFields": 1}},
            "status": {"spec": {"containers": 1}},
        })
        .to_string();
        let metadata = json!({"name": "a", "spec": 2});
        let status = json!({"spec": {"containers": 1}});
        let spec = json!({"nodeName": "n", "containers": [{"nodeName": "x"}], "metadata": {"managedFields": 1}});
        assert_eq!(
            Parts::All.parse(&text),
            json!({"kind": "Pod", "metadata": metadata, "spec": spec, "status": status})
        );
        assert_eq!(
            Parts::SpecFields(&["nodeName"]).parse(&text),
            json!({"kind": "Pod", "metadata": metadata, "spec": {"nodeName": "n"}, "status": status})
        );
        assert_eq!(Parts::Metadata.parse(&text), json!({"metadata": metadata}));
        let text =
            r#"{"metadata":{"ownerReferences":[{}],"managedFields":[],"name":"a"},"spec":{"volumeName":"v","a":[1]}}"#;
        assert_eq!(Parts::Cut(&[]).parse(text), json!({"metadata": {"name": "a"}}));
        assert_eq!(
            Parts::Cut(&["volumeName"]).parse(text),
            json!({"metadata": {"name": "a"}, "spec": {"volumeName": "v"}})
        );
    }

    #[test]
    fn of_a_cut_object_few_labels_and_finalizers_are_parsed() {
        let entries = |number: usize| -> Map<String, Value> {
            let names = (0..number).map(|entry| (format!("a{entry:05}"), Value::from("")));
            names.collect()
        };
        for (number, kept) in [(0, 0), (MOST_IN_CUT, MOST_IN_CUT), (3 * MOST_IN_CUT, MOST_IN_CUT)] {
            let finalizers = vec!["example.com/a"; number];
            let text = json!({
                "metadata": {"annotations": entries(number), "finalizers": finalizers, "labels": entries(number), "name": "a"},
                "spec": {},
            });
            let metadata = &Parts::Cut(&[]).parse(&text.to_string())["metadata"];
            assert_eq!(metadata["annotations"], Value::from(entries(kept)));
            assert_eq!(metadata["labels"], Value::from(entries(kept)));
            assert_eq!(metadata["finalizers"], json!(vec!["example.com/a"; kept]));
            assert_eq!(metadata["name"], "a", "what comes after them is read");
        }
    }

    #[test]
    fn an_empty_spec_is_parsed_and_what_is_no_object_is_not() {
        let parts = Parts::SpecFields(&["nodeName"]);
        assert_eq!(parts.parse(r#"{"spec":null}"#), json!({"spec": null}));
        assert_eq!(parts.parse(r#"{"spec":{}}"#), json!({"spec": {}}));
        assert_eq!(parts.parse("[1]"), Value::Null);
    }
}
