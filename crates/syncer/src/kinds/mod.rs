//! The rules of each kind. One file or folder a kind, all of one shape: the module's doc has a table of fields, then
//! come `translate` (tenant → host), what an update may change, `back` (host → tenant), and tests. Everything here is
//! pure: kinds say what should be, the engine does it.

pub mod config;
pub mod event;
pub mod fields;
pub mod metadata;
pub mod node;
pub mod pod;
pub mod references;
pub mod refusal;
pub mod service;
pub mod text;

use crate::{
    resource::{KindId, Name, Resource},
    store::{Stored, WatchSpec},
    world::World,
};
use jiff::Timestamp;
use refusal::Refusal;
use serde_json::Value;
use std::time::Duration;

/// Where a kind lives and which way it goes.
pub struct Kind {
    /// What is watched in the tenant, if anything.
    pub tenant: Option<WatchSpec>,
    /// What is watched on the host, if anything.
    pub host: Option<(HostNamespace, WatchSpec)>,
    /// Which way it goes, and by which rules.
    pub flow: Flow,
}

/// A namespace of the tenant on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostNamespace {
    /// Where the syncer creates things.
    Workloads,
    /// Where control publishes the tenant's nodes.
    ControlPlane,
}

/// Which way a kind goes.
pub enum Flow {
    /// From the tenant to the host, status back.
    Down(&'static dyn Down),
    /// Tokens of a pod, minted in the tenant and kept on the host.
    Tokens,
    /// Nodes: from the host to the tenant.
    Nodes,
    /// Events: from the host to the tenant.
    Events,
}

/// The one list of kinds.
pub fn kind(id: KindId) -> Kind {
    match id {
        KindId::Pod => pod::KIND,
        KindId::PodToken => pod::token::KIND,
        KindId::ConfigMap => config::CONFIG_MAP,
        KindId::Secret => config::SECRET,
        KindId::Service => service::KIND,
        KindId::Node => node::KIND,
        KindId::Event => event::KIND,
    }
}

/// What a tenant object asks of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// It should be on the host: create or update it.
    Sync,
    /// It was on the host and cannot be made again: if it is gone there, report that.
    Once,
    /// Leave things as they are, only report.
    Leave,
    /// It should not be on the host.
    Absent,
}

/// The host object for a tenant object.
#[derive(Debug)]
pub struct Translated {
    /// Labels, annotations and content. The engine adds kind, name, namespace and origin.
    pub object: Value,
    /// Fields that have no effect here although nothing is wrong with them; the tenant is told.
    pub notes: Vec<Refusal>,
}

/// A write to the host that brings an object up to date.
#[derive(Debug, PartialEq)]
pub enum HostWrite {
    /// Server-side apply of the whole object.
    Apply(Value),
    /// Merge patch of what differs from the live object that was read.
    Merge(Value),
    /// Strategic merge patch of a subresource.
    Patch {
        /// The subresource.
        subresource: &'static str,
        /// The patch.
        patch: Value,
    },
}

/// A write to the tenant that reports the host's state.
#[derive(Debug, PartialEq)]
pub enum TenantWrite {
    /// Bind a pod to a node.
    Bind {
        /// Name of the node.
        node: String,
    },
    /// The status as it should be.
    Status(Value),
    /// Nothing can be written yet: look again after this time.
    Later(Duration),
}

/// How a kind's host objects are created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Creation {
    /// By server-side apply: the host records which fields are the syncer's, so that later applies remove exactly those.
    Apply,
    /// By a plain create, which costs the API server half as much. For kinds of which there are many and which record
    /// themselves what later updates may remove.
    Post,
}

/// What `back` looks at.
pub struct Report<'a> {
    /// The object in the tenant.
    pub tenant: &'a Value,
    /// The object on the host, trimmed.
    pub host: &'a Value,
    /// Whether the host has the tenant's current spec.
    pub in_sync: bool,
    /// What of the current spec is refused.
    pub refused: &'a [Refusal],
    /// Now, for conditions that flip.
    pub now: Timestamp,
}

/// Rules of a kind that goes from the tenant to the host.
pub trait Down: Sync {
    /// The kind.
    fn id(&self) -> KindId;

    /// The API resource, the same on both sides.
    fn resource(&self) -> Resource;

    /// What a tenant object asks of the host. `object` is what the store keeps.
    fn want(&self, world: &World, name: &Name, object: &Value) -> Want;

    /// Objects that must be on the host before this one is created.
    fn needs(&self, _world: &World, _name: &Name, _object: &Value) -> Vec<crate::resource::Key> {
        Vec::new()
    }

    /// The host object for a tenant object.
    ///
    /// # Errors
    /// Everything about the object that is refused.
    fn translate(&self, world: &World, name: &Name, object: &Value) -> Result<Translated, Vec<Refusal>>;

    /// The host object as it is created, where some fields can only be added afterwards.
    fn at_creation(&self, desired: Value) -> Value {
        desired
    }

    /// How host objects are created.
    fn creation(&self) -> Creation {
        Creation::Apply
    }

    /// The part of a host object that may still change once it exists. Its hash decides whether there is anything to
    /// write.
    fn changeable(&self, desired: &Value) -> Value {
        desired.clone()
    }

    /// Whether [`Down::update`] needs the live host object.
    fn update_needs_live(&self) -> bool {
        false
    }

    /// Writes that bring the host object up to date; the engine adds hash and preconditions. `live` is null unless
    /// [`Down::update_needs_live`].
    fn update(&self, desired: Value, _live: &Value) -> Vec<HostWrite> {
        vec![HostWrite::Apply(desired)]
    }

    /// Writes to the host object's status, for what the tenant decides there.
    fn host_status(&self, _tenant: &Value, _host: &Value) -> Option<Value> {
        None
    }

    /// Writes to the tenant that report the host object's state.
    fn back(&self, _world: &World, _name: &Name, _report: &Report<'_>) -> Vec<TenantWrite> {
        Vec::new()
    }

    /// Status of a tenant object whose spec is refused and which is not on the host; `None` if the kind has no place
    /// to say so.
    fn refused(&self, _object: &Value, _refused: &[Refusal], _now: Timestamp) -> Option<Value> {
        None
    }

    /// Status of a tenant object whose host object is gone for good; `departed` is its last state, if it was seen.
    fn lost(
        &self,
        _world: &World,
        _name: &Name,
        _object: &Value,
        _departed: Option<&Value>,
        _now: Timestamp,
    ) -> Option<Value> {
        None
    }

    /// Grace of deletions when the tenant object is gone or another one; `None` for kinds without grace.
    fn orphan_grace(&self) -> Option<u32> {
        None
    }

    /// Whether a deletion in the tenant waits for the syncer, as a pod's waits for its kubelet.
    fn finishes_deletion(&self) -> bool {
        false
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

/// Whether a host object is being or was made for this very tenant object.
pub fn is_origin(tenant: &Stored, host: &Stored) -> bool {
    host.origin_uid.as_deref() == Some(&*tenant.uid)
}
