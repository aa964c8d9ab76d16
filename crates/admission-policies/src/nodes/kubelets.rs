//! What kubelets and the agents of a node may write. Who is root on a node of a tenant has their credentials, and a cluster lets them do more
//! than a tenant may: create mirror pods in any namespace, whose labels lead traffic of Services to them and which NetworkPolicies take for
//! pods of the platform, and offer devices under the name of another node's pool.

use crate::{
    AdmissionPolicy, MIRROR_PODS, ParameterKind, ResourceRule, SERVE, Scope, Subjects, WRITES, cel, validation,
};
use berth_api::{labels, system};

pub(crate) fn build_policies() -> Vec<AdmissionPolicy> {
    vec![
        build_mirror_pod_policy(),
        build_mirror_pod_service_policy(),
        build_slice_policy(),
        build_slice_deletion_policy(),
    ]
}

/// An API server lets kubelets create mirror pods only.
const CREATED_PODS: ResourceRule = ResourceRule {
    group: "",
    version: "v1",
    resources: &["pods"],
    operations: &["CREATE"],
};

/// Requests for the devices that nodes offer.
const fn slices(operations: &'static [&'static str]) -> ResourceRule {
    ResourceRule {
        group: "resource.k8s.io",
        version: "v1",
        resources: &["resourceslices"],
        operations,
    }
}

/// Berth's own namespaces have no static pods. Those of the platform's are in the network of their node: nearly all network plug-ins leave such pods out of
/// what the selectors of NetworkPolicies match, as their addresses are those of nodes. Any other would be let in wherever pods of the namespace are.
fn build_mirror_pod_policy() -> AdmissionPolicy {
    AdmissionPolicy {
        name: "berth-mirror-pods",
        description: "Kubelets create no pods in the namespaces of Berth and of tenants, and elsewhere only such in the network of the node.",
        scope: Scope::AllNamespaces,
        subjects: Subjects::Kubelets,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![CREATED_PODS],
        variables: Vec::new(),
        validations: vec![
            validation(
                format!(
                    "request.namespace != '{}' && !('{}' in namespaceObject.metadata.?labels.orValue({{}}))",
                    system::NAMESPACE,
                    labels::ROLE
                ),
                "a kubelet may create no pods, also no static ones, in the namespaces of Berth and of tenants",
            ),
            validation(
                format!("object.spec.?hostNetwork.orValue(false) || {}", may_serve()),
                "a kubelet may create no static pod without hostNetwork, as NetworkPolicies would admit it; for a node of the platform, bind \
                 the ClusterRole berth-mirror-pods",
            ),
        ],
    }
}

/// Whether RBAC lets the kubelet create mirror pods that others reach: control gives this right to those of the host's control plane.
fn may_serve() -> String {
    format!("{}.check('{SERVE}').allowed()", cel::authorizer_of(MIRROR_PODS))
}

/// The platform's namespaces may have some. One that a Service selects gets its traffic, such as that of the host's DNS or of a webhook. Services of the
/// host's control plane select those of its nodes, to which control gives the right to [`SERVE`].
fn build_mirror_pod_service_policy() -> AdmissionPolicy {
    let selector = "variables.selector";
    let labels = "variables.labels";
    AdmissionPolicy {
        name: "berth-mirror-pod-services",
        description: "Kubelets of nodes that are not of the host's control plane create no pods that Services select.",
        scope: Scope::OtherNamespaces,
        subjects: Subjects::Kubelets,
        parameters: Some(ParameterKind::ServiceOfNamespace),
        conditions: Vec::new(),
        resource_rules: vec![CREATED_PODS],
        variables: vec![
            ("selector", "params.spec.?selector.orValue({})".into()),
            ("labels", "object.metadata.?labels.orValue({})".into()),
        ],
        validations: vec![validation(
            format!(
                "{selector}.size() == 0 || !{selector}.all(k, k in {labels} && {labels}[k] == {selector}[k]) || \
                 params.metadata.?annotations[?'{}'].orValue('') == 'true' || {}",
                labels::ALLOW_STATIC_PODS,
                may_serve(),
            ),
            "a kubelet may create no static pod that a Service selects; for static pods of the platform, annotate the Service with \
             berth.dev/allow-static-pods=true",
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
        resource_rules: vec![slices(WRITES)],
        variables: vec![
            // A ServiceAccount token of a pod says on which node the pod is. The host's API server keeps kubelets to their own node.
            ("nodes", cel::NODES_OF_USER.into()),
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

/// Without its slices a node's devices are allocated to nobody until its driver has written them again, which somebody could prevent for ever.
fn build_slice_deletion_policy() -> AdmissionPolicy {
    AdmissionPolicy {
        name: "berth-resource-slice-deletions",
        description: "Agents of a node delete slices of devices of this node only.",
        scope: Scope::Cluster,
        subjects: Subjects::PodsOfHost,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![slices(&["DELETE"])],
        variables: Vec::new(),
        validations: vec![validation(
            format!(
                "{}.all(n, n == oldObject.spec.?nodeName.orValue('')) || {}",
                cel::NODES_OF_USER,
                cel::may_bypass_policies()
            ),
            "an agent of a node may delete slices of devices of this node only",
        )],
    }
}
