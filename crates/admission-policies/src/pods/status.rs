//! The status of pods: a syncer writes conditions of readiness gates, everything else is for the kubelet. The address matters
//! most: the host's controllers turn it into endpoints, so a stolen credential could direct traffic to any address. But the scheduler reads
//! resources of the status as well, and other programs read what nobody knows today: so nothing but conditions may change.
//!
//! An API server takes metadata from requests for the status, too: labels, annotations and finalizers, which policies on pods do not see there.

use crate::{AdmissionPolicy, ResourceRule, Scope, Subjects, Validation, cel, validation};

pub(crate) fn build_policies() -> [AdmissionPolicy; 2] {
    [build_policy_for_syncers(), build_policy_for_agents()]
}

/// Metadata that a request for the status could change, and what it is without entries.
const LABELS: (&str, &str) = ("labels", "{}");
/// See [`LABELS`].
const ANNOTATIONS: (&str, &str) = ("annotations", "{}");
/// See [`LABELS`].
const FINALIZERS: (&str, &str) = ("finalizers", "[]");

/// Whether the request changes none of these.
fn metadata_unchanged(fields: &[(&str, &str)]) -> String {
    let is_unchanged = |(field, empty): &(&str, &str)| {
        format!("object.metadata.?{field}.orValue({empty}) == oldObject.metadata.?{field}.orValue({empty})")
    };
    fields.iter().map(is_unchanged).collect::<Vec<_>>().join(" && ")
}

/// A policy on writes of the status, with the variables `new` and `old`: the status after and before the request.
fn build_policy(
    name: &'static str,
    description: &'static str,
    (scope, subjects): (Scope, Subjects),
    validations: Vec<Validation>,
) -> AdmissionPolicy {
    AdmissionPolicy {
        name,
        description,
        scope,
        subjects,
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
        validations,
    }
}

fn build_policy_for_syncers() -> AdmissionPolicy {
    build_policy(
        "berth-pod-status",
        "A syncer changes only conditions in the status of a pod.",
        (Scope::WorkloadNamespaces, Subjects::TenantIdentities),
        vec![
            validation(
                "variables.new.all(f, f == 'conditions' || (f in variables.old && variables.new[f] == variables.old[f])) && \
                 variables.old.all(f, f == 'conditions' || f in variables.new)",
                "only conditions may be written in a pod's status, not its addresses, phase or resources",
            ),
            validation(
                metadata_unchanged(&[LABELS, ANNOTATIONS, FINALIZERS]),
                "labels, annotations and finalizers cannot be changed through a pod's status",
            ),
        ],
    )
}

/// What only the kubelet of a pod's node reports; the host's API server keeps kubelets to pods of their own node.
const OF_KUBELET: [&str; 7] = [
    "podIP",
    "podIPs",
    "hostIP",
    "hostIPs",
    "containerStatuses",
    "initContainerStatuses",
    "ephemeralContainerStatuses",
];
/// Who marks pods as failed whose node is gone: kube-controller-manager, with one identity for all its controllers or one for each.
const POD_COLLECTORS: [&str; 2] = [
    "system:kube-controller-manager",
    "system:serviceaccount:kube-system:pod-garbage-collector",
];

/// Conditions that the kubelet computes from those of containers and readiness gates: a pod that is not ready is no endpoint.
const CONDITIONS_OF_KUBELET: [&str; 4] = ["Initialized", "PodReadyToStartContainers", "ContainersReady", "Ready"];
/// Who marks pods as not ready whose node does not answer: kube-controller-manager, as for [`POD_COLLECTORS`].
const NODE_CONTROLLERS: [&str; 2] = [
    "system:kube-controller-manager",
    "system:serviceaccount:kube-system:node-controller",
];

/// Most conditions of a pod that expressions go through. Pods have about ten, and one for each of their readiness gates. What has more has been
/// filled by its own kubelet or syncer, who say whether it is ready anyway: others must still be able to preempt and to collect it, for which they
/// write a condition.
const CONDITIONS: usize = 200;

/// Whether the request changes no annotation of Berth. What has more annotations than an expression goes through has been filled by its own syncer or kubelet:
/// as with [`CONDITIONS`], others must still be able to preempt and to collect it.
fn own_annotations_unchanged() -> String {
    format!(
        "variables.oldAnnotations.size() > {} || ({})",
        cel::MAX_ENTRIES,
        cel::entries_unchanged("annotations", "oldAnnotations", &cel::is_reserved_key("k"))
    )
}

/// Agents of nodes, such as those of network plug-ins, have tokens with rights on the status of all pods. Who is root on a node has
/// their tokens. They write annotations, and controllers of the host write conditions of their own.
///
/// Annotations of Berth say which pod of the tenant a host pod is: the syncer deletes a host pod that names another one than it was made for.
fn build_policy_for_agents() -> AdmissionPolicy {
    let unchanged = |fields: &str| {
        format!(
            "{fields}.all(f, (f in variables.new) == (f in variables.old) && \
             (!(f in variables.new) || variables.new[f] == variables.old[f]))"
        )
    };
    let [new, old] = ["variables.new", "variables.old"].map(|status| cel::list(status, "conditions"));
    let conditions_unchanged = format!(
        "{old}.size() > {CONDITIONS} || ({new}.size() <= {CONDITIONS} && \
         {}.all(t, {new}.filter(c, c.type == t) == {old}.filter(c, c.type == t)))",
        cel::string_list(CONDITIONS_OF_KUBELET)
    );
    let is_one_of = |users: [&str; 2]| format!("request.userInfo.?username.orValue('') in {}", cel::string_list(users));
    let bypass = cel::may_bypass_policies();
    let mut policy = build_policy(
        "berth-pod-status-by-agents",
        "Only kubelets change addresses, containers, readiness and phase in the status of a tenant's pod.",
        // Labels and addresses of API servers and syncers lead traffic as well.
        (Scope::TenantNamespaces, Subjects::OthersOnHost),
        vec![
            validation(
                format!("{} || {bypass}", unchanged(&cel::string_list(OF_KUBELET))),
                "only the kubelet of its node may change addresses and containers in the status of a tenant's pod",
            ),
            validation(
                format!(
                    "{} || {} || {bypass}",
                    unchanged("['phase']"),
                    is_one_of(POD_COLLECTORS)
                ),
                "only its kubelet and kube-controller-manager may change the phase of a tenant's pod",
            ),
            validation(
                format!("{} || {conditions_unchanged} || {bypass}", is_one_of(NODE_CONTROLLERS)),
                "only its kubelet and kube-controller-manager may change whether a tenant's pod is ready",
            ),
            validation(
                format!("({}) || {bypass}", metadata_unchanged(&[LABELS, FINALIZERS])),
                "labels and finalizers cannot be changed through a pod's status",
            ),
            validation(
                format!("{} || {bypass}", own_annotations_unchanged()),
                "annotations of berth.dev cannot be changed through a pod's status",
            ),
        ],
    );
    policy.variables.extend(cel::metadata_variables());
    policy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_number_of_conditions_makes_the_policy_for_agents_too_expensive() {
        let expressions: Vec<String> = build_policy_for_agents()
            .validations
            .into_iter()
            .map(|validation| validation.expression)
            .filter(|expression| expression.contains(".filter("))
            .collect();
        let [expression] = expressions.as_slice() else {
            panic!("{expressions:?}")
        };
        let position = |part: &str| expression.find(part).unwrap_or_else(|| panic!("{part}: {expression}"));
        let compared = position("['Initialized', ");
        assert!(position(".size() > 200 || (") < compared && position(".size() <= 200 && ") < compared);
    }

    #[test]
    fn agents_do_not_change_pods_of_control_planes_either() {
        let spec = build_policy_for_agents().build_policy().spec.unwrap();
        let selector = spec.match_constraints.unwrap().namespace_selector;
        assert_eq!(selector, Some(Scope::TenantNamespaces.namespace_selector()));
    }

    #[test]
    fn agents_change_no_annotation_by_which_a_syncer_knows_the_pod() {
        let policy = build_policy_for_agents();
        let expression = policy.expression_of("annotations of berth.dev");
        for part in [
            "variables.oldAnnotations.size() > 1000 || (variables.annotations.size() <= 1000 && ",
            "variables.annotations.all(k, !(k.startsWith('berth.dev/') || k.contains('.berth.dev/')) || ",
            "variables.oldAnnotations.all(k, !(k.startsWith('berth.dev/') || k.contains('.berth.dev/')) || ",
        ] {
            assert!(expression.contains(part), "{part}: {expression}");
        }
        for variable in ["annotations", "oldAnnotations"] {
            assert!(policy.variables.iter().any(|(name, _)| *name == variable), "{variable}");
        }
    }

    #[test]
    fn everything_but_conditions_is_compared() {
        let all: Vec<String> = build_policy_for_syncers()
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
