//! The objects on the host that every tenant gets: two namespaces, the syncer's identity and its rights.

use crate::{control_plane::SYNCER, controllers::tenant_class::SyncerRules};
use berth_api::{TenantCluster, labels, names::TenantId, policy_annotations};
use berth_sync_rules::permissions;
use k8s_openapi::{
    ByteString,
    api::{
        core::v1::{ConfigMap, Namespace, Secret, ServiceAccount},
        rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject},
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{Resource, ResourceExt};
use std::collections::BTreeMap;

/// Labels of everything that belongs to a tenant on the host.
pub fn tenant_labels(cluster: &TenantCluster, tenant: &TenantId) -> BTreeMap<String, String> {
    BTreeMap::from([
        (labels::TENANT.into(), tenant.slug().into()),
        (labels::TENANT_NAME.into(), cluster.name_any()),
        (labels::TENANT_NAMESPACE.into(), cluster.namespace().unwrap_or_default()),
    ])
}

/// Metadata of an object of a tenant.
pub fn metadata(cluster: &TenantCluster, tenant: &TenantId, namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.into()),
        namespace: Some(namespace.into()),
        labels: Some(tenant_labels(cluster, tenant)),
        ..ObjectMeta::default()
    }
}

/// The control-plane namespace and the workload namespace. The annotations of the latter say what the tenant's class allows;
/// the admission policies read them.
pub fn namespaces(cluster: &TenantCluster, tenant: &TenantId, policy: &BTreeMap<String, String>) -> [Namespace; 2] {
    // The level `baseline` cannot be had without one capability. The policy `berth-pod-security` enforces it everywhere, but for what this annotation
    // lists.
    let of_workloads = if policy.contains_key(policy_annotations::CAPABILITIES) {
        "privileged"
    } else {
        "baseline"
    };
    [
        (
            tenant.control_plane_namespace(),
            labels::ROLE_CONTROL_PLANE,
            "restricted",
        ),
        (tenant.workload_namespace(), labels::ROLE_WORKLOADS, of_workloads),
    ]
    .map(|(name, role, pod_security)| {
        let mut all = tenant_labels(cluster, tenant);
        all.insert(labels::ROLE.into(), role.into());
        // The host's API server rejects pods that could leave their container, even if a syncer creates them.
        all.insert("pod-security.kubernetes.io/enforce".into(), pod_security.into());
        all.insert("pod-security.kubernetes.io/enforce-version".into(), "latest".into());
        let mut annotations: BTreeMap<String, String> = cluster
            .uid()
            .map(|uid| (labels::OWNER_UID.to_owned(), uid))
            .into_iter()
            .collect();
        if role == labels::ROLE_WORKLOADS {
            annotations.extend(policy.clone());
        }
        Namespace {
            metadata: ObjectMeta {
                name: Some(name),
                labels: Some(all),
                annotations: Some(annotations),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        }
    })
}

/// The syncer's service account, and its roles: in the workload namespace, and read-only in the control-plane
/// namespace. Outside of these two it has [`syncer_cluster_role`].
pub fn syncer_identity(
    cluster: &TenantCluster,
    tenant: &TenantId,
    rules: &SyncerRules,
) -> (ServiceAccount, [(Role, RoleBinding); 2]) {
    let home = tenant.control_plane_namespace();
    let account = ServiceAccount {
        metadata: metadata(cluster, tenant, &home, SYNCER),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    };
    let role = |namespace: String, rules: Vec<PolicyRule>| {
        let role = Role {
            metadata: metadata(cluster, tenant, &namespace, SYNCER),
            rules: Some(rules),
        };
        let binding = RoleBinding {
            metadata: metadata(cluster, tenant, &namespace, SYNCER),
            role_ref: RoleRef {
                api_group: Some("rbac.authorization.k8s.io".into()),
                kind: "Role".into(),
                name: SYNCER.into(),
            },
            subjects: Some(vec![Subject {
                kind: "ServiceAccount".into(),
                name: SYNCER.into(),
                namespace: Some(home.clone()),
                ..Subject::default()
            }]),
        };
        (role, binding)
    };
    let workloads = role(tenant.workload_namespace(), rules.host.clone());
    let control_plane = role(
        tenant.control_plane_namespace(),
        permissions::host_control_plane_rules(),
    );
    (account, [workloads, control_plane])
}

/// The syncer's rights on cluster-scoped objects: to read classes, and the usage of the tenant's `nodes`.
pub fn syncer_cluster_role(
    cluster: &TenantCluster,
    tenant: &TenantId,
    nodes: Vec<String>,
) -> (ClusterRole, ClusterRoleBinding) {
    let mut rules = permissions::host_cluster_rules();
    rules.extend(permissions::host_node_metrics_rule(nodes));
    let metadata = ObjectMeta {
        name: Some(tenant.cluster_role()),
        labels: Some(tenant_labels(cluster, tenant)),
        ..ObjectMeta::default()
    };
    let role = ClusterRole {
        metadata: metadata.clone(),
        rules: Some(rules),
        aggregation_rule: None,
    };
    let binding = ClusterRoleBinding {
        metadata,
        role_ref: RoleRef {
            api_group: Some("rbac.authorization.k8s.io".into()),
            kind: "ClusterRole".into(),
            name: tenant.cluster_role(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".into(),
            name: SYNCER.into(),
            namespace: Some(tenant.control_plane_namespace()),
            ..Subject::default()
        }]),
    };
    (role, binding)
}

/// A Secret of the control-plane namespace.
pub fn secret(cluster: &TenantCluster, tenant: &TenantId, name: &str, data: BTreeMap<String, String>) -> Secret {
    Secret {
        metadata: metadata(cluster, tenant, &tenant.control_plane_namespace(), name),
        data: Some(
            data.into_iter()
                .map(|(name, text)| (name, ByteString(text.into_bytes())))
                .collect(),
        ),
        type_: Some("Opaque".into()),
        ..Secret::default()
    }
}

/// A ConfigMap of the control-plane namespace.
pub fn config_map(cluster: &TenantCluster, tenant: &TenantId, name: &str, data: BTreeMap<String, String>) -> ConfigMap {
    ConfigMap {
        metadata: metadata(cluster, tenant, &tenant.control_plane_namespace(), name),
        data: Some(data),
        ..ConfigMap::default()
    }
}

/// Type of Secrets with kubeconfigs in the contract of Cluster API.
pub const KUBECONFIG_TYPE: &str = "cluster.x-k8s.io/secret";
/// Label with the name of the cluster in the same contract.
const CLUSTER_NAME: &str = "cluster.x-k8s.io/cluster-name";

/// Name of the Secret beside the `TenantCluster` that holds the team's kubeconfig.
pub fn kubeconfig_secret_name(cluster: &TenantCluster) -> String {
    format!("{}-kubeconfig", cluster.name_any())
}

/// The Secret beside the `TenantCluster` that holds the team's kubeconfig: name, type, label and the key `value` are as in Cluster API,
/// for what reads its Secrets. It is deleted with its owner.
pub fn kubeconfig_secret(cluster: &TenantCluster, tenant: &TenantId, kubeconfig: &str) -> Secret {
    let namespace = cluster.namespace().unwrap_or_default();
    let mut metadata = metadata(cluster, tenant, &namespace, &kubeconfig_secret_name(cluster));
    let labels = metadata.labels.get_or_insert_default();
    labels.insert(CLUSTER_NAME.into(), cluster.name_any());
    metadata.owner_references = Some(vec![OwnerReference {
        api_version: TenantCluster::api_version(&()).into(),
        kind: TenantCluster::kind(&()).into(),
        name: cluster.name_any(),
        uid: cluster.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(false),
    }]);
    Secret {
        metadata,
        // Cluster API's controllers and providers, and Flux, read the key `value`.
        data: Some(
            ["kubeconfig", "value"]
                .map(|key| (key.into(), ByteString(kubeconfig.as_bytes().to_vec())))
                .into(),
        ),
        type_: Some(KUBECONFIG_TYPE.into()),
        ..Secret::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::TenantClusterSpec;

    #[test]
    fn the_pod_security_level_is_lower_only_where_the_admission_policy_enforces_it() {
        let cluster = TenantCluster::new("vision", TenantClusterSpec::default());
        let levels = |policy: &BTreeMap<String, String>| {
            namespaces(&cluster, &TenantId::new("vision", "6f2c"), policy).map(|namespace| {
                let labels = namespace.metadata.labels.unwrap();
                labels["pod-security.kubernetes.io/enforce"].clone()
            })
        };
        let policy = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        assert_eq!(levels(&BTreeMap::new()), ["restricted", "baseline"]);
        let others = policy(policy_annotations::RUNTIME_CLASSES, "*");
        assert_eq!(levels(&others), ["restricted", "baseline"]);
        let given = policy(policy_annotations::CAPABILITIES, "IPC_LOCK");
        assert_eq!(levels(&given), ["restricted", "privileged"]);
    }

    #[test]
    fn the_kubeconfig_secret_is_as_in_cluster_api() {
        let mut cluster = TenantCluster::new("vision", TenantClusterSpec::default());
        cluster.metadata.namespace = Some("team".into());
        cluster.metadata.uid = Some("6f2c".into());
        let secret = kubeconfig_secret(&cluster, &TenantId::new("vision", "6f2c"), "text");
        assert_eq!(secret.metadata.name.as_deref(), Some("vision-kubeconfig"));
        assert_eq!(secret.metadata.namespace.as_deref(), Some("team"));
        assert_eq!(secret.type_.as_deref(), Some("cluster.x-k8s.io/secret"));
        assert_eq!(
            secret.metadata.labels.unwrap()["cluster.x-k8s.io/cluster-name"],
            "vision"
        );
        let data = secret.data.unwrap();
        assert_eq!(
            (data["value"].0.as_slice(), data["kubeconfig"].0.as_slice()),
            (&b"text"[..], &b"text"[..])
        );
        assert_eq!(secret.metadata.owner_references.unwrap()[0].uid, "6f2c");
    }
}
