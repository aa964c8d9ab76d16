//! Operators that teams with GPUs use, installed into a tenant by their own charts, unchanged; see docs/reference/compatibility.md.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail as tests do"
)]

mod chart;
mod host_objects;
mod jobset;
mod kueue;
mod leader_worker_set;
mod team;

use berth_tests::{
    suite::{Group, run_on_real_nodes},
    tests,
};
use std::process::ExitCode;

fn main() -> ExitCode {
    run_on_real_nodes(
        "cpu=1,h100=3",
        vec![Group::alone(tests![
            jobset::replicated_jobs_of_a_training_run,
            leader_worker_set::groups_of_an_inference_service,
            kueue::jobs_wait_for_their_queue,
            team::nothing_is_left_on_the_host,
        ])],
    )
}
