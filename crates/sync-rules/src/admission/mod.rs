//! Admission of the tenant's Services and of its large writes: the webhook configuration, the format of requests and responses, and how
//! fast a tenant may write.

pub mod configuration;
pub mod review;
pub mod writes;
