//! The status of pods. A syncer writes conditions of readiness gates; everything else is the kubelet's. Above all the
//! address: the host's controllers make endpoints of it, and would lead traffic to whatever a thief writes there.

use super::{Place, Requests, Wall, Who, rule};

pub(super) fn wall() -> Wall {
    Wall {
        name: "berth-pod-status",
        about: "Of a pod's status a syncer changes conditions only.",
        place: Place::Workloads,
        who: Who::Tenant,
        requests: vec![Requests {
            group: "",
            version: "v1",
            resources: &["pods/status"],
            operations: &["UPDATE"],
        }],
        variables: vec![
            ("new", "object.?status.orValue({})".into()),
            ("old", "oldObject.?status.orValue({})".into()),
        ],
        rules: vec![
            rule(
                "['podIP', 'podIPs', 'hostIP', 'hostIPs', 'phase', 'nominatedNodeName', 'startTime', 'resize'].all(f, \
                 f in variables.new ? (f in variables.old && variables.new[f] == variables.old[f]) : !(f in variables.old))",
                "of a pod's status only conditions may be written, not its addresses or phase",
            ),
            rule(
                "object.metadata.?labels.orValue({}) == oldObject.metadata.?labels.orValue({}) && \
                 object.metadata.?annotations.orValue({}) == oldObject.metadata.?annotations.orValue({})",
                "labels and annotations cannot be changed through a pod's status",
            ),
        ],
    }
}
