//! The kubeconfigs of tenants as files of the home, for people on this machine. Control cannot write
//! them itself where it is a pod.

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
            Ok(Event::Apply(secret)) => write_kubeconfig(home, &secret),
            Ok(Event::InitApply(secret)) => {
                write_kubeconfig(home, &secret);
                listed.extend(kubeconfig_file(home, &secret).map(|(path, _)| path));
            }
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

fn write_kubeconfig(home: &Home, secret: &Secret) {
    let Some((path, text)) = kubeconfig_file(home, secret) else {
        return;
    };
    if fs::read(&path).is_ok_and(|current| current == text) {
        return;
    }
    if let Err(error) = write_atomic(&path, text, 0o600) {
        tracing::warn!(%error, "a tenant's kubeconfig is not written");
    }
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
    use serde_json::json;

    fn secret(namespace: &str, tenant: &str) -> Secret {
        serde_json::from_value(json!({
            "metadata": {"name": "kubeconfig", "namespace": namespace, "labels": {
                "berth.dev/tenant-name": tenant, "berth.dev/tenant-namespace": namespace}},
            "data": {"kubeconfig": "YQ=="},
        }))
        .unwrap()
    }

    #[test]
    fn each_tenant_has_a_file_and_files_of_others_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path());
        home.create().unwrap();
        let (one, other) = (secret("a-b", "c"), secret("a", "b-c"));
        write_kubeconfig(&home, &one);
        write_kubeconfig(&home, &other);
        let path = |secret: &Secret| kubeconfig_file(&home, secret).unwrap().0;
        assert_ne!(path(&one), path(&other));
        assert_eq!(fs::read(path(&other)).unwrap(), b"a");

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
