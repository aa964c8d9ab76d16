//! What Berth's whole-system tests and benchmarks share: a host cluster with control as its own process, and tenants.
//!
//! In tests `unwrap` and `expect` say what was assumed; a broken assumption is a failed test.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "helpers of tests fail as tests do"
)]

pub mod argo_cd;
pub mod canaries;
pub mod command_line;
pub mod dex;
pub mod dice;
pub mod dns;
pub mod fake;
pub mod files;
pub mod gateway;
pub mod git;
pub mod gpu_metrics;
pub mod helm;
pub mod hostile_api;
pub mod in_process;
pub mod issuer;
pub mod keeper;
pub mod kubectl;
pub mod objects;
pub mod observer;
pub mod page;
pub mod processes;
pub mod release;
pub mod scrape;
pub mod shell;
pub mod sleep;
pub mod suite;
pub mod team;
pub mod tenant;
pub mod test_cluster;
mod tls;
pub mod token;
pub mod versitygw;
pub mod wait;
