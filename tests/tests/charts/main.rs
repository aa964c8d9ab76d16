//! Operators that teams with GPUs use, installed into a tenant by their own charts, unchanged; see docs/compatibility.md.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod chart;
mod host;
mod jobset;
mod kueue;
mod leader_worker_set;
mod operator;

use berth_tests::tests;
use std::process::ExitCode;

fn main() -> ExitCode {
    berth_tests::suite::run(
        "h100=8,l40s=1,cpu=1",
        true,
        tests![
            jobset::replicated_jobs_of_a_training_run,
            leader_worker_set::groups_of_an_inference_service,
            kueue::jobs_wait_for_their_queue,
        ],
    )
}
