//! The status of pods: a syncer writes conditions of readiness gates, everything else is for the kubelet. The address matters
//! most: the host's controllers turn it into endpoints, so a stolen credential could direct traffic to any address. But the scheduler reads
//! resources of the status as well, and other programs read what nobody knows today: so nothing but conditions may change.
//!
//! An API server takes metadata from requests for the status, too: labels, annotations and finalizers, which policies on pods do not see there.

use super::{AdmissionPolicy, ResourceRule, Scope, Subjects, validation};

/// Metadata that a request for the status could change, and what it is without entries.
const METADATA: [(&str, &str); 3] = [("labels", "{}"), ("annotations", "{}"), ("finalizers", "[]")];

pub(super) fn build_policy() -> AdmissionPolicy {
    AdmissionPolicy {
        name: "berth-pod-status",
        description: "A syncer changes only conditions in the status of a pod.",
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::TenantIdentities,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: "",
            version: "v1",
            resources: &["pods/status"],
            operations: &["UPDATE"],
        }],
        variables: vec![
            ("new", "dyn(object).?status.orValue({})".into()),
            ("old", "dyn(oldObject).?status.orValue({})".into()),
        ],
        validations: vec![
            validation(
                "variables.new.all(f, f == 'conditions' || (f in variables.old && variables.new[f] == variables.old[f])) && \
                 variables.old.all(f, f == 'conditions' || f in variables.new)",
                "only conditions may be written in a pod's status, not its addresses, phase or resources",
            ),
            validation(
                METADATA
                    .map(|(field, empty)| {
                        format!(
                            "object.metadata.?{field}.orValue({empty}) == oldObject.metadata.?{field}.orValue({empty})"
                        )
                    })
                    .join(" && "),
                "labels, annotations and finalizers cannot be changed through a pod's status",
            ),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_but_conditions_is_compared() {
        let all: Vec<String> = build_policy()
            .validations
            .into_iter()
            .map(|validation| validation.expression)
            .collect();
        let [status, metadata] = all.as_slice() else {
            panic!("{all:?}")
        };
        assert!(
            status.contains("variables.new.all(f, f == 'conditions' || "),
            "{status}"
        );
        assert!(
            status.contains("variables.old.all(f, f == 'conditions' || "),
            "{status}"
        );
        for field in ["labels", "annotations", "finalizers"] {
            assert!(
                metadata.contains(&format!("oldObject.metadata.?{field}.")),
                "{metadata}"
            );
        }
    }
}
