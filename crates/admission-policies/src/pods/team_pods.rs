//! Pods on the host that are neither a tenant's nor the platform's: people of a team may have the right to create some in the namespace of
//! their TenantClusters. On a node of another tenant they would be beside its pods, and stay while the node is recycled. On a free node their
//! processes would go on beside a tenant's if the pods were removed at once: the kubelet gives them the grace period of the pod even so, and control
//! would know nothing of them.
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

/// Who may delete pods in every namespace is the platform, and may remove them: the collector of pods whose node is gone, for example.
pub(crate) fn build_deletion_policy() -> AdmissionPolicy {
    // In a deletion it is what follows from the pod as well.
    let of_deletion = "request.?options.?gracePeriodSeconds.orValue(1)";
    let of_eviction = "dyn(object).?deleteOptions.?gracePeriodSeconds.orValue(1)";
    // A kubelet ends a pod whose own grace period is zero within a second or two.
    let leaves_nothing = "oldObject != null && (\
        oldObject.spec.?nodeName.orValue('') == '' || \
        oldObject.?status.?phase.orValue('') in ['Succeeded', 'Failed'] || \
        oldObject.spec.?terminationGracePeriodSeconds.orValue(30) == 0)";
    let rule = |resources, operations| ResourceRule {
        group: "",
        version: "v1",
        resources,
        operations,
    };
    AdmissionPolicy {
        name: "berth-team-pod-deletions",
        description: "Pods in namespaces with TenantClusters are not removed before their kubelet reports their end.",
        scope: Scope::OtherNamespaces,
        subjects: Subjects::EveryoneAskedLast,
        parameters: Some(ParameterKind::TenantClusterOfNamespace),
        conditions: vec![(
            "is-at-once",
            format!("(request.operation == 'DELETE' ? {of_deletion} : {of_eviction}) == 0"),
        )],
        resource_rules: vec![rule(&["pods"], &["DELETE"]), rule(&["pods/eviction"], &["CREATE"])],
        variables: Vec::new(),
        validations: vec![validation(
            format!(
                "({leaves_nothing}) || {} || {} || {}",
                cel::is_kubelet(),
                cel::may_delete_all_pods(),
                cel::may_bypass_policies()
            ),
            "a pod in a namespace with TenantClusters may not be removed by force: its processes go on; use a grace period of 1 or more",
        )],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_removals_without_a_kubelet_are_denied_and_others_cost_nothing() {
        let policy = build_deletion_policy();
        let [(_, condition)] = &policy.conditions[..] else {
            panic!("{:?}", policy.conditions)
        };
        // What names no grace period is not at once.
        assert_eq!(condition.matches(".orValue(1)").count(), 2, "{condition}");
        assert!(condition.ends_with(") == 0"), "{condition}");
        let expression = &policy.validations[0].expression;
        assert!(
            expression.starts_with("(oldObject != null && (oldObject.spec.?nodeName"),
            "{expression}"
        );
        assert!(
            expression.contains(".orValue(30) == 0)) || ('system:nodes' in "),
            "{expression}"
        );
    }

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
