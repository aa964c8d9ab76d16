//! The kinds. Only the registry knows their rules.

use super::{
    kind::Right,
    resource::{Key, Name, Resource},
};
use berth_api::sync_policy::SyncedKind;
use std::{
    cmp::Ordering,
    hash::{Hash, Hasher},
};

macro_rules! kind_ids {
    ($($(#[$doc:meta])* $id:ident,)+) => {
        /// The kinds that are synced.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum KindId {
            $($(#[$doc])* $id,)+
            /// A kind that the tenant's class names.
            Custom(&'static CustomKind),
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
    };
}

kind_ids! {
    /// Pods, synced to the host.
    Pod,
    /// The host Secret with a pod's tokens. Its key is the pod's.
    PodToken,
    /// Trust bundles of the tenant, whose certificates pods get.
    ClusterTrustBundle,
    /// Requests of certificates for pods, which the syncer makes in the tenant.
    PodCertificateRequest,
    /// RuntimeClasses of the host, mirrored.
    RuntimeClass,
    /// Namespaces of the tenant: their labels are needed to translate selectors.
    Namespace,

    /// ConfigMaps that something synced references.
    ConfigMap,
    /// Secrets that something synced references.
    Secret,

    /// Services.
    Service,

    /// Device classes, mirrored.
    DeviceClass,
    /// Devices of the tenant's nodes, mirrored.
    ResourceSlice,
    /// Claims of devices, synced to the host.
    ResourceClaim,
    /// Templates of claims, synced to the host.
    ResourceClaimTemplate,
    /// Claims that the host makes for pods, mirrored. On the host their keys are their own names.
    GeneratedClaim,

    /// Classes of volumes, mirrored.
    StorageClass,
    /// Classes of snapshots, mirrored.
    VolumeSnapshotClass,
    /// Classes of volumes' attributes, mirrored.
    VolumeAttributesClass,
    /// Drivers of volumes, mirrored.
    CsiDriver,
    /// Claims of volumes.
    PersistentVolumeClaim,
    /// The volumes of claims, mirrored.
    PersistentVolume,
    /// Snapshots of volumes.
    VolumeSnapshot,
    /// Contents of snapshots: they have no effect.
    VolumeSnapshotContent,

    /// Endpoints that the tenant makes itself.
    EndpointSlice,
    /// Ingresses of classes of the host.
    Ingress,
    /// IngressClasses of the host, mirrored.
    IngressClass,
    /// Routes of HTTP requests to Gateways of the host.
    HttpRoute,
    /// Routes of gRPC calls to Gateways of the host.
    GrpcRoute,
    /// Routes of TLS connections to Gateways of the host.
    TlsRoute,
    /// GatewayClasses of the host, mirrored.
    GatewayClass,
    /// Gateways of the tenant's own controllers.
    Gateway,
    /// Permissions of routes to lead to other namespaces.
    ReferenceGrant,
    /// NetworkPolicies.
    NetworkPolicy,
    /// PodDisruptionBudgets.
    PodDisruptionBudget,

    /// The tenant's nodes.
    Node,
    /// What schedules let the tenant's pods do.
    TenantSchedule,
    /// Events about synced objects. Its key is (host namespace, host Event's name).
    Event,
}

impl KindId {
    /// The key of an object of this kind.
    pub fn key(self, name: Name) -> Key {
        Key { kind: self, name }
    }
}

/// A kind that the tenant's class names.
#[derive(Debug)]
pub struct CustomKind {
    /// `Kind.group`: name for metrics and derived host names.
    pub label: &'static str,
    /// The API resource.
    pub resource: Resource,
    /// What the class says about it.
    pub rules: SyncedKind,
    /// Rights in the tenant besides reading.
    pub tenant_rights: &'static [Right],
}

impl PartialEq for CustomKind {
    fn eq(&self, other: &Self) -> bool {
        self.label == other.label
    }
}

impl Eq for CustomKind {}

impl Hash for CustomKind {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.label.hash(state);
    }
}

impl PartialOrd for CustomKind {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for CustomKind {
    fn cmp(&self, other: &Self) -> Ordering {
        self.label.cmp(other.label)
    }
}
