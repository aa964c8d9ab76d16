//! In-use markers: which nodes are in use, recorded besides their Node objects.
//!
//! A Node object can vanish and come back: people delete it, or everything of Berth on it, while the machine still holds what
//! a tenant left. A ConfigMap in Berth's namespace for each node, from before it is reserved until it is clean, tells such a
//! node from a new one: a node that seems free and has a marker is scrubbed first, also if several tenants are to share it. A marker
//! decides nothing else: only the assignment on the Node says which tenant has it.

use crate::{
    apply::{is_status, optional},
    error::{ReconcileError, api},
};
use berth_api::{labels, names, system};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use std::collections::BTreeMap;

/// The marker of a node that is about to be reserved.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Marker {
    Created,
    /// It was created before for this version of the node, which was not reserved after that.
    Existing,
    /// The node was in use by this tenant (slug), and its assignment is lost.
    OfPreviousTenant(String),
}

fn marker_name(node: &str) -> String {
    names::host_name("Node", "", &format!("node-{node}"))
}

fn marker_api(client: &Client) -> Api<ConfigMap> {
    Api::namespaced(client.clone(), system::NAMESPACE)
}

/// Creates the marker of a node before it is reserved for a tenant.
pub(super) async fn create_marker(client: &Client, node: &Node, slug: &str) -> Result<Marker, ReconcileError> {
    let version = node.resource_version().unwrap_or_default();
    let uid = node.uid().unwrap_or_default();
    let marker: ConfigMap = serde_json::from_value(json!({
        "metadata": {"name": marker_name(&node.name_any()), "labels": {labels::IN_USE_MARKER: "true"}},
        "data": {"node": node.name_any(), "uid": uid, "resourceVersion": version, "tenant": slug},
    }))
    .unwrap_or_default();
    match marker_api(client).create(&PostParams::default(), &marker).await {
        Ok(_) => return Ok(Marker::Created),
        Err(error) if is_status(&error, 409) => {}
        Err(error) => return Err(api("create the in-use marker of a node")(error)),
    }
    let data = read_marker(client, &node.name_any()).await?.unwrap_or_default();
    let is = |key: &str, value: &str| data.get(key).is_some_and(|found| found == value);
    if is("uid", &uid) && is("resourceVersion", &version) {
        return Ok(Marker::Existing);
    }
    Ok(Marker::OfPreviousTenant(
        data.get("tenant").cloned().unwrap_or_default(),
    ))
}

/// The tenant (slug) that used a node, if the node has a marker and so is not clean. It may be unknown (empty).
pub(super) async fn find_previous_tenant(client: &Client, node: &str) -> Result<Option<String>, ReconcileError> {
    let data = read_marker(client, node).await?;
    Ok(data.map(|data| data.get("tenant").cloned().unwrap_or_default()))
}

async fn read_marker(client: &Client, node: &str) -> Result<Option<BTreeMap<String, String>>, ReconcileError> {
    let found = optional(marker_api(client).get(&marker_name(node)).await);
    let found = found.map_err(api("get the in-use marker of a node"))?;
    Ok(found.map(|marker| marker.data.unwrap_or_default()))
}

/// Deletes the marker of a clean node.
pub(super) async fn delete_marker(client: &Client, node: &str) -> Result<(), ReconcileError> {
    optional(
        marker_api(client)
            .delete(&marker_name(node), &DeleteParams::default())
            .await,
    )
    .map(|_| ())
    .map_err(api("delete the in-use marker of a node"))
}
