//! The controllers: one folder for each kind of key (`crate::key::Key`), and the `worker`, which runs as many at a time as there are [`slots`].
//!
//! Three have no key, and run on a time of their own: [`idle_gpus`], `database` (the etcd of all tenants) and `quota_use` (what tenants use of
//! their quotas). Several controllers share [`pod_deletion`], `pods_on_node`, `recycling_events` and `in_use_markers`.

pub(crate) mod database;
pub mod host_node_pool;
pub mod idle_gpus;
mod in_use_markers;
pub mod nodes;
pub mod pod_deletion;
mod pods_on_node;
pub(crate) mod quota_use;
pub mod quotas;
mod recycling_events;
pub mod schedule_policy;
pub mod shared_nodes;
pub mod slots;
pub mod snapshots;
pub mod tenant;
pub mod tenant_class;
pub mod usage;
pub mod user_quotas;
mod worker;

pub use quota_use::INTERVAL as QUOTA_USE_INTERVAL;
pub(crate) use tenant::kubeconfig_secret_name;
pub use usage::RETENTION_MONTHS as USAGE_RETENTION_MONTHS;
pub use worker::{ControllerError, Controllers};
