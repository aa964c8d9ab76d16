//! Namespaces: labels and annotations say which tenant a namespace belongs to, what it is for, what the tenant's class allows
//! and which Pod Security level applies, so only control may write them.
//!
//! Control takes a namespace with the name of one of a tenant for the tenant's, and who sees a TenantCluster knows the name. Where people create namespaces
//! for themselves, they have rights in them: who creates such a namespace before control does would keep these rights beside the keys of the tenant.
//!
//! The host's garbage collector deletes what has an owner that does not exist. So the right to label namespaces would be the right to delete them.

use crate::{AdmissionPolicy, ResourceRule, Scope, Subjects, WRITES, cel, validation};
use berth_api::labels;

/// The host's garbage collector: kube-controller-manager, with one identity for all its controllers or one for each. It removes owners that do not exist
/// beside others, and those of objects that are to stay when their owner is deleted.
const COLLECTORS: [&str; 2] = [
    "system:kube-controller-manager",
    "system:serviceaccount:kube-system:generic-garbage-collector",
];

pub(crate) fn build_policy() -> AdmissionPolicy {
    let reserved = cel::is_reserved_key("k");
    let security = "k.startsWith('pod-security.kubernetes.io/')";
    let is_tenant_namespace = format!(
        "('{0}' in variables.labels || '{0}' in variables.oldLabels)",
        labels::ROLE
    );
    let unchanged = |map: &str, old: &str, which: &str| format!("({})", cel::entries_unchanged(map, old, which));
    AdmissionPolicy {
        name: "berth-namespaces",
        description: "Labels and annotations of berth.dev on namespaces, and the Pod Security level of tenants' namespaces, can be changed by the platform \
                      only, which alone creates namespaces with names like theirs.",
        scope: Scope::Cluster,
        subjects: Subjects::Everyone,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: "",
            version: "v1",
            resources: &["namespaces", "namespaces/status", "namespaces/finalize"],
            operations: WRITES,
        }],
        variables: cel::metadata_variables().into(),
        validations: vec![
            validation(
                cel::metadata_has_few_entries(),
                "a namespace may have at most 1,000 labels and 1,000 annotations; only the platform may change one that has more",
            ),
            validation(
                format!(
                    "({} && {}) || {}",
                    unchanged("labels", "oldLabels", &reserved),
                    unchanged("annotations", "oldAnnotations", &reserved),
                    cel::may_bypass_policies()
                ),
                "only the platform may change labels and annotations of berth.dev on namespaces",
            ),
            validation(
                format!(
                    "!{is_tenant_namespace} || {} || {}",
                    unchanged("labels", "oldLabels", security),
                    cel::may_bypass_policies()
                ),
                "only the platform may change the Pod Security level of a tenant's namespace",
            ),
            validation(
                format!(
                    "!{is_tenant_namespace} || {} || \
                     request.userInfo.?username.orValue('') in {} || {}",
                    cel::owners_unchanged(),
                    cel::string_list(COLLECTORS),
                    cel::may_bypass_policies()
                ),
                "only the platform may change the owners of a tenant's namespace: with one that does not exist, it would be deleted",
            ),
            validation(
                format!(
                    "oldObject != null || !{} || {}",
                    cel::is_like_tenant_namespace("object.metadata.?name.orValue('')"),
                    cel::may_bypass_policies()
                ),
                "only the platform may create namespaces with names like those of tenants' namespaces",
            ),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_creates_a_namespace_that_control_would_take_for_one_of_a_tenant() {
        let policy = build_policy();
        let expression = policy.expression_of("names like those");
        let expected =
            "oldObject != null || !object.metadata.?name.orValue('').matches('^berth-.+-[a-z2-7]{13}(-cp)?$') || ";
        assert!(expression.starts_with(expected), "{expression}");
        assert!(policy.resource_rules[0].operations.contains(&"CREATE"));
    }

    #[test]
    fn nobody_lets_the_garbage_collector_delete_a_namespace_of_a_tenant() {
        let policy = build_policy();
        let expression = policy.expression_of("owners");
        let expected = "!('berth.dev/role' in variables.labels || 'berth.dev/role' in variables.oldLabels) || \
                        object.metadata.?ownerReferences.orValue([]) == \
                        (oldObject == null ? [] : oldObject.metadata.?ownerReferences.orValue([])) || \
                        request.userInfo.?username.orValue('') in ['system:kube-controller-manager', \
                        'system:serviceaccount:kube-system:generic-garbage-collector'] || ";
        assert!(expression.starts_with(expected), "{expression}");
        assert_eq!(
            policy.resource_rules[0].resources,
            ["namespaces", "namespaces/status", "namespaces/finalize"]
        );
    }
}
