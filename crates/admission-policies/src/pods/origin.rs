//! Pods outside of the namespaces of tenants do not say that a syncer or control made them. Control believes these labels in its own namespaces only.
//! With them elsewhere, people and programs would take a pod for a tenant's, or for a placeholder.

use crate::{AdmissionPolicy, ResourceRule, Scope, Subjects, Validation, WRITES, cel, validation};
use berth_api::labels;

pub(crate) fn build_policy() -> AdmissionPolicy {
    AdmissionPolicy {
        name: "berth-pod-origin",
        description: "Pods outside of the namespaces of tenants do not carry the labels of pods that Berth makes.",
        scope: Scope::OtherNamespaces,
        subjects: Subjects::EveryoneAskedLast,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: "",
            version: "v1",
            resources: &["pods"],
            operations: WRITES,
        }],
        variables: Vec::new(),
        validations: vec![
            reserve(
                cel::is_managed_by_syncer,
                "metadata.labels: only pods in the workload namespaces of tenants may carry berth.dev/managed-by=syncer",
            ),
            reserve(
                |object| has_label(object, labels::TENANT),
                "metadata.labels: only pods in the namespaces of tenants may carry berth.dev/tenant",
            ),
            // Control may bypass this policy.
            reserve(
                |object| has_label(object, labels::PLACEHOLDER),
                "metadata.labels: only pods of control may carry berth.dev/placeholder",
            ),
        ],
    }
}

/// Rejects objects that are as `is_reserved` says. Pods from before this policy can still be changed, so that finalizers can be removed.
fn reserve(is_reserved: impl Fn(&str) -> String, message: &'static str) -> Validation {
    validation(
        format!(
            "!({}) || (oldObject != null && {}) || {}",
            is_reserved("object"),
            is_reserved("oldObject"),
            cel::may_bypass_policies()
        ),
        message,
    )
}

/// Whether an object has a label.
fn has_label(object: &str, key: &str) -> String {
    format!("'{key}' in {object}.metadata.?labels.orValue({{}})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_compared_as_a_whole() {
        let validations = build_policy().validations;
        // Without parentheses, the text would be negated and not the comparison.
        for (validation, begin) in validations.iter().zip([
            "!(object.metadata.?labels[?'berth.dev/managed-by'].orValue('') == 'syncer') || (oldObject != null && ",
            "!('berth.dev/tenant' in object.metadata.?labels.orValue({})) || (oldObject != null && ",
            "!('berth.dev/placeholder' in object.metadata.?labels.orValue({})) || (oldObject != null && ",
        ]) {
            let expression = &validation.expression;
            assert!(expression.starts_with(begin), "{expression}");
        }
        assert_eq!(validations.len(), 3);
    }
}
