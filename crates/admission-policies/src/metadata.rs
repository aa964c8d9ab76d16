//! Metadata of all objects that a syncer creates: labelled with the tenant, without owners and finalizers that would keep
//! them from being deleted.

use super::{AdmissionPolicy, ResourceRule, Scope, Subjects, cel, validation};
use berth_api::{
    host_finalizers::{KUEUE_MANAGED, POD_GROUP_PROTECTION},
    labels,
};

/// Finalizers that the host itself adds to new objects during admission, by resource. On an object of another kind nobody would ever remove them,
/// and Kueue removes its own from pods with its label alone.
const HOST_FINALIZERS: [(&str, &str); 3] = [
    (
        "kubernetes.io/pvc-protection",
        "request.resource.resource == 'persistentvolumeclaims'",
    ),
    // As long as pods name the group.
    (
        POD_GROUP_PROTECTION,
        "request.resource.resource == 'podgroups' && request.resource.group == 'scheduling.k8s.io'",
    ),
    (
        KUEUE_MANAGED,
        "request.resource.resource == 'pods' && variables.labels[?'kueue.x-k8s.io/managed'].orValue('') == 'true'",
    ),
];

pub(super) fn build_policies() -> [AdmissionPolicy; 2] {
    [build_write_policy(), build_deletion_policy()]
}

fn build_write_policy() -> AdmissionPolicy {
    let mut variables = vec![cel::tenant_slug_variable()];
    variables.extend(cel::metadata_variables());
    variables.push((
        "oldFinalizers",
        "oldObject == null ? [] : oldObject.metadata.?finalizers.orValue([])".into(),
    ));
    variables.push((
        "oldOwners",
        "oldObject == null ? [] : oldObject.metadata.?ownerReferences.orValue([]).map(o, o.uid)".into(),
    ));
    AdmissionPolicy {
        name: "berth-metadata",
        description: "Objects that a syncer creates carry the labels of its tenant, name the object that they were made for, have no foreign owners \
                      and can always be deleted.",
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::TenantIdentities,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule::writes_of_every_kind()],
        variables,
        validations: vec![
            validation(
                format!(
                    "variables.labels[?'{}'].orValue('') == {} && variables.labels[?'{}'].orValue('') == '{}'",
                    labels::TENANT,
                    cel::TENANT_SLUG,
                    labels::MANAGED_BY,
                    labels::MANAGED_BY_SYNCER
                ),
                "objects must carry the labels berth.dev/tenant of this tenant and berth.dev/managed-by=syncer",
            ),
            validation(
                format!(
                    "oldObject == null || variables.oldLabels[?'{}'].orValue('') == '{}'",
                    labels::MANAGED_BY,
                    labels::MANAGED_BY_SYNCER
                ),
                "a syncer may not change objects that the platform created in this namespace",
            ),
            // A pod's token Secrets are deleted with the pod.
            validation(
                "object.metadata.?ownerReferences.orValue([]).all(o, o.uid in variables.oldOwners || \
                 (request.resource.resource == 'secrets' && o.kind == 'Pod' && o.apiVersion == 'v1' && \
                 !o.?controller.orValue(false) && !o.?blockOwnerDeletion.orValue(false)))",
                "metadata.ownerReferences may not be set",
            ),
            validation(
                format!(
                    "object.metadata.?finalizers.orValue([]).all(f, f in variables.oldFinalizers || {})",
                    HOST_FINALIZERS
                        .map(|(finalizer, is_its)| format!("(f == '{finalizer}' && {is_its})"))
                        .join(" || ")
                ),
                "metadata.finalizers may not be added",
            ),
            // Without them the syncer would not take it for one of its own, and never delete it.
            validation(
                [labels::ORIGIN_NAMESPACE, labels::ORIGIN_NAME]
                    .map(|key| format!("variables.annotations[?'{key}'].orValue('') != ''"))
                    .join(" && "),
                "objects must name the object of the tenant that they were made for, in the annotations berth.dev/origin-namespace and \
                 berth.dev/origin-name",
            ),
        ],
    }
}

/// NetworkPolicies of the platform isolate the tenant. Its pods read ConfigMaps and Secrets of the platform, such as the certificate of the host. The
/// platform may also have pods, claims, endpoints and routes there. A syncer deletes only what it finds by its label, so it loses nothing by this.
fn build_deletion_policy() -> AdmissionPolicy {
    AdmissionPolicy {
        name: "berth-deletions",
        description: "The identities of a tenant delete no objects of the platform in its namespace.",
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::TenantIdentities,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule::deletions_of_every_kind()],
        variables: Vec::new(),
        validations: vec![validation(
            cel::is_managed_by_syncer("oldObject"),
            "the identities of a tenant may not delete objects of the platform",
        )],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finalizers_of_the_host_are_on_the_kinds_that_it_puts_them_on() {
        let validations = build_write_policy().validations;
        let finalizers = validations
            .iter()
            .find(|validation| validation.message.contains("finalizers"));
        let expression = &finalizers.unwrap().expression;
        for (finalizer, resource) in [
            ("kubernetes.io/pvc-protection", "persistentvolumeclaims"),
            ("scheduling.k8s.io/podgroup-protection", "podgroups"),
            ("kueue.x-k8s.io/managed", "pods"),
        ] {
            let bound = format!("(f == '{finalizer}' && request.resource.resource == '{resource}'");
            assert!(expression.contains(&bound), "{expression}");
        }
    }
}
