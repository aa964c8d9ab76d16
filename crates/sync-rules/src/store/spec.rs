//! What is watched.

use crate::{
    kinds::{origin_name, own_name},
    resource::{Name, Resource},
};
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
    /// The name in the tenant of an object; `None` if the object is no business of this kind.
    pub name: fn(&Value) -> Option<Name>,
    /// Drops what need not be kept.
    pub trim: fn(&mut Value),
}

impl WatchSpec {
    /// Whole objects of a resource, whoever made them, under their own names.
    pub const fn own(resource: Resource) -> Self {
        Self {
            resource,
            detail: Detail::Full,
            labels: "",
            name: own_name,
            trim: |_| {},
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

    /// The same with metadata only.
    #[must_use]
    pub const fn metadata_only(self) -> Self {
        Self {
            detail: Detail::Metadata,
            ..self
        }
    }

    /// The same without what `trim` drops.
    #[must_use]
    pub const fn trimmed(self, trim: fn(&mut Value)) -> Self {
        Self { trim, ..self }
    }
}
