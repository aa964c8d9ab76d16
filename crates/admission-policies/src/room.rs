//! Room in each object for what the platform writes into it. A host's API server stores no object of more than 1.5 MiB: if somebody fills
//! one up, nobody can write its status, its time of deletion or its place of release any more. What is too large already may shrink.
//!
//! Objects are measured as text. Kubernetes' own kinds are stored in less than that. Custom resources are stored as JSON, in which some
//! characters take six bytes.

use super::{AdmissionPolicy, ResourceRule, Scope, Subjects, Validation, WRITES, cel, validation};
use berth_api::{GROUP, VERSION};

/// Characters of a TenantCluster without its status and what API servers keep of its writers: one sixth of what is stored, less 400 KiB for the rest.
const TENANT_CLUSTER: u32 = 192 * 1024;
/// Characters that API servers keep of the writers of a TenantCluster.
const MANAGED_FIELDS: u32 = 64 * 1024;
/// Characters of a pod: what is stored, less 256 KiB for its status and its deletion. The largest that translation makes has less.
const POD: u32 = 1280 * 1024;
/// Characters of an object of most other kinds: one sixth of what is stored, less a sixteenth.
const OBJECT: u32 = 240 * 1024;
/// Characters of a Node, of which the platform changes labels, annotations and taints. Kubelets report 50 images with names of 4,096 characters at most.
const NODE: u32 = 768 * 1024;
/// Labels of one object: those of a pod and of its namespace, and Berth's.
const LABELS: u32 = 400;

/// Kinds that are larger, are deleted at once, and have no finalizers.
const WITHOUT_END: [&str; 3] = ["configmaps", "networkpolicies", "secrets"];

pub(super) fn build_policies() -> Vec<AdmissionPolicy> {
    vec![
        build_tenant_cluster_policy(),
        build_object_policy(),
        build_policy_of_kubelets(
            "berth-node-room",
            "Kubelets leave room in their Nodes for what the platform writes into them.",
            Scope::Cluster,
            &["nodes", "nodes/status"],
            NODE,
        ),
        build_policy_of_kubelets(
            "berth-pod-status-room",
            "Kubelets leave room in the pods of tenants, so that these can be deleted.",
            Scope::WorkloadNamespaces,
            &["pods/status"],
            POD + 128 * 1024,
        ),
    ]
}

/// Whoever may change a TenantCluster could make it so large that its class, its schedule and its deletion have no effect.
fn build_tenant_cluster_policy() -> AdmissionPolicy {
    let own = |object: &str| {
        format!(
            "'%s'.format([[{object}.map(k, !(k in ['metadata', 'status']), [k, {object}[k]]), \
             {object}.metadata.map(k, k != 'managedFields', [k, {object}.metadata[k]])]])"
        )
    };
    let managed = |object: &str| format!("'%s'.format([{object}.metadata.?managedFields.orValue([])])");
    AdmissionPolicy {
        name: "berth-tenant-cluster-sizes",
        description: "TenantClusters leave room for what control writes into them.",
        scope: Scope::AllNamespaces,
        subjects: Subjects::Everyone,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: GROUP,
            version: VERSION,
            resources: &["tenantclusters"],
            operations: WRITES,
        }],
        variables: Vec::new(),
        validations: vec![
            at_most(
                own,
                TENANT_CLUSTER,
                "a TenantCluster may have at most 196,608 bytes in its spec and metadata",
            ),
            at_most(
                managed,
                MANAGED_FIELDS,
                "metadata.managedFields: too many writers; remove the entries of those that no longer apply the object",
            ),
        ],
    }
}

/// With the credential of a syncer, a pod could be made so large that nobody can delete it.
fn build_object_policy() -> AdmissionPolicy {
    let text = |object: &str| format!("'%s'.format([{object}])");
    let mut fits = at_most(text, OBJECT, "an object may have at most 245,760 bytes on the host");
    let mut fits_pod = at_most(text, POD, "a pod may have at most 1,310,720 bytes on the host");
    let others: Vec<String> = WITHOUT_END.iter().map(|name| format!("'{name}'")).collect();
    fits.expression = format!(
        "request.resource.resource in [{}, 'pods'] || {}",
        others.join(", "),
        fits.expression
    );
    fits_pod.expression = format!("request.resource.resource != 'pods' || {}", fits_pod.expression);
    let count = |object: &str| format!("{object}.metadata.?labels.orValue({{}})");
    AdmissionPolicy {
        name: "berth-object-sizes",
        description: "Objects of a tenant leave room for what the host writes into them, so that they can be deleted.",
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::TenantIdentities,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule::writes_of_every_kind()],
        variables: Vec::new(),
        validations: vec![
            at_most(
                count,
                LABELS,
                "metadata.labels: an object may have at most 400 on the host",
            ),
            fits,
            fits_pod,
        ],
    }
}

fn build_policy_of_kubelets(
    name: &'static str,
    description: &'static str,
    scope: Scope,
    resources: &'static [&'static str],
    most: u32,
) -> AdmissionPolicy {
    let text = |object: &str| format!("'%s'.format([{object}])");
    let mut fits = at_most(
        text,
        most,
        "the object would be too large for what others write into it",
    );
    if scope == Scope::Cluster {
        // Such policies have no condition on the user.
        fits.expression = format!(
            "!{} || {} || {}",
            cel::is_kubelet(),
            fits.expression,
            cel::may_bypass_policies()
        );
    }
    AdmissionPolicy {
        name,
        description,
        scope,
        subjects: Subjects::Kubelets,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: "",
            version: "v1",
            resources,
            operations: WRITES,
        }],
        variables: Vec::new(),
        validations: vec![fits],
    }
}

/// Whether what is measured of an object has at most this size, or no more than before.
fn at_most(measure: impl Fn(&str) -> String, most: u32, message: &'static str) -> Validation {
    let (new, old) = (measure("object"), measure("oldObject"));
    validation(
        format!("size({new}) <= {most} || (oldObject != null && size({new}) <= size({old}))"),
        message,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_sync_rules::translation::sizes;

    /// What an etcd of the default size stores of one object, in bytes.
    const STORED: u32 = 1536 * 1024;
    /// Most bytes that JSON needs for a character.
    const ESCAPED: u32 = 6;

    /// What is allowed can be stored and changed.
    const _: () = {
        let rest = 256 * 1024;
        assert!(TENANT_CLUSTER * ESCAPED + MANAGED_FIELDS + rest <= STORED);
        assert!(POD + rest <= STORED);
        assert!(OBJECT * ESCAPED < STORED);
        assert!(NODE + rest <= STORED);
    };

    #[test]
    fn objects_may_shrink() {
        let validation = at_most(|object| format!("{object}.x"), 7, "");
        assert_eq!(
            validation.expression,
            "size(object.x) <= 7 || (oldObject != null && size(object.x) <= size(oldObject.x))"
        );
    }

    #[test]
    fn pods_of_intact_syncers_fit() {
        let most = sizes::MAX_POD_SPEC_BYTES + sizes::MAX_ADDED_POD_BYTES + 256 * 1024;
        assert!(most < POD as usize, "{most}");
    }
}
