//! The gateway asks for the wake of a tenant by an annotation. RBAC has no rights for single fields, so that its right to patch
//! TenantClusters is a right to their specs, which say what tenants get. This policy leaves the annotation.

use crate::{AdmissionPolicy, ResourceRule, Scope, Subjects, cel, validation};
use berth_api::{GROUP, labels};

/// Fields of the metadata that each request may change: the annotations, which have an expression of their own, and what the API server
/// writes.
const METADATA: [&str; 3] = ["annotations", "managedFields", "resourceVersion"];

pub(crate) fn build_policy() -> AdmissionPolicy {
    let wake = labels::WAKE_REQUESTED_AT;
    let mut variables = Vec::from(cel::metadata_variables());
    variables.push((
        "isUpdate",
        "request.operation == 'UPDATE' && request.resource.resource == 'tenantclusters' && \
         request.?subResource.orValue('') == ''"
            .into(),
    ));
    AdmissionPolicy {
        name: "berth-gateway",
        description: "The gateway asks for the wake of tenants, and changes nothing else of Berth.",
        scope: Scope::Everywhere,
        subjects: Subjects::Gateway,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: GROUP,
            version: "*",
            resources: &["*/*"],
            operations: &["CREATE", "UPDATE", "DELETE"],
        }],
        variables,
        validations: vec![
            validation(
                "variables.isUpdate",
                "the gateway may only update TenantClusters: nothing else, no subresource, no creation and no deletion",
            ),
            validation(
                format!(
                    "!variables.isUpdate || ({} && {} && {})",
                    "object.spec == oldObject.spec",
                    "object.?status.orValue({}) == oldObject.?status.orValue({})",
                    other_metadata_unchanged()
                ),
                "the gateway may change no field of a TenantCluster but one of its annotations",
            ),
            validation(
                format!(
                    "!variables.isUpdate || ({})",
                    cel::entries_unchanged("annotations", "oldAnnotations", &format!("(k != '{wake}')"))
                ),
                "the gateway may change no annotation of a TenantCluster but berth.dev/wake-requested-at",
            ),
            validation(
                format!(
                    "!variables.isUpdate || variables.annotations[?'{wake}'].orValue('')\
                     .matches('^([0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}T[0-9:]{{8}}([.][0-9]{{1,9}})?Z)?$')"
                ),
                "the annotation berth.dev/wake-requested-at of a TenantCluster must be a time in UTC, as in RFC 3339",
            ),
        ],
    }
}

/// Whether all fields of the metadata but [`METADATA`] are as they were.
fn other_metadata_unchanged() -> String {
    let ignored = cel::string_list(METADATA);
    format!(
        "object.metadata.all(k, k in {ignored} || (k in oldObject.metadata && object.metadata[k] == oldObject.metadata[k])) && \
         oldObject.metadata.all(k, k in {ignored} || k in object.metadata)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_is_about_the_gateway_alone() {
        let spec = build_policy().build_policy().spec.unwrap();
        let conditions: Vec<_> = spec.match_conditions.unwrap();
        let expressions: Vec<&str> = conditions
            .iter()
            .map(|condition| condition.expression.as_str())
            .collect();
        assert_eq!(
            expressions,
            ["request.userInfo.?username.orValue('') == 'system:serviceaccount:berth-system:berth-gateway'"]
        );
        let rules = spec.match_constraints.unwrap().resource_rules.unwrap();
        assert_eq!(rules[0].api_groups, Some(vec!["berth.dev".to_owned()]));
        assert_eq!((rules[0].scope.as_deref(), rules.len()), (Some("*"), 1));
        assert_eq!(spec.failure_policy.as_deref(), Some("Fail"));
    }

    #[test]
    fn every_field_but_the_annotation_is_compared() {
        let all: Vec<String> = build_policy()
            .validations
            .into_iter()
            .map(|validation| validation.expression)
            .collect();
        for part in [
            "object.spec == oldObject.spec",
            "k in ['annotations', 'managedFields', 'resourceVersion'] || (k in oldObject.metadata",
            "(k != 'berth.dev/wake-requested-at')",
        ] {
            assert!(
                all.iter().any(|expression| expression.contains(part)),
                "{part}: {all:?}"
            );
        }
        // What is no update has no object to compare.
        assert!(
            all[1..]
                .iter()
                .all(|expression| expression.starts_with("!variables.isUpdate || "))
        );
    }
}
