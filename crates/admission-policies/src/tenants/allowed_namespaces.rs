//! TenantClusters: a class and a pool may be named only in the namespaces that their `spec.allowedNamespaces` allows.
//!
//! All classes, or all pools, are the parameters of a policy: it is evaluated with each of them, and the one that the request names
//! decides. One that does not exist forbids nothing: control reports it. The rule is that of
//! [`berth_api::AllowedNamespaces::allows`], by which control decides as long as a tenant runs. As for the verb `use`, what a TenantCluster
//! names already is not checked again.

use super::tenant_clusters::{class_variables, pool_variables};
use crate::{AdmissionPolicy, ParameterKind, ResourceRule, Scope, Subjects, Validation, WRITES, validation};
use berth_api::{GROUP, VERSION};

pub(crate) fn build_policies() -> [AdmissionPolicy; 2] {
    let class = validation(
        "params.metadata.name != variables.class || variables.class == variables.oldClass || variables.isAllowed",
        "spec.className: the class (default if empty) does not allow this namespace in its spec.allowedNamespaces; ask the platform team",
    );
    let pool = validation(
        "!(params.metadata.name in variables.newPools) || variables.isAllowed",
        "spec.nodeGroups[].poolName: a pool does not allow this namespace in its spec.allowedNamespaces; ask the platform team",
    );
    [
        build_policy(
            "berth-class-namespaces",
            "TenantClusters name only classes that allow their namespace.",
            ParameterKind::TenantClass,
            class_variables().into(),
            class,
        ),
        build_policy(
            "berth-pool-namespaces",
            "TenantClusters name only pools that allow their namespace.",
            ParameterKind::HostNodePool,
            pool_variables().into(),
            pool,
        ),
    ]
}

fn build_policy(
    name: &'static str,
    description: &'static str,
    parameters: ParameterKind,
    mut variables: Vec<(&'static str, String)>,
    validation: Validation,
) -> AdmissionPolicy {
    variables.extend(rule_variables());
    AdmissionPolicy {
        name,
        description,
        scope: Scope::AllNamespaces,
        subjects: Subjects::Everyone,
        parameters: Some(parameters),
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: GROUP,
            version: VERSION,
            resources: &["tenantclusters"],
            operations: WRITES,
        }],
        variables,
        validations: vec![validation],
    }
}

/// Variable `isAllowed`: whether `params.spec.allowedNamespaces` allows the namespace of the request. The API server evaluates a
/// variable only if an expression needs it.
fn rule_variables() -> [(&'static str, String); 5] {
    let selector =
        |field: &str, default: &str| format!("params.spec.?allowedNamespaces.?selector.?{field}.orValue({default})");
    let value = "variables.namespaceLabels[e.key]";
    let is_there = "e.key in variables.namespaceLabels";
    let is_listed = format!("({is_there} && {value} in e.?values.orValue([]))");
    let requirement = format!(
        "e.operator == 'In' ? {is_listed} : e.operator == 'NotIn' ? !{is_listed} : e.operator == 'Exists' ? {is_there} : \
         (e.operator == 'DoesNotExist' && !({is_there}))"
    );
    [
        ("namespaceLabels", "namespaceObject.metadata.?labels.orValue({})".into()),
        ("from", "params.spec.?allowedNamespaces.?from.orValue('All')".into()),
        ("matchLabels", selector("matchLabels", "{}")),
        ("matchExpressions", selector("matchExpressions", "[]")),
        (
            "isAllowed",
            format!(
                "variables.from == 'All' || (variables.from == 'Selector' && \
                 variables.matchLabels.all(k, k in variables.namespaceLabels && \
                 variables.namespaceLabels[k] == variables.matchLabels[k]) && \
                 variables.matchExpressions.all(e, {requirement}))"
            ),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_named_class_or_pool_decides() {
        let [class, pool] = build_policies();
        assert!(
            class.validations[0]
                .expression
                .starts_with("params.metadata.name != variables.class ||")
        );
        assert!(
            pool.validations[0]
                .expression
                .starts_with("!(params.metadata.name in variables.newPools) ||")
        );
    }
}
