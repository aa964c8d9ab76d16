//! Metadata of all objects that a syncer creates: labelled with the tenant, without owners and finalizers that would keep
//! them from being deleted.

use super::{AdmissionPolicy, ResourceRule, Scope, Subjects, cel, validation};
use berth_api::labels;

/// Finalizers that the host itself adds to new objects during admission.
const HOST_FINALIZERS: &[&str] = &["kubernetes.io/pvc-protection", "kueue.x-k8s.io/managed"];

pub(super) fn build_policy() -> AdmissionPolicy {
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
        description: "Objects that a syncer creates carry the labels of its tenant, have no foreign owners and can always be deleted.",
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
                    "object.metadata.?finalizers.orValue([]).all(f, f in variables.oldFinalizers || f in {})",
                    cel::string_list(HOST_FINALIZERS.iter().copied())
                ),
                "metadata.finalizers may not be added",
            ),
        ],
    }
}
