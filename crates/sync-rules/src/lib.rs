//! The rules by which a tenant's objects and those of its host are made of each other: pure functions, without a client
//! and without I/O.
//!
//! - [`kinds`] has the rules of each kind.
//! - [`world`] is what kinds may look at; [`store`] keeps what both sides look like.
//! - [`egress`] decides where the tenant's API server may connect to.
//! - [`admission`] and [`usage`] are the pure parts of the servers of the syncer.
//! - [`permissions`] says what the syncer may do, for whoever grants it.

pub mod admission;
pub mod egress;
pub mod json;
pub mod kinds;
pub mod permissions;
pub mod resource;
pub mod store;
pub mod tenant;
pub mod usage;
pub mod world;

pub use tenant::Tenant;
