//! Claims of volumes and snapshots: of classes that are offered, and of no volume or snapshot that is there already.

use super::{Place, Requests, WRITES, Wall, Who, cel, rule};
use berth_api::policy_annotations;

pub(super) fn walls() -> Vec<Wall> {
    vec![claims(), snapshots()]
}

fn claims() -> Wall {
    let local = |source: &str| format!("object.spec.?{source}.?namespace.orValue('') in ['', request.namespace]");
    Wall {
        name: "berth-volume-claims",
        about: "Claims of a tenant get new volumes of classes that are offered to it.",
        place: Place::Workloads,
        who: Who::Tenant,
        requests: vec![Requests {
            group: "",
            version: "v1",
            resources: &["persistentvolumeclaims"],
            operations: WRITES,
        }],
        variables: vec![
            cel::allowed("classes", policy_annotations::STORAGE_CLASSES),
            cel::allowed("attributes", policy_annotations::ATTRIBUTES_CLASSES),
            ("class", "object.spec.?storageClassName.orValue('')".into()),
            (
                "attributesClass",
                "object.spec.?volumeAttributesClassName.orValue('')".into(),
            ),
            (
                "isNew",
                "oldObject == null || (object.spec.?volumeAttributesClassName.orValue('') != \
                 oldObject.spec.?volumeAttributesClassName.orValue(''))"
                    .into(),
            ),
        ],
        rules: vec![
            rule(
                format!(
                    "oldObject != null || (variables.class != '' && {})",
                    cel::contains("classes", "variables.class")
                ),
                "spec.storageClassName must be one that the tenant's class lists",
            ),
            rule(
                format!(
                    "!variables.isNew || variables.attributesClass == '' || {}",
                    cel::contains("attributes", "variables.attributesClass")
                ),
                "spec.volumeAttributesClassName must be one that the tenant's class lists",
            ),
            rule(
                "oldObject != null || (object.spec.?volumeName.orValue('') == '' && !has(object.spec.selector))",
                "spec.volumeName and spec.selector may not choose a volume that is there already",
            ),
            rule(
                "oldObject == null || object.spec.?volumeName.orValue('') == oldObject.spec.?volumeName.orValue('')",
                "spec.volumeName is for the host's controllers to write",
            ),
            rule(
                local("dataSourceRef"),
                "spec.dataSourceRef must be in the same namespace",
            ),
            // Drivers take orders from annotations, such as which volume to import.
            rule(
                format!(
                    "object.metadata.?annotations.orValue({{}}).all(k, {} || k == 'volume.kubernetes.io/selected-node' || \
                     (oldObject != null && k in oldObject.metadata.?annotations.orValue({{}})))",
                    cel::reserved("k")
                ),
                "metadata.annotations of claims may not instruct storage drivers",
            ),
        ],
    }
}

fn snapshots() -> Wall {
    Wall {
        name: "berth-volume-snapshots",
        about: "Snapshots of a tenant are taken of its own claims, by classes that are offered to it.",
        place: Place::Workloads,
        who: Who::Tenant,
        requests: vec![Requests {
            group: "snapshot.storage.k8s.io",
            version: "v1",
            resources: &["volumesnapshots"],
            operations: WRITES,
        }],
        variables: vec![cel::allowed("classes", policy_annotations::SNAPSHOT_CLASSES)],
        rules: vec![
            rule(
                "object.spec.source.?volumeSnapshotContentName.orValue('') == ''",
                "spec.source.volumeSnapshotContentName may not choose a snapshot that is there already",
            ),
            rule(
                format!(
                    "oldObject != null || {}",
                    cel::contains("classes", "object.spec.?volumeSnapshotClassName.orValue('')")
                ),
                "spec.volumeSnapshotClassName must be one that the tenant's class lists",
            ),
        ],
    }
}
