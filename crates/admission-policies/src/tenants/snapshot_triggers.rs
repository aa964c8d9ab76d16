//! Why a TenantSnapshot was taken is a label. By it control counts the snapshots of a schedule, and those of restores, and deletes the oldest of them.
//! Without this policy, who may create snapshots could make control delete others.

use crate::{AdmissionPolicy, ResourceRule, Scope, Subjects, WRITES, validation};
use berth_api::{GROUP, VERSION, labels};

pub(crate) fn build_policy() -> AdmissionPolicy {
    AdmissionPolicy {
        name: "berth-snapshot-triggers",
        description: "Control alone says which TenantSnapshots are of a schedule or of a restore.",
        scope: Scope::AllNamespaces,
        subjects: Subjects::Everyone,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: GROUP,
            version: VERSION,
            resources: &["tenantsnapshots"],
            operations: WRITES,
        }],
        variables: Vec::new(),
        validations: vec![validation(
            format!(
                "{} == (oldObject == null ? '' : {})",
                trigger("object"),
                trigger("oldObject")
            ),
            "metadata.labels: only the platform may set, change or remove berth.dev/snapshot-trigger; by it Berth deletes snapshots",
        )],
    }
}

/// The value of the label; empty without it, which means the same.
fn trigger(object: &str) -> String {
    format!("{object}.metadata.?labels[?'{}'].orValue('')", labels::SNAPSHOT_TRIGGER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_label_must_be_as_it_was_before_the_request() {
        let policy = build_policy();
        let [validation] = policy.validations.as_slice() else {
            panic!("{:?}", policy.validations)
        };
        assert_eq!(
            validation.expression,
            "object.metadata.?labels[?'berth.dev/snapshot-trigger'].orValue('') == \
             (oldObject == null ? '' : oldObject.metadata.?labels[?'berth.dev/snapshot-trigger'].orValue(''))"
        );
        assert!(
            validation.message.contains(labels::SNAPSHOT_TRIGGER),
            "{}",
            validation.message
        );
        let [rule] = policy.resource_rules.as_slice() else {
            panic!("{:?}", policy.resource_rules)
        };
        assert_eq!(rule.operations, ["CREATE", "UPDATE"]);
    }
}
