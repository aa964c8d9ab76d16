//! Nodes that follow demand, on a real API server with simulated nodes. The tenants' control planes are fakes that accept
//! everything, and the tests themselves make the host pods that syncers would make: scheduler, evictions and nodes are real.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail as tests do"
)]

mod autoscaling;
mod closed;
mod demand;
mod devices;
mod drained;
mod explain;
mod foreign_pods;
mod idle;
mod in_use;
mod not_ready;
mod quota_sums;
mod random;
mod recorded_gpus;
mod rejected;
mod schedules;
mod setup;
mod unused;

use berth_tests::{
    suite::{Group, Suite, Test},
    tests,
};
use futures::FutureExt as _;
use setup::Control;
use std::process::ExitCode;

fn main() -> ExitCode {
    let scenarios: Vec<Test> = tests![
        demand::a_pending_pod_brings_a_node_and_an_idle_one_goes_back,
        demand::nominal_quota_is_reclaimed_from_borrowers,
        demand::gang_gets_all_its_nodes_or_waits,
        unused::a_pod_that_never_starts_does_not_keep_its_node,
        closed::a_pod_gets_a_node_on_which_it_can_start,
        devices::claims_of_devices_bring_nodes,
        devices::pool_learns_gpu_products_from_devices,
        autoscaling::missing_nodes_are_requested_from_an_autoscaler,
        idle::a_pod_with_idle_gpus_is_warned_and_evicted,
        rejected::rejected_reservation_moves_to_another_node,
        drained::a_quota_is_not_walked_around_by_nodes_that_drain,
        foreign_pods::a_pod_elsewhere_with_the_labels_of_a_tenants_keeps_no_node,
        in_use::a_node_on_which_the_platform_runs_a_pod_is_not_assigned,
        not_ready::a_group_gets_another_node_for_one_that_is_not_ready,
        recorded_gpus::a_node_that_reports_fewer_gpus_brings_its_tenant_no_other,
        quota_sums::sums_of_used_quota_agree_whatever_happens,
        schedules::a_stop_releases_the_nodes_and_gives_them_back,
        schedules::a_stop_of_workloads_is_published_and_keeps_the_nodes,
        random::no_node_ever_has_two_tenants,
    ];
    Suite::new(
        "h100=4,cpu=1",
        |nodes| setup::cluster(nodes).boxed_local(),
        vec![Group::alone(scenarios)],
    )
    .before_each(Control::ensure_first)
    .run()
}
