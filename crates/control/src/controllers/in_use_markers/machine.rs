//! Machines whose Node comes back under another name.

use super::{
    MOVED_TO, NODE, PreviousUse, SHARED_POOL, TENANT, UID, Use, VERSION, datum, ensure, marker_api, marker_name,
};
use crate::{
    apply::optional,
    error::{ReconcileError, api},
};
use berth_api::{labels, names};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

/// Identifies a machine, by what its kubelet reports. None if it does not report all of it.
pub(super) fn identify(node: &Node) -> Option<String> {
    let info = node.status.as_ref()?.node_info.as_ref()?;
    let is_known = !info.machine_id.is_empty() && !info.system_uuid.is_empty();
    is_known.then(|| names::hash(&["machine", &info.machine_id, &info.system_uuid]))
}

/// If the machine of a node was in use under a name whose Node is gone, writes that into the marker of this node. The former
/// marker stays: several machines can report the same, and the other one could come back as well.
pub(super) async fn take_over(client: &Client, node: &Node) -> Result<(), ReconcileError> {
    let Some(former) = find_former(client, node).await? else {
        return Ok(());
    };
    // This marker is for no version of the node: it is not clean.
    let mut data = json!({UID: "", VERSION: ""});
    match PreviousUse::of(&former) {
        PreviousUse::Tenant(slug) => {
            ensure(client, node, Use::Tenant(&slug)).await?;
            data[TENANT] = slug.into();
            data[SHARED_POOL] = Value::Null;
        }
        PreviousUse::Shared(pool) => ensure(client, node, Use::Shared(&pool)).await?,
    }
    let name = node.name_any();
    change(client, &marker_name(&name), &data).await?;
    let moved = json!({MOVED_TO: node.uid().unwrap_or_default()});
    change(client, &former.name_any(), &moved).await?;
    let before = datum(&former, NODE);
    tracing::info!(
        node = name,
        before,
        "the machine of a node was in use under another name"
    );
    Ok(())
}

/// The marker of a node that is gone, whose machine this node is, and which this node has not taken over yet.
async fn find_former(client: &Client, node: &Node) -> Result<Option<ConfigMap>, ReconcileError> {
    let Some(machine) = identify(node) else {
        return Ok(None);
    };
    let params = ListParams::default().labels(&format!("{}={machine}", labels::MACHINE));
    let markers = marker_api(client).list(&params).await;
    let nodes: Api<Node> = Api::all(client.clone());
    for marker in markers.map_err(api("list the in-use markers of a machine"))? {
        let Some(name) = datum(&marker, NODE).filter(|name| *name != node.name_any()) else {
            continue;
        };
        let is_taken_over = datum(&marker, MOVED_TO).is_some_and(|uid| Some(uid) == node.uid());
        if is_taken_over {
            continue;
        }
        let other = optional(nodes.get_metadata(&name).await).map_err(api("get a node"))?;
        if other.is_none() {
            return Ok(Some(marker));
        }
    }
    Ok(None)
}

async fn change(client: &Client, marker: &str, data: &Value) -> Result<(), ReconcileError> {
    let patch = Patch::Merge(json!({"data": data}));
    let patched = marker_api(client).patch(marker, &PatchParams::default(), &patch).await;
    patched.map(|_| ()).map_err(api("change the in-use marker of a node"))
}
