//! Attacks on a running system, each from the position of whoever would try it. Every test names the class of attack.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod admission_policies;
mod credentials;
mod datastore;
mod egress;
mod objects;
mod syncer;
mod workloads;

use berth_tests::{suite::Group, tests};
use std::process::ExitCode;

fn main() -> ExitCode {
    berth_tests::suite::run(
        "h100=2,l40s=1,cpu=1",
        vec![Group::alone(tests![
            credentials::a_tenants_admin_is_nobody_elsewhere,
            credentials::tokens_are_worth_nothing_elsewhere,
            datastore::a_tenants_etcd_certificate_opens_its_own_keys_only,
            syncer::a_stolen_syncer_identity_ends_at_its_namespaces,
            syncer::the_host_refuses_pods_that_leave_their_container,
            admission_policies::a_stolen_syncer_credential_creates_only_what_the_class_allows,
            admission_policies::only_the_platform_changes_assignments_of_nodes_and_namespaces,
            admission_policies::the_host_reports_no_type_errors_in_the_policies,
            workloads::pods_that_reach_for_the_host_are_refused_in_words,
            objects::what_would_reach_beyond_the_tenant_is_refused_in_words,
            objects::nobody_but_the_api_server_asks_the_admission_webhook,
            egress::nobody_but_the_api_server_uses_the_broker,
            egress::a_connection_goes_where_its_target_says_or_nowhere,
            workloads::reserved_labels_and_owners_do_not_cross,
        ])],
    )
}
