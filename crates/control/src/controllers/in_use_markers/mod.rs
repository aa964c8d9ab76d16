//! In-use markers: which nodes are in use, recorded besides their Node objects.
//!
//! A Node object can vanish and come back: people delete it, or everything of Berth on it, while the machine still holds what
//! tenants left. A ConfigMap in Berth's namespace for each node tells such a node from a new one: from before it is reserved, or
//! shared, until it is clean. A node that seems free and has a marker is scrubbed first. Only a node that was shared and is to
//! be shared again is not. A marker decides nothing else: only the assignment on the Node says which tenant has it.
//!
//! A machine is known by the name of its Node, and by what its kubelet reports of it ([`machine`]). The marker of a machine whose
//! name another one takes is kept as a copy, which no Node has.
//!
//! Two controls can work with the marker of a node at the same time, if one has lost its lease and does not know it yet. So a
//! marker is deleted only as it was read, and a control that relies on one that it did not create changes it first: then no
//! other can delete it.

mod machine;

pub(super) use machine::{MarkedMachines, is_same_machine, set_machine};

use crate::{
    apply::{delete_same, is_status, optional},
    error::{ReconcileError, api},
};
use berth_api::{labels, names, system};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::json;
use std::collections::BTreeMap;

/// Key of the name of the node.
const NODE: &str = "node";
/// Keys of the object and the version of the node for which the marker was created.
const UID: &str = "uid";
const VERSION: &str = "resourceVersion";
/// Key of the tenant (slug) that has the node.
const TENANT: &str = "tenant";
/// Key of the pool in which tenants share the node.
const SHARED_POOL: &str = "sharedPool";
/// Key of the time at which a control began to rely on a marker that existed.
const CLAIMED: &str = "claimed";
/// Before the UID of each Node whose marker took over this one, because it is of the same machine: key of the time.
const MOVED_TO: &str = "movedTo.";

/// What a node is marked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Use<'a> {
    /// To be reserved for this tenant (slug). It is empty for a node that is scrubbed.
    Tenant(&'a str),
    /// To be shared by tenants, in this pool.
    Shared(&'a str),
}

/// The marker of a node that is to be used.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Marker {
    /// It can be deleted again if the node is not used after all.
    Created(MarkerVersion),
    /// There was one, for a use that did not begin, or for the same shared use. It stays if the node is not used.
    Existing,
    /// The node is not clean.
    OfPreviousUse(PreviousUse),
    /// Another control changed it at this moment.
    Contended,
}

/// How a node was used that is not clean.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PreviousUse {
    /// This tenant (slug) had it; empty if that is not known.
    Tenant(String),
    /// Tenants shared it in this pool.
    Shared(String),
}

impl PreviousUse {
    fn of(marker: &ConfigMap) -> Self {
        datum(marker, SHARED_POOL).map_or_else(|| Self::Tenant(datum(marker, TENANT).unwrap_or_default()), Self::Shared)
    }
}

/// A marker as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MarkerVersion {
    name: String,
    uid: Option<String>,
    resource_version: Option<String>,
}

impl MarkerVersion {
    fn of(marker: &ConfigMap) -> Self {
        Self {
            name: marker.name_any(),
            uid: marker.uid(),
            resource_version: marker.resource_version(),
        }
    }
}

fn marker_name(node: &str) -> String {
    names::host_name("Node", "", &format!("node-{node}"))
}

fn marker_api(client: &Client) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), system::NAMESPACE)
}

/// Marks a node before it is used. The node was read before the machines were listed.
pub(super) async fn mark(
    client: &Client,
    node: &Node,
    for_use: Use<'_>,
    marked: &MarkedMachines,
) -> Result<Marker, ReconcileError> {
    machine::take_over(client, node, marked).await?;
    if let Some(created) = create(client, node, for_use).await? {
        return Ok(Marker::Created(MarkerVersion::of(&created)));
    }
    let Some(marker) = read(client, &node.name_any()).await? else {
        return Ok(Marker::Contended);
    };
    let is_unused = || datum(&marker, UID) == node.uid() && datum(&marker, VERSION) == node.resource_version();
    match (for_use, PreviousUse::of(&marker)) {
        (Use::Shared(_), PreviousUse::Shared(_)) => claim(client, &marker, for_use).await,
        (Use::Tenant(_), PreviousUse::Tenant(_)) if is_unused() => claim(client, &marker, for_use).await,
        (_, previous) => Ok(Marker::OfPreviousUse(previous)),
    }
}

fn datum(marker: &ConfigMap, key: &str) -> Option<String> {
    marker.data.as_ref().and_then(|data| data.get(key)).cloned()
}

/// Creates the marker of a node that is in use, unless it has one. Then it becomes one of the node's machine.
pub(super) async fn ensure(client: &Client, node: &Node, in_use: Use<'_>) -> Result<(), ReconcileError> {
    create(client, node, in_use).await.map(|_| ())
}

/// Creates a marker; none if there is one, which becomes one of the node's machine.
async fn create(client: &Client, node: &Node, for_use: Use<'_>) -> Result<Option<ConfigMap>, ReconcileError> {
    let mut marker = json!({
        "metadata": {"name": marker_name(&node.name_any()), "labels": {labels::IN_USE_MARKER: "true"}},
        "data": {
            NODE: node.name_any(),
            UID: node.uid().unwrap_or_default(),
            VERSION: node.resource_version().unwrap_or_default(),
        },
    });
    match for_use {
        Use::Tenant(slug) => marker["data"][TENANT] = slug.into(),
        Use::Shared(pool) => marker["data"][SHARED_POOL] = pool.into(),
    }
    if let Some(machine) = machine::identify(node) {
        marker["metadata"]["labels"][labels::MACHINE] = machine.into();
    }
    let marker: ConfigMap = serde_json::from_value(marker).unwrap_or_default();
    match marker_api(client).create(&PostParams::default(), &marker).await {
        Ok(created) => Ok(Some(created)),
        Err(error) if is_status(&error, 409) => {
            set_machine(client, node).await?;
            Ok(None)
        }
        Err(error) => Err(api("create the in-use marker of a node")(error)),
    }
}

/// Changes a marker, so that a control that read it before cannot delete it.
async fn claim(client: &Client, marker: &ConfigMap, for_use: Use<'_>) -> Result<Marker, ReconcileError> {
    let mut body = json!({
        "metadata": {"resourceVersion": marker.resource_version()},
        // An update that changes nothing makes no new version.
        "data": {CLAIMED: Timestamp::now().to_string()},
    });
    match for_use {
        Use::Tenant(slug) => body["data"][TENANT] = slug.into(),
        Use::Shared(pool) => body["data"][SHARED_POOL] = pool.into(),
    }
    let params = PatchParams::default();
    match marker_api(client)
        .patch(&marker.name_any(), &params, &Patch::Merge(body))
        .await
    {
        Ok(_) => Ok(Marker::Existing),
        Err(error) if is_status(&error, 404) || is_status(&error, 409) => Ok(Marker::Contended),
        Err(error) => Err(api("change the in-use marker of a node")(error)),
    }
}

async fn read(client: &Client, node: &str) -> Result<Option<ConfigMap>, ReconcileError> {
    let found = optional(marker_api(client).get(&marker_name(node)).await);
    found.map_err(api("get the in-use marker of a node"))
}

/// The marker of a node as it is now; none if it has none.
pub(super) async fn read_version(client: &Client, node: &str) -> Result<Option<MarkerVersion>, ReconcileError> {
    let marker = read(client, node).await?;
    Ok(marker.as_ref().map(MarkerVersion::of))
}

/// Names of the nodes that have a marker, and whether it says which machine the node is.
pub(super) async fn list_marked_nodes(client: &Client) -> Result<BTreeMap<String, bool>, ReconcileError> {
    let params = ListParams::default().labels(labels::IN_USE_MARKER);
    let markers = marker_api(client).list(&params).await;
    let markers = markers.map_err(api("list the in-use markers of nodes"))?;
    let marked = markers.into_iter().filter_map(|marker| {
        let has_machine = marker.labels().contains_key(labels::MACHINE);
        Some((marker.data?.remove(NODE)?, has_machine))
    });
    Ok(marked.collect())
}

/// Deletes the marker of a clean node, or of one that was not used, unless it changed since it was read.
pub(super) async fn delete(client: &Client, marker: &MarkerVersion) -> Result<(), ReconcileError> {
    let read = ObjectMeta {
        name: Some(marker.name.clone()),
        uid: marker.uid.clone(),
        ..ObjectMeta::default()
    };
    match delete_same(&marker_api(client), &read, marker.resource_version.clone()).await {
        Ok(_) => Ok(()),
        // Another control relies on it.
        Err(error) if is_status(&error, 409) => Ok(()),
        Err(error) => Err(api("delete the in-use marker of a node")(error)),
    }
}

#[cfg(test)]
mod tests;
