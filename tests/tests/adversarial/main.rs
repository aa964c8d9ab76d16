//! Attacks on a running system, each from the position of its attacker. Every test names the class of attack.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail as tests do"
)]

mod admission_policies;
mod agreement;
mod asleep;
mod credentials;
mod datastore;
mod egress;
mod host_first;
mod images;
mod node_join;
mod objects;
mod shared;
mod syncer;
mod workloads;

use berth_tests::{suite::Group, tests};
use std::process::ExitCode;

fn main() -> ExitCode {
    berth_tests::suite::run(
        "h100=3,l40s=1,cpu=1",
        vec![Group::alone(tests![
            credentials::tenant_admin_has_no_rights_elsewhere,
            credentials::tokens_are_rejected_elsewhere,
            credentials::nobody_gets_a_token_for_years,
            node_join::a_node_gets_no_certificate_but_its_own,
            node_join::a_bootstrap_token_gets_certificates_of_kubelets_alone,
            node_join::a_tenants_admin_gets_nothing_signed,
            datastore::a_tenants_etcd_certificate_opens_its_own_keys_only,
            datastore::a_tenants_etcd_certificate_opens_no_peer_port,
            syncer::a_stolen_syncer_identity_ends_at_its_namespaces,
            syncer::the_host_refuses_pods_that_leave_their_container,
            syncer::a_second_object_beside_one_of_the_syncers_is_deleted,
            admission_policies::a_stolen_syncer_credential_creates_only_what_the_class_allows,
            agreement::what_a_syncer_writes_is_what_the_policies_allow,
            admission_policies::only_the_platform_changes_assignments_of_nodes_and_namespaces,
            admission_policies::a_user_names_only_classes_and_pools_that_rbac_lets_it_use,
            admission_policies::classes_and_pools_are_named_only_in_namespaces_that_they_allow,
            admission_policies::a_user_gives_its_tenant_no_quota,
            admission_policies::a_stolen_gateway_token_sets_one_annotation,
            admission_policies::a_stolen_kubelet_credential_reaches_no_other_tenant,
            admission_policies::a_stolen_token_of_a_node_agent_offers_no_devices_of_others,
            admission_policies::events_about_pods_of_tenants_are_small,
            admission_policies::a_stolen_kubelet_credential_writes_no_large_objects,
            admission_policies::a_volume_that_no_claim_has_goes_to_no_tenant,
            admission_policies::an_agent_with_rights_on_the_status_of_pods_redirects_no_traffic,
            admission_policies::people_of_a_team_run_no_pods_on_nodes_of_tenants,
            admission_policies::people_of_a_team_remove_no_pod_that_may_run,
            admission_policies::the_host_reports_no_type_errors_in_the_policies,
            workloads::pods_that_reach_for_the_host_are_rejected_with_a_reason,
            images::a_team_runs_and_mounts_only_images_of_its_class,
            objects::objects_beyond_the_tenant_are_rejected_with_a_reason,
            objects::only_the_api_server_may_call_the_admission_webhook,
            egress::only_the_api_server_may_use_the_egress_broker,
            egress::connections_reach_their_target_or_nothing,
            egress::no_webhook_leads_to_the_api_server_itself,
            workloads::reserved_labels_and_owners_do_not_cross,
            asleep::a_tenant_that_sleeps_keeps_nothing_that_its_class_takes_away,
            host_first::a_team_that_changes_its_object_all_the_time_keeps_no_rule_away,
        ])],
    )
}
