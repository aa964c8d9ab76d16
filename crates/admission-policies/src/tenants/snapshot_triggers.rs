//! Why a TenantSnapshot was taken is a label. By it control counts the snapshots of a schedule, and those of restores, and deletes the oldest of them.
//! Without this policy, who may create snapshots could make control delete others.
//!
//! By its finalizer control deletes the file of a snapshot before the object is gone. Without the finalizer the file stays for ever, and counts in no limit: who
//! may change snapshots could fill the object store.

use super::tenant_clusters::keeps_finalizer;
use crate::{AdmissionPolicy, ResourceRule, Scope, Subjects, WRITES, validation};
use berth_api::{GROUP, VERSION, labels};

pub(crate) fn build_policy() -> AdmissionPolicy {
    AdmissionPolicy {
        name: "berth-snapshot-triggers",
        description: "Control alone says which TenantSnapshots are of a schedule or of a restore, and lets one go when its file is deleted.",
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
        validations: vec![
            validation(
                format!(
                    "{} == (oldObject == null ? '' : {})",
                    trigger("object"),
                    trigger("oldObject")
                ),
                "metadata.labels: only the platform may set, change or remove berth.dev/snapshot-trigger; by it Berth deletes snapshots",
            ),
            validation(
                keeps_finalizer(labels::SNAPSHOT_FINALIZER),
                "metadata.finalizers: only the platform may remove berth.dev/snapshot-cleanup; without it the file stays in the object store",
            ),
        ],
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
        let [validation, _] = policy.validations.as_slice() else {
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

    #[test]
    fn nobody_removes_the_finalizer_that_keeps_the_file_from_being_forgotten() {
        let policy = build_policy();
        let [_, validation] = policy.validations.as_slice() else {
            panic!("{:?}", policy.validations)
        };
        assert_eq!(
            validation.expression,
            "oldObject == null || !('berth.dev/snapshot-cleanup' in oldObject.metadata.?finalizers.orValue([])) || \
             'berth.dev/snapshot-cleanup' in object.metadata.?finalizers.orValue([])"
        );
        assert!(validation.message.contains(labels::SNAPSHOT_FINALIZER));
    }
}
