//! The rules that translate between a tenant's objects and those of its host: pure functions, without a client and
//! without I/O.
//!
//! ```text
//!  registry ──► kinds ──► translation ──► model
//! ```
//!
//! - [`model`] has the types of the rules: kinds and what they declare, objects as they are kept, the cache of both sides.
//! - [`translation`] has what the rules of several kinds share.
//! - [`kinds`] has the rules of each kind; [`registry`] is the one list of them.
//! - [`egress`] decides where the tenant's API server may connect to.
//! - [`admission`] and [`usage`] are the pure parts of servers of the syncer.
//! - [`permissions`] says what the syncer may do, for control, which grants it.

#![warn(missing_docs)]

pub mod admission;
pub mod egress;
pub mod kinds;
pub mod model;
pub mod permissions;
pub mod registry;
pub mod translation;
pub mod usage;

pub use model::{Tenant, json, resource, store};
