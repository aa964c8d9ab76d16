//! Nodes that follow demand, on a real API server with simulated nodes. The tenants' control planes are fakes that agree to
//! everything, and the tests themselves make the host pods that syncers would make: scheduler, evictions and nodes are real.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod autoscaling;
mod demand;
mod devices;
mod explain;
mod random;
mod refused;
mod setup;

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
        demand::a_guarantee_is_taken_back_from_whoever_borrowed,
        demand::a_gang_waits_or_gets_all,
        devices::claims_of_devices_bring_nodes,
        devices::a_pool_learns_of_its_products_by_their_devices,
        autoscaling::what_no_node_is_there_for_is_asked_of_an_autoscaler,
        refused::another_node_is_promised,
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
