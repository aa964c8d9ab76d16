//! Pods on the host that are neither a tenant's nor the platform's: people of a team may have the right to create some in the namespace of
//! their TenantClusters. On a node of another tenant they would be beside its pods, and stay while the node is recycled.
//!
//! A policy with parameters is ignored if its evaluation fails, also because it costs too much. So the expressions go through few tolerations only,
//! and what has more is decided without a look at them.

use crate::{AdmissionPolicy, ParameterKind, ResourceRule, Scope, Subjects, WRITES, cel, validation};
use berth_api::labels;

/// Most tolerations of a pod. API servers have no limit, and let people add to those of a pod that exists.
const TOLERATIONS: usize = 500;

pub(crate) fn build_policy() -> AdmissionPolicy {
    // Without a key, a toleration is of every taint.
    let tolerates = |list: &str| {
        format!(
            "variables.{list}.exists(t, t.?key.orValue('') in ['', '{}'])",
            labels::TENANT
        )
    };
    let list = |object: &str| cel::list(&format!("{object}.spec"), "tolerations");
    AdmissionPolicy {
        name: "berth-team-pods",
        description: "Pods in namespaces with TenantClusters do not tolerate the taint of nodes that are assigned to one tenant.",
        scope: Scope::OtherNamespaces,
        subjects: Subjects::Everyone,
        parameters: Some(ParameterKind::TenantClusterOfNamespace),
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: "",
            version: "v1",
            resources: &["pods"],
            operations: WRITES,
        }],
        variables: vec![
            ("tolerations", list("object")),
            (
                "oldTolerations",
                format!("oldObject == null ? [] : {}", list("oldObject")),
            ),
        ],
        validations: vec![
            // A pod that is older than this limit may still change otherwise. Whether its list has grown says nothing: one of two that are
            // alike can become another.
            validation(
                format!(
                    "variables.tolerations.size() <= {TOLERATIONS} || variables.tolerations == variables.oldTolerations"
                ),
                "spec.tolerations: a pod in a namespace with TenantClusters may have at most 500; a pod that has more must keep them as they are",
            ),
            validation(
                format!(
                    "variables.tolerations.size() > {TOLERATIONS} || !{} || \
                     (variables.oldTolerations.size() <= {TOLERATIONS} && {})",
                    tolerates("tolerations"),
                    tolerates("oldTolerations")
                ),
                "spec.tolerations: pods in a namespace with TenantClusters may not tolerate the taint berth.dev/tenant, nor every taint",
            ),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_of_tolerations_makes_the_policy_too_expensive() {
        let policy = build_policy();
        let [most, tolerated] = &policy.validations[..] else {
            panic!("{:?}", policy.validations)
        };
        assert_eq!(
            most.expression,
            "variables.tolerations.size() <= 500 || variables.tolerations == variables.oldTolerations"
        );
        assert!(most.message.contains("at most 500"));
        // The order counts: nothing is gone through before its number is known.
        for guarded in [
            "variables.tolerations.size() > 500 || !variables.tolerations.exists(",
            "(variables.oldTolerations.size() <= 500 && variables.oldTolerations.exists(",
        ] {
            assert!(tolerated.expression.contains(guarded), "{}", tolerated.expression);
        }
        assert!(
            tolerated
                .expression
                .starts_with("variables.tolerations.size() > 500 || ")
        );
    }
}
