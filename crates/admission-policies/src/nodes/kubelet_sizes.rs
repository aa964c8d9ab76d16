//! Sizes of what kubelets write. Who is root on a node of a tenant has the credential of its kubelet, which a cluster lets write some kinds in every
//! namespace: a few objects of 1.5 MiB, the most that an API server stores, would fill the host's etcd. What others have to write into, such as
//! the pods of a tenant, could not be changed any more either.
//!
//! Limits are many times of what kubelets, device plug-ins and drivers write with this credential, because nodes of the platform have them as
//! well. What is too large already may shrink.

use crate::{
    AdmissionPolicy, ResourceRule, Scope, Subjects, WRITES,
    room::{at_most, whole},
};

/// What a kubelet may write, and bytes of an object with everything.
struct Limit {
    group: &'static str,
    resources: &'static [&'static str],
    bytes: u32,
}

/// Bytes of a static pod. Its number has no limit.
pub(crate) const STATIC_POD: u32 = 128 * 1024;
/// Bytes of other pods: what is stored, less what a deletion writes.
const POD: u32 = 1440 * 1024;
/// The annotation of static pods, which nobody can add to or take from a pod.
const IS_STATIC: &str = "kubernetes.io/config.mirror";

/// Everything of which a kubelet decides on the size.
const LIMITS: [Limit; 11] = [
    // Errors of garbage collection name each container. Tenants' namespaces have a lower limit.
    limit("", &["events"], 32 * 1024),
    limit("events.k8s.io", &["events"], 32 * 1024),
    // A request in PEM has about a KiB. API servers ignore what follows it, and keep it.
    limit("certificates.k8s.io", &["certificatesigningrequests"], 32 * 1024),
    limit("certificates.k8s.io", &["podcertificaterequests"], 64 * 1024),
    limit("coordination.k8s.io", &["leases"], 32 * 1024),
    // Kubelets report 50 images by default, each with names of a few hundred bytes. The platform changes labels, annotations and taints.
    limit("", &["nodes", "nodes/status"], 768 * 1024),
    limit("", &["persistentvolumeclaims/status"], 768 * 1024),
    limit("", &["pods"], STATIC_POD),
    limit("", &["pods/status"], POD),
    // Drivers write most slices with credentials of their own.
    limit("resource.k8s.io", &["resourceslices"], 512 * 1024),
    limit("storage.k8s.io", &["csinodes", "csinodes/status"], 128 * 1024),
];

const fn limit(group: &'static str, resources: &'static [&'static str], bytes: u32) -> Limit {
    Limit {
        group,
        resources,
        bytes,
    }
}

pub(crate) fn build_policy() -> AdmissionPolicy {
    let rule = |limit: &Limit| ResourceRule {
        group: limit.group,
        // All versions are measured alike.
        version: "*",
        resources: limit.resources,
        operations: WRITES,
    };
    let is_static = |object: &str| format!("'{IS_STATIC}' in dyn({object}).metadata.?annotations.orValue({{}})");
    AdmissionPolicy {
        name: "berth-kubelet-sizes",
        description: "Kubelets write no large objects, which would fill the host's datastore or leave no room for what others write into them.",
        scope: Scope::Everywhere,
        subjects: Subjects::Kubelets,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: LIMITS.iter().map(rule).collect(),
        variables: vec![
            (
                "path",
                "request.resource.resource + (request.?subResource.orValue('') == '' ? '' : '/' + request.subResource)"
                    .into(),
            ),
            (
                "isStaticPod",
                format!(
                    "request.resource.resource == 'pods' && ({} || (oldObject != null && {}))",
                    is_static("object"),
                    is_static("oldObject")
                ),
            ),
            (
                "most",
                format!("variables.isStaticPod ? {STATIC_POD} : {}[variables.path]", table()),
            ),
        ],
        validations: vec![at_most(
            whole,
            "variables.most",
            "a kubelet may not write an object of this size; the documentation of the policy berth-kubelet-sizes lists the limits",
        )],
    }
}

/// The limits as a CEL map, by resource and subresource. Resources of two groups with one name have the same limit.
fn table() -> String {
    let mut entries: Vec<String> = LIMITS
        .iter()
        .flat_map(|limit| {
            let bytes = limit.bytes;
            limit.resources.iter().map(move |path| format!("'{path}': {bytes}"))
        })
        .collect();
    entries.sort();
    entries.dedup();
    format!("{{{}}}", entries.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::room;
    use std::collections::BTreeMap;

    /// What others write into a pod and a Node before they are gone has room.
    const _: () = {
        assert!(room::WHOLE_POD < POD && POD + 64 * 1024 <= room::STORED);
        assert!(STATIC_POD < POD);
    };

    #[test]
    fn each_resource_has_one_limit() {
        let mut limits: BTreeMap<&str, u32> = BTreeMap::new();
        for limit in &LIMITS {
            assert!(limit.bytes + 64 * 1024 <= room::STORED);
            for path in limit.resources {
                let before = limits.insert(path, limit.bytes);
                assert!(before.is_none_or(|before| before == limit.bytes), "{path}");
            }
        }
        let table = table();
        for (path, bytes) in &limits {
            assert!(table.contains(&format!("'{path}': {bytes}")), "{table}");
        }
        assert_eq!(table.matches(':').count(), limits.len(), "{table}");
    }

    /// What the role `system:node` may write, and API servers store.
    #[test]
    fn everything_that_kubelets_may_write_has_a_limit() {
        let limited: Vec<&str> = LIMITS.iter().flat_map(|limit| limit.resources).copied().collect();
        for path in [
            "certificatesigningrequests",
            "csinodes",
            "csinodes/status",
            "events",
            "leases",
            "nodes",
            "nodes/status",
            "persistentvolumeclaims/status",
            "podcertificaterequests",
            "pods",
            "pods/status",
            "resourceslices",
        ] {
            assert!(limited.contains(&path), "{path}");
        }
    }

    #[test]
    fn the_limit_of_static_pods_holds_for_their_status_and_for_no_other_kind() {
        let policy = build_policy();
        let variable = |wanted: &str| {
            let found = policy.variables.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, expression)| expression.clone()).unwrap()
        };
        assert!(variable("isStaticPod").starts_with("request.resource.resource == 'pods' && ("));
        assert!(
            variable("most").starts_with("variables.isStaticPod ? 131072 : {'certificatesigningrequests': 32768, ")
        );
    }
}
