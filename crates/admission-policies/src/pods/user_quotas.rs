//! Pods of tenants whose Project limits its users: each waits behind a gate until control has counted it, whatever a syncer does.

use crate::{AdmissionPolicy, ResourceRule, Scope, Subjects, WRITES, cel, validation};
use berth_api::{labels, policy_annotations};

pub(crate) fn build_policy() -> AdmissionPolicy {
    let has_gate = |object: &str| {
        format!(
            "{object}.spec.?schedulingGates.orValue([]).exists(g, g.name == '{}')",
            labels::USER_QUOTA_GATE
        )
    };
    let (new, old) = (has_gate("object"), has_gate("oldObject"));
    let created_by = labels::CREATED_BY;
    let mut variables = Vec::from(cel::metadata_variables());
    variables.push((
        "isLimited",
        format!(
            "namespaceObject.metadata.?annotations[?'{}'].orValue('') != ''",
            policy_annotations::USER_QUOTAS
        ),
    ));
    AdmissionPolicy {
        name: "berth-user-quotas",
        description: "Pods of limited users start only when Berth lets them, and say for ever who created them.",
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::Everyone,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: "",
            version: "v1",
            resources: &["pods"],
            operations: WRITES,
        }],
        variables,
        validations: vec![
            validation(
                format!("request.operation != 'CREATE' || !variables.isLimited || {new}"),
                "spec.schedulingGates must have berth.dev/user-quota: the Project of the tenant limits its users",
            ),
            validation(
                format!("request.operation != 'UPDATE' || !({old}) || {new}"),
                "only Berth takes the scheduling gate berth.dev/user-quota off",
            ),
            validation(
                format!(
                    "request.operation != 'UPDATE' || variables.annotations[?'{created_by}'].orValue('') == \
                     variables.oldAnnotations[?'{created_by}'].orValue('')"
                ),
                "the annotation berth.dev/created-by cannot be changed",
            ),
        ],
    }
}
