//! Tenants from beginning to end, on real API servers and simulated GPU nodes.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail as tests do"
)]

mod access;
mod argo_cd;
mod audit;
mod class_kinds;
mod class_schemas;
mod classes;
mod cli;
mod control_planes;
mod credentials;
mod default_versions;
mod deletion;
mod dns;
mod encryption;
mod expiration;
mod flux;
mod gateway;
mod gpu_clients;
mod input;
mod integrations;
mod leadership;
mod lifecycle;
mod limits;
mod metering;
mod metering_readers;
mod network;
mod node_recycling;
mod nodes;
mod own_objects;
mod platform_kinds;
mod platform_objects;
mod platform_requests;
mod published;
mod quotas;
mod rate_cards;
mod reservations;
mod restore;
mod schedules;
mod services;
mod shared;
mod sign_in;
mod sign_in_canaries;
mod sign_in_dex;
mod sign_in_kubeconfig;
mod sleep;
mod sleep_commands;
mod sleep_cron;
mod sleep_random;
mod sleep_use;
mod snapshots;
mod unreadable;
mod usage;
mod user_claims;
mod user_quotas;
mod user_stamps;
mod versions;
mod wake;

use berth_tests::{suite::Group, tests};
use std::process::ExitCode;

fn main() -> ExitCode {
    berth_tests::suite::run(
        "h100=5,l40s=3,cpu=2",
        vec![
            Group::at_once(tests![
                lifecycle::examples_run_on_the_tenants_own_nodes,
                lifecycle::every_version_runs_and_is_upgraded_to_the_next,
                lifecycle::five_tenants_at_once,
                default_versions::tenants_keep_the_version_that_their_class_gave_them,
                nodes::last_node_goes_to_the_first_request,
                nodes::a_group_grows_and_shrinks,
                shared::work_without_gpus_runs_side_by_side,
                node_recycling::node_states_follow_in_order_and_drift_is_corrected,
                node_recycling::failed_scrub_quarantines_a_node_until_it_is_released,
                node_recycling::deleted_node_is_scrubbed_when_it_returns,
                node_recycling::invalid_pools_are_rejected,
                access::what_is_forbidden_later_is_withdrawn_after_its_grace_period,
                network::policies_follow_the_spec_and_drift_is_corrected,
                network::policies_outlast_pods,
                services::one_address_for_each_of_two_tenants,
                input::schemas_reject_invalid_tenants,
                versions::the_next_version_is_compared_with_what_runs,
                input::impossible_spec_is_reported_and_creates_nothing,
                input::a_foreign_secret_is_not_overwritten,
                cli::a_tenant_is_created_used_and_deleted_by_the_command_line,
                class_schemas::schemas_reject_invalid_rules,
                class_schemas::the_examples_are_valid,
                classes::spec_that_the_class_forbids_is_reported_and_creates_nothing,
                classes::changed_class_reaches_tenants_and_deleted_class_stops_none,
                classes::scheduler_runs_while_class_and_tenant_want_it,
                classes::priority_classes_follow_the_band,
                audit::a_class_says_what_api_servers_log_and_no_credential_is_in_it,
                class_kinds::additional_kinds_need_a_definition_and_permissions,
                class_kinds::a_kind_of_the_host_is_defined_in_the_tenant,
                limits::services_and_writes_beyond_the_limits_are_refused,
                limits::resources_by_name_are_limited_and_reserved,
                limits::a_tenant_cannot_store_more_than_its_share_whoever_asks,
                own_objects::objects_of_every_api_server_are_listed,
                platform_objects::nobody_in_a_tenant_changes_the_platforms_objects,
                platform_objects::manifests_follow_their_class_and_surplus_is_deleted,
                platform_objects::drift_in_a_tenant_of_an_earlier_version_is_corrected,
                platform_kinds::the_platforms_objects_go_to_no_kind_of_the_teams,
                platform_requests::policies_and_webhooks_of_a_tenant_do_not_see_the_platforms_requests,
                expiration::a_tenant_is_warned_extended_and_deleted,
                expiration::a_class_limits_how_long_tenants_exist,
                expiration::the_example_runs_a_command_in_a_tenant_of_its_own,
                flux::the_example_of_flux_is_applied_in_the_tenant,
                dns::tenant_resolves_only_its_own_names,
                dns::dns_customization_is_validated,
                usage::host_without_metrics_is_reported,
                leadership::a_leader_that_cannot_renew_its_lease_ends_before_another_one_leads,
                control_planes::pods_are_accepted_rolled_out_and_stopped,
                quotas::schemas_reject_invalid_quotas,
                quotas::the_examples_of_quotas_are_valid,
                metering_readers::a_team_sees_its_own_usage_and_readers_that_of_all,
                rate_cards::schemas_reject_invalid_prices,
                rate_cards::the_examples_of_prices_are_valid,
                rate_cards::records_keep_their_tenant_and_month_and_never_go_back,
                reservations::what_exists_stays_reserved_when_a_class_gets_smaller,
                reservations::a_project_is_deleted_after_its_tenants,
                user_stamps::users_are_stamped_and_nobody_forges_them,
                user_claims::a_claim_that_is_replaced_by_a_larger_one_counts_before_its_pod_starts,
                user_quotas::pods_of_one_user_that_wait_leave_room_for_others,
                user_quotas::schemas_reject_invalid_limits_of_users,
                sign_in::people_sign_in_with_tokens_of_issuers,
                sign_in::schemas_reject_invalid_authentication,
                sign_in::berth_token_signs_in_once_and_refreshes,
                sign_in::berth_token_signs_in_with_a_browser,
                sign_in_canaries::what_berth_token_handles_is_in_no_message_argument_or_readable_file,
                sign_in_dex::people_sign_in_at_dex_in_both_flows,
                sign_in_kubeconfig::a_kubeconfig_without_a_secret_signs_in_who_may_only_get_the_tenant,
                published::available_capacity_and_devices_are_published,
                schedules::schemas_reject_invalid_schedules,
                schedules::examples_and_their_next_changes,
                schedules::a_zone_that_does_not_exist_is_reported,
                sleep::a_tenant_sleeps_and_many_requests_wake_it_once,
                sleep::a_tenant_is_deleted_while_it_sleeps_and_while_it_wakes,
                sleep::an_admin_removed_in_a_sleep_has_no_right_when_the_tenant_wakes,
                sleep_commands::the_command_line_lets_a_tenant_sleep_and_wakes_it,
                sleep_cron::a_tenant_wakes_for_a_run_of_a_cron_job_which_happens_once,
                sleep_use::requests_of_people_are_use_and_those_of_the_control_plane_are_not,
                unreadable::manifests_hold_over_objects_that_control_cannot_read,
                deletion::deleted_tenant_leaves_nothing,
                deletion::tenant_is_deleted_during_its_creation,
                deletion::tenant_is_deleted_twice_and_without_its_api_server,
                deletion::new_tenant_of_the_same_name_starts_empty,
                node_recycling::nodes_that_somebody_marks_are_scrubbed,
                snapshots::schemas_reject_invalid_snapshots,
                snapshots::the_examples_of_snapshots_are_valid,
                snapshots::a_tenant_is_set_back_to_a_snapshot_and_who_was_removed_has_no_right,
                snapshots::damaged_and_foreign_snapshots_are_refused_and_nothing_is_touched,
                restore::copy::the_objects_of_a_deleted_tenant_are_read_in_a_backup,
            ]),
            that_stop_control(),
        ],
    )
}

/// They stop control, which other tests need.
fn that_stop_control() -> Group {
    Group::alone(tests![
        deletion::removed_finalizer_leaves_nothing,
        unreadable::objects_that_control_cannot_read_stop_nothing,
        sleep::control_is_killed_while_a_tenant_falls_asleep_and_wakes,
        gpu_clients::programs_leave_gpus_for_a_scrub_and_return_although_control_is_killed,
        metering::nothing_is_counted_twice_although_control_is_killed,
        quotas::many_tenants_at_once_and_another_leader_do_not_exceed_the_quota,
        sleep_random::nothing_is_lost_in_random_sleeps_and_nothing_runs_twice,
        gateway::a_team_works_through_the_gateway,
        credentials::old_certificates_are_refused_after_a_rotation_while_control_is_killed,
        credentials::a_secret_in_the_way_stops_neither_access_rules_nor_a_rotation,
        encryption::secrets_are_encrypted_in_etcd_and_read_after_a_restart_and_a_rotation,
        snapshots::control_is_killed_while_a_tenant_is_set_back,
        restore::encryption::a_tenant_whose_keys_are_lost_goes_on_once_they_are_restored,
        restore::keys::kubeconfigs_are_accepted_again_once_the_keys_of_a_tenant_are_restored,
        restore::datastore::tenants_are_as_in_the_backup_and_what_it_lacks_is_not_lost,
        platform_objects::objects_in_the_way_keep_no_manifest_back,
        wake::a_storm_wakes_each_sleeper_once_and_watches_outlast_the_gateway,
        integrations::a_tenant_is_a_cluster_of_argo_cd_while_it_asks_for_it,
        integrations::argo_cd_elsewhere_goes_through_the_gateway,
        argo_cd::the_example_of_argo_cd_is_applied_in_tenants,
        user_quotas::many_pods_at_once_do_not_exceed_the_limit_of_their_user,
    ])
}
