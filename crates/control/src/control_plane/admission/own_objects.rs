//! Objects that an API server creates and corrects for itself when it starts.
//!
//! A test of the whole system compares the list with a new tenant. It fails if a version of Kubernetes needs another list.

use std::collections::BTreeSet;

/// Objects of some resources with the same names.
pub(super) struct OwnObjects {
    pub(super) group: &'static str,
    pub(super) resources: &'static [&'static str],
    /// Empty if the resources have no namespaces.
    pub(super) namespace: &'static str,
    pub(super) names: &'static [&'static str],
}

/// An object that an API server creates for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwnObject<'a> {
    /// API group, empty for the core group.
    pub group: &'a str,
    /// For example `clusterroles`.
    pub resource: &'a str,
    /// Empty if the resource has no namespaces.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
}

/// Every object that an API server creates for itself and needs before it is ready, except `IPAddresses`: these have the names of addresses.
pub fn api_server_objects() -> Vec<OwnObject<'static>> {
    let mut objects = Vec::new();
    for kind in &OWN {
        for resource in kind.resources {
            objects.extend(kind.names.iter().map(|name| OwnObject {
                group: kind.group,
                resource,
                namespace: kind.namespace,
                name,
            }));
        }
    }
    objects
}

/// An expression: whether a request is about one of these objects. `name` is the expression of its name.
pub(super) fn is_one_of(objects: impl Iterator<Item = &'static OwnObjects>, name: &str) -> String {
    let list = |strings: &[&str]| {
        let quoted: Vec<String> = strings.iter().map(|string| format!("'{string}'")).collect();
        format!("[{}]", quoted.join(", "))
    };
    let kinds = objects.map(|own| {
        let namespace = match own.namespace {
            "" => String::new(),
            namespace => format!(" && request.namespace == '{namespace}'"),
        };
        format!(
            "(request.resource.group == '{}' && request.resource.resource in {}{namespace} && {name} in {})",
            own.group,
            list(own.resources),
            list(own.names)
        )
    });
    kinds.collect::<Vec<_>>().join(" || ")
}

/// API groups that an API server serves itself, each once. The core group is empty.
pub fn served_groups() -> impl Iterator<Item = &'static str> {
    let groups: BTreeSet<&str> = served().map(|(_, group)| group).collect();
    groups.into_iter()
}

/// Versions of an API group that an API server serves itself; none of another group.
pub fn served_versions(group: &str) -> impl Iterator<Item = &'static str> {
    served()
        .filter(move |(_, served)| *served == group)
        .map(|(version, _)| version)
}

/// Versions and groups that an API server serves itself, by the names of their APIServices.
fn served() -> impl Iterator<Item = (&'static str, &'static str)> {
    let services = OWN.iter().filter(|own| own.resources.contains(&"apiservices"));
    services
        .flat_map(|own| own.names)
        .filter_map(|name| name.split_once('.'))
}

/// Those of Kubernetes 1.37, with the flags of a tenant.
pub(super) static OWN: [OwnObjects; 13] = [
    OwnObjects {
        group: "rbac.authorization.k8s.io",
        resources: &["clusterroles", "clusterrolebindings"],
        namespace: "",
        names: &[
            "cluster-admin",
            "system:basic-user",
            "system:cluster-trust-bundle-discovery",
            "system:controller:attachdetach-controller",
            "system:controller:certificate-controller",
            "system:controller:clusterrole-aggregation-controller",
            "system:controller:cronjob-controller",
            "system:controller:daemon-set-controller",
            "system:controller:deployment-controller",
            "system:controller:device-taint-eviction-controller",
            "system:controller:disruption-controller",
            "system:controller:endpoint-controller",
            "system:controller:endpointslice-controller",
            "system:controller:endpointslicemirroring-controller",
            "system:controller:ephemeral-volume-controller",
            "system:controller:expand-controller",
            "system:controller:generic-garbage-collector",
            "system:controller:horizontal-pod-autoscaler",
            "system:controller:job-controller",
            "system:controller:kube-apiserver-serving-clustertrustbundle-publisher",
            "system:controller:legacy-service-account-token-cleaner",
            "system:controller:namespace-controller",
            "system:controller:node-controller",
            "system:controller:persistent-volume-binder",
            "system:controller:pod-garbage-collector",
            "system:controller:podcertificaterequestcleaner",
            "system:controller:podgroup-protection-controller",
            "system:controller:pv-protection-controller",
            "system:controller:pvc-protection-controller",
            "system:controller:replicaset-controller",
            "system:controller:replication-controller",
            "system:controller:resource-claim-controller",
            "system:controller:resourcequota-controller",
            "system:controller:root-ca-cert-publisher",
            "system:controller:route-controller",
            "system:controller:selinux-warning-controller",
            "system:controller:service-account-controller",
            "system:controller:service-cidrs-controller",
            "system:controller:service-controller",
            "system:controller:statefulset-controller",
            "system:controller:storage-version-migrator-controller",
            "system:controller:ttl-after-finished-controller",
            "system:controller:ttl-controller",
            "system:controller:validatingadmissionpolicy-status-controller",
            "system:controller:volumeattributesclass-protection-controller",
            "system:discovery",
            "system:kube-controller-manager",
            "system:kube-dns",
            "system:kube-scheduler",
            "system:monitoring",
            "system:node",
            "system:node-proxier",
            "system:public-info-viewer",
            "system:service-account-issuer-discovery",
            "system:volume-scheduler",
        ],
    },
    OwnObjects {
        group: "rbac.authorization.k8s.io",
        resources: &["clusterroles"],
        namespace: "",
        names: &[
            "admin",
            "edit",
            "system:aggregate-to-admin",
            "system:aggregate-to-edit",
            "system:aggregate-to-view",
            "system:auth-delegator",
            "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
            "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
            "system:certificates.k8s.io:kube-apiserver-client-approver",
            "system:certificates.k8s.io:kube-apiserver-client-kubelet-approver",
            "system:certificates.k8s.io:kubelet-serving-approver",
            "system:certificates.k8s.io:legacy-unknown-approver",
            "system:heapster",
            "system:kube-aggregator",
            "system:kubelet-api-admin",
            "system:node-bootstrapper",
            "system:node-problem-detector",
            "system:persistent-volume-provisioner",
            "view",
        ],
    },
    OwnObjects {
        group: "rbac.authorization.k8s.io",
        resources: &["roles", "rolebindings"],
        namespace: "kube-system",
        names: &[
            "system::leader-locking-kube-controller-manager",
            "system::leader-locking-kube-scheduler",
            "system:controller:bootstrap-signer",
            "system:controller:cloud-provider",
            "system:controller:token-cleaner",
        ],
    },
    OwnObjects {
        group: "rbac.authorization.k8s.io",
        resources: &["roles"],
        namespace: "kube-system",
        names: &["extension-apiserver-authentication-reader"],
    },
    OwnObjects {
        group: "rbac.authorization.k8s.io",
        resources: &["rolebindings"],
        namespace: "kube-system",
        names: &["system::extension-apiserver-authentication-reader"],
    },
    OwnObjects {
        group: "rbac.authorization.k8s.io",
        resources: &["roles", "rolebindings"],
        namespace: "kube-public",
        names: &["system:controller:bootstrap-signer"],
    },
    OwnObjects {
        group: "flowcontrol.apiserver.k8s.io",
        resources: &["flowschemas"],
        namespace: "",
        names: &[
            "catch-all",
            "exempt",
            "global-default",
            "kube-controller-manager",
            "kube-scheduler",
            "kube-system-service-accounts",
            "probes",
            "service-accounts",
            "system-leader-election",
            "system-node-high",
            "system-nodes",
        ],
    },
    OwnObjects {
        group: "flowcontrol.apiserver.k8s.io",
        resources: &["prioritylevelconfigurations"],
        namespace: "",
        names: &[
            "catch-all",
            "exempt",
            "global-default",
            "leader-election",
            "node-high",
            "system",
            "workload-high",
            "workload-low",
        ],
    },
    OwnObjects {
        group: "apiregistration.k8s.io",
        resources: &["apiservices"],
        namespace: "",
        names: &[
            "v1.",
            "v1.admissionregistration.k8s.io",
            "v1.apiextensions.k8s.io",
            "v1.apps",
            "v1.authentication.k8s.io",
            "v1.authorization.k8s.io",
            "v1.autoscaling",
            "v1.batch",
            "v1.certificates.k8s.io",
            "v1.coordination.k8s.io",
            "v1.discovery.k8s.io",
            "v1.events.k8s.io",
            "v1.flowcontrol.apiserver.k8s.io",
            "v1.networking.k8s.io",
            "v1.node.k8s.io",
            "v1.policy",
            "v1.rbac.authorization.k8s.io",
            "v1.resource.k8s.io",
            "v1.scheduling.k8s.io",
            "v1.storage.k8s.io",
            "v1.storagemigration.k8s.io",
            "v1beta1.scheduling.k8s.io",
            "v2.autoscaling",
        ],
    },
    OwnObjects {
        group: "scheduling.k8s.io",
        resources: &["priorityclasses"],
        namespace: "",
        names: &["system-cluster-critical", "system-node-critical"],
    },
    OwnObjects {
        group: "networking.k8s.io",
        resources: &["servicecidrs"],
        namespace: "",
        names: &["kubernetes"],
    },
    OwnObjects {
        group: "",
        resources: &["namespaces"],
        namespace: "",
        names: &["default", "kube-node-lease", "kube-public", "kube-system"],
    },
    OwnObjects {
        group: "",
        resources: &["services"],
        namespace: "default",
        names: &["kubernetes"],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_a_group() {
        let versions = |group: &str| served_versions(group).collect::<Vec<_>>();
        assert_eq!(versions(""), ["v1"]);
        assert_eq!(versions("autoscaling"), ["v1", "v2"]);
        assert_eq!(versions("scheduling.k8s.io"), ["v1", "v1beta1"]);
        assert!(versions("platform.example").is_empty());
        assert!(served_groups().any(str::is_empty));
    }
}
