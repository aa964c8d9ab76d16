//! Namespaces: labels and annotations say which tenant a namespace belongs to, what it is for, what the tenant's class allows
//! and which Pod Security level applies, so only control may write them.

use crate::{AdmissionPolicy, ResourceRule, Scope, Subjects, WRITES, cel, validation};
use berth_api::labels;

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
        description: "Labels and annotations of berth.dev on namespaces, and the Pod Security level of tenants' namespaces, can be changed by the platform only.",
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
        ],
    }
}
