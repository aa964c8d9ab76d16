//! Pods on the host that are neither a tenant's nor the platform's: people of a team may have the right to create some in the namespace of
//! their TenantClusters. On a node of another tenant they would be beside its pods, and stay while the node is recycled.

use super::{AdmissionPolicy, ParameterKind, ResourceRule, Scope, Subjects, WRITES, cel, validation};
use berth_api::labels;

pub(super) fn build_policy() -> AdmissionPolicy {
    // Without a key, a toleration is of every taint.
    let tolerates = |object: &str| {
        format!(
            "{}.exists(t, t.?key.orValue('') in ['', '{}'])",
            cel::list(&format!("{object}.spec"), "tolerations"),
            labels::TENANT
        )
    };
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
        variables: Vec::new(),
        validations: vec![validation(
            format!(
                "!{} || (oldObject != null && {})",
                tolerates("object"),
                tolerates("oldObject")
            ),
            "spec.tolerations: pods in a namespace with TenantClusters may not tolerate the taint berth.dev/tenant, nor every taint",
        )],
    }
}
