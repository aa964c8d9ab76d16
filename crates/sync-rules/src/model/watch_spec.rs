//! What is watched.

use crate::model::resource::{Name, Resource};
use serde_json::Value;

/// How much of each object a watch transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Whole objects.
    Full,
    /// Metadata only; the rest is fetched when it is needed.
    Metadata,
}

/// What to watch on one side for one kind.
#[derive(Clone, Copy, Debug)]
pub struct WatchSpec {
    /// The resource.
    pub resource: Resource,
    /// How much of it.
    pub detail: Detail,
    /// Label selector; empty for all objects.
    pub labels: &'static str,
    /// Name of an object in the tenant; `None` if the object does not belong to this kind.
    pub name: fn(&Value) -> Option<Name>,
    /// Drops what need not be kept.
    pub trim: fn(&mut Value),
    /// The only fields of the spec that are kept, so that no others are parsed; none means all.
    pub spec_fields: Option<&'static [&'static str]>,
    /// Fields of the spec that are kept of an object with [too much structure](super::store::Stored::is_cut), besides a part of the metadata. Each must
    /// be a text.
    pub fields_if_cut: &'static [&'static str],
}

impl WatchSpec {
    /// All objects of a resource in full, under their own names.
    pub const fn own(resource: Resource) -> Self {
        Self {
            resource,
            detail: Detail::Full,
            labels: "",
            name: own_name,
            trim: |_| {},
            spec_fields: None,
            fields_if_cut: &[],
        }
    }

    /// Whole host objects of a resource that the syncer made, under their names in the tenant.
    pub const fn synced(resource: Resource) -> Self {
        Self {
            labels: "berth.dev/managed-by=syncer",
            name: origin_name,
            ..Self::own(resource)
        }
    }

    /// The same with another label selector.
    #[must_use]
    pub const fn labelled(self, labels: &'static str) -> Self {
        Self { labels, ..self }
    }

    /// The same under other names in the tenant; objects without one do not belong to the kind.
    #[must_use]
    pub const fn named_by(self, name: fn(&Value) -> Option<Name>) -> Self {
        Self { name, ..self }
    }

    /// The same with metadata only.
    #[must_use]
    pub const fn metadata_only(self) -> Self {
        Self {
            detail: Detail::Metadata,
            ..self
        }
    }

    /// The same with these fields of the spec only.
    #[must_use]
    pub const fn with_spec_fields(self, fields: &'static [&'static str]) -> Self {
        Self {
            spec_fields: Some(fields),
            ..self
        }
    }

    /// The same with these fields of the spec also of objects with too much structure.
    #[must_use]
    pub const fn keeping_if_cut(self, fields: &'static [&'static str]) -> Self {
        Self {
            fields_if_cut: fields,
            ..self
        }
    }

    /// The same without what `trim` drops.
    #[must_use]
    pub const fn trimmed(self, trim: fn(&mut Value)) -> Self {
        Self { trim, ..self }
    }
}

/// The name of a tenant object is its own.
pub fn own_name(object: &Value) -> Option<Name> {
    let metadata = object.get("metadata")?;
    let namespace = metadata.get("namespace").and_then(Value::as_str).unwrap_or_default();
    Some(Name::new(namespace, metadata.get("name")?.as_str()?))
}

/// The name of a host object in the tenant, from its annotations.
pub fn origin_name(object: &Value) -> Option<Name> {
    let annotations = object.get("metadata")?.get("annotations")?;
    let text = |key| annotations.get(key).and_then(Value::as_str);
    Some(Name::new(
        text(berth_api::labels::ORIGIN_NAMESPACE)?,
        text(berth_api::labels::ORIGIN_NAME)?,
    ))
}
