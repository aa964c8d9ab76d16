//! Admission of the tenant's Services: the webhook configuration, and the format of requests and responses.

pub mod configuration;
pub mod review;
