//! Annotations and labels that programs on the host act on: of pods, Services and all other kinds of a tenant only those that
//! its class lists. Annotations of Ingresses, routes and claims have rules of their own.

use super::{AdmissionPolicy, ResourceRule, Scope, Subjects, Validation, cel, validation};
use berth_api::{pod_labels, policy_annotations};
use berth_sync_rules::kinds::{endpoint_slice, pod, service};

/// Annotations that the host's API server and its admission plugins put on new pods: a request of a syncer has them when
/// policies see it. Pod Security validates the profiles.
const ADDED_TO_PODS: &[&str] = &[
    "kubernetes.io/limit-ranger",
    "kueue.x-k8s.io/role-hash",
    "openshift.io/scc",
    "security.openshift.io/validated-scc-subject-type",
];
/// Labels that Kueue's webhook puts on new pods. The queues that they can name are the platform's, in the same namespace.
const ADDED_LABELS_OF_PODS: &[&str] = &["kueue.x-k8s.io/managed", "kueue.x-k8s.io/queue-name"];
/// Domain of the older form of a field of containers, which API servers may add.
const PROFILES: &str = "container.apparmor.security.beta.kubernetes.io/";

/// What Google's clusters add to every new Service.
const ADDED_TO_SERVICES: (&str, &str) = ("cloud.google.com/neg", r#"{"ingress":true}"#);

/// The variables with the annotations of an object, and with those before the request.
const ANNOTATIONS: (&str, &str) = ("annotations", "oldAnnotations");

/// Resources whose annotations another policy, or another rule of this one, validates.
const VALIDATED_ELSEWHERE: &[&str] = &[
    "grpcroutes.gateway.networking.k8s.io",
    "httproutes.gateway.networking.k8s.io",
    "ingresses.networking.k8s.io",
    "persistentvolumeclaims",
    "pods",
    "services",
    "tlsroutes.gateway.networking.k8s.io",
];

pub(super) fn build_policy() -> AdmissionPolicy {
    let mut variables = Vec::from(cel::metadata_variables());
    variables.extend([
        cel::allowed_names_variable("ofPods", policy_annotations::POD_ANNOTATIONS),
        cel::allowed_names_variable("ofServices", policy_annotations::SERVICE_ANNOTATIONS),
        cel::allowed_names_variable("ofKinds", policy_annotations::KIND_ANNOTATIONS),
        cel::allowed_names_variable("ofPodLabels", policy_annotations::POD_LABELS),
        cel::allowed_names_variable("ofServiceLabels", policy_annotations::SERVICE_LABELS),
        cel::allowed_names_variable("ofIngressLabels", policy_annotations::INGRESS_LABELS),
        cel::allowed_names_variable("labelsOfKinds", policy_annotations::KIND_LABELS),
        (
            "resource",
            "request.resource.group == '' ? request.resource.resource : \
             request.resource.resource + '.' + request.resource.group"
                .into(),
        ),
        ("ofKind", of_this_kind("ofKinds")),
        ("ofKindLabels", of_this_kind("labelsOfKinds")),
        listed_labels_variable(),
        common_labels_variable(),
    ]);
    AdmissionPolicy {
        name: "berth-annotations",
        description: "Objects of a tenant carry no annotations and labels that act on the host, except those that its class lists.",
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::TenantIdentities,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule::writes_of_every_kind()],
        variables,
        validations: vec![
            validate_pods(),
            validate_services(),
            validate_other_kinds(),
            validate_claim_templates(),
            validate_labels(),
        ],
    }
}

/// The keys of a list whose entries are `resource.group:key`, for the kind of the object.
fn of_this_kind(list: &str) -> String {
    format!(
        "variables.{list}.filter(e, e.startsWith(variables.resource + ':'))\
         .map(e, e.substring(variables.resource.size() + 1))"
    )
}

fn validate_pods() -> Validation {
    let always = pod::ANNOTATIONS.iter().chain(ADDED_TO_PODS).copied();
    validation(
        format!(
            "variables.resource != 'pods' || variables.annotations.all(k, {} || k in {} || k.startsWith('{PROFILES}'))",
            // First: most are Berth's own.
            cel::entry_allowed(ANNOTATIONS, "ofPods"),
            cel::string_list(always)
        ),
        "metadata.annotations of pods may hold only keys that the tenant's class lists",
    )
}

fn validate_services() -> Validation {
    let (key, value) = ADDED_TO_SERVICES;
    validation(
        format!(
            "variables.resource != 'services' || variables.annotations.all(k, k in {} || \
             (k == '{key}' && variables.annotations[k] == '{value}') || {})",
            cel::string_list(service::ANNOTATIONS.iter().copied()),
            cel::entry_allowed(ANNOTATIONS, "ofServices")
        ),
        "metadata.annotations of Services may hold only keys that the tenant's class lists",
    )
}

fn validate_other_kinds() -> Validation {
    validation(
        format!(
            "variables.resource in {} || variables.annotations.all(k, {} || \
             (variables.resource == 'secrets' && k == 'kubernetes.io/service-account.name'))",
            cel::string_list(VALIDATED_ELSEWHERE.iter().copied()),
            cel::entry_allowed(ANNOTATIONS, "ofKind")
        ),
        "metadata.annotations may hold only keys that the tenant's class lists for this kind",
    )
}

/// The host's controllers put these labels and annotations on claims.
fn validate_claim_templates() -> Validation {
    validation(
        "variables.resource != 'resourceclaimtemplates.resource.k8s.io' || \
         (object.spec.?metadata.?annotations.orValue({}).size() == 0 && object.spec.?metadata.?labels.orValue({}).size() == 0)",
        "spec.metadata.annotations and spec.metadata.labels of ResourceClaimTemplates may not be set",
    )
}

/// Which lists of the class the labels of an object may be from: entries are values of `variables.resource`.
const LABEL_LISTS: &[(&str, &[&str])] = &[
    ("ofPodLabels", &["pods"]),
    ("ofServiceLabels", &["services"]),
    ("ofIngressLabels", &INGRESSES_AND_ROUTES),
];

const INGRESSES_AND_ROUTES: [&str; 4] = [
    "grpcroutes.gateway.networking.k8s.io",
    "httproutes.gateway.networking.k8s.io",
    "ingresses.networking.k8s.io",
    "tlsroutes.gateway.networking.k8s.io",
];

/// Variable `listedLabels`: the keys of labels that the class lists for the kind of the object.
fn listed_labels_variable() -> (&'static str, String) {
    let lists = LABEL_LISTS.iter().map(|(list, resources)| {
        let resources = cel::string_list(resources.iter().copied());
        format!("variables.resource in {resources} ? variables.{list} : ")
    });
    (
        "listedLabels",
        format!("{}variables.ofKindLabels", lists.collect::<String>()),
    )
}

/// Variable `commonLabels`: keys that every object of the kind may carry.
fn common_labels_variable() -> (&'static str, String) {
    let of_pods = pod_labels::OF_CONTROLLERS.iter().chain(ADDED_LABELS_OF_PODS).copied();
    let common = [
        ("pods", cel::string_list(of_pods)),
        ("services", cel::string_list(service::LABELS.iter().copied())),
        (
            "endpointslices.discovery.k8s.io",
            cel::string_list([endpoint_slice::MANAGED_BY, endpoint_slice::SERVICE]),
        ),
    ];
    let lists = common.map(|(resource, keys)| format!("variables.resource == '{resource}' ? {keys} : "));
    ("commonLabels", format!("{}[]", lists.concat()))
}

fn validate_labels() -> Validation {
    validation(
        format!(
            "variables.labels.all(k, {} || k in variables.commonLabels)",
            cel::entry_allowed(("labels", "oldLabels"), "listedLabels")
        ),
        "metadata.labels may hold only keys that the tenant's class lists for this kind",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_and_services_are_validated_against_the_lists_of_the_class() {
        let policy = build_policy();
        let names: Vec<&str> = policy.variables.iter().map(|(name, _)| *name).collect();
        for list in ["ofPods", "ofServices", "ofKind"] {
            assert!(names.contains(&list));
            let checks = |validation: &&Validation| validation.expression.contains(&format!("k in variables.{list} "));
            assert_eq!(policy.validations.iter().filter(checks).count(), 1, "{list}");
        }
    }

    #[test]
    fn every_annotation_that_a_syncer_may_copy_is_allowed() {
        let pods = validate_pods().expression;
        for key in pod::ANNOTATIONS {
            assert!(pods.contains(&format!("'{key}'")), "{key}");
        }
        let services = validate_services().expression;
        for key in service::ANNOTATIONS {
            assert!(services.contains(&format!("'{key}'")), "{key}");
        }
    }

    #[test]
    fn labels_of_every_kind_are_validated() {
        let policy = build_policy();
        let names: Vec<&str> = policy.variables.iter().map(|(name, _)| *name).collect();
        for (list, _) in LABEL_LISTS {
            assert!(names.contains(list), "{list}");
        }
        let common = common_labels_variable().1;
        for key in pod_labels::OF_CONTROLLERS.iter().chain(service::LABELS) {
            assert!(common.contains(&format!("'{key}'")), "{key}");
        }
        let labels = validate_labels().expression;
        assert!(!labels.contains("variables.resource"), "no kind is left out: {labels}");
    }
}
