//! Uninstallation. Before the chart is deleted: do objects of tenants remain? Control deletes them; without it, namespaces,
//! nodes and keys of tenants would stay. After the chart was deleted: deletes what it does not list.

use super::{MANAGED_BY, PART_OF};
use crate::{
    apply::{is_status, optional},
    finalizers,
};
use berth_api::{
    Organization, Project, TenantCluster, TenantSnapshot, labels,
    system::{CONTROL, NAMESPACE},
};
use berth_node_lifecycle::{Assignment, nvidia_labels};
use berth_runtime::watched::{Watched, for_each};
use k8s_openapi::api::{
    apps::v1::Deployment,
    coordination::v1::Lease,
    core::v1::{Namespace, Node, Secret},
    scheduling::v1::PriorityClass,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Debug;

/// Names per kind in the message.
const MAX_NAMES: usize = 10;
/// How often objects that are changed meanwhile are read again.
const FINALIZER_TRIES: usize = 5;

/// Objects of tenants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RemainingObjects {
    /// `namespace/name` of TenantClusters.
    pub tenants: Vec<String>,
    /// Nodes that are assigned to a tenant, reserved for one or being recycled.
    pub nodes: Vec<String>,
    /// Namespaces of tenants.
    pub namespaces: Vec<String>,
    /// `namespace/name` of TenantSnapshots that control still has to let go.
    pub snapshots: Vec<String>,
}

impl RemainingObjects {
    /// What remains and what to do; `None` if nothing remains.
    pub fn error_message(&self) -> Option<String> {
        let parts: Vec<String> = [
            ("TenantClusters", &self.tenants),
            ("nodes that are not free (state)", &self.nodes),
            ("namespaces of tenants", &self.namespaces),
            ("TenantSnapshots", &self.snapshots),
        ]
        .into_iter()
        .filter(|(_, names)| !names.is_empty())
        .map(|(what, names)| {
            let more = names.len().saturating_sub(MAX_NAMES);
            let more = if more > 0 {
                format!(" and {more} more")
            } else {
                String::new()
            };
            let listed = names[..names.len().min(MAX_NAMES)].join(", ");
            format!("{} {what}: {listed}{more}", names.len())
        })
        .collect();
        let nodes = if self.nodes.is_empty() {
            String::new()
        } else {
            format!(
                " and every node is clean and free (kubectl get nodes -l {state}; for one in quarantine: kubectl annotate node \
                 NAME {release}=yes)",
                state = labels::NODE_STATE,
                release = labels::RELEASE_QUARANTINE
            )
        };
        let snapshots = if self.snapshots.is_empty() {
            String::new()
        } else {
            format!(
                "; delete every TenantSnapshot with its file (kubectl delete tenantsnapshots --all --all-namespaces), or remove its \
                 finalizer {}, which keeps the file",
                labels::SNAPSHOT_FINALIZER
            )
        };
        (!parts.is_empty()).then(|| {
            format!(
                "Berth is not uninstalled, because objects of tenants remain: {}. Delete every TenantCluster and wait until \
                 it is gone (kubectl delete tenantclusters --all --all-namespaces){nodes}{snapshots}, then uninstall again. To leave \
                 all objects of tenants behind instead, run `helm upgrade --reuse-values --set uninstall.force=true` first",
                parts.join("; ")
            )
        })
    }
}

/// Finds all objects of tenants.
///
/// # Errors
/// The host refuses or does not answer.
pub async fn find_remaining_objects(client: &Client) -> kube::Result<RemainingObjects> {
    let tenants: Api<TenantCluster> = Api::all(client.clone());
    // Without the definition there are no TenantClusters.
    let tenants = optional(tenants.list(&ListParams::default()).await)?;
    let tenants = tenants.into_iter().flatten();
    let names = |list: Vec<String>| {
        let mut list = list;
        list.sort();
        list
    };
    let mut in_use = Vec::new();
    for_each_node(client, |name, node| {
        in_use.extend(describe_in_use(&name, node.as_ref()));
    })
    .await?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespaces = namespaces
        .list_metadata(&ListParams::default().labels(&format!("{},{}", labels::ROLE, labels::TENANT)))
        .await?;
    let snapshots: Api<TenantSnapshot> = Api::all(client.clone());
    let snapshots = optional(snapshots.list_metadata(&ListParams::default()).await)?;
    // Without control nothing removes the finalizer. Those that have none are left on purpose, or have no file.
    let snapshots = { snapshots.into_iter().flatten() }
        .filter(|snapshot| finalizers::is_set(snapshot, labels::SNAPSHOT_FINALIZER))
        .map(|snapshot| format!("{}/{}", snapshot.namespace().unwrap_or_default(), snapshot.name_any()));
    Ok(RemainingObjects {
        tenants: names(
            tenants
                .map(|tenant| format!("{}/{}", tenant.namespace().unwrap_or_default(), tenant.name_any()))
                .collect(),
        ),
        nodes: names(in_use),
        namespaces: names(namespaces.iter().map(ResourceExt::name_any).collect()),
        snapshots: names(snapshots.collect()),
    })
}

/// The name of a node with any part of an assignment, and its state: without Berth nothing removes it. One that cannot be read may have an assignment.
fn describe_in_use(name: &str, node: Option<&Node>) -> Option<String> {
    let is_in_use = node.is_none_or(|node| Assignment::read(node).is_some());
    let state = node.and_then(|node| {
        let state = node.annotations().get(labels::NODE_STATE);
        state.or_else(|| node.labels().get(labels::NODE_STATE))
    });
    is_in_use.then(|| format!("{name} ({})", state.map_or("unknown", String::as_str)))
}

/// Removes the finalizer of Organizations and Projects that control would remove now: it may have to do so when it cannot any more, and
/// then the definitions would stay. For a host without tenants.
///
/// # Errors
/// The host refuses or does not answer.
pub async fn remove_quota_finalizers(client: &Client) -> kube::Result<()> {
    remove_finalizers(&Api::<Project>::all(client.clone())).await?;
    remove_finalizers(&Api::<Organization>::all(client.clone())).await
}

async fn remove_finalizers<K>(api: &Api<K>) -> kube::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    for _ in 0..FINALIZER_TRIES {
        // Without the definition there are none.
        let objects = optional(api.list(&ListParams::default()).await)?;
        let objects = objects.into_iter().flatten();
        let mut is_changed = false;
        for object in objects.filter(|object| finalizers::is_set(object, labels::QUOTA_FINALIZER)) {
            match finalizers::remove(api, &object, labels::QUOTA_FINALIZER).await {
                Err(error) if is_status(&error, 409) => is_changed = true,
                Err(error) if !is_status(&error, 404) => return Err(error),
                _ => {}
            }
        }
        if !is_changed {
            return Ok(());
        }
    }
    // Control changes them, and removes the finalizer itself.
    Ok(())
}

/// Removes what the validation of nodes has found, which stays on free nodes: without Berth nothing renews it. For a host whose nodes are free.
///
/// # Errors
/// The host refuses or does not answer.
pub async fn remove_node_risks(client: &Client) -> kube::Result<()> {
    let without = |node: &Node| {
        let has_risks = node.annotations().contains_key(labels::NODE_RISKS);
        has_risks.then(|| json!({"annotations": {labels::NODE_RISKS: null}}))
    };
    change_nodes(client, without).await
}

/// Gives nodes back the labels of NVIDIA's software that they had before: control does so only once they leave their pool. For a host whose
/// nodes are free.
///
/// # Errors
/// The host refuses or does not answer.
pub async fn restore_nvidia_labels(client: &Client) -> kube::Result<()> {
    change_nodes(client, |node| nvidia_labels::restored_metadata(node, None)).await
}

/// Removes the labels and annotations that say that tenants share a node, or have shared it: the pools are deleted, and without Berth nothing else removes
/// them. A node with an assignment stays as it is.
async fn remove_shared_pools(client: &Client) -> kube::Result<()> {
    let gone = |keys: &[&str]| -> Value { keys.iter().map(|key| ((*key).to_owned(), Value::Null)).collect() };
    let without = json!({
        "labels": gone(&[labels::SHARED_POOL, labels::POOL]),
        "annotations": gone(&[labels::PREVIOUS_SHARED_POOL, labels::SHARED_UNTIL, labels::REASON]),
    });
    let without_marks = |node: &Node| {
        let was_shared = node.annotations().contains_key(labels::PREVIOUS_SHARED_POOL);
        let is_marked = was_shared || node.labels().contains_key(labels::SHARED_POOL);
        (is_marked && Assignment::read(node).is_none()).then(|| without.clone())
    };
    change_nodes(client, without_marks).await
}

/// Gives each node to `take`: its name, and the node if it can be read. The Jobs that call this have little memory, and hosts have thousands of nodes:
/// they are read page by page.
async fn for_each_node(client: &Client, mut take: impl FnMut(String, Option<Node>)) -> kube::Result<()> {
    let nodes: Api<Watched<Node>> = Api::all(client.clone());
    for_each(&nodes, ListParams::default(), |node| {
        take(node.name_any(), node.readable());
    })
    .await
}

/// Changes the metadata of some nodes: those for which `change` returns what to write. One that is gone needs no change.
async fn change_nodes(client: &Client, change: impl Fn(&Node) -> Option<Value>) -> kube::Result<()> {
    let mut changes = Vec::new();
    let take = |name: String, node: Option<Node>| {
        let metadata = node.as_ref().and_then(&change);
        changes.extend(metadata.map(|metadata| (name, metadata)));
    };
    for_each_node(client, take).await?;
    let nodes: Api<Node> = Api::all(client.clone());
    for (name, metadata) in changes {
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        let patched = nodes.patch_metadata(&name, &PatchParams::default(), &patch).await;
        optional(patched)?;
    }
    Ok(())
}

/// What is kept.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keep {
    /// PriorityClasses of TenantClasses, and labels and annotations of shared nodes, because classes and pools are kept.
    pub classes: bool,
    /// The datastore's certificates, because its volumes are kept.
    pub keys: bool,
}

/// Why objects were not deleted.
#[derive(Debug, thiserror::Error)]
pub enum CleanUpError {
    /// Berth is not being uninstalled.
    #[error(
        "nothing is deleted, because the Deployment {NAMESPACE}/{CONTROL} exists: this is for the end of `helm uninstall`. Who applies what \
         `helm template` renders needs its flag --no-hooks"
    )]
    Installed,
    /// The host refuses or does not answer.
    #[error(transparent)]
    Host(Box<kube::Error>),
}

impl From<kube::Error> for CleanUpError {
    fn from(error: kube::Error) -> Self {
        Self::Host(Box::new(error))
    }
}

/// Whether control is installed and not being deleted, as it is for a while with `helm uninstall --cascade foreground`.
async fn is_installed(client: &Client) -> kube::Result<bool> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    let control = optional(deployments.get(CONTROL).await)?;
    Ok(control.is_some_and(|control| control.metadata.deletion_timestamp.is_none()))
}

/// Deletes objects that control and [`certificates`](super::certificates) created and the chart does not list. The Job that calls this is a hook:
/// tools that know no hooks of Helm run it when they install Berth, and would delete the authority of a datastore that is in use.
///
/// # Errors
/// Berth is installed, or the host refuses or does not answer.
pub async fn delete_unlisted_objects(client: &Client, keep: Keep) -> Result<(), CleanUpError> {
    if is_installed(client).await? {
        return Err(CleanUpError::Installed);
    }
    if !keep.keys {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
        let ours = format!("{}={},{}={}", PART_OF.0, PART_OF.1, MANAGED_BY.0, MANAGED_BY.1);
        secrets
            .delete_collection(&DeleteParams::default(), &ListParams::default().labels(&ours))
            .await?;
    }
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    optional(leases.delete(CONTROL, &DeleteParams::default()).await)?;
    if !keep.classes {
        let priorities: Api<PriorityClass> = Api::all(client.clone());
        let of_classes = ListParams::default().labels(labels::CLASS);
        priorities
            .delete_collection(&DeleteParams::default(), &of_classes)
            .await?;
        remove_shared_pools(client).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
