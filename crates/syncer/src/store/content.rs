//! Parses objects without `managedFields`, which are half of many objects and are never read.

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor},
};
use serde_json::{Map, Value};
use std::fmt;

/// The content of an object, without `metadata.managedFields`.
pub(crate) struct Content(pub(crate) Value);

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields { depth: 0 }).map(Self)
    }
}

/// Reads an object, or its metadata.
#[derive(Clone, Copy)]
struct Fields {
    /// 0: the object; 1: its metadata.
    depth: u8,
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
            match (self.depth, key.as_str()) {
                (0, "metadata") => {
                    let metadata = fields.next_value_seed(Self { depth: 1 })?;
                    object.insert(key, metadata);
                }
                (1, "managedFields") => {
                    fields.next_value::<IgnoredAny>()?;
                }
                _ => {
                    object.insert(key, fields.next_value()?);
                }
            }
        }
        Ok(Value::Object(object))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}
