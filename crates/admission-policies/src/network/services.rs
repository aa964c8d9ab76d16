//! Services: no foreign addresses, and exposed to the outside only as the tenant's class allows.

use crate::{AdmissionPolicy, ResourceRule, Scope, Subjects, WRITES, cel, validation};
use berth_api::policy_annotations;

pub(crate) fn build_policy() -> AdmissionPolicy {
    AdmissionPolicy {
        name: "berth-services",
        description: "Services of a tenant use no foreign addresses and have only types that its class allows.",
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::TenantIdentities,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: "",
            version: "v1",
            resources: &["services"],
            operations: WRITES,
        }],
        variables: vec![
            cel::allowed_names_variable("types", policy_annotations::SERVICE_TYPES),
            cel::allowed_names_variable("classes", policy_annotations::LOAD_BALANCER_CLASSES),
            ("type", "object.spec.?type.orValue('ClusterIP')".into()),
        ],
        validations: vec![
            validation(
                "object.spec.?externalIPs.orValue([]).size() == 0",
                "spec.externalIPs may not be set: it could take over foreign addresses",
            ),
            // Load balancer controllers write this field as well.
            validation(
                "object.spec.?loadBalancerIP.orValue('') == '' || (oldObject != null && \
                 object.spec.loadBalancerIP == oldObject.spec.?loadBalancerIP.orValue(''))",
                "spec.loadBalancerIP may not be set: it could take over foreign addresses",
            ),
            validation(
                "variables.type == 'ClusterIP' || variables.type in variables.types",
                "spec.type must be ClusterIP, or one that the tenant's class offers",
            ),
            validation(
                format!(
                    "!has(object.spec.loadBalancerClass) || variables.type != 'LoadBalancer' || {}",
                    cel::list_allows("classes", "object.spec.loadBalancerClass")
                ),
                "spec.loadBalancerClass must be one that the tenant's class lists",
            ),
        ],
    }
}
