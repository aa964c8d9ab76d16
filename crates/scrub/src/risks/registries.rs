//! Credentials for registries that the node has by itself. The kubelet and the container runtime use them for the pods of every tenant, so a tenant runs, and
//! reads, each image that they open, unless its class lists images. Messages name files, registries and programs, and no secrets.

use super::{
    names_at, read, read_at,
    runtime_files::{Runtime, last},
    some_of,
    toml::Setting,
};
use crate::{Unclean, kubelet, node::Node};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Where kubelets look for credentials, if no Secret of the pod has any, and where CRI-O may.
const FILES: [&str; 7] = [
    "/var/lib/kubelet/config.json",
    "/var/lib/kubelet/.dockercfg",
    "/root/.docker/config.json",
    "/root/.dockercfg",
    "/.docker/config.json",
    "/.dockercfg",
    "/run/containers/0/auth.json",
];
/// Fields of an entry that are a secret, in these files and in the configuration of containerd.
const SECRETS: [&str; 6] = [
    "auth",
    "password",
    "identitytoken",
    "registrytoken",
    "identity_token",
    "registry_token",
];

/// The credentials for registries that pods of every tenant can use; none if there are none.
pub(super) fn find(node: &Node) -> Result<Option<String>, Unclean> {
    let runtime = Runtime::of(node);
    let settings = runtime.settings(node, &runtime.daemons(node)?)?;
    let of_cri_o = last(&settings, "global_auth_file").filter(|path| !FILES.contains(&path.as_str()));
    let mut found = Vec::new();
    for path in FILES.into_iter().chain(of_cri_o.as_deref()) {
        found.extend(in_file(path, read(node, path)?.as_deref()));
    }
    for (path, place) in kubelet::credential_providers(node)? {
        found.extend(providers_in(&path, &place)?);
    }
    found.extend(of_containerd(&settings));
    Ok((!found.is_empty()).then(|| {
        let found = some_of(&found);
        format!("pods of every tenant can use the credentials for registries of the node: {found}")
    }))
}

/// The registries for which a file has credentials. Kubelets ignore files that they cannot read.
fn in_file(path: &str, text: Option<&str>) -> Option<String> {
    let config: Value = serde_json::from_str(text?).ok()?;
    // The older form has the registries at the top.
    let registries = config.get("auths").unwrap_or(&config).as_object()?;
    let has_secret = |entry: &Value| {
        let mut secrets = SECRETS.iter().filter_map(|field| entry[*field].as_str());
        secrets.any(|secret| !secret.is_empty())
    };
    let with_secrets = registries.iter().filter(|(_, entry)| has_secret(entry));
    let names: Vec<String> = with_secrets.map(|(registry, _)| registry.clone()).collect();
    (!names.is_empty()).then(|| format!("{path} ({})", some_of(&names)))
}

/// The programs in a file, or in the files of a folder, that get credentials as the node, and not for the account of a pod.
fn providers_in(path: &str, place: &Path) -> Result<Vec<String>, Unclean> {
    let files: Vec<(String, PathBuf)> = if place.is_dir() {
        names_at(place)?
            .iter()
            .map(|name| (format!("{path}/{name}"), place.join(name)))
            .collect()
    } else {
        vec![(path.to_owned(), place.to_owned())]
    };
    let mut found = Vec::new();
    for (path, file) in files {
        let text = read_at(&file)?.unwrap_or_default();
        let config: Result<Value, _> = serde_saphyr::from_str(&text);
        let config = config.unwrap_or_default();
        let providers = config["providers"].as_array().into_iter().flatten();
        let of_node = providers.filter(|provider| provider["tokenAttributes"].is_null());
        let names = of_node.map(|provider| provider["name"].as_str().unwrap_or_default());
        found.extend(names.map(|name| format!("{path} (provider {name})")));
    }
    Ok(found)
}

/// The registries for which the configuration of containerd has credentials.
fn of_containerd(settings: &[Setting]) -> Vec<String> {
    const CONFIGS: &str = "registry.configs.";
    const AUTH: &str = ".auth";
    let mut registries: Vec<&str> = { settings.iter() }
        .filter(|setting| SECRETS.iter().any(|field| setting.is(field)) && !setting.value().is_empty())
        .filter_map(|setting| setting.table.split_once(CONFIGS)?.1.strip_suffix(AUTH))
        .collect();
    registries.dedup();
    registries
        .into_iter()
        .map(|registry| format!("configuration of containerd ({registry})"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// A node with these files.
    fn node(files: &[(&str, &str)]) -> (TempDir, Node) {
        let folder = tempfile::tempdir().unwrap();
        let node = Node::new(folder.path(), []);
        for (path, content) in files {
            node.write(path, content);
        }
        (folder, node)
    }

    fn found(files: &[(&str, &str)]) -> Option<String> {
        let (_folder, node) = node(files);
        find(&node).unwrap()
    }

    fn described(what: &str) -> String {
        format!("pods of every tenant can use the credentials for registries of the node: {what}")
    }

    #[test]
    fn files_of_kubelets_are_read_in_both_forms() {
        let auths = r#"{"auths": {"q.example": {"auth": "c2VjcmV0"}, "r.example": {"identitytoken": "t"}, "empty.example": {}}}"#;
        assert_eq!(
            found(&[(FILES[0], auths)]),
            Some(described("/var/lib/kubelet/config.json (q.example, r.example)"))
        );
        let older = r#"{"q.example": {"username": "a", "password": "b"}}"#;
        assert_eq!(
            found(&[(FILES[3], older)]),
            Some(described("/root/.dockercfg (q.example)"))
        );
        for nothing in ["", "{", "{}", r#"{"auths": {}}"#, r#"{"credsStore": "desktop"}"#, "[]"] {
            assert_eq!(found(&[(FILES[0], nothing)]), None, "{nothing}");
        }
    }

    #[test]
    fn programs_that_get_credentials_as_the_node_are_named() {
        let kubelet = (
            "/proc/9/cmdline",
            "kubelet\0--image-credential-provider-config=/etc/p\0",
        );
        let provider = "providers: [{name: ecr, matchImages: ['*.example']}, {name: own, tokenAttributes: {serviceAccountTokenAudience: a}}]\n";
        assert_eq!(found(&[kubelet]), None);
        assert_eq!(
            found(&[kubelet, ("/proc/9/root/etc/p", provider)]),
            Some(described("/etc/p (provider ecr)"))
        );
        assert_eq!(
            found(&[
                kubelet,
                ("/proc/9/root/etc/p/1.yaml", provider),
                ("/proc/9/root/etc/p/2.json", "{}")
            ]),
            Some(described("/etc/p/1.yaml (provider ecr)"))
        );
    }

    #[test]
    fn settings_of_runtimes_are_read() {
        let containerd = "[plugins.\"io.containerd.grpc.v1.cri\".registry.configs.\"q.example\".auth]\n  username = \"a\"\n  password = \"b\"\n";
        assert_eq!(
            found(&[("/etc/containerd/config.toml", containerd)]),
            Some(described("configuration of containerd (q.example)"))
        );
        let tls = "[plugins.\"io.containerd.grpc.v1.cri\".registry.configs.\"q.example\".tls]\n  ca_file = \"a\"\n";
        assert_eq!(found(&[("/etc/containerd/config.toml", tls)]), None);
        let auths = r#"{"auths": {"q.example": {"auth": "c2VjcmV0"}}}"#;
        let cri_o = [
            ("/run/crio/crio.sock", ""),
            (
                "/etc/crio/crio.conf",
                "[crio.image]\nglobal_auth_file = \"/etc/crio/auth.json\"\n",
            ),
            ("/etc/crio/auth.json", auths),
        ];
        assert_eq!(found(&cri_o), Some(described("/etc/crio/auth.json (q.example)")));
    }
}
