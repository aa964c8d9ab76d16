//! A tenant as a cluster of Argo CD: the Secret in Argo CD's namespace, and what Argo CD may do in the tenant. Pure.

use super::{
    bootstrap::{binding, kept, user},
    host_objects,
};
use crate::control_plane::ARGO_CD_USER;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use berth_api::{ArgoCdRegistration, TenantCluster, labels, names::TenantId};
use k8s_openapi::{
    ByteString,
    api::{core::v1::Secret, rbac::v1::ClusterRoleBinding},
};
use kube::ResourceExt;
use serde_json::json;

/// Label by which Argo CD finds Secrets of clusters.
const SECRET_TYPE: (&str, &str) = ("argocd.argoproj.io/secret-type", "cluster");

/// How Argo CD reaches a tenant, and the certificate of [`ARGO_CD_USER`].
pub struct Access<'a> {
    /// URL of the API server, from where Argo CD is. It is also the key by which Argo CD tells clusters apart, so no team may choose it.
    pub server: &'a str,
    /// Authority of the API server's certificate, PEM.
    pub ca_pem: &'a str,
    /// Client certificate, PEM.
    pub cert_pem: &'a str,
    /// Its key, PEM.
    pub key_pem: &'a str,
}

/// Name of a tenant in Argo CD: `<tenant>.<namespace>`. Both are DNS labels, so no two tenants have the same.
pub fn cluster_name(cluster: &TenantCluster) -> String {
    format!("{}.{}", cluster.name_any(), cluster.namespace().unwrap_or_default())
}

/// The Secret by which Argo CD knows the tenant as a cluster, in Argo CD's `namespace`. `class` is the tenant's class.
pub fn cluster_secret(
    cluster: &TenantCluster,
    tenant: &TenantId,
    class: &str,
    namespace: &str,
    registration: &ArgoCdRegistration,
    access: &Access<'_>,
) -> Secret {
    let ArgoCdRegistration { project, labels: own } = registration;
    let mut metadata = host_objects::metadata(cluster, tenant, namespace, &tenant.argo_cd_secret());
    let all = metadata.labels.get_or_insert_default();
    // Berth's come last: no label of a team replaces one.
    let berths = std::mem::replace(all, own.clone());
    all.extend(berths);
    all.insert(labels::CLASS.into(), class.into());
    all.insert(SECRET_TYPE.0.into(), SECRET_TYPE.1.into());
    let uid = cluster.uid().unwrap_or_default();
    metadata.annotations = Some([(labels::OWNER_UID.into(), uid)].into());
    let encode = |pem: &str| STANDARD.encode(pem);
    let config = json!({"tlsClientConfig": {
        "insecure": false,
        "caData": encode(access.ca_pem),
        "certData": encode(access.cert_pem),
        "keyData": encode(access.key_pem),
    }});
    let mut data = vec![
        ("name", cluster_name(cluster)),
        ("server", access.server.to_owned()),
        ("config", config.to_string()),
    ];
    data.extend(project.clone().map(|project| ("project", project)));
    Secret {
        metadata,
        data: Some(
            data.into_iter()
                .map(|(key, text)| (key.into(), ByteString(text.into_bytes())))
                .collect(),
        ),
        type_: Some("Opaque".into()),
        ..Secret::default()
    }
}

/// Makes Argo CD cluster-admin in the tenant. Its user is in no group: without the binding its certificate gives it nothing, so that a
/// copy of the Secret is worth nothing once the tenant is no longer registered.
pub fn admin_binding() -> ClusterRoleBinding {
    ClusterRoleBinding {
        metadata: kept(ARGO_CD_USER),
        ..binding(ARGO_CD_USER, "cluster-admin", user(ARGO_CD_USER))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::TenantClusterSpec;
    use serde_json::Value;

    const ACCESS: Access<'_> = Access {
        server: "https://10.96.1.1:443",
        ca_pem: "ca",
        cert_pem: "cert",
        key_pem: "key",
    };

    fn build(registration: &Value) -> Secret {
        let mut cluster = TenantCluster::new("vision", TenantClusterSpec::default());
        cluster.metadata.namespace = Some("team".into());
        cluster.metadata.uid = Some("6f2c".into());
        let registration = serde_json::from_value(registration.clone()).unwrap();
        let id = TenantId::new("vision", "6f2c");
        cluster_secret(&cluster, &id, "gold", "argocd", &registration, &ACCESS)
    }

    fn texts(secret: &Secret) -> std::collections::BTreeMap<String, String> {
        let text = |(key, bytes): (&String, &ByteString)| (key.clone(), String::from_utf8(bytes.0.clone()).unwrap());
        secret.data.iter().flatten().map(text).collect()
    }

    #[test]
    fn the_secret_is_as_argo_cd_reads_it() {
        let secret = build(&json!({}));
        let texts = texts(&secret);
        assert_eq!(texts["name"], "vision.team");
        assert_eq!(texts["server"], "https://10.96.1.1:443");
        assert!(!texts.contains_key("project"));
        let config: Value = serde_json::from_str(&texts["config"]).unwrap();
        let tls = json!({"insecure": false, "caData": "Y2E=", "certData": "Y2VydA==", "keyData": "a2V5"});
        assert_eq!(config, json!({"tlsClientConfig": tls}));
        assert_eq!(secret.labels()["argocd.argoproj.io/secret-type"], "cluster");
        assert_eq!(secret.namespace().as_deref(), Some("argocd"));
        assert_eq!(secret.name_any(), TenantId::new("vision", "6f2c").argo_cd_secret());
        assert_eq!(secret.annotations()[labels::OWNER_UID], "6f2c");
    }

    #[test]
    fn a_cluster_may_belong_to_a_project() {
        assert_eq!(texts(&build(&json!({"project": "team"})))["project"], "team");
    }

    #[test]
    fn labels_select_the_tenant_and_no_team_replaces_berths() {
        let own = json!({"example.com/stage": "prod", labels::TENANT: "other", SECRET_TYPE.0: "repository"});
        let secret = build(&json!({"labels": own}));
        let all = secret.labels();
        assert_eq!(all["example.com/stage"], "prod");
        assert_eq!(all[labels::TENANT], TenantId::new("vision", "6f2c").slug());
        assert_eq!(all[SECRET_TYPE.0], "cluster");
        assert_eq!(
            (
                all[labels::TENANT_NAME].as_str(),
                all[labels::TENANT_NAMESPACE].as_str()
            ),
            ("vision", "team")
        );
        assert_eq!(all[labels::CLASS], "gold");
    }
}
