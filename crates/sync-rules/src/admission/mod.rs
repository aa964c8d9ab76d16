//! Admission of the tenant's Services: what its API server is told to ask, and how questions and answers are written.

pub mod configuration;
pub mod review;
