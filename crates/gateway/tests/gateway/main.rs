//! The gateway between real TLS clients and servers of tenants.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail as tests do"
)]

mod limits;
mod routing;
mod setup;
mod waking;
