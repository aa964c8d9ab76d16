//! Nodes: whose a node is, is said by its labels, annotations and taints, so only control may write them. Kubelets may
//! otherwise change labels of their own node, also those by which tenants' pods find it.

use super::{Place, Requests, WRITES, Wall, Who, cel, rule};

pub(super) fn wall() -> Wall {
    let reserved = cel::reserved("k");
    let taints = |object: &str| {
        format!(
            "{object}.?spec.?taints.orValue([]).filter(t, {}).map(t, t.key + '=' + t.?value.orValue('') + ':' + t.effect)",
            cel::reserved("t.key")
        )
    };
    let mut variables: Vec<_> = cel::maps().into();
    variables.push(("taints", taints("object")));
    variables.push(("oldTaints", format!("oldObject == null ? [] : {}", taints("oldObject"))));
    Wall {
        name: "berth-nodes",
        about: "Labels, annotations and taints of berth.dev on nodes are the platform's, also against kubelets.",
        place: Place::Cluster,
        who: Who::Anybody,
        requests: vec![Requests {
            group: "",
            version: "v1",
            resources: &["nodes", "nodes/status"],
            operations: WRITES,
        }],
        variables,
        rules: vec![rule(
            format!(
                "(({}) && ({}) && variables.taints == variables.oldTaints) || {}",
                cel::kept("labels", "oldLabels", &reserved),
                cel::kept("annotations", "oldAnnotations", &reserved),
                cel::may_bypass()
            ),
            "labels, annotations and taints of berth.dev on nodes are for the platform only",
        )],
    }
}
