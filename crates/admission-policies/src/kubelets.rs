//! What kubelets and the agents of a node may write. Who is root on a node of a tenant has their credentials, and a cluster lets them do more
//! than a tenant may: create mirror pods in any namespace, whose labels lead traffic of Services to them, and offer devices under the
//! name of another node's pool.

use super::{AdmissionPolicy, ResourceRule, Scope, Subjects, WRITES, cel, validation};
use berth_api::{labels, system};

pub(super) fn build_policies() -> Vec<AdmissionPolicy> {
    vec![build_mirror_pod_policy(), build_slice_policy()]
}

/// Berth's own namespaces have no static pods.
fn build_mirror_pod_policy() -> AdmissionPolicy {
    AdmissionPolicy {
        name: "berth-mirror-pods",
        description: "Kubelets create no pods in the namespaces of Berth and of tenants.",
        scope: Scope::AllNamespaces,
        subjects: Subjects::Kubelets,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: "",
            version: "v1",
            resources: &["pods"],
            operations: &["CREATE"],
        }],
        variables: Vec::new(),
        validations: vec![validation(
            format!(
                "request.namespace != '{}' && !('{}' in namespaceObject.metadata.?labels.orValue({{}}))",
                system::NAMESPACE,
                labels::ROLE
            ),
            "a kubelet may create no pods, also no static ones, in the namespaces of Berth and of tenants",
        )],
    }
}

/// The scheduler allocates the devices of a pool by the newest slices with its name, whichever node they are of.
fn build_slice_policy() -> AdmissionPolicy {
    let node = "object.spec.?nodeName.orValue('')";
    let own_pool = format!("object.spec.pool.name == {node} || object.spec.pool.name.startsWith({node} + '/')");
    let bypass = cel::may_bypass_policies();
    AdmissionPolicy {
        name: "berth-resource-slices",
        description: "Agents of a node offer devices of this node only, in pools with its name.",
        scope: Scope::Cluster,
        subjects: Subjects::Everyone,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: "resource.k8s.io",
            version: "v1",
            resources: &["resourceslices"],
            operations: WRITES,
        }],
        variables: vec![
            // A ServiceAccount token of a pod says on which node the pod is. The host's API server keeps kubelets to their own node.
            (
                "nodes",
                "request.userInfo.?extra[?'authentication.kubernetes.io/node-name'].orValue([])".into(),
            ),
            (
                "isOnNode",
                format!("{} || variables.nodes.size() > 0", cel::is_kubelet()),
            ),
        ],
        validations: vec![
            validation(
                format!("variables.nodes.all(n, n == {node}) || {bypass}"),
                "an agent of a node may offer devices of this node only, with its name in spec.nodeName",
            ),
            validation(
                format!("{node} == '' || !variables.isOnNode || {own_pool} || {bypass}"),
                "devices of a node must be in a pool with the name of the node, or with this name, a slash and another name",
            ),
        ],
    }
}
