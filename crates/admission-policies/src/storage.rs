//! PersistentVolumeClaims and VolumeSnapshots: only classes that the tenant's class lists, and no volume or snapshot that
//! exists already. Nor may the host's controllers choose one for a claim.

use super::{AdmissionPolicy, ResourceRule, Scope, Subjects, WRITES, cel, validation};
use berth_api::{labels, policy_annotations};
use berth_sync_rules::kinds::storage::claim::DATA_SOURCES;

/// The annotation by which schedulers choose the node that a volume is made for.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

pub(super) fn build_policies() -> Vec<AdmissionPolicy> {
    vec![build_claim_policy(), build_snapshot_policy(), build_volume_policy()]
}

fn build_claim_policy() -> AdmissionPolicy {
    AdmissionPolicy {
        name: "berth-volume-claims",
        description: "PersistentVolumeClaims of a tenant get new volumes, of classes that its class lists.",
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::TenantIdentities,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: "",
            version: "v1",
            resources: &["persistentvolumeclaims"],
            operations: WRITES,
        }],
        variables: vec![
            cel::allowed_names_variable("classes", policy_annotations::STORAGE_CLASSES),
            cel::allowed_names_variable("attributes", policy_annotations::ATTRIBUTES_CLASSES),
            ("node", selected_node("object")),
            (
                "oldNode",
                format!("oldObject == null ? '' : {}", selected_node("oldObject")),
            ),
        ],
        validations: vec![
            validation(
                format!(
                    "{} || ({} != '' && {})",
                    is_unchanged("storageClassName"),
                    class("object", "storageClassName"),
                    cel::list_allows("classes", &class("object", "storageClassName"))
                ),
                "spec.storageClassName must be one that the tenant's class lists",
            ),
            validation(
                format!(
                    "{} || {} == '' || {}",
                    is_unchanged("volumeAttributesClassName"),
                    class("object", "volumeAttributesClassName"),
                    cel::list_allows("attributes", &class("object", "volumeAttributesClassName"))
                ),
                "spec.volumeAttributesClassName must be one that the tenant's class lists",
            ),
            validation(
                "oldObject != null || (object.spec.?volumeName.orValue('') == '' && !has(object.spec.selector))",
                "spec.volumeName and spec.selector may not choose an existing volume",
            ),
            validation(
                "oldObject == null || object.spec.?volumeName.orValue('') == oldObject.spec.?volumeName.orValue('')",
                "spec.volumeName is for the host's controllers to write",
            ),
            validation(
                "object.spec.?dataSourceRef.?namespace.orValue('') in ['', request.namespace]",
                "spec.dataSourceRef must be in the same namespace",
            ),
            // Programs of the host (volume populators) follow references to other kinds.
            validation(
                format!(
                    "{} && {}",
                    is_offered_source("dataSource"),
                    is_offered_source("dataSourceRef")
                ),
                "spec.dataSource and spec.dataSourceRef may name PersistentVolumeClaims and VolumeSnapshots only",
            ),
            // Storage drivers read instructions from annotations, such as which volume to import.
            validation(
                format!(
                    "object.metadata.?annotations.orValue({{}}).all(k, {} || k == '{SELECTED_NODE}' || \
                     (oldObject != null && k in oldObject.metadata.?annotations.orValue({{}}) && \
                     oldObject.metadata.annotations[k] == object.metadata.annotations[k]))",
                    cel::is_reserved_key("k")
                ),
                "metadata.annotations of claims may not instruct storage drivers",
            ),
            // Drivers of node-local volumes make the volume there. Schedulers of the host may choose every node.
            validation(
                format!(
                    "variables.node in ['', variables.oldNode] || {}",
                    cel::is_own_node("variables.node")
                ),
                "the annotation volume.kubernetes.io/selected-node may only name nodes that are the tenant's alone",
            ),
        ],
    }
}

/// Whether volumes may be filled from the kind that a field of a claim's spec names. Without the field, the group and the kind are empty.
fn is_offered_source(field: &str) -> String {
    let kinds = DATA_SOURCES.map(|(group, kind, _)| format!("{group}/{kind}"));
    let offered = std::iter::once("/").chain(kinds.iter().map(String::as_str));
    let source = format!("object.spec.?{field}");
    format!(
        "{} + '/' + {source}.?kind.orValue('') in {}",
        cel::text(&source, "apiGroup"),
        cel::string_list(offered)
    )
}

/// The class that an object names in a field of its spec; empty for none.
pub(super) fn class(object: &str, field: &str) -> String {
    format!("{object}.spec.?{field}.orValue('')")
}

/// Whether the object has named the class before the request: one that the tenant's class no longer lists may stay, so that the object can still be
/// deleted.
pub(super) fn is_unchanged(field: &str) -> String {
    format!(
        "(oldObject != null && {} == {})",
        class("object", field),
        class("oldObject", field)
    )
}

/// The node that a claim names for its volume; empty for none.
fn selected_node(claim: &str) -> String {
    format!("{claim}.metadata.?annotations[?'{SELECTED_NODE}'].orValue('')")
}

fn build_snapshot_policy() -> AdmissionPolicy {
    AdmissionPolicy {
        name: "berth-volume-snapshots",
        description: "VolumeSnapshots of a tenant are taken of its own claims, of classes that its class lists.",
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::TenantIdentities,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: "snapshot.storage.k8s.io",
            version: "v1",
            resources: &["volumesnapshots"],
            operations: WRITES,
        }],
        variables: vec![cel::allowed_names_variable(
            "classes",
            policy_annotations::SNAPSHOT_CLASSES,
        )],
        validations: vec![
            validation(
                "object.spec.source.?volumeSnapshotContentName.orValue('') == ''",
                "spec.source.volumeSnapshotContentName may not choose an existing snapshot",
            ),
            // A snapshot that waits is taken of the class that it names by then.
            validation(
                format!(
                    "{} || {}",
                    is_unchanged("volumeSnapshotClassName"),
                    cel::list_allows("classes", &class("object", "volumeSnapshotClassName"))
                ),
                "spec.volumeSnapshotClassName must be one that the tenant's class lists",
            ),
        ],
    }
}

/// Before a volume is made for a claim, kube-controller-manager and schedulers look for one of the class that no claim has: one that the platform
/// restores, with the data of another tenant, matches as well. They write into the volume first which claim gets it. A driver that makes a volume
/// creates it with its claim.
fn build_volume_policy() -> AdmissionPolicy {
    let namespace = |volume: &str| format!("{volume}.spec.?claimRef.?namespace.orValue('')");
    AdmissionPolicy {
        name: "berth-volume-bindings",
        description: "Claims of tenants get no volumes that were not made for them.",
        scope: Scope::Cluster,
        subjects: Subjects::EveryoneAskedLast,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: "",
            version: "v1",
            resources: &["persistentvolumes"],
            operations: &["UPDATE"],
        }],
        variables: Vec::new(),
        validations: vec![validation(
            format!(
                "{} != '' || !{} || object.metadata.?labels[?'{}'].orValue('') == 'true' || {}",
                namespace("oldObject"),
                cel::is_like_workload_namespace(&namespace("object")),
                labels::ALLOW_ANY_CLAIM,
                cel::may_bypass_policies()
            ),
            "no claim of a tenant may get a volume that was not made for it: set spec.claimRef of the volume to its claim, or the label \
             berth.dev/allow-any-claim to true",
        )],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_sync_rules::permissions;

    #[test]
    fn the_nodes_of_a_tenant_are_those_in_the_role_of_its_syncer() {
        let rule = permissions::host_node_metrics_rule(vec!["n".into()]).unwrap();
        let first = |texts: Option<Vec<String>>| texts.unwrap().swap_remove(0);
        let asked = format!(
            "authorizer.group('{}').resource('{}').name(variables.node).check('{}').allowed()",
            first(rule.api_groups),
            first(rule.resources),
            first(Some(rule.verbs)),
        );
        let policy = build_claim_policy();
        let asks = |validation: &super::super::Validation| validation.expression.ends_with(&asked);
        assert!(policy.validations.iter().any(asks), "{asked}");
    }

    #[test]
    fn volumes_are_filled_from_the_kinds_that_translation_passes_on() {
        let offered = "in ['/', '/PersistentVolumeClaim', 'snapshot.storage.k8s.io/VolumeSnapshot']";
        let expected = ["dataSource", "dataSourceRef"].map(|field| {
            format!(
                "object.spec.?{field}.?apiGroup.optMap(t, dyn(t) == null ? '' : t).orValue('') + '/' + \
                 object.spec.?{field}.?kind.orValue('') {offered}"
            )
        });
        let policy = build_claim_policy();
        let expected = expected.join(" && ");
        let has_all = policy
            .validations
            .iter()
            .any(|validation| validation.expression == expected);
        assert!(has_all, "{expected}");
    }

    #[test]
    fn volumes_that_had_a_claim_or_go_to_claims_of_the_platform_are_bound() {
        let policy = build_volume_policy();
        let expression = &policy.validations[0].expression;
        let start = "oldObject.spec.?claimRef.?namespace.orValue('') != '' || \
                     !object.spec.?claimRef.?namespace.orValue('').matches('^berth-.+-[a-z2-7]{13}$') || \
                     object.metadata.?labels[?'berth.dev/allow-any-claim'].orValue('') == 'true' || ";
        assert!(expression.starts_with(start), "{expression}");
        // Drivers create volumes with their claims.
        assert_eq!(policy.resource_rules[0].operations, ["UPDATE"]);
    }
}
