//! Kubeconfigs that Berth makes for a tenant: one cluster, one user, one context. Pure.

use serde_json::{Value, json};

/// The API server of a kubeconfig: what another kubeconfig for it needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cluster {
    /// Name of the context.
    pub(crate) name: String,
    /// URL.
    pub(crate) server: String,
    /// Certificates (PEM, in base64) that the server is verified with.
    pub(crate) ca_data: Option<String>,
    /// The name that its certificate is checked against, if that is not the host of the URL.
    pub(crate) tls_name: Option<String>,
    /// URL of the proxy on the way to it.
    pub(crate) proxy: Option<String>,
}

impl Cluster {
    /// A kubeconfig for it with this user.
    pub(crate) fn kubeconfig(&self, user_name: &str, user: &Value, namespace: Option<&str>) -> Value {
        let Self {
            name,
            server,
            ca_data,
            tls_name,
            proxy,
        } = self;
        let mut cluster = json!({ "server": server });
        for (field, text) in [
            ("certificate-authority-data", ca_data),
            ("tls-server-name", tls_name),
            ("proxy-url", proxy),
        ] {
            if let Some(text) = text {
                cluster[field] = text.clone().into();
            }
        }
        let mut context = json!({"cluster": name, "user": user_name});
        if let Some(namespace) = namespace {
            context["namespace"] = namespace.into();
        }
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": user_name, "user": user}],
            "contexts": [{"name": name, "context": context}],
            "current-context": name,
        })
    }
}

/// Replaces the user of a kubeconfig that has one, and returns what it was.
pub(crate) fn replace_user(kubeconfig: &mut Value, user: Value) -> Option<Value> {
    let place = kubeconfig.pointer_mut("/users/0/user")?;
    Some(std::mem::replace(place, user))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_has_what_it_needs_and_nothing_else() {
        let cluster = Cluster {
            name: "vision".into(),
            server: "https://a".into(),
            ca_data: Some("Y2E=".into()),
            ..Cluster::default()
        };
        let mut kubeconfig = cluster.kubeconfig("me", &json!({"token": "t"}), None);
        let expected = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "vision",
            "clusters": [{"name": "vision", "cluster": {"server": "https://a", "certificate-authority-data": "Y2E="}}],
            "users": [{"name": "me", "user": {"token": "t"}}],
            "contexts": [{"name": "vision", "context": {"cluster": "vision", "user": "me"}}],
        });
        assert_eq!(kubeconfig, expected);
        let before = replace_user(&mut kubeconfig, json!({}));
        assert_eq!(before, Some(json!({"token": "t"})));
        assert_eq!(kubeconfig["users"], json!([{"name": "me", "user": {}}]));
        assert_eq!(replace_user(&mut json!({}), json!({})), None);
    }
}
