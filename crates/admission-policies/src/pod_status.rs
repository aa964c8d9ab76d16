//! The status of pods: a syncer writes conditions of readiness gates, everything else is for the kubelet. The address matters
//! most: the host's controllers turn it into endpoints, so a stolen credential could direct traffic to any address.

use super::{AdmissionPolicy, ResourceRule, Scope, Subjects, validation};

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
            ("new", "object.?status.orValue({})".into()),
            ("old", "oldObject.?status.orValue({})".into()),
        ],
        validations: vec![
            validation(
                "['podIP', 'podIPs', 'hostIP', 'hostIPs', 'phase', 'nominatedNodeName', 'startTime', 'resize'].all(f, \
                 f in variables.new ? (f in variables.old && variables.new[f] == variables.old[f]) : !(f in variables.old))",
                "only conditions may be written in a pod's status, not its addresses or phase",
            ),
            validation(
                "object.metadata.?labels.orValue({}) == oldObject.metadata.?labels.orValue({}) && \
                 object.metadata.?annotations.orValue({}) == oldObject.metadata.?annotations.orValue({})",
                "labels and annotations cannot be changed through a pod's status",
            ),
        ],
    }
}
