//! Tenants from beginning to end, on real API servers and simulated GPU nodes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod classes;
mod control_planes;
mod deletion;
mod dns;
mod handover;
mod input;
mod lifecycle;
mod network;
mod nodes;
mod published;
mod services;
mod shared;
mod usage;

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
                nodes::the_last_node_goes_to_the_first_who_asked,
                nodes::a_group_grows_and_shrinks,
                shared::work_without_gpus_runs_side_by_side,
                handover::every_state_in_its_turn_and_mended_by_the_way,
                handover::what_fails_or_hangs_is_quarantined_until_people_say_so,
                handover::a_node_that_vanishes_while_it_is_cleaned_is_cleaned_when_it_is_back,
                handover::pools_that_cannot_be_are_refused,
                network::policies_follow_the_spec_and_heal,
                network::policies_outlast_pods,
                services::one_address_for_each_of_two_tenants,
                input::schemas_refuse_what_cannot_be,
                input::what_cannot_be_carried_out_is_told_and_makes_nothing,
                input::a_foreign_secret_is_not_overwritten,
                classes::schemas_refuse_rules_that_cannot_be,
                classes::the_examples_are_valid,
                classes::what_a_class_does_not_allow_is_told_and_makes_nothing,
                classes::a_change_reaches_tenants_and_a_deletion_takes_nothing_down,
                classes::a_scheduler_comes_and_goes_with_the_word_of_class_and_tenant,
                classes::priority_classes_follow_the_band,
                classes::further_kinds_need_the_host_and_rights,
                classes::a_kind_of_the_host_is_defined_in_the_tenant,
                dns::names_of_the_tenant_and_of_nobody_else,
                dns::teams_customise_it_in_words_that_are_checked,
                usage::a_host_that_measures_nothing_is_told,
                control_planes::pods_are_accepted_rolled_out_and_stopped,
                published::what_is_free_and_which_devices_there_are,
                deletion::nothing_is_left,
                deletion::while_it_is_being_created,
                deletion::twice_and_with_a_dead_api_server,
                deletion::a_namesake_starts_empty,
            ]),
            // It kills control, which others wait for.
            Group::alone(tests![deletion::a_finalizer_taken_off_by_hand]),
        ],
    )
}
