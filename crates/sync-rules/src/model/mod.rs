//! The types of the rules: kinds and what they declare, objects as they are kept, and the cache of both sides.

pub mod cache;
mod content;
pub mod denied_field;
pub mod egress_index;
pub mod endpoint_changes;
pub mod endpoint_pods;
mod extract;
mod fresh;
pub mod index;
pub mod json;
pub mod kind;
pub mod kind_id;
pub mod memo;
pub mod mirror;
pub mod mirror_sources;
pub mod own_containers;
mod packed_text;
pub mod pod_addresses;
mod raw_controls;
pub mod references;
pub mod resource;
pub mod schedule;
mod selectors;
pub mod service_variables;
pub mod store;
pub mod stored;
pub mod stores;
pub mod taint;
pub mod tenant;
pub mod to_host;
pub mod trust_followers;
mod waiting_services;
pub mod watch_spec;

pub use cache::Cache;
pub use denied_field::DeniedField;
pub use kind::{Dependency, Direction, HostNamespace, HostWatch, Kind, QueuePriority, Right, Rights};
pub use kind_id::{CustomKind, KindId};
pub use mirror::Mirror;
pub use tenant::{HostLimits, Tenant, UserRules};
pub use to_host::{
    Creation, DeniedParts, DesiredState, HostWrite, Observation, Removal, TenantWrite, ToHost, Translated, WhenDenied,
};
