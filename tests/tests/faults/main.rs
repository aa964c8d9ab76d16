//! kill -9 of every process, at bad moments: afterwards everything converges, nothing is duplicated, lost or left.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail as tests do"
)]

mod kills;

use berth_tests::{suite::Group, tests};
use std::process::ExitCode;

fn main() -> ExitCode {
    berth_tests::suite::run(
        "h100=3,cpu=1",
        vec![Group::alone(tests![
            kills::control_is_killed_while_tenants_are_created_and_deleted,
            kills::control_is_replaced_by_another,
            kills::syncer_is_killed_during_creates_and_deletes,
            kills::own_endpoints_go_while_a_syncer_does_not_come_back,
            kills::killed_api_server_and_controller_manager_come_back,
            kills::killed_datastore_comes_back,
            kills::killed_host_etcd_and_api_server_come_back,
        ])],
    )
}
