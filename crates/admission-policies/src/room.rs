//! Room in each object for what the platform writes into it. A host's API server stores no object of more than 1.5 MiB: if somebody fills
//! one up, nobody can write its status, its time of deletion or its place of release any more. What is too large already may shrink.
//!
//! Objects are measured as text, in bytes. Kubernetes' own kinds are stored in less than that. Custom resources are stored as JSON, in which some
//! characters take six bytes.

use super::{AdmissionPolicy, ResourceRule, Scope, Subjects, Validation, WRITES, cel, validation};
use berth_api::{GROUP, VERSION};
use std::fmt::Display;

/// Bytes of a TenantCluster without its status and what API servers keep of its writers.
const TENANT_CLUSTER: u32 = 160 * 1024;
/// The same of a TenantSnapshot. Control has all of them in memory, and a team may create many.
const TENANT_SNAPSHOT: u32 = 16 * 1024;
/// Bytes that API servers keep of the writers of a TenantCluster or a TenantSnapshot.
const WRITERS: u32 = 48 * 1024;
/// Bytes of a pod without its status and its writers: more than translation makes of the largest.
const POD: u32 = 1024 * 1024;
/// Bytes of a pod with everything, as a syncer may leave it. Kubelets may leave more ([`crate::nodes::kubelet_sizes`]).
pub(super) const WHOLE_POD: u32 = 1408 * 1024;
/// Bytes of an object of most other kinds without its status and its writers: less than a sixth of what is stored.
const OBJECT: u32 = 240 * 1024;
/// Bytes that API servers keep of the writers of an object of most kinds on the host. Those of large pods are larger.
const WRITERS_ON_HOST: u32 = 256 * 1024;
/// Labels of one object: those of a pod and of its namespace, and Berth's.
const LABELS: u32 = 400;

/// Kinds that are larger. No controller gives them finalizers, so that they are deleted at once.
const WITHOUT_END: [&str; 3] = ["configmaps", "networkpolicies", "secrets"];
/// What an etcd of the default size stores of one object, in bytes.
#[cfg(test)]
pub(super) const STORED: u32 = 1536 * 1024;

pub(super) fn build_policies() -> Vec<AdmissionPolicy> {
    vec![build_tenant_cluster_policy(), build_object_policy()]
}

/// Whoever may change a TenantCluster could make it so large that its class, its schedule and its deletion have no effect.
fn build_tenant_cluster_policy() -> AdmissionPolicy {
    AdmissionPolicy {
        name: "berth-tenant-cluster-sizes",
        description: "TenantClusters leave room for what control writes into them, and TenantSnapshots for others.",
        scope: Scope::AllNamespaces,
        subjects: Subjects::Everyone,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: GROUP,
            version: VERSION,
            resources: &["tenantclusters", "tenantsnapshots"],
            operations: WRITES,
        }],
        variables: Vec::new(),
        validations: vec![
            at_most(
                own,
                TENANT_CLUSTER,
                "a TenantCluster may have at most 163,840 bytes in its spec and metadata",
            ),
            unless(
                "request.resource.resource != 'tenantsnapshots'",
                at_most(
                    own,
                    TENANT_SNAPSHOT,
                    "a TenantSnapshot may have at most 16,384 bytes in its spec and metadata",
                ),
            ),
            at_most(
                writers,
                WRITERS,
                "metadata.managedFields: too many writers; remove the entries of those that no longer apply the object",
            ),
        ],
    }
}

/// With the credential of a syncer, a pod could be made so large that nobody can delete it.
fn build_object_policy() -> AdmissionPolicy {
    let not_pods = "request.resource.resource != 'pods'";
    let larger = format!(
        "request.resource.resource in {}",
        cel::string_list(WITHOUT_END.into_iter().chain(["pods"]))
    );
    let labels = |object: &str| format!("{object}.metadata.?labels.orValue({{}})");
    AdmissionPolicy {
        name: "berth-object-sizes",
        description: "Objects of a tenant leave room for what the host writes into them, so that they can be deleted.",
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::TenantIdentities,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![
            ResourceRule::writes_of_every_kind(),
            ResourceRule {
                group: "",
                version: "v1",
                resources: &["pods/ephemeralcontainers", "pods/resize", "pods/status"],
                operations: WRITES,
            },
        ],
        variables: Vec::new(),
        validations: vec![
            at_most(
                labels,
                LABELS,
                "metadata.labels: an object may have at most 400 on the host",
            ),
            unless(
                &larger,
                at_most(writers, WRITERS_ON_HOST, "metadata.managedFields: too many writers"),
            ),
            unless(
                &larger,
                at_most(own, OBJECT, "an object may have at most 245,760 bytes on the host"),
            ),
            unless(
                not_pods,
                at_most(own, POD, "a pod may have at most 1,048,576 bytes on the host"),
            ),
            unless(
                not_pods,
                at_most(
                    whole,
                    WHOLE_POD,
                    "a pod may have at most 1,441,792 bytes with its status",
                ),
            ),
        ],
    }
}

/// The validation, but for requests that the condition describes.
fn unless(condition: &str, validation: Validation) -> Validation {
    Validation {
        expression: format!("{condition} || {}", validation.expression),
        ..validation
    }
}

/// The text of an object without its status and its writers.
fn own(object: &str) -> String {
    format!(
        "bytes('%s'.format([[{object}.map(k, !(k in ['metadata', 'status']), [k, {object}[k]]), \
         {object}.metadata.map(k, k != 'managedFields', [k, {object}.metadata[k]])]]))"
    )
}

/// The text of what an API server keeps of the writers of an object.
fn writers(object: &str) -> String {
    format!("bytes('%s'.format([{object}.metadata.?managedFields.orValue([])]))")
}

/// The text of an object.
pub(super) fn whole(object: &str) -> String {
    format!("bytes('%s'.format([{object}]))")
}

/// Whether what is measured of an object has at most this size, or no more than before.
pub(super) fn at_most(measure: impl Fn(&str) -> String, most: impl Display, message: &'static str) -> Validation {
    // An API server that knows the types of fields takes an object for no map.
    let (new, old) = (measure("dyn(object)"), measure("dyn(oldObject)"));
    validation(
        format!("size({new}) <= {most} || (oldObject != null && size({new}) <= size({old}))"),
        message,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_sync_rules::translation::sizes;

    /// Most bytes that JSON needs for a character.
    const ESCAPED: u32 = 6;

    /// What is allowed can be stored and changed.
    const _: () = {
        let rest = 256 * 1024;
        assert!((TENANT_CLUSTER + WRITERS) * ESCAPED + rest <= STORED && TENANT_SNAPSHOT <= TENANT_CLUSTER);
        assert!(POD + rest <= WHOLE_POD && WHOLE_POD < STORED);
        assert!(OBJECT * ESCAPED < STORED && OBJECT + WRITERS_ON_HOST + rest <= STORED);
    };

    /// Objects of intact syncers fit, with names, labels and annotations that Berth adds.
    const _: () = {
        assert!(sizes::MAX_OBJECT_BYTES + 8 * 1024 <= OBJECT as usize);
        assert!(sizes::MAX_OBJECT_LABELS + 10 <= LABELS as usize);
    };

    #[test]
    fn objects_may_shrink() {
        let validation = at_most(|object| format!("{object}.x"), 7, "");
        assert_eq!(
            validation.expression,
            "size(dyn(object).x) <= 7 || (oldObject != null && size(dyn(object).x) <= size(dyn(oldObject).x))"
        );
    }

    #[test]
    fn bytes_are_counted_and_no_characters() {
        for policy in build_policies() {
            for Validation { expression, .. } in policy.validations {
                let texts = expression.matches("'%s'.format(").count();
                assert_eq!(
                    expression.matches("size(bytes('%s'.format(").count(),
                    texts,
                    "{expression}"
                );
            }
        }
    }

    #[test]
    fn pods_of_intact_syncers_fit() {
        let annotations = 240 * 1024;
        // Keys and values of a usual length.
        let labels = LABELS as usize * 256;
        let most = sizes::MAX_POD_SPEC_BYTES + sizes::MAX_ADDED_POD_BYTES + annotations + labels;
        assert!(most < POD as usize, "{most}");
    }
}
