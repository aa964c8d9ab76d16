//! Secrets: no type that the host fills with credentials.

use super::{AdmissionPolicy, ResourceRule, Scope, Subjects, WRITES, validation};

pub(super) fn build_policy() -> AdmissionPolicy {
    AdmissionPolicy {
        name: "berth-secrets",
        description: "Secrets of a tenant hold what the tenant wrote, never a token of the host.",
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::Everyone,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: "",
            version: "v1",
            resources: &["secrets"],
            operations: WRITES,
        }],
        variables: Vec::new(),
        validations: vec![validation(
            "!(object.?type.orValue('') in ['kubernetes.io/service-account-token', 'bootstrap.kubernetes.io/token'])",
            "Secrets of this type would be filled with a token of the host",
        )],
    }
}
