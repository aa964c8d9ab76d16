//! The rules of each kind. Each kind has a file or a folder of the same structure: the module's doc has a table of
//! fields, then come the kind and what it depends on, `translate` (to the host), what an update may change, status
//! sync, and tests. Everything here is pure: kinds say what should exist, the engine of the syncer acts.

pub mod config;
pub mod custom;
pub mod devices;
pub mod disruption_budget;
pub mod endpoint_slice;
pub mod event;
pub mod gateway;
pub mod ingress;
pub mod namespace;
pub mod network_policy;
pub mod node;
pub mod node_taints;
pub mod pod;
pub mod runtime_class;
pub mod schedule;
#[cfg(test)]
mod schemas;
pub mod service;
pub mod storage;
