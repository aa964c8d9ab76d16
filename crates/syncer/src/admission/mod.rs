//! Admission of the tenant's Services. To give a Service the same address inside and outside of the tenant, the syncer
//! creates the host's Service first and writes its addresses and ports into the tenant's Service before that is stored.
//! And admission of its large writes, which wait when there are too many.
//!
//! - [`configuration`] restores the webhook configuration in the tenant.
//! - [`server`] receives the requests: over TLS, and only from a client with the API server's own certificate.
//! - [`berth_sync_rules::admission`] has the configuration, reads requests and writes responses.
//! - `room` bounds the memory that requests take.
//! - [`services`] and `writes` decide.

pub mod configuration;
mod room;
pub mod server;
pub mod services;
mod writes;

pub use server::{Admission, AdmissionError};
