//! Admission of the tenant's Services: the webhook configuration, and how questions and answers are written.

pub mod configuration;
pub mod review;
