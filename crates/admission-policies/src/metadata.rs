//! Metadata of everything that a syncer makes: marked as the tenant's, owned by nobody, held by nothing.

use super::{Place, Requests, WRITES, Wall, Who, cel, rule};
use berth_api::labels;

/// Finalizers that the host itself puts on new objects while it admits them.
const HOSTS: &[&str] = &["kubernetes.io/pvc-protection", "kueue.x-k8s.io/managed"];

pub(super) fn wall() -> Wall {
    let mut variables = vec![cel::slug()];
    variables.extend(cel::maps());
    variables.push((
        "oldFinalizers",
        "oldObject == null ? [] : oldObject.metadata.?finalizers.orValue([])".into(),
    ));
    variables.push((
        "oldOwners",
        "oldObject == null ? [] : oldObject.metadata.?ownerReferences.orValue([]).map(o, o.uid)".into(),
    ));
    Wall {
        name: "berth-metadata",
        about: "What a syncer makes is marked as its tenant's, has no owners elsewhere and can always be removed.",
        place: Place::Workloads,
        who: Who::Tenant,
        requests: vec![Requests {
            group: "*",
            version: "*",
            resources: &["*"],
            operations: WRITES,
        }],
        variables,
        rules: vec![
            rule(
                format!(
                    "variables.labels[?'{}'].orValue('') == {} && variables.labels[?'{}'].orValue('') == '{}'",
                    labels::TENANT,
                    cel::SLUG,
                    labels::MANAGED_BY,
                    labels::MANAGED_BY_SYNCER
                ),
                "objects carry the labels berth.dev/tenant of this tenant and berth.dev/managed-by=syncer",
            ),
            rule(
                format!(
                    "oldObject == null || variables.oldLabels[?'{}'].orValue('') == '{}'",
                    labels::MANAGED_BY,
                    labels::MANAGED_BY_SYNCER
                ),
                "objects that the platform made in this namespace are not the tenant's to change",
            ),
            // A pod's tokens go with the pod.
            rule(
                "object.metadata.?ownerReferences.orValue([]).all(o, o.uid in variables.oldOwners || \
                 (request.resource.resource == 'secrets' && o.kind == 'Pod' && o.apiVersion == 'v1' && \
                 !o.?controller.orValue(false) && !o.?blockOwnerDeletion.orValue(false)))",
                "metadata.ownerReferences may not be set",
            ),
            rule(
                format!(
                    "object.metadata.?finalizers.orValue([]).all(f, f in variables.oldFinalizers || f in {})",
                    cel::list(HOSTS.iter().copied())
                ),
                "metadata.finalizers may not be added",
            ),
        ],
    }
}
