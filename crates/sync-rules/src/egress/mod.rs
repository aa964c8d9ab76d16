//! Where the tenant's API server may connect to.

pub mod local;
pub mod policy;
pub mod services;
pub mod target;
