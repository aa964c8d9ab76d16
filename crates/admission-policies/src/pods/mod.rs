//! Pods: only on the tenant's own nodes, with its own service accounts, without the platform's devices, volumes and names.
//! For annotations see `annotations`.
//!
//! Host networks, host ports, privileges, capabilities, sysctls and hosts of probes are not checked here: [`security`] does that, and the Pod Security
//! level of the workload namespace, unless the tenant's class gives capabilities.

pub(super) mod device_variables;
mod images;
pub(super) mod origin;
mod security;
mod shared_nodes;
pub(super) mod status;
pub(super) mod team_pods;
pub(super) mod user_quotas;

#[cfg(test)]
mod field_tests;

use crate::{AdmissionPolicy, ResourceRule, Scope, Subjects, Validation, WRITES, cel, validation};
use berth_api::{
    DEVICES_BY_CLASS, labels, policy_annotations, sync_policy::DEFAULT_MAX_TERMINATION_GRACE_PERIOD_SECONDS,
};
use berth_sync_rules::kinds::pod::KUBELET_ATTRIBUTES;

/// Whether the ephemeral container `c` of a pod was there before the request. One that is there cannot change, and only requests to the
/// subresource add some: others must not cost the square of how many there are.
const WAS_THERE: &str = "(oldObject != null && (request.?subResource.orValue('') != 'ephemeralcontainers' || \
    oldObject.spec.?ephemeralContainers.orValue([]).exists(o, o.name == c.name)))";

pub(crate) fn build_policies() -> Vec<AdmissionPolicy> {
    vec![
        build_pod_policy(),
        build_new_pod_policy(),
        build_pod_deletion_policy(),
        shared_nodes::build_policy(),
        images::build_policy(),
        security::build_policy(),
    ]
}

/// What holds as long as a pod exists.
fn build_pod_policy() -> AdmissionPolicy {
    let mut variables = vec![cel::tenant_slug_variable(), device_variables::given_variables()];
    variables.extend(cel::metadata_variables());
    variables.extend(shared_nodes::placement_variables());
    AdmissionPolicy {
        name: "berth-pods",
        description: "Pods of a tenant run only on its own nodes and on shared nodes that it may use, and get devices only from the scheduler.",
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::Everyone,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: "",
            version: "v1",
            resources: &["pods", "pods/ephemeralcontainers"],
            operations: WRITES,
        }],
        variables,
        validations: vec![
            validation(
                format!(
                    "variables.labels[?'{}'].orValue('') == {}",
                    labels::TENANT,
                    cel::TENANT_SLUG
                ),
                "pods in this namespace must carry the label berth.dev/tenant of its tenant",
            ),
            shared_nodes::validate_placement(),
            validate_tolerations(),
            device_variables::validate_containers("containers"),
            device_variables::validate_containers("initContainers"),
            device_variables::validate_containers("ephemeralContainers"),
            validate_mounts_of_ephemeral_containers(),
        ],
    }
}

/// The mounts of other containers are those with which the pod was created.
fn validate_mounts_of_ephemeral_containers() -> Validation {
    let mounts = device_variables::validate_mounts("ephemeralContainers");
    Validation {
        expression: format!(
            "request.?subResource.orValue('') != 'ephemeralcontainers' || {}",
            mounts.expression
        ),
        ..mounts
    }
}

fn validate_tolerations() -> Validation {
    let own = format!(
        "t.key == '{}' && t.?operator.orValue('Equal') == 'Equal' && t.?value.orValue('') == {}",
        labels::TENANT,
        cel::TENANT_SLUG
    );
    validation(
        format!(
            "object.spec.?tolerations.orValue([]).all(t, t.?key.orValue('') != '' && (!{} || ({own})))",
            cel::is_reserved_key("t.key")
        ),
        "spec.tolerations may not name a taint of another tenant, nor all taints (a toleration without a key)",
    )
}

/// Fields that cannot change after a pod was created.
fn build_new_pod_policy() -> AdmissionPolicy {
    let mut validations = validate_new_pods();
    validations.extend(validate_volumes());
    AdmissionPolicy {
        name: "berth-new-pods",
        description: "Pods of a tenant are created as its class allows.",
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::Everyone,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: "",
            version: "v1",
            resources: &["pods"],
            operations: &["CREATE"],
        }],
        variables: vec![
            cel::allowed_names_variable("serviceAccounts", policy_annotations::SERVICE_ACCOUNTS),
            cel::allowed_names_variable("audiences", policy_annotations::TOKEN_AUDIENCES),
            cel::allowed_names_variable("runtimeClasses", policy_annotations::RUNTIME_CLASSES),
            cel::allowed_names_variable("schedulers", policy_annotations::SCHEDULERS),
            cel::priority_classes_variable(),
            cel::allowed_names_variable("inlineDrivers", policy_annotations::INLINE_DRIVERS),
            cel::allowed_names_variable("deviceClasses", policy_annotations::DEVICE_CLASSES),
            max_grace_variable(),
            ("volumes", "object.spec.?volumes.orValue([])".into()),
            ("account", "object.spec.?serviceAccountName.orValue('')".into()),
        ],
        validations,
    }
}

fn validate_new_pods() -> Vec<Validation> {
    vec![
        validation(
            "object.spec.?nodeName.orValue('') == ''",
            "spec.nodeName must be left to the scheduler",
        ),
        validation(
            "variables.account == 'default' || (variables.account != '' && variables.account in variables.serviceAccounts)",
            "spec.serviceAccountName must be default, or an account that the tenant's class maps",
        ),
        validation(
            "object.spec.?automountServiceAccountToken.orValue(true) == false",
            "spec.automountServiceAccountToken must be false: tenants get no tokens of the host",
        ),
        validation(
            "object.spec.?dnsPolicy.orValue('') in ['None', 'Default']",
            "spec.dnsPolicy must be None or Default: tenants may not use the host's cluster DNS",
        ),
        validation(
            "object.spec.?schedulerName.orValue('default-scheduler') == 'default-scheduler' || \
             object.spec.schedulerName in variables.schedulers || '*' in variables.schedulers",
            "spec.schedulerName must be default-scheduler, or one that the tenant's class lists",
        ),
        validation(
            cel::is_priority_of_class("object.spec.?priorityClassName.orValue('')"),
            "spec.priorityClassName must be one of the tenant's class",
        ),
        validation(
            "object.spec.?runtimeClassName.orValue('') == '' || \
             object.spec.runtimeClassName in variables.runtimeClasses || '*' in variables.runtimeClasses",
            "spec.runtimeClassName must be one that the tenant's class lists",
        ),
        // A kubelet would make variables of the tenant's Services, whose names and ports the tenant chooses. The syncer makes them itself,
        // without those that choose devices.
        validation(
            "object.spec.?enableServiceLinks.orValue(true) == false",
            "spec.enableServiceLinks must be false: names of Services and ports would become environment variables",
        ),
        validate_pod_affinity(),
        // Each may hold up an eviction for as long as it says that it works on it.
        validation(
            "dyn(object.spec).?evictionResponders.orValue([]).size() == 0",
            "spec.evictionResponders may not be set: evictions of the host would wait for them",
        ),
        validation(
            "object.spec.?terminationGracePeriodSeconds.orValue(30) <= variables.maxGrace",
            "spec.terminationGracePeriodSeconds must be at most what the tenant's class allows",
        ),
        validate_probes("containers"),
        validate_probes("initContainers"),
        validate_devices("containers"),
        validate_devices("initContainers"),
        device_variables::validate_mounts("containers"),
        device_variables::validate_mounts("initContainers"),
    ]
}

/// Variable: the most seconds that a pod may take to end.
fn max_grace_variable() -> (&'static str, String) {
    let annotation = policy_annotations::MAX_TERMINATION_GRACE_PERIOD;
    let default = DEFAULT_MAX_TERMINATION_GRACE_PERIOD_SECONDS;
    (
        "maxGrace",
        format!("int(namespaceObject.metadata.?annotations[?'{annotation}'].orValue('{default}'))"),
    )
}

/// Volumes reach neither the node nor the network of the platform, and drivers and signers of the host take a pod for no other.
fn validate_volumes() -> Vec<Validation> {
    vec![
        validation(
            "variables.volumes.all(v, has(v.configMap) || has(v.secret) || has(v.emptyDir) || has(v.image) || \
             has(v.downwardAPI) || has(v.projected) || has(v.persistentVolumeClaim) || has(v.csi))",
            "spec.volumes may not reach the node or the platform's network",
        ),
        validation(
            "variables.volumes.all(v, !has(v.csi) || v.csi.driver in variables.inlineDrivers || \
             '*' in variables.inlineDrivers)",
            "spec.volumes[].csi.driver must be one that the tenant's class lists",
        ),
        // A driver that does not ask for them would take them for those of the kubelet.
        validation(
            format!(
                "variables.volumes.all(v, !has(v.csi) || \
                 v.csi.?volumeAttributes.orValue({{}}).all(k, !k.startsWith('{KUBELET_ATTRIBUTES}')))"
            ),
            "spec.volumes[].csi.volumeAttributes may not say to the driver which pod it is: the kubelet does",
        ),
        // Webhooks of cloud providers add tokens of the accounts that they know to pods, for an audience of their own. A token
        // for any other audience could be one for the host's API server.
        validation(
            format!(
                "variables.volumes.all(v, !has(v.projected) || {}.all(s, \
                 has(s.configMap) || has(s.secret) || has(s.downwardAPI) || \
                 (has(s.serviceAccountToken) && \
                 (variables.account + ':' + s.serviceAccountToken.?audience.orValue('')) in variables.audiences)))",
                cel::list("v.projected", "sources")
            ),
            "spec.volumes[].projected may hold no certificates of the host, and tokens only for audiences that the class lists for the account",
        ),
    ]
}

/// Terms about pods are about those of the tenant. The host's scheduler places no pod on a node where one of another namespace keeps it away: a
/// term for every pod and a label that all nodes have would stop the scheduling of the whole host.
fn validate_pod_affinity() -> Validation {
    let is_local = |term: &str| format!("{term}.?namespaces.orValue([]).size() == 0 && !has({term}.namespaceSelector)");
    let lists = ["podAffinity", "podAntiAffinity"].map(|kind| {
        let affinity = format!("object.spec.?affinity.?{kind}");
        format!(
            "{affinity}.?requiredDuringSchedulingIgnoredDuringExecution.orValue([]).all(t, {}) && \
             {affinity}.?preferredDuringSchedulingIgnoredDuringExecution.orValue([]).all(w, {})",
            is_local("t"),
            is_local("w.podAffinityTerm")
        )
    });
    validation(
        lists.join(" && "),
        "spec.affinity may not name pods of other namespaces: namespaces and namespaceSelector of terms may not be set",
    )
}

fn validate_probes(containers: &str) -> Validation {
    validation(
        format!(
            "object.spec.?{containers}.orValue([]).all(c, \
             c.?livenessProbe.?terminationGracePeriodSeconds.orValue(0) <= variables.maxGrace && \
             c.?startupProbe.?terminationGracePeriodSeconds.orValue(0) <= variables.maxGrace)"
        ),
        "terminationGracePeriodSeconds of probes must be at most what the tenant's class allows",
    )
}

/// The scheduler makes claims of devices for extended resources that have the name of a DeviceClass.
fn validate_devices(containers: &str) -> Validation {
    let of_list = |list: &str| {
        format!(
            "dyn(c).?resources.?{list}.orValue({{}}).all(k, !k.startsWith('{DEVICES_BY_CLASS}') || {})",
            cel::list_allows("deviceClasses", &format!("k.substring({})", DEVICES_BY_CLASS.len()))
        )
    };
    validation(
        format!(
            "object.spec.?{containers}.orValue([]).all(c, {} && {})",
            of_list("limits"),
            of_list("requests")
        ),
        "resources of containers may name only DeviceClasses that the tenant's class lists",
    )
}

/// A deletion may name a longer grace period than the pod's own.
fn build_pod_deletion_policy() -> AdmissionPolicy {
    AdmissionPolicy {
        name: "berth-pod-deletions",
        description: "The identities of a tenant give pods no more time to end than its class allows.",
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::TenantIdentities,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: "",
            version: "v1",
            resources: &["pods"],
            operations: &["DELETE"],
        }],
        variables: vec![max_grace_variable()],
        validations: vec![validation(
            "request.?options.?gracePeriodSeconds.orValue(0) <= variables.maxGrace",
            "the grace period of the deletion must be at most what the tenant's class allows",
        )],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_list_of_terms_about_pods_is_checked() {
        let expression = validate_pod_affinity().expression;
        for kind in ["podAffinity", "podAntiAffinity"] {
            for (list, term) in [
                ("requiredDuringSchedulingIgnoredDuringExecution", "t"),
                ("preferredDuringSchedulingIgnoredDuringExecution", "w.podAffinityTerm"),
            ] {
                let of_list = format!(".?{kind}.?{list}.orValue([]).all(");
                let (_, checked) = expression.split_once(&of_list).unwrap();
                assert!(checked[3..].starts_with(&format!("{term}.?namespaces.")), "{checked}");
                assert!(
                    checked.contains(&format!("!has({term}.namespaceSelector)")),
                    "{checked}"
                );
            }
        }
        let policy = build_new_pod_policy();
        assert!(policy.validations.contains(&validate_pod_affinity()));
    }

    #[test]
    fn a_pod_without_a_priority_class_is_not_above_the_band() {
        let policy = build_new_pod_policy();
        let priority =
            { policy.validations.iter() }.find(|validation| validation.message.contains("priorityClassName"));
        assert_eq!(
            priority.unwrap().expression,
            "(object.spec.?priorityClassName.orValue('') in variables.priorityClasses || \
             (object.spec.?priorityClassName.orValue('') == '' && !variables.priorityClasses.exists(p, p.startsWith('berth-'))))"
        );
        assert!(policy.variables.contains(&cel::priority_classes_variable()));
    }

    /// Else nobody could change the labels by which policies close such a pod, or take a finalizer off.
    #[test]
    fn what_a_class_takes_away_refuses_no_change_of_a_pod_that_exists() {
        let of_class = ["variables.sharedPools", "variables.deviceVariables", "variables.denied"];
        let mut found = Vec::new();
        for policy in build_policies() {
            let sees_changes = { policy.resource_rules.iter() }
                .any(|rule| rule.resources.contains(&"pods") && rule.operations.contains(&"UPDATE"));
            for Validation { expression, .. } in policy.validations.iter().filter(|_| sees_changes) {
                for variable in of_class.iter().filter(|variable| expression.contains(*variable)) {
                    assert!(expression.contains("oldObject != null"), "{expression}");
                    found.push(*variable);
                }
            }
        }
        for variable in of_class {
            assert!(found.contains(&variable), "{variable}");
        }
    }

    #[test]
    fn nobody_holds_up_evictions_of_pods() {
        let policy = build_new_pod_policy();
        let unset = "dyn(object.spec).?evictionResponders.orValue([]).size() == 0";
        assert!({ policy.validations.iter() }.any(|validation| validation.expression == unset));
    }

    #[test]
    fn kubelets_make_no_variables_of_services() {
        let policy = build_new_pod_policy();
        let unset = "object.spec.?enableServiceLinks.orValue(true) == false";
        assert!(
            policy
                .validations
                .iter()
                .any(|validation| validation.expression == unset)
        );
    }
}
