//! The rules of each kind. One file or folder a kind, all of one shape: the module's doc has a table of fields, then
//! come `translate` (tenant → host), what an update may change, `back` (host → tenant), and tests. Everything here is
//! pure: kinds say what should be, the engine does it.

pub mod backend;
pub mod config;
pub mod custom;
pub mod devices;
pub mod disruption_budget;
pub mod endpoint_slice;
pub mod event;
pub mod fields;
pub mod gateway;
pub mod hostnames;
pub mod ingress;
pub mod metadata;
pub mod namespace;
pub mod network_policy;
pub mod networks;
pub mod node;
pub mod pod;
pub mod references;
pub mod refusal;
pub mod runtime_class;
pub mod selector;
pub mod service;
pub mod shown;
pub mod storage;
pub mod text;
pub mod view;

pub use custom::Custom;
pub use view::View;

use crate::{
    resource::{Name, Resource},
    store::{Stored, WatchSpec},
    world::World,
};
use jiff::Timestamp;
use references::Target;
use refusal::Refusal;
use serde_json::Value;
use std::{collections::BTreeSet, time::Duration};

/// Makes [`KindId`] and the one list of kinds out of lines `Name => where its rules are;`.
macro_rules! kinds {
    ($($(#[$doc:meta])* $id:ident => $kind:expr;)+) => {
        /// The kinds that are synced, one for each module of rules.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum KindId {
            $($(#[$doc])* $id,)+
            /// A kind that the tenant's class names.
            Custom(&'static Custom),
        }

        impl KindId {
            /// Every kind but those that classes name. The order has no meaning.
            pub const BUILT_IN: &'static [Self] = &[$(Self::$id),+];

            /// Name for metrics, logs and derived host names. Never changes: host names are made of it.
            pub fn label(self) -> &'static str {
                match self {
                    $(Self::$id => stringify!($id),)+
                    Self::Custom(custom) => custom.label,
                }
            }
        }

        /// Where a kind lives, which way it goes and by which rules.
        pub fn kind(id: KindId) -> Kind {
            match id {
                $(KindId::$id => $kind,)+
                KindId::Custom(custom) => custom.kind(),
            }
        }
    };
}

kinds! {
    /// Pods, down; their status and node, up.
    Pod => pod::KIND;
    /// The host Secret with a pod's tokens. Its key is the pod's.
    PodToken => pod::token::KIND;
    /// RuntimeClasses of the host, to be looked at.
    RuntimeClass => runtime_class::KIND;
    /// Namespaces of the tenant: their labels are wanted where selectors are translated.
    Namespace => namespace::KIND;

    /// ConfigMaps that something synced references.
    ConfigMap => config::CONFIG_MAP;
    /// Secrets that something synced references.
    Secret => config::SECRET;

    /// Services.
    Service => service::KIND;

    /// Device classes, shown.
    DeviceClass => devices::class::KIND;
    /// Devices of the tenant's nodes, shown.
    ResourceSlice => devices::slice::KIND;
    /// Claims of devices, down; what they got, up.
    ResourceClaim => devices::claim::KIND;
    /// Templates of claims, down.
    ResourceClaimTemplate => devices::template::KIND;
    /// Claims that the host makes for pods, shown. On the host their keys are their own names.
    GeneratedClaim => devices::generated::KIND;

    /// Classes of volumes, shown.
    StorageClass => storage::classes::STORAGE_CLASS;
    /// Classes of snapshots, shown.
    VolumeSnapshotClass => storage::classes::SNAPSHOT_CLASS;
    /// Classes of volumes' attributes, shown.
    VolumeAttributesClass => storage::classes::ATTRIBUTES_CLASS;
    /// Drivers of volumes, shown.
    CsiDriver => storage::driver::KIND;
    /// Claims of volumes.
    PersistentVolumeClaim => storage::claim::KIND;
    /// The volumes of claims, shown.
    PersistentVolume => storage::volume::KIND;
    /// Snapshots of volumes.
    VolumeSnapshot => storage::snapshot::KIND;
    /// Contents of snapshots: nobody makes any.
    VolumeSnapshotContent => storage::snapshot::CONTENT_KIND;

    /// Endpoints that the tenant makes itself.
    EndpointSlice => endpoint_slice::KIND;
    /// Ingresses of classes of the host.
    Ingress => ingress::KIND;
    /// IngressClasses of the host, up.
    IngressClass => ingress::class::KIND;
    /// Routes of HTTP requests to Gateways of the host.
    HttpRoute => gateway::route::HTTP;
    /// Routes of gRPC calls to Gateways of the host.
    GrpcRoute => gateway::route::GRPC;
    /// Routes of TLS connections to Gateways of the host.
    TlsRoute => gateway::route::TLS;
    /// GatewayClasses of the host, up.
    GatewayClass => gateway::class::KIND;
    /// Gateways of the tenant's own controllers.
    Gateway => gateway::GATEWAY;
    /// Permissions of routes to lead to other namespaces.
    ReferenceGrant => gateway::REFERENCE_GRANT;
    /// NetworkPolicies.
    NetworkPolicy => network_policy::KIND;
    /// PodDisruptionBudgets.
    PodDisruptionBudget => disruption_budget::KIND;

    /// The tenant's nodes, up.
    Node => node::KIND;
    /// Events about synced objects, up. Its key is (host namespace, host Event's name).
    Event => event::KIND;
}

impl KindId {
    /// The key of an object of this kind.
    pub fn key(self, name: Name) -> crate::resource::Key {
        crate::resource::Key { kind: self, name }
    }

    /// The rules, if this kind goes from the tenant to the host.
    pub fn down(self) -> Option<&'static dyn Down> {
        match kind(self).flow {
            Flow::Down(rules) => Some(rules),
            _ => None,
        }
    }
}

/// Where a kind lives and which way it goes.
pub struct Kind {
    /// What is watched in the tenant, if anything.
    pub tenant: Option<WatchSpec>,
    /// What is watched on the host, if anything.
    pub host: Option<(HostNamespace, WatchSpec)>,
    /// Which way it goes, and by which rules.
    pub flow: Flow,
    /// Rights that the syncer needs besides those to watch.
    pub rights: Rights,
}

impl Kind {
    /// The resource in the tenant; of what is not watched there, the host's.
    pub fn resource(&self) -> Option<Resource> {
        self.tenant
            .map(|spec| spec.resource)
            .or_else(|| self.host.map(|(_, spec)| spec.resource))
    }
}

/// Rights on resources of a kind's own API group: (resource or `resource/subresource`, verbs).
pub type Right = (&'static str, &'static [&'static str]);

/// The verbs of whoever makes, changes and removes objects.
pub const WRITE: &[&str] = &["create", "patch", "delete"];

/// Rights that the syncer needs for a kind besides those to watch what it watches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rights {
    /// In the tenant, in all namespaces.
    pub tenant: &'static [Right],
    /// On the host, in the namespace in which the kind lives.
    pub host: &'static [Right],
}

/// A namespace of the tenant on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostNamespace {
    /// Where the syncer creates things.
    Workloads,
    /// Where control publishes the tenant's nodes.
    ControlPlane,
    /// None: a cluster-scoped kind, which the syncer may only read.
    Cluster,
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
    /// Objects that the tenant may look at and not change, made from what the host says.
    View(&'static dyn View),
    /// Nothing is written: the tenant's objects are only looked at by other kinds' rules.
    Known,
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
    /// A merge patch of the object itself, for what the host decides outside of the status. Written only if it changes
    /// something.
    Patch(Value),
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
    /// The API resource, the same on both sides.
    fn resource(&self) -> Resource;

    /// What a tenant object asks of the host. `object` is what the store keeps.
    fn want(&self, world: &World, name: &Name, object: &Value) -> Want;

    /// Objects of the tenant that this one names and that go to the host because it does: ConfigMaps, Secrets and
    /// objects of other kinds whose `want` asks [`World::references`]. Whether they exist does not matter.
    fn references(&self, _world: &World, _name: &Name, _object: &Value) -> BTreeSet<Target> {
        BTreeSet::new()
    }

    /// Objects that must be on the host before this one is created.
    fn needs(&self, world: &World, name: &Name, object: &Value) -> Vec<crate::resource::Key> {
        // A reference to something that does not exist does not block: whoever uses it on the host waits and says so.
        self.references(world, name, object)
            .into_iter()
            .filter(|target| world.stores.tenant(target.kind).contains(&target.name))
            .map(|target| target.kind.key(target.name))
            .collect()
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

    /// What an API server has given out to an object, if objects of this kind are [reserved](crate::engine) on the host
    /// before the tenant's is stored.
    fn given(&self, _object: &Value) -> Value {
        Value::Null
    }

    /// Whether the host object `live` cannot become the one that is wanted, so that another has to be made.
    fn must_replace(&self, _desired: &Value, _live: &Value) -> bool {
        false
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
