//! Berth as users run it: real kubelets and containers on this machine, packets that policies stop, control planes as pods.
//! One cluster for all tests; it is made once a run and leaves nothing, also after a failure.
//!
//! # How to add tests
//! Put them into a file of their subject beside this one, as `pub(crate) async fn name(host: Arc<TestCluster>)`, and name them
//! in `main` below: among those that run together if they only need pods, alone if they break or measure something that
//! others use. Two tenants are there for all tests and are never deleted by one: [`teams::vision`] (two nodes with 8 GPUs
//! each) and [`teams::speech`] (one node with 4). A test makes a namespace of its own in them ([`pods::Space`]), so that
//! it does not meet objects of other tests; a test that changes a tenant itself makes its own with
//! [`berth_tests::tenant::Tenant`] (there is one more node, `gpu-l40s-02`).
//!
//! [`pods`] has pods that run a shell script and return its output, [`berth_tests::kubectl`] kubectl with a team's
//! kubeconfig. Wait with [`berth_tests::wait`], never by sleeping. The whole suite must stay below six minutes on two
//! cores.
//!
//! `make e2e` runs all; `cargo test --workspace --test e2e -- <part of a name>` some. Both need root and what `make nodes`
//! builds; elsewhere the tests are not run, and say so. That of [`snapshots`] also needs an S3 server, and runs where there is time for that
//! (`hack/test`).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail as tests do"
)]

mod attacks;
mod berth;
mod cli;
mod dns;
mod evictions;
mod gpu_toolkit;
mod hostile_api;
mod kept_connection;
mod lost_mount;
mod network;
mod node_failures;
mod node_recycling;
mod node_risks;
mod node_taints;
mod on_node;
mod pod_lifecycle;
mod pods;
mod reach;
mod shared;
mod snapshots;
mod streams;
mod teams;
mod usage;

use berth_tests::{
    suite::{Group, run_on_real_nodes},
    tests,
};
use std::process::ExitCode;

fn main() -> ExitCode {
    run_on_real_nodes(
        "cpu=1,h100=2,l40s=2",
        vec![
            Group::together(
                6,
                tests![
                    pod_lifecycle::workloads_of_every_kind_run,
                    pod_lifecycle::every_pod_has_devices_of_its_own,
                    pod_lifecycle::changed_configuration_reaches_volumes,
                    pod_lifecycle::init_containers_and_sidecars_start_in_order,
                    pod_lifecycle::a_container_that_fails_its_probe_is_restarted,
                    pod_lifecycle::container_exits_are_reported,
                    pod_lifecycle::a_deleted_pod_has_time_to_end,
                    pod_lifecycle::an_ephemeral_container_joins_a_pod,
                    pod_lifecycle::a_claimed_device_is_prepared_on_the_node,
                    pod_lifecycle::a_pod_calls_its_own_api_server,
                    dns::pods_find_their_services_by_name,
                    evictions::a_job_goes_on_after_the_host_evicted_its_pod,
                    evictions::a_deployment_replaces_a_pod_that_the_host_evicts,
                    usage::teams_see_usage_and_scale_by_it,
                    streams::logs_are_read_as_from_a_kubelet,
                    streams::commands_run_in_containers,
                    streams::ports_are_forwarded,
                    cli::a_tenant_is_reached_through_the_host_and_its_logs_are_read,
                    streams::an_older_api_server_streams_as_well,
                    network::the_table_of_the_documentation_holds,
                    reach::pods_serve_webhooks_and_are_proxied_to,
                    reach::webhooks_reach_nothing_but_the_tenants_own,
                    hostile_api::hostile_servers_keep_back_their_own_kinds_only,
                    attacks::pods_reach_no_node_and_no_other_tenant,
                    attacks::a_shell_on_a_node_is_refused,
                    attacks::a_stolen_syncer_makes_no_pod_that_reaches_the_host,
                    shared::two_tenants_on_one_node_do_not_meet,
                ],
            ),
            // Alone: other tests' connections to the node would fail meanwhile.
            Group::together(1, tests![streams::an_edited_node_leads_nowhere_else]),
            Group::together(
                3,
                tests![
                    node_failures::unreachable_node_is_reported,
                    node_failures::pods_outlive_their_kubelet,
                    node_failures::pods_outlive_their_container_runtime,
                    node_failures::devices_stay_with_their_pods_when_the_plugin_dies,
                    node_failures::failed_gpu_is_no_longer_allocatable,
                    node_recycling::a_node_is_clean_when_the_next_tenant_gets_it,
                ],
            )
            .that_can_break_it(),
            Group::alone(tests![
                node_recycling::a_process_that_ignores_sigterm_keeps_no_node,
                node_recycling::a_process_that_ignores_sigterm_keeps_no_tenant,
                gpu_toolkit::an_unsafe_container_toolkit_keeps_a_node,
                node_risks::risks_of_a_node_are_reported_and_can_keep_it,
                node_taints::full_and_cordoned_nodes_have_their_taints,
                berth::a_team_is_served_while_its_control_plane_moves,
                berth::a_rollout_refuses_no_request,
                berth::a_tenant_is_created_and_deleted_while_control_is_killed,
                snapshots::a_tenant_in_pods_is_set_back_from_a_bucket_while_control_is_killed,
            ]),
        ],
    )
}
