//! Rights on the host that attackers have.

use berth_tests::objects::apply;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::{Api, Client, api::DeleteParams};
use serde_json::{Value, json};

/// A user as the subject of a binding.
pub(super) fn user(name: &str) -> Value {
    json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name})
}

/// A service account as the subject of a binding.
pub(super) fn service_account(namespace: &str, name: &str) -> Value {
    json!({"kind": "ServiceAccount", "name": name, "namespace": namespace})
}

/// Gives a subject these rules: in a namespace, or everywhere if it is empty.
pub(super) async fn grant(admin: &Client, namespace: &str, name: &str, subject: &Value, rules: &Value) {
    let prefix = if namespace.is_empty() { "Cluster" } else { "" };
    let rbac = |kind: &str, more: &Value| {
        let base = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": format!("{prefix}{kind}"), "metadata": {"name": name},
        });
        super::with(&base, more)
    };
    let reference = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": format!("{prefix}Role"), "name": name});
    for object in [
        rbac("Role", &json!({"rules": rules})),
        rbac("RoleBinding", &json!({"roleRef": reference, "subjects": [subject]})),
    ] {
        apply(admin, namespace, &object).await.unwrap();
    }
}

/// Takes away what was given everywhere.
pub(super) async fn revoke(admin: &Client, name: &str) {
    let bindings: Api<ClusterRoleBinding> = Api::all(admin.clone());
    let roles: Api<ClusterRole> = Api::all(admin.clone());
    bindings.delete(name, &DeleteParams::default()).await.unwrap();
    roles.delete(name, &DeleteParams::default()).await.unwrap();
}
