//! Annotations and labels that programs on the host act on: of pods, Services and all other kinds of a tenant only those that
//! its class lists. Ingresses, routes and claims have rules of their own.

use super::{AdmissionPolicy, ResourceRule, Scope, Subjects, Validation, cel, validation};
use berth_api::policy_annotations;
use berth_sync_rules::{
    kinds::{pod, service},
    translation::host_annotations,
};

/// Annotations that the host's API server and its admission plugins put on new pods: a request of a syncer has them when
/// policies see it. Pod Security validates the profiles.
const ADDED_TO_PODS: &[&str] = &[
    "kubernetes.io/limit-ranger",
    "kueue.x-k8s.io/role-hash",
    "openshift.io/scc",
    "security.openshift.io/validated-scc-subject-type",
];
/// Domain of the older form of a field of containers, which API servers may add.
const PROFILES: &str = "container.apparmor.security.beta.kubernetes.io/";

/// What Google's clusters add to every new Service.
const ADDED_TO_SERVICES: (&str, &str) = ("cloud.google.com/neg", r#"{"ingress":true}"#);

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
        (
            "resource",
            "request.resource.group == '' ? request.resource.resource : \
             request.resource.resource + '.' + request.resource.group"
                .into(),
        ),
        // Those of this kind: entries are `resource.group:key`.
        (
            "ofKind",
            "variables.ofKinds.filter(e, e.startsWith(variables.resource + ':'))\
             .map(e, e.substring(variables.resource.size() + 1))"
                .into(),
        ),
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

fn validate_pods() -> Validation {
    let always = pod::ANNOTATIONS.iter().chain(ADDED_TO_PODS).copied();
    validation(
        format!(
            "variables.resource != 'pods' || variables.annotations.all(k, {} || k in {} || k.startsWith('{PROFILES}'))",
            // First: most are Berth's own.
            cel::annotation_allowed("ofPods"),
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
            cel::annotation_allowed("ofServices")
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
            cel::annotation_allowed("ofKind")
        ),
        "metadata.annotations may hold only keys that the tenant's class lists for this kind",
    )
}

/// The host's controllers put these annotations on claims.
fn validate_claim_templates() -> Validation {
    validation(
        "variables.resource != 'resourceclaimtemplates.resource.k8s.io' || \
         object.spec.?metadata.?annotations.orValue({}).size() == 0",
        "spec.metadata.annotations of ResourceClaimTemplates may not be set",
    )
}

/// Not labels of schedulers and queues: the platform's own webhooks put them on pods, in the same request.
fn validate_labels() -> Validation {
    let acting = cel::domains_regex(host_annotations::LABELS.iter().map(|(domain, _)| *domain));
    validation(
        format!(
            "variables.labels.all(k, !k.matches('{acting}') || \
             (k in variables.oldLabels && variables.oldLabels[k] == variables.labels[k]))"
        ),
        "metadata.labels may not instruct webhooks, meshes or network plug-ins of the host",
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
    fn acting_labels_are_those_that_the_syncer_leaves_out() {
        let labels = validate_labels().expression;
        for (key, _) in host_annotations::LABELS {
            assert!(labels.contains(&key.replace('.', "[.]")), "{key}");
        }
    }
}
