//! TenantClusters: a user who creates or changes one needs the verb `use` on the class and the pools that it names, as Kubernetes has it for
//! other objects that give rights (`use` of a PodSecurityPolicy, `bind` of a Role).
//!
//! The right may come from a ClusterRoleBinding, or from a RoleBinding in the namespace of the TenantCluster. It is checked when a
//! name is added: what a TenantCluster names already stays usable for those who may change it.
//!
//! The finalizer and the status are control's: by them it knows what exists on the host, and what is reserved of quotas.

use crate::{AdmissionPolicy, ResourceRule, Scope, Subjects, Validation, WRITES, cel, validation};
use berth_api::{DEFAULT_CLASS, GROUP, VERSION, labels};

/// Verb of the right to name a TenantClass or a HostNodePool in a TenantCluster.
pub const USE: &str = "use";
/// Resources that need the right.
pub const USED_RESOURCES: [&str; 2] = [CLASSES, POOLS];

const CLASSES: &str = "tenantclasses";
const POOLS: &str = "hostnodepools";

/// Pools that one request may add without the right to use all pools. The API server allows two checks of rights in an expression
/// and about 28 in a policy, so that each pool has an expression of its own.
const MAX_NEW_POOLS: usize = 16;

pub(crate) fn build_policy() -> AdmissionPolicy {
    let mut validations = vec![
        validation(
            format!(
                "(oldObject != null && variables.class == variables.oldClass) || {}",
                may_use(CLASSES, Some("variables.class"))
            ),
            "spec.className: you need the verb use on tenantclasses.berth.dev for this class (default if empty); ask the platform team",
        ),
        validation(
            format!("variables.newPools.size() <= {MAX_NEW_POOLS} || variables.mayUseAllPools"),
            "spec.nodeGroups: add at most 16 groups of other pools at a time, and the rest with another request",
        ),
    ];
    validations.extend((0..MAX_NEW_POOLS).map(validate_new_pool));
    validations.push(validate_finalizer());
    AdmissionPolicy {
        name: "berth-tenant-clusters",
        description: "Users name only classes and pools in TenantClusters that they have the right to use, and keep the finalizer.",
        scope: Scope::AllNamespaces,
        subjects: Subjects::Everyone,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: GROUP,
            version: VERSION,
            resources: &["tenantclusters"],
            operations: WRITES,
        }],
        variables: class_variables()
            .into_iter()
            .chain(pool_variables())
            .chain([("mayUseAllPools", may_use(POOLS, None))])
            .collect(),
        validations,
    }
}

/// Variables `class` and `oldClass`: the class of the TenantCluster after and before the request. Without a name it is `default`, also
/// as long as that does not exist.
pub(crate) fn class_variables() -> [(&'static str, String); 2] {
    let class = |object: &str| format!("{object}.spec.?className.orValue('{DEFAULT_CLASS}')");
    [
        ("class", class("object")),
        ("oldClass", format!("oldObject == null ? '' : {}", class("oldObject"))),
    ]
}

/// Variable `newPools`: the pools that the request adds, from `pools` and `oldPools`.
pub(crate) fn pool_variables() -> [(&'static str, String); 3] {
    let pools = |object: &str| format!("{object}.spec.?nodeGroups.orValue([]).map(g, g.poolName)");
    [
        ("pools", pools("object")),
        ("oldPools", format!("oldObject == null ? [] : {}", pools("oldObject"))),
        (
            "newPools",
            "variables.pools.filter(p, !(p in variables.oldPools))".into(),
        ),
    ]
}

/// What is reserved of quotas for a tenant, and whether it runs, is in its status. In that of a snapshot is with what a restore compares the file.
pub(crate) fn build_status_policy() -> AdmissionPolicy {
    AdmissionPolicy {
        name: "berth-tenant-cluster-status",
        description: "The status of TenantClusters and TenantSnapshots can be written by control only.",
        scope: Scope::AllNamespaces,
        subjects: Subjects::Everyone,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: GROUP,
            version: VERSION,
            resources: &["tenantclusters/status", "tenantsnapshots/status"],
            operations: WRITES,
        }],
        variables: Vec::new(),
        validations: vec![validation(
            "false",
            "only the platform may write the status of a TenantCluster or TenantSnapshot: it says what is reserved of quotas, and what may be restored",
        )],
    }
}

/// Without its finalizer, a TenantCluster that is deleted is gone at once, and its quota free, while everything that was created for it
/// still exists.
fn validate_finalizer() -> Validation {
    validation(
        keeps_finalizer(labels::FINALIZER),
        "metadata.finalizers: only the platform may remove berth.dev/tenant-cleanup; change the object with kubectl apply or patch",
    )
}

/// Whether an object that had the finalizer before the request still has it.
pub(crate) fn keeps_finalizer(finalizer: &str) -> String {
    let has_finalizer = |object: &str| format!("'{finalizer}' in {object}.metadata.?finalizers.orValue([])");
    format!(
        "oldObject == null || !({}) || {}",
        has_finalizer("oldObject"),
        has_finalizer("object")
    )
}

/// The pool with this index in `newPools`, if there are so many.
fn validate_new_pool(index: usize) -> Validation {
    validation(
        format!(
            "variables.newPools.size() <= {index} || variables.mayUseAllPools || {}",
            may_use(POOLS, Some(&format!("variables.newPools[{index}]")))
        ),
        "spec.nodeGroups[].poolName: you need the verb use on hostnodepools.berth.dev for each pool; ask the platform team",
    )
}

/// Whether the requesting user may use the object of this name, or all objects, in the namespace of the request.
fn may_use(resource: &str, name: Option<&str>) -> String {
    let name = name.map(|name| format!(".name({name})")).unwrap_or_default();
    format!(
        "{}.namespace(request.namespace){name}.check('{USE}').allowed()",
        cel::authorizer_of(resource)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The API server ends an evaluation at these costs (k8s.io/apiserver/pkg/apis/cel).
    const CHECK: usize = 350_000;
    const PER_EXPRESSION: usize = 1_000_000;
    const PER_POLICY: usize = 10_000_000;

    #[test]
    fn the_checks_of_rights_stay_within_what_the_api_server_evaluates() {
        let policy = build_policy();
        let checks = |expression: &str| expression.matches(".check(").count();
        let validations = policy.validations.iter().map(|validation| &validation.expression);
        let variables = policy.variables.iter().map(|(_, expression)| expression);
        let mut sum = 0;
        for expression in validations.chain(variables) {
            assert!(checks(expression) * CHECK < PER_EXPRESSION, "{expression}");
            sum += checks(expression);
        }
        // With room for everything else.
        assert!(sum * CHECK < PER_POLICY * 3 / 4, "{sum}");
    }

    #[test]
    fn nobody_removes_the_finalizer() {
        let policy = build_policy();
        let about_finalizers = policy
            .validations
            .iter()
            .filter(|validation| validation.expression.contains(labels::FINALIZER));
        let expressions: Vec<&str> = about_finalizers
            .map(|validation| validation.expression.as_str())
            .collect();
        let [expression] = expressions[..] else {
            panic!("{expressions:?}")
        };
        assert!(
            expression
                .starts_with("oldObject == null || !('berth.dev/tenant-cleanup' in oldObject.metadata.?finalizers"),
            "{expression}"
        );
        assert!(
            expression.contains("|| 'berth.dev/tenant-cleanup' in object.metadata.?finalizers"),
            "{expression}"
        );
    }

    #[test]
    fn rights_are_asked_for_in_the_namespace_and_by_name() {
        let expression = may_use(CLASSES, Some("variables.class"));
        assert_eq!(
            expression,
            "authorizer.group('berth.dev').resource('tenantclasses').namespace(request.namespace).name(variables.class)\
             .check('use').allowed()"
        );
    }
}
