//! The kubeconfigs of tenants as files of the home, for people on this machine. Control cannot write
//! them itself where it is a pod.
//!
//! They come out of Secrets in namespaces of teams, and the one who uses a file may be root on this machine: what control does not write, such as a
//! command that kubectl would run, gets into no file.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use berth_api::labels;
use berth_control::runtime::kubeconfig_path;
use berth_local::Home;
use berth_process::write_atomic;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Secret;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt as _};

use crate::user_config::document;

/// The key under which control stores a kubeconfig.
const KEY: &str = "kubeconfig";

/// Writes the kubeconfig of each tenant, and again when it changes. Removes those of tenants that are gone. Does not return.
pub(crate) async fn write_all(home: &Home, client: Client) {
    let secrets: Api<Secret> = Api::all(client);
    let config = watcher::Config::default().labels(labels::TENANT_NAME);
    let mut events = std::pin::pin!(watcher(secrets, config));
    // Files of the tenants of a list that is being read.
    let mut listed = BTreeSet::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(secret)) => drop(write_kubeconfig(home, &secret)),
            Ok(Event::InitApply(secret)) => listed.extend(write_kubeconfig(home, &secret)),
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitDone) => remove_others(&home.kubeconfigs(), &listed),
            Ok(Event::Delete(secret)) => {
                if let Some((path, _)) = kubeconfig_file(home, &secret) {
                    // A new tenant of that name gets a new file.
                    let _ = fs::remove_file(path);
                }
            }
            // The watcher tries again by itself, with a growing pause.
            Err(error) => tracing::debug!(%error, "watching kubeconfigs"),
        }
    }
}

/// Removes kubeconfigs of tenants that were deleted while nothing watched, and of names that an earlier version gave.
fn remove_others(folder: &Path, known: &BTreeSet<PathBuf>) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_kubeconfig = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "yaml");
    for path in entries.map(|entry| entry.path()).filter(is_kubeconfig) {
        if !known.contains(&path) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Writes the kubeconfig of a tenant, unless its file has it. Returns the file; none if the Secret has no kubeconfig that may be used.
fn write_kubeconfig(home: &Home, secret: &Secret) -> Option<PathBuf> {
    let (path, text) = kubeconfig_file(home, secret)?;
    let text = match rewrite(text) {
        Ok(text) => text,
        Err(error) => {
            // A file from before stays until control has written the Secret again.
            tracing::warn!(namespace = secret.namespace(), secret = secret.name_any(), %error, "a tenant's kubeconfig is not written");
            return None;
        }
    };
    let is_written = fs::read(&path).is_ok_and(|current| current == text.as_bytes());
    if !is_written && let Err(error) = write_atomic(&path, text.as_bytes(), 0o600) {
        tracing::warn!(%error, "a tenant's kubeconfig is not written");
    }
    Some(path)
}

/// A kubeconfig with nothing but what control writes. The error says what else it has.
fn rewrite(text: &[u8]) -> Result<String, String> {
    let text = std::str::from_utf8(text).map_err(|error| error.to_string())?;
    document::rewrite_tenant(text)
}

/// The file and the text of a kubeconfig, if the Secret is one that control made beside a TenantCluster.
fn kubeconfig_file<'a>(home: &Home, secret: &'a Secret) -> Option<(PathBuf, &'a [u8])> {
    let (namespace, labels) = (secret.namespace()?, secret.labels());
    let tenant = labels.get(labels::TENANT_NAME)?;
    // Both are Kubernetes names, without slashes and leading dots. A Secret in another namespace is not the team's.
    if labels.get(labels::TENANT_NAMESPACE) != Some(&namespace) {
        return None;
    }
    let text = &secret.data.as_ref()?.get(KEY)?.0;
    Some((kubeconfig_path(&home.kubeconfigs(), &namespace, tenant), text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;
    use serde_json::{Value, json};

    fn secret(namespace: &str, tenant: &str) -> Secret {
        let metadata = json!({"metadata": {"name": "kubeconfig", "namespace": namespace, "labels": {
            "berth.dev/tenant-name": tenant, "berth.dev/tenant-namespace": namespace}}});
        let secret = serde_json::from_value(metadata).unwrap();
        with_user(
            secret,
            &json!({"client-certificate-data": "YQ==", "client-key-data": "YQ=="}),
        )
    }

    /// The Secret with a kubeconfig that has this user.
    fn with_user(secret: Secret, user: &Value) -> Secret {
        let kubeconfig = json!({"apiVersion": "v1", "kind": "Config",
            "clusters": [{"name": "tenant", "cluster": {"server": "https://127.0.0.1:6443"}}],
            "users": [{"name": "admin", "user": user}]});
        let text = ByteString(kubeconfig.to_string().into_bytes());
        Secret {
            data: Some([(KEY.to_owned(), text)].into()),
            ..secret
        }
    }

    #[test]
    fn a_kubeconfig_that_runs_a_command_or_reads_a_file_gets_into_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path());
        home.create().unwrap();
        let own = secret("team", "vision");
        for user in [
            json!({"exec": {"command": "./evil"}}),
            json!({"tokenFile": "/root/token"}),
        ] {
            let forged = with_user(secret("team", "vision"), &user);
            assert_eq!(write_kubeconfig(&home, &forged), None);
            assert_eq!(fs::read_dir(home.kubeconfigs()).unwrap().count(), 0, "{user}");
        }
        let path = write_kubeconfig(&home, &own).unwrap();
        let text = fs::read(&path).unwrap();
        let forged = with_user(own, &json!({"exec": {"command": "./evil"}}));
        assert_eq!(write_kubeconfig(&home, &forged), None);
        assert_eq!(fs::read(&path).unwrap(), text);
        // One of an earlier version goes.
        remove_others(&home.kubeconfigs(), &BTreeSet::new());
        assert!(!path.exists());
    }

    /// For kubectl, what is merged in replaces the fields before it, and it would run the command. For the parser of the check, they stay.
    #[test]
    fn what_only_the_parser_of_kubectl_finds_gets_into_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path());
        home.create().unwrap();
        let text = "users:\n- name: admin\n  user: {client-key-data: YQ==}\n  <<: {user: {exec: {command: ./evil}}}\n";
        let forged = Secret {
            data: Some([(KEY.to_owned(), ByteString(text.into()))].into()),
            ..secret("team", "vision")
        };
        let written = write_kubeconfig(&home, &forged).map(|path| fs::read_to_string(path).unwrap());
        assert!(!written.unwrap_or_default().contains("evil"));
    }

    #[test]
    fn each_tenant_has_a_file_and_files_of_others_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path());
        home.create().unwrap();
        let (one, other) = (secret("a-b", "c"), secret("a", "b-c"));
        let path = |secret: &Secret| kubeconfig_file(&home, secret).unwrap().0;
        assert_eq!(write_kubeconfig(&home, &one), Some(path(&one)));
        assert_eq!(write_kubeconfig(&home, &other), Some(path(&other)));
        assert_ne!(path(&one), path(&other));
        let written = fs::read_to_string(path(&other)).unwrap();
        let of_secret = std::str::from_utf8(kubeconfig_file(&home, &other).unwrap().1).unwrap();
        assert_eq!(document::parse(&written), document::parse(of_secret));

        fs::write(home.kubeconfigs().join("a-b-c.yaml"), "").unwrap();
        fs::write(home.kubeconfigs().join("notes.txt"), "").unwrap();
        remove_others(&home.kubeconfigs(), &BTreeSet::from([path(&one)]));
        assert!(path(&one).exists() && !path(&other).exists());
        assert_eq!(fs::read_dir(home.kubeconfigs()).unwrap().count(), 2);
        // A Secret in another namespace is not that of a tenant.
        let mut foreign = secret("a", "c");
        foreign.metadata.namespace = Some("b".into());
        assert!(kubeconfig_file(&home, &foreign).is_none());
    }
}
