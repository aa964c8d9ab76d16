//! Berth's own chart: what it renders, what it refuses, and that a real API server accepts all of it. Installing it for real
//! is in the end-to-end suite.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail as tests do"
)]

mod alerts;
mod gateway;
mod images;
mod installers;
mod monitoring;
mod render;
mod roles;
mod scrapes;
mod server;
mod texts;
