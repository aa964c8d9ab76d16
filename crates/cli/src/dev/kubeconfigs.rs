//! The kubeconfigs of tenants as files of the home, for people on this machine. Control cannot write
//! them itself where it is a pod.

use std::fs;
use std::path::PathBuf;

use berth_api::labels;
use berth_local::Home;
use berth_process::write_atomic;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Secret;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt as _};

/// The key under which control stores a kubeconfig.
const KEY: &str = "kubeconfig";

/// Writes `<namespace>-<name>.yaml` for each tenant, and again when it changes. Does not return.
pub(crate) async fn write_all(home: &Home, client: Client) {
    let secrets: Api<Secret> = Api::all(client);
    let config = watcher::Config::default().labels(labels::TENANT_NAME);
    let mut events = std::pin::pin!(watcher(secrets, config));
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(secret) | Event::InitApply(secret)) => write_kubeconfig(home, &secret),
            Ok(Event::Delete(secret)) => {
                if let Some((path, _)) = kubeconfig_file(home, &secret) {
                    // A new tenant of that name gets a new file.
                    let _ = fs::remove_file(path);
                }
            }
            Ok(Event::Init | Event::InitDone) => {}
            // The watcher tries again by itself, with a growing pause.
            Err(error) => tracing::debug!(%error, "watching kubeconfigs"),
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
    Some((home.kubeconfigs().join(format!("{namespace}-{tenant}.yaml")), text))
}
