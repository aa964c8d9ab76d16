//! Nodes: labels, annotations and taints say which tenant a node is assigned to, so only control may write them. Without this
//! policy a kubelet could change labels of its own Node, among them those that pods of tenants select nodes by. Other labels, by which pools
//! select nodes, stay as they are while tenants use the node.
//!
//! Control closes the networks of pods that Nodes name to all tenants. An API server lets a kubelet name them as long as nobody has, which is always
//! so with a network plug-in that has networks of its own: one node could take all networks away from all tenants.
//!
//! The host's garbage collector deletes a Node with an owner that does not exist. Agents of nodes may write the status of all Nodes, and with it owners.
//! Controllers that have owners for Nodes, as Karpenter, write the Node itself.

pub(super) mod kubelet_sizes;
pub(super) mod kubelets;
pub(super) mod tenant_nodes;

use crate::{AdmissionPolicy, ResourceRule, Scope, Subjects, WRITES, cel, validation};
use berth_api::labels;

/// Labels of a node that one tenant has, or that several share.
const MARKS_OF_USE: [&str; 2] = [labels::NODE_STATE, labels::SHARED_POOL];
/// Domains of labels that a newer kubelet may add by itself.
const KUBELET_DOMAINS: [&str; 3] = ["kubernetes.io", "beta.kubernetes.io", "kubelet.kubernetes.io"];

pub(crate) fn build_policy() -> AdmissionPolicy {
    let reserved = cel::is_reserved_key("k");
    let taints = |object: &str| {
        format!(
            "{object}.?spec.?taints.orValue([]).filter(t, {}).map(t, t.key + '=' + t.?value.orValue('') + ':' + t.effect)",
            cel::is_reserved_key("t.key")
        )
    };
    let mut variables: Vec<_> = cel::metadata_variables().into();
    variables.push(("taints", taints("object")));
    variables.push(("oldTaints", format!("oldObject == null ? [] : {}", taints("oldObject"))));
    let pod_networks = |object: &str| format!("{object}.?spec.?podCIDRs.orValue([])");
    AdmissionPolicy {
        name: "berth-nodes",
        description: "Labels, annotations and taints of berth.dev on nodes can be changed by the platform only, not by kubelets.",
        scope: Scope::Cluster,
        subjects: Subjects::Everyone,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: "",
            version: "v1",
            resources: &["nodes", "nodes/status"],
            operations: WRITES,
        }],
        variables,
        validations: vec![
            // Who is root on a node writes its Node: filled up, nobody could change it any more, and its tenant would have it for ever.
            validation(
                cel::metadata_has_few_entries(),
                "a node may have at most 1,000 labels and 1,000 annotations; only the platform may change one that has more",
            ),
            validation(
                format!(
                    "(({}) && ({}) && variables.taints == variables.oldTaints) || {}",
                    cel::entries_unchanged("labels", "oldLabels", &reserved),
                    cel::entries_unchanged("annotations", "oldAnnotations", &reserved),
                    cel::may_bypass_policies()
                ),
                "only the platform may change labels, annotations and taints of berth.dev on nodes",
            ),
            validation(
                format!(
                    "!{} || !({}.exists(k, k in variables.oldLabels) || '{}' in variables.oldAnnotations) || \
                     ({} && \
                     variables.oldLabels.all(k, k in variables.labels && variables.labels[k] == variables.oldLabels[k]) && \
                     variables.labels.all(k, k in variables.oldLabels || k.split('/')[0] in {})) || {}",
                    cel::is_kubelet(),
                    cel::string_list(MARKS_OF_USE),
                    labels::PREVIOUS_SHARED_POOL,
                    cel::have_few_entries(&["oldLabels", "labels"]),
                    cel::string_list(KUBELET_DOMAINS),
                    cel::may_bypass_policies()
                ),
                "a kubelet may not change the labels of a node that tenants use",
            ),
            validation(
                format!(
                    "!{} || {} == (oldObject == null ? [] : {}) || {}",
                    cel::is_kubelet(),
                    pod_networks("object"),
                    pod_networks("oldObject"),
                    cel::may_bypass_policies()
                ),
                "a kubelet may not choose the networks of the pods of its node, which are closed to all tenants",
            ),
            validation(
                format!(
                    "request.?subResource.orValue('') != 'status' || {} || {}",
                    cel::owners_unchanged(),
                    cel::may_bypass_policies()
                ),
                "owners of a node cannot be changed through its status: with one that does not exist, the node would be deleted",
            ),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_who_writes_the_status_of_a_node_has_it_deleted() {
        let policy = build_policy();
        let expression = policy.expression_of("owners");
        let expected = "request.?subResource.orValue('') != 'status' || object.metadata.?ownerReferences.orValue([]) == \
                        (oldObject == null ? [] : oldObject.metadata.?ownerReferences.orValue([])) || ";
        assert!(expression.starts_with(expected), "{expression}");
        assert!(policy.resource_rules[0].resources.contains(&"nodes/status"));
    }
}
