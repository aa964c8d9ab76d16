//! The syncer between real API servers. One file a subject; a new subject gets a file and, unless it needs a class of its
//! own, a line in the list below.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail as tests do"
)]

mod admission;
mod budgets;
mod certificates;
mod custom;
mod ingress;
mod limits;
mod network;
mod objects;
mod refusals;
mod refused;
mod resilience;
mod setup;
mod storage;

mod dra;
mod evictions;
mod groups;
mod late_denials;
mod nodes;
mod placement;
mod pod_credentials;
mod pods;
mod pods_of_a_class;
mod restart;
mod schedules;
mod schemas;
mod services;
mod tenant_scheduling;
mod workloads;

use setup::{Clusters, OLDER_VERSION, Setup};

/// One pair of clusters for all subjects: starting them takes most of the time.
async fn live(setup: Setup) {
    let mut clusters = Clusters::start_as(setup).await;
    let syncer = clusters.syncer().await;
    nodes::nodes_appear(&clusters).await;
    nodes::taints_follow_the_host_and_the_cordon(&clusters).await;
    placement::waiting_pods_follow_the_nodes(&clusters).await;
    placement::a_scheduler_of_the_tenant_places_single_pods(&clusters).await;
    workloads::a_deployment_runs(&clusters).await;
    workloads::a_gpu_job_completes(&clusters).await;
    services::a_service_has_one_address(&clusters).await;
    pods::denied_fields_are_reported(&clusters).await;
    pods::changes_reach_running_pods(&clusters).await;
    pods::a_denied_change_stays_denied_when_the_host_reports(&clusters).await;
    pods::conditions_of_others_are_never_lost(&clusters).await;
    refused::a_pod_whose_annotations_are_too_large_is_closed(&clusters).await;
    refused::a_pod_that_may_not_grow_is_closed(&clusters).await;
    refused::a_pod_that_the_host_refuses_is_closed(&clusters).await;
    pods::deletions_follow(&clusters).await;
    pods::the_time_to_end_is_limited(&clusters).await;
    limits::objects_beyond_a_limit_wait_and_say_why(&clusters).await;
    limits::requests_beyond_a_limit_wait_and_pods_without_requests_have_the_default(&clusters).await;
    limits::what_services_add_to_a_pod_is_limited(&clusters).await;
    workloads::an_evicted_pod_is_replaced(&clusters).await;
    evictions::pods_go_with_their_host_pods(&clusters).await;
    pods::gates_and_late_additions(&clusters).await;
    pod_credentials::tokens_are_renewed_in_place(&clusters).await;
    pod_credentials::trust_bundles_reach_pods(&clusters).await;
    certificates::signers_of_the_tenant_issue_for_pods(&clusters).await;
    pods::pods_see_themselves_as_in_a_cluster_of_their_own(&clusters).await;
    // It ends all pods.
    schedules::schedules_hold_and_end_pods(&clusters).await;
    nodes::nodes_go(&clusters).await;
    syncer.stop().await;
    limits::bytes_on_the_host_are_limited(&mut clusters).await;
    limits::pods_with_many_claims_wait_for_their_turn(&mut clusters).await;
    evictions::removals_are_noticed_after_a_restart(&clusters).await;
    restart::a_killed_syncer_goes_on(&clusters).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenants_life() {
    Box::pin(live(Setup::default())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_older_than_its_host() {
    let setup = Setup {
        tenant_version: OLDER_VERSION.into(),
        ..Setup::default()
    };
    Box::pin(live(setup)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_behaves_as_two_versions_earlier() {
    let setup = Setup {
        emulated: Some("1.35"),
        ..Setup::default()
    };
    Box::pin(live(setup)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_newer_than_its_host() {
    let setup = Setup {
        host_version: OLDER_VERSION.into(),
        ..Setup::default()
    };
    Box::pin(live(setup)).await;
}
