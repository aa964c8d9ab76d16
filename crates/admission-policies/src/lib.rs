//! The ValidatingAdmissionPolicies of Berth: requests that the host's API server rejects, from any client.
//!
//! A syncer follows the rules of its tenant's class. If its credential is stolen, these policies enforce the same rules. They
//! are plain data: [`all_policies`] lists them, `berth_control::install` applies them to local clusters, the Helm chart
//! carries the same objects in `charts/berth/files/admission-policies.yaml`.
//!
//! Policies read what a class allows from annotations of the workload namespace ([`berth_api::policy_annotations`]). Policies on
//! objects of the platform (nodes, namespaces) ask the host's RBAC instead of listing users: who has the verb `bypass` on
//! `admissionpolicies.berth.dev` may change them. That is control, and cluster-admins, who could delete the policies as well.
//! Which classes and pools a user may name in a TenantCluster is asked of RBAC as well: the verb [`USE`]. Which namespaces they may be
//! named in is read from all classes and pools, which are the parameters of two policies.
//!
//! [`mutating_policies`] change requests before these policies see them, on hosts that can do that. Nothing depends on them.

mod annotations;
mod cel;
mod devices;
mod events;
mod field_checks;
mod metadata;
mod network;
mod nodes;
mod null_fields;
mod pods;
mod policy;
mod rights;
mod room;
mod secrets;
mod sizes;
mod storage;
mod tenants;

#[cfg(test)]
mod cost_tests;

pub use null_fields::{LeftOut, NULL_FIELDS, NULL_FIELDS_OF, NullField, READ_NULL_FIELDS};
pub use policy::{AdmissionPolicy, ParameterKind, ResourceRule, Scope, Subjects, Validation};
pub use rights::{BYPASS, MIRROR_PODS, RESOURCE, SERVE};
pub use tenants::tenant_clusters::{USE, USED_RESOURCES};

use k8s_openapi::api::admissionregistration::v1::{MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding};
use network::{endpoints, ingresses_and_routes, network_policies, services};
use nodes::{kubelet_sizes, kubelets, tenant_nodes};
use pods::{device_variables, team_pods, user_quotas};
use policy::{WRITES, build_metadata, match_condition, validation};
use tenants::{allowed_namespaces, gateway, namespaces, snapshot_triggers, tenant_clusters};

/// Every policy of Berth.
pub fn all_policies() -> Vec<AdmissionPolicy> {
    let mut policies = pods::build_policies();
    policies.extend([
        annotations::build_policy(),
        secrets::build_policy(),
        device_variables::build_policy(),
        services::build_policy(),
        endpoints::build_policy(),
        events::build_policy(),
        user_quotas::build_policy(),
    ]);
    policies.extend(metadata::build_policies());
    policies.extend(pods::status::build_policies());
    policies.extend(storage::build_policies());
    policies.extend(devices::build_policies());
    policies.extend(ingresses_and_routes::build_policies());
    policies.extend(sizes::build_policies());
    policies.extend(room::build_policies());
    policies.extend(allowed_namespaces::build_policies());
    policies.extend(kubelets::build_policies());
    policies.extend([
        kubelet_sizes::build_policy(),
        namespaces::build_policy(),
        network_policies::build_policy(),
        nodes::build_policy(),
        pods::origin::build_policy(),
        team_pods::build_policy(),
        team_pods::build_deletion_policy(),
        tenant_nodes::build_policy(),
        tenant_clusters::build_policy(),
        tenant_clusters::build_status_policy(),
        snapshot_triggers::build_policy(),
        gateway::build_policy(),
    ]);
    policies
}

/// Policies that change requests, with their bindings. Hosts have the kinds from Kubernetes 1.36 on.
pub fn mutating_policies() -> [(MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding); 1] {
    [events::build_mutating_policy()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn policies_have_unique_names_and_a_message_for_every_rejection() {
        let all = all_policies();
        let mut names: BTreeSet<String> = all.iter().map(|policy| policy.name.to_owned()).collect();
        let changing = mutating_policies();
        names.extend(changing.iter().filter_map(|(policy, _)| policy.metadata.name.clone()));
        assert_eq!(names.len(), all.len() + changing.len());
        for policy in &all {
            let name = policy.name;
            assert!(name.starts_with("berth-"), "{name}");
            assert!(
                !policy.validations.is_empty() && !policy.resource_rules.is_empty(),
                "{name}"
            );
            for Validation { message, .. } in &policy.validations {
                // One line, no longer than the API server accepts. The API server puts it into a sentence.
                assert!(
                    (20..200).contains(&message.len()) && !message.ends_with('.'),
                    "{message}"
                );
            }
        }
    }

    #[test]
    fn parameters_are_read_by_the_policies_that_have_them_and_by_no_other() {
        for policy in all_policies() {
            let variables = policy.variables.iter().map(|(_, expression)| expression);
            let mut expressions = variables.chain(policy.validations.iter().map(|validation| &validation.expression));
            let reads = expressions.any(|expression| expression.contains("params."));
            let has_some = policy.parameters.is_some();
            // That there is a TenantCluster may be all that a policy needs to know.
            let may_be_unread = policy.parameters == Some(ParameterKind::TenantClusterOfNamespace);
            assert!(reads == has_some || may_be_unread, "{}", policy.name);
            let kind = policy.build_policy().spec.and_then(|spec| spec.param_kind);
            let reference = policy.build_binding().spec.param_ref;
            assert_eq!(
                (kind.is_some(), reference.is_some()),
                (has_some, has_some),
                "{}",
                policy.name
            );
        }
    }

    #[test]
    fn conditions_are_evaluated_for_every_policy_that_has_some() {
        for policy in all_policies() {
            let conditions = policy.build_policy().spec.and_then(|spec| spec.match_conditions);
            let subjects = usize::from(policy.subject_condition().is_some());
            let count = conditions.as_ref().map_or(0, Vec::len);
            assert_eq!(count, subjects + policy.conditions.len(), "{}", policy.name);
            for (_, expression) in &policy.conditions {
                for unknown in ["variables.", "namespaceObject"] {
                    assert!(!expression.contains(unknown), "{}", policy.name);
                }
            }
        }
    }

    #[test]
    fn rbac_is_asked_about_everyone_but_the_tenants_own_identities() {
        for policy in all_policies() {
            let conditions = policy.build_policy().spec.and_then(|spec| spec.match_conditions);
            let Some(first) = conditions.and_then(|all| all.into_iter().next()) else {
                continue;
            };
            let asks = first.expression.ends_with(&format!("!{}", cel::may_bypass_policies()));
            assert_eq!(asks, policy.subjects == Subjects::Everyone, "{}", policy.name);
            let is_exempt = first.expression.starts_with(&cel::is_tenant_identity());
            assert_eq!(
                asks && is_exempt,
                policy.subjects == Subjects::Everyone && policy.scope == Scope::WorkloadNamespaces,
                "{}",
                policy.name
            );
        }
    }

    /// They have no condition that asks RBAC.
    #[test]
    fn policies_on_cluster_scoped_objects_on_events_and_for_others_on_the_host_ask_rbac_last() {
        let late = [Subjects::EveryoneAskedLast, Subjects::OthersOnHost];
        let asks_last = |policy: &AdmissionPolicy| policy.scope == Scope::Cluster || late.contains(&policy.subjects);
        for policy in all_policies().into_iter().filter(asks_last) {
            for Validation { expression, message } in &policy.validations {
                let asks = expression.ends_with(&format!("|| {}", cel::may_bypass_policies()));
                assert!(asks, "{}: {message}", policy.name);
            }
        }
    }

    #[test]
    fn no_policy_keeps_the_platform_from_deleting_objects() {
        let policies = all_policies().into_iter();
        let everyone = [Subjects::Everyone, Subjects::EveryoneAskedLast];
        for policy in policies.filter(|policy| everyone.contains(&policy.subjects)) {
            let lets = |user: &str| {
                let mut validations = policy.validations.iter();
                validations.all(|validation| validation.expression.contains(&format!(" || {user}")))
            };
            let lets_platform = lets(&cel::is_kubelet()) && lets(&cel::may_delete_all_pods());
            for rule in &policy.resource_rules {
                let sees_deletions = rule.operations.contains(&"DELETE");
                assert!(!sees_deletions || lets_platform, "{}", policy.name);
            }
        }
    }
}
