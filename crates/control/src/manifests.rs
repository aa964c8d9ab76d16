//! What control itself needs on the host: its namespace and its rights.

use berth_syncer::permissions;
use k8s_openapi::{
    api::{
        core::v1::Namespace,
        rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

/// Namespace of control's lease.
pub const NAMESPACE: &str = "berth-system";
/// Name of control's role, binding and lease.
pub const NAME: &str = "berth-control";

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> PolicyRule {
    let all = |texts: &[&str]| Some(texts.iter().map(ToString::to_string).collect());
    PolicyRule {
        api_groups: Some(vec![group.into()]),
        resources: all(resources),
        verbs: verbs.iter().map(ToString::to_string).collect(),
        ..PolicyRule::default()
    }
}

/// Everything control may do on the host. It can hand to syncers only what it holds itself, so their rules are part of
/// its own.
pub fn control_rules() -> Vec<PolicyRule> {
    const READ: [&str; 3] = ["get", "list", "watch"];
    const WRITE: [&str; 7] = ["get", "list", "watch", "create", "update", "patch", "delete"];
    let mut rules = vec![
        rule("berth.dev", &["tenantclusters", "nodepools", "tenantclasses"], &READ),
        rule("berth.dev", &["tenantclusters"], &["patch"]),
        rule(
            "berth.dev",
            &[
                "tenantclusters/status",
                "nodepools/status",
                "tenantclasses/status",
                "tenantclusters/finalizers",
            ],
            &["patch", "update"],
        ),
        rule("berth.dev", &["tenantnodes"], &WRITE),
        rule("berth.dev", &["tenantnodes/status"], &["patch"]),
        rule("", &["namespaces", "secrets", "serviceaccounts", "services"], &WRITE),
        rule("", &["serviceaccounts/token"], &["create"]),
        rule("", &["nodes"], &["get", "list", "watch", "patch"]),
        rule("", &["pods"], &["get", "list"]),
        rule("", &["pods/eviction"], &["create"]),
        rule("", &["events"], &["create", "patch"]),
        rule("events.k8s.io", &["events"], &["create", "patch"]),
        rule(
            "rbac.authorization.k8s.io",
            &["roles", "rolebindings", "clusterroles", "clusterrolebindings"],
            &WRITE,
        ),
        rule("networking.k8s.io", &["servicecidrs"], &READ),
        rule(
            "coordination.k8s.io",
            &["leases"],
            &["get", "create", "update", "patch"],
        ),
    ];
    rules.extend(permissions::host_workload_rules(&berth_api::SyncPolicy::default()));
    rules.extend(permissions::host_control_plane_rules());
    rules.extend(permissions::host_cluster_rules());
    rules
}

/// Control's ClusterRole.
pub fn cluster_role() -> ClusterRole {
    ClusterRole {
        metadata: ObjectMeta {
            name: Some(NAME.into()),
            ..ObjectMeta::default()
        },
        rules: Some(control_rules()),
        aggregation_rule: None,
    }
}

/// Binds control's ClusterRole to a user.
pub fn cluster_role_binding(user: &str) -> ClusterRoleBinding {
    ClusterRoleBinding {
        metadata: ObjectMeta {
            name: Some(NAME.into()),
            ..ObjectMeta::default()
        },
        role_ref: RoleRef {
            api_group: Some("rbac.authorization.k8s.io".into()),
            kind: "ClusterRole".into(),
            name: NAME.into(),
        },
        subjects: Some(vec![Subject {
            api_group: Some("rbac.authorization.k8s.io".into()),
            kind: "User".into(),
            name: user.into(),
            namespace: None,
        }]),
    }
}

/// Control's namespace.
pub fn namespace() -> Namespace {
    Namespace {
        metadata: ObjectMeta {
            name: Some(NAMESPACE.into()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    }
}
