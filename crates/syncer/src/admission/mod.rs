//! Admission of the tenant's Services: so that a Service has one address, inside and outside of the tenant, the host's
//! Service is made first and its addresses and ports are written into the tenant's on the way to its storage.
//!
//! - [`configuration`] keeps the webhook configuration in the tenant.
//! - [`server`] answers it: TLS, and only to who shows the API server's own certificate.
//! - [`berth_sync_rules::admission`] has the configuration, reads questions and writes answers.
//! - [`services`] decides.

pub mod configuration;
pub mod server;
pub mod services;

pub use server::{Admission, AdmissionError};
