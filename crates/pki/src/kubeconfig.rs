//! Kubeconfig text.
//!
//! Only what Berth's own processes and users need: one cluster, one user, one context. Never an `exec` plug-in and
//! never disabled TLS verification.

use std::borrow::Cow;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::Value;

use crate::Error;

/// What the names of this machine end with (RFC 6761).
const LOCAL_NAMES: &str = ".localhost";

/// How the user of a kubeconfig authenticates.
#[derive(Clone, PartialEq, Eq)]
pub enum Credential {
    /// A client certificate inside the kubeconfig itself.
    ClientCertificate {
        /// Certificate, PEM.
        cert_pem: String,
        /// Private key, PEM. Secret.
        key_pem: String,
    },
    /// A client certificate in files, read again by clients when it is renewed.
    ClientCertificateFiles {
        /// Path of the certificate, PEM.
        cert: PathBuf,
        /// Path of the private key, PEM.
        key: PathBuf,
    },
    /// A bearer token in a file, read again by clients when it is renewed.
    TokenFile(PathBuf),
}

/// The contents of a kubeconfig.
#[derive(Clone, PartialEq, Eq)]
pub struct KubeconfigRequest {
    /// Name of cluster, user and context, as `kubectl config get-contexts` shows it.
    pub cluster_name: String,
    /// URL of the API server; see [`resolve_local_name`].
    pub server: String,
    /// Certificate authorities the server is verified with, PEM.
    pub ca_pem: String,
    /// How the user authenticates.
    pub user: Credential,
    /// The namespace of commands without the flag `--namespace`; none means `default`.
    pub namespace: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Config<'a> {
    api_version: &'static str,
    kind: &'static str,
    clusters: [Named<'a, ClusterEntry<'a>>; 1],
    users: [Named<'a, UserEntry>; 1],
    contexts: [Named<'a, ContextEntry<'a>>; 1],
    #[serde(rename = "current-context")]
    current_context: &'a str,
}

/// Kubeconfig lists hold `{name, <kind>: {...}}`; the inner type carries its own key.
#[derive(Serialize)]
struct Named<'a, T> {
    name: &'a str,
    #[serde(flatten)]
    value: T,
}

#[derive(Serialize)]
struct ClusterEntry<'a> {
    cluster: Cluster<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Cluster<'a> {
    server: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_server_name: Option<&'a str>,
    certificate_authority_data: String,
}

#[derive(Serialize)]
struct UserEntry {
    user: User,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "kebab-case")]
struct User {
    #[serde(skip_serializing_if = "Option::is_none")]
    client_certificate: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_key: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_certificate_data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_key_data: Option<String>,
    #[serde(rename = "tokenFile", skip_serializing_if = "Option::is_none")]
    token_file: Option<PathBuf>,
}

#[derive(Serialize)]
struct ContextEntry<'a> {
    context: Context<'a>,
}

#[derive(Serialize)]
struct Context<'a> {
    cluster: &'a str,
    user: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
}

/// The URL of a server as it stands in a kubeconfig, and the host name that its certificate is checked against if the URL has another one.
///
/// A name below `localhost` is this machine. Browsers and curl know that. kubectl and glibc ask DNS, which may not know the name. So
/// the URL gets the address of this machine.
pub fn resolve_local_name(url: &str) -> (Cow<'_, str>, Option<&str>) {
    let resolve = || {
        let authority = url.strip_prefix("https://")?;
        let (host, port) = authority.rsplit_once(':').unwrap_or((authority, "443"));
        host.ends_with(LOCAL_NAMES)
            .then(|| (Cow::Owned(format!("https://127.0.0.1:{port}")), Some(host)))
    };
    resolve().unwrap_or((Cow::Borrowed(url), None))
}

/// Renders a kubeconfig as YAML. The text is secret when the credential is inline.
///
/// # Errors
/// [`Error::Yaml`] when a path is not valid UTF-8.
pub fn kubeconfig(request: &KubeconfigRequest) -> Result<String, Error> {
    let KubeconfigRequest {
        cluster_name,
        server,
        ca_pem,
        user,
        namespace,
    } = request;
    let user = match user.clone() {
        Credential::ClientCertificate { cert_pem, key_pem } => User {
            client_certificate_data: Some(STANDARD.encode(cert_pem)),
            client_key_data: Some(STANDARD.encode(key_pem)),
            ..User::default()
        },
        Credential::ClientCertificateFiles { cert, key } => User {
            client_certificate: Some(cert),
            client_key: Some(key),
            ..User::default()
        },
        Credential::TokenFile(path) => User {
            token_file: Some(path),
            ..User::default()
        },
    };
    let (server, tls_server_name) = resolve_local_name(server);
    let config = Config {
        api_version: "v1",
        kind: "Config",
        clusters: [Named {
            name: cluster_name,
            value: ClusterEntry {
                cluster: Cluster {
                    server: &server,
                    tls_server_name,
                    certificate_authority_data: STANDARD.encode(ca_pem),
                },
            },
        }],
        users: [Named {
            name: cluster_name,
            value: UserEntry { user },
        }],
        contexts: [Named {
            name: cluster_name,
            value: ContextEntry {
                context: Context {
                    cluster: cluster_name,
                    user: cluster_name,
                    namespace: namespace.as_deref(),
                },
            },
        }],
        current_context: cluster_name,
    };
    // Long base64 stays on one line: people expect that in a kubeconfig, and line-based tools need it.
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    serde_saphyr::to_string_with_options(&config, options).map_err(|error| Error::Yaml(error.to_string()))
}

/// What [`kubeconfig`] writes with a certificate inside: the fields of the document, and of each entry of its lists.
const FIELDS: [&str; 6] = ["apiVersion", "kind", "current-context", "clusters", "users", "contexts"];
const FIELDS_OF_ENTRIES: [(&str, &str, &[&str]); 3] = [
    // The name is one of this machine, which the URL does not have. It leads nowhere that the URL and the authority do not.
    (
        "clusters",
        "cluster",
        &["server", "tls-server-name", "certificate-authority-data"],
    ),
    ("users", "user", &["client-certificate-data", "client-key-data"]),
    ("contexts", "context", &["cluster", "user", "namespace"]),
];

/// The first field of a kubeconfig that [`kubeconfig`] does not write with a [`Credential::ClientCertificate`], or that is no list or map where that
/// writes one, such as `users[].user.exec`; none if it has no such field. For kubeconfigs that somebody else may have written: one can run commands
/// (`exec`), read files of this machine, and turn off the checks of TLS.
pub fn find_foreign_field(document: &Value) -> Option<String> {
    // Programs may read lists as the fields of a map in their order, so each value is checked for its kind, too.
    let find_other = |path: &str, value: &Value, known: &[&str]| -> Option<String> {
        let Some(fields) = value.as_object() else {
            return (!value.is_null()).then(|| path.to_owned());
        };
        let key = fields.keys().find(|key| !known.contains(&key.as_str()))?;
        Some(format!("{path}.{key}").trim_start_matches('.').to_owned())
    };
    if let Some(field) = find_other("", document, &FIELDS) {
        return Some(field);
    }
    for (list, key, known) in FIELDS_OF_ENTRIES {
        let entries = match &document[list] {
            Value::Null => continue,
            Value::Array(entries) => entries,
            _ => return Some(list.to_owned()),
        };
        for entry in entries {
            let found = find_other(&format!("{list}[]"), entry, &["name", key])
                .or_else(|| find_other(&format!("{list}[].{key}"), &entry[key], known));
            if found.is_some() {
                return found;
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn request(user: Credential) -> KubeconfigRequest {
        KubeconfigRequest {
            cluster_name: "vision".into(),
            server: "https://127.0.0.1:6443".into(),
            ca_pem: "ca\n".into(),
            user,
            namespace: Some("research".into()),
        }
    }

    #[test]
    fn client_certificate_is_inlined() {
        let text = kubeconfig(&request(Credential::ClientCertificate {
            cert_pem: "cert\n".into(),
            key_pem: "key\n".repeat(100),
        }))
        .unwrap();
        let key = STANDARD.encode("key\n".repeat(100));
        let expected = format!(
            r"apiVersion: v1
kind: Config
clusters:
- name: vision
  cluster:
    server: https://127.0.0.1:6443
    certificate-authority-data: Y2EK
users:
- name: vision
  user:
    client-certificate-data: Y2VydAo=
    client-key-data: {key}
contexts:
- name: vision
  context:
    cluster: vision
    user: vision
    namespace: research
current-context: vision
"
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn what_berth_does_not_write_is_found() {
        let own = kubeconfig(&request(Credential::ClientCertificate {
            cert_pem: "cert\n".into(),
            key_pem: "key\n".into(),
        }))
        .unwrap();
        let own: Value = serde_saphyr::from_str(&own).unwrap();
        assert_eq!(find_foreign_field(&own), None);
        for (pointer, value, found) in [
            (
                "/users/0/user",
                json!({"exec": {"command": "evil"}}),
                "users[].user.exec",
            ),
            ("/users/0/user", json!([null, null, "token"]), "users[].user"),
            ("/users/0", json!(["vision", {"exec": {"command": "evil"}}]), "users[]"),
            ("/users/0", json!({"name": "vision", "other": 1}), "users[].other"),
            ("/users", json!({"vision": {}}), "users"),
            (
                "/clusters/0/cluster",
                json!({"proxy-url": "http://evil"}),
                "clusters[].cluster.proxy-url",
            ),
            ("", json!({"extensions": []}), "extensions"),
        ] {
            let mut document = own.clone();
            *document.pointer_mut(pointer).unwrap() = value;
            assert_eq!(find_foreign_field(&document).as_deref(), Some(found));
        }
        assert!(find_foreign_field(&json!(["v1", "Config"])).is_some());
    }

    #[test]
    fn names_of_this_machine_need_no_dns() {
        let resolve = |url| {
            let (server, name) = resolve_local_name(url);
            (server.into_owned(), name)
        };
        assert_eq!(
            resolve("https://vision.team.localhost:8443"),
            ("https://127.0.0.1:8443".into(), Some("vision.team.localhost"))
        );
        assert_eq!(
            resolve("https://vision.team.localhost"),
            ("https://127.0.0.1:443".into(), Some("vision.team.localhost"))
        );
        for other in [
            "https://vision.team.example.com:8443",
            "https://localhost:6443",
            "https://notlocalhost:6443",
            "https://vision.localhost.example.com",
            "https://[::1]:6443",
            "",
        ] {
            assert_eq!(resolve(other), (other.into(), None));
        }
        let text = kubeconfig(&KubeconfigRequest {
            server: "https://vision.team.localhost:8443".into(),
            ..request(Credential::TokenFile("/token".into()))
        });
        let text = text.unwrap();
        let expected = "    server: https://127.0.0.1:8443\n    tls-server-name: vision.team.localhost\n";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn credentials_in_files_are_referenced_by_path() {
        let text = kubeconfig(&request(Credential::TokenFile("/var/run/token".into()))).unwrap();
        assert!(text.contains("tokenFile: /var/run/token"), "{text}");
        let files = Credential::ClientCertificateFiles {
            cert: "/pki/a.crt".into(),
            key: "/pki/a.key".into(),
        };
        let text = kubeconfig(&request(files)).unwrap();
        assert!(
            text.contains("client-certificate: /pki/a.crt") && text.contains("client-key: /pki/a.key"),
            "{text}"
        );
    }
}
