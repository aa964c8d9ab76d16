//! Pods outside of the namespaces of tenants do not say that a syncer made them. Control believes the label in workload namespaces only. With it
//! elsewhere, people and programs would take a pod for a tenant's.

use crate::{AdmissionPolicy, ResourceRule, Scope, Subjects, WRITES, cel, validation};

pub(crate) fn build_policy() -> AdmissionPolicy {
    AdmissionPolicy {
        name: "berth-pod-origin",
        description: "Pods outside of the namespaces of tenants do not carry the label of pods that syncers make.",
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
        validations: vec![validation(
            // Pods from before this policy can still be changed, so that finalizers can be removed.
            format!(
                "!({}) || (oldObject != null && {}) || {}",
                cel::is_managed_by_syncer("object"),
                cel::is_managed_by_syncer("oldObject"),
                cel::may_bypass_policies()
            ),
            "metadata.labels: only pods in the workload namespaces of tenants may carry berth.dev/managed-by=syncer",
        )],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_label_is_compared_as_a_whole() {
        let expression = build_policy().validations.remove(0).expression;
        // Without parentheses, the text would be negated and not the comparison.
        assert!(
            expression.starts_with(
                "!(object.metadata.?labels[?'berth.dev/managed-by'].orValue('') == 'syncer') || (oldObject != null && "
            ),
            "{expression}"
        );
    }
}
