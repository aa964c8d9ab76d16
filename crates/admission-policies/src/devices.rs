//! ResourceClaims and ResourceClaimTemplates: only DeviceClasses that the tenant's class lists, never admin access, and no more alternatives and expressions than
//! the host can work with. PodGroups have no claims: the
//! host would keep the devices allocated as long as the group exists, also those of a node that is another tenant's by then. Their priorities are those
//! of pods.

use super::{
    AdmissionPolicy, ResourceRule, Scope, Subjects, Validation, WRITES, cel,
    sizes::validate,
    storage::{class, is_unchanged},
    validation,
};
use berth_api::{policy_annotations, sync_policy::PriorityBand};
use berth_sync_rules::translation::sizes::{RESOURCE_CLAIM, RESOURCE_CLAIM_TEMPLATE, SizeLimit};

const GROUP: &str = "resource.k8s.io";

pub(super) fn build_policies() -> Vec<AdmissionPolicy> {
    vec![
        build_claim_policy(
            "berth-resource-claims",
            "ResourceClaims of a tenant name only DeviceClasses that its class lists.",
            &["resourceclaims"],
            "object.spec.?devices",
            RESOURCE_CLAIM,
        ),
        build_claim_policy(
            "berth-resource-claim-templates",
            "ResourceClaimTemplates of a tenant name only DeviceClasses that its class lists.",
            &["resourceclaimtemplates"],
            "object.spec.spec.?devices",
            RESOURCE_CLAIM_TEMPLATE,
        ),
        build_pod_group_policy(),
    ]
}

/// Not for classes to decide ([`berth_sync_rules::kinds::custom`]).
fn build_pod_group_policy() -> AdmissionPolicy {
    AdmissionPolicy {
        name: "berth-pod-groups",
        description: "PodGroups of a tenant have no claims of devices, which they would keep longer than the tenant has the node, and only \
                      priorities that its class allows.",
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::TenantIdentities,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: "scheduling.k8s.io",
            // Hosts serve different versions.
            version: "*",
            resources: &["podgroups", "compositepodgroups"],
            operations: WRITES,
        }],
        variables: vec![
            cel::priority_classes_variable(),
            cel::allowed_names_variable("sharedPools", policy_annotations::SHARED_POOLS),
            ("priorityClass", class("object", "priorityClassName")),
        ],
        validations: vec![
            validation(
                format!("{}.size() == 0", cel::list("object.spec", "resourceClaims")),
                "spec.resourceClaims of PodGroups may not be set: the devices would be kept as long as the group exists",
            ),
            validate_group_priority(),
        ],
    }
}

/// The scheduler goes by the priority of a group in its queue and when it looks for pods to preempt. On shared nodes these could be others'.
///
/// Where groups have no priorities, as in 1.36 without the feature gate `WorkloadAwarePreemption`, the API server takes the fields off before it asks. Elsewhere
/// it has set the priority by then.
fn validate_group_priority() -> Validation {
    let (prefix, never) = (PriorityBand::NAME_PREFIX, PriorityBand::NEVER_SUFFIX);
    validation(
        format!(
            "{} || (variables.priorityClass == '' && !has(object.spec.priority)) || \
             ({} && (variables.sharedPools.size() == 0 || !variables.priorityClass.startsWith('{prefix}') || \
             variables.priorityClass.endsWith('{never}')))",
            is_unchanged("priorityClassName"),
            cel::is_priority_of_class("variables.priorityClass")
        ),
        "spec.priorityClassName of PodGroups must be one of the tenant's class, and one that never preempts if the tenant has shared pools",
    )
}

fn build_claim_policy(
    name: &'static str,
    description: &'static str,
    resources: &'static [&'static str],
    devices: &str,
    limits: &[SizeLimit],
) -> AdmissionPolicy {
    let mut policy = AdmissionPolicy {
        name,
        description,
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::TenantIdentities,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: GROUP,
            version: "v1",
            resources,
            operations: WRITES,
        }],
        variables: vec![
            cel::allowed_names_variable("classes", policy_annotations::DEVICE_CLASSES),
            cel::allowed_names_variable("drivers", policy_annotations::CONFIG_DRIVERS),
            ("requests", cel::list(devices, "requests")),
            ("config", cel::list(devices, "config")),
        ],
        validations: vec![
            validate_each_request(
                &cel::list_allows("classes", "r.deviceClassName"),
                "deviceClassName must be one that the tenant's class lists",
            ),
            validation(
                "variables.requests.all(r, !r.?exactly.?adminAccess.orValue(false))",
                "adminAccess is not allowed: it gives access to devices that other tenants use",
            ),
            validate_each_request(
                &format!(
                    "r.?tolerations.orValue([]).all(t, t.?key.orValue('') != '' && !{})",
                    cel::is_reserved_key("t.key")
                ),
                "tolerations of devices may not name a taint of the platform, nor all taints (a toleration without a key)",
            ),
            validation(
                format!(
                    "variables.config.all(c, !has(c.opaque) || {})",
                    cel::list_allows("drivers", "c.opaque.driver")
                ),
                "config may only be for drivers that the tenant's class lists",
            ),
        ],
    };
    policy.validations.extend(limits.iter().map(validate));
    policy
}

/// A validation of every device request, in either form (`exactly`, `firstAvailable`).
fn validate_each_request(expression: &str, message: &'static str) -> Validation {
    validation(
        format!(
            "variables.requests.all(q, (has(q.exactly) ? [q.exactly] : q.?firstAvailable.orValue([])).all(r, {expression}))"
        ),
        message,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_and_templates_have_limits_of_what_they_ask_for() {
        let policies = build_policies();
        for (policy, spec) in policies.iter().zip(["object.?spec", "object.?spec.?spec"]) {
            let [.., alternatives, expressions] = &policy.validations[..] else {
                panic!("{policy:?}")
            };
            let requests = format!("{}.map(a, ", cel::list(&format!("{spec}.?devices"), "requests"));
            for (validation, counted) in [
                (alternatives, "(a.?exactly.hasValue() ? 1 : 0)).sum()"),
                (alternatives, "a.?firstAvailable.orValue([]).size()).sum()"),
                (expressions, "a.?exactly.?selectors.orValue([]).size()).sum()"),
                (
                    expressions,
                    "a.?firstAvailable.orValue([]).map(b, b.?derivedAttributes.orValue([]).size()).sum()).sum()",
                ),
            ] {
                let counted = format!("{requests}{counted}");
                assert!(validation.expression.contains(&counted), "{}", validation.expression);
            }
        }
    }

    #[test]
    fn pod_groups_of_every_version_have_no_claims() {
        let policies = build_policies();
        let policy = policies.last().unwrap();
        assert_eq!(policy.name, "berth-pod-groups");
        let [rule] = &policy.resource_rules[..] else {
            panic!("{policy:?}")
        };
        assert_eq!((rule.group, rule.version), ("scheduling.k8s.io", "*"));
        assert_eq!(
            policy.validations[0].expression,
            "object.spec.?resourceClaims.optMap(l, dyn(l) == null ? [] : l).orValue([]).size() == 0"
        );
    }

    #[test]
    fn groups_of_pods_have_priorities_of_the_class_and_preempt_nobody_on_shared_nodes() {
        let policy = build_pod_group_policy();
        assert_eq!(policy.resource_rules[0].resources, ["podgroups", "compositepodgroups"]);
        let expression = &policy.validations[1].expression;
        assert_eq!(
            expression,
            "(oldObject != null && object.spec.?priorityClassName.orValue('') == oldObject.spec.?priorityClassName.orValue('')) || \
             (variables.priorityClass == '' && !has(object.spec.priority)) || \
             ((variables.priorityClass in variables.priorityClasses || \
             (variables.priorityClass == '' && !variables.priorityClasses.exists(p, p.startsWith('berth-')))) && \
             (variables.sharedPools.size() == 0 || !variables.priorityClass.startsWith('berth-') || \
             variables.priorityClass.endsWith('-never')))"
        );
        for name in ["priorityClasses", "sharedPools", "priorityClass"] {
            assert!(policy.variables.iter().any(|(known, _)| *known == name), "{name}");
        }
        // Names are those of translation.
        for (preempts, allowed) in [(true, false), (false, true)] {
            let class = PriorityBand::class_name("gold", 3, preempts);
            assert!(class.starts_with(PriorityBand::NAME_PREFIX));
            assert_eq!(class.ends_with(PriorityBand::NEVER_SUFFIX), allowed, "{class}");
        }
    }
}
