//! Admission of the tenant's Services: so that a Service has one address, inside and outside of the tenant, the host's
//! Service is made first and its addresses and ports are written into the tenant's on the way to its storage.
//!
//! - [`configuration`] is what the tenant's API server is told, and kept true.
//! - [`server`] answers it: TLS, and only to who shows the API server's own certificate.
//! - [`review`] reads questions and writes answers.
//! - [`services`] decides.

pub mod configuration;
pub mod review;
pub mod server;
pub mod services;

pub use configuration::configuration;
pub use server::{Admission, AdmissionError};
