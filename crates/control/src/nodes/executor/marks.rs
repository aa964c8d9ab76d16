//! Marks of nodes that are in use, besides their Node objects.
//!
//! A Node object can vanish and come back: people delete it, or everything of Berth on it, while the machine still holds what
//! a tenant left. A ConfigMap in Berth's namespace for each node, from before it is promised until it is clean, tells such a
//! node from a new one: a node that seems free and is marked goes through cleaning first. Marks say nothing else, and
//! decide nothing else: whose a node is, only its own record says.

use crate::{
    apply::{is_status, optional},
    context::Context,
    error::{ReconcileError, api},
};
use berth_api::{labels, names, system};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams},
};
use serde_json::json;

/// What became of an attempt to mark a node.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Marked {
    /// It was not marked and is now.
    Now,
    /// It was marked by an attempt on this very version of the node that went no further.
    Again,
    /// It was in use by this tenant (slug), and its record is lost.
    Before(String),
}

fn name(node: &str) -> String {
    names::host_name("Node", "", &format!("node-{node}"))
}

fn marks(context: &Context) -> Api<ConfigMap> {
    Api::namespaced(context.client.clone(), system::NAMESPACE)
}

/// Marks a node before it is promised to a tenant.
pub(super) async fn set(context: &Context, node: &Node, slug: &str) -> Result<Marked, ReconcileError> {
    let version = node.resource_version().unwrap_or_default();
    let uid = node.uid().unwrap_or_default();
    let mark: ConfigMap = serde_json::from_value(json!({
        "metadata": {"name": name(&node.name_any()), "labels": {labels::IN_USE_MARKER: "true"}},
        "data": {"node": node.name_any(), "uid": uid, "resourceVersion": version, "tenant": slug},
    }))
    .unwrap_or_default();
    match marks(context).create(&PostParams::default(), &mark).await {
        Ok(_) => return Ok(Marked::Now),
        Err(error) if is_status(&error, 409) => {}
        Err(error) => return Err(api("mark a node as being in use")(error)),
    }
    let found = marks(context)
        .get_opt(&name(&node.name_any()))
        .await
        .map_err(api("look at a node's mark"))?;
    let data = found.and_then(|mark| mark.data).unwrap_or_default();
    let is = |key: &str, value: &str| data.get(key).is_some_and(|found| found == value);
    if is("uid", &uid) && is("resourceVersion", &version) {
        return Ok(Marked::Again);
    }
    Ok(Marked::Before(data.get("tenant").cloned().unwrap_or_default()))
}

/// Takes the mark off a clean node.
pub(super) async fn remove(context: &Context, node: &str) -> Result<(), ReconcileError> {
    optional(marks(context).delete(&name(node), &DeleteParams::default()).await)
        .map(|_| ())
        .map_err(api("take the mark off a node"))
}
