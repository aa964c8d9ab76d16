//! The controllers: one folder for each kind of object that control reconciles, and the workers that run them.

pub(crate) mod database;
pub mod host_node_pool;
pub mod nodes;
pub mod pod_deletion;
pub mod shared_nodes;
pub mod tenant;
pub mod tenant_class;
mod worker;

pub use worker::{ControllerError, Controllers};
