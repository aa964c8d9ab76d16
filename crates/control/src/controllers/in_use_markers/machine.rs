//! Machines whose Node comes back under another name, or whose name another machine has taken.

use super::{
    MOVED_TO, NODE, PreviousUse, SHARED_POOL, TENANT, UID, Use, VERSION, datum, ensure, marker_api, marker_name, read,
};
use crate::{
    apply::{is_status, optional},
    error::{ReconcileError, api},
};
use berth_api::{labels, names};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::OnceCell;

/// How many Nodes a marker remembers that took it over. A ConfigMap has 1 MiB at most.
const MAX_MOVED_TO: usize = 100;

/// Identifies a machine, by what its kubelet reports. None if it does not report all of it.
pub(super) fn identify(node: &Node) -> Option<String> {
    let info = node.status.as_ref()?.node_info.as_ref()?;
    let is_known = !info.machine_id.is_empty() && !info.system_uuid.is_empty();
    is_known.then(|| names::hash(&["machine", &info.machine_id, &info.system_uuid]))
}

/// Whether a Node that was read again is of the same machine as before, as far as its kubelet tells.
pub(in crate::controllers) fn is_same_machine(before: &Node, now: &Node) -> bool {
    before.uid() == now.uid() && identify(before) == identify(now)
}

/// Makes the marker of a node, if it has one, one of its machine. If it was of another machine, that one keeps a copy: it is not
/// clean when it comes back, however this node is used and cleaned meanwhile.
pub(in crate::controllers) async fn set_machine(client: &Client, node: &Node) -> Result<(), ReconcileError> {
    let Some(machine) = identify(node) else {
        return Ok(());
    };
    let Some(marker) = read(client, &node.name_any()).await? else {
        return Ok(());
    };
    match marker.labels().get(labels::MACHINE) {
        Some(marked) if *marked == machine => return Ok(()),
        Some(former) => keep_copy(client, &marker, former).await?,
        None => {}
    }
    let body = json!({"metadata": {
        "resourceVersion": marker.resource_version(),
        "labels": {labels::MACHINE: machine},
    }});
    patch(client, &marker.name_any(), body).await
}

/// Keeps a copy of a marker for a machine whose name another one has taken. There is one for each machine.
async fn keep_copy(client: &Client, marker: &ConfigMap, former: &str) -> Result<(), ReconcileError> {
    let name = names::host_name("Node", "", &format!("machine-{former}"));
    let mut data = marker.data.clone().unwrap_or_default();
    // The name of no Node.
    let node = data.remove(NODE).unwrap_or_default();
    data.insert(NODE.into(), format!("{node}@{former}"));
    let mut copy = ConfigMap {
        data: Some(data),
        ..ConfigMap::default()
    };
    copy.metadata.name = Some(name.clone());
    copy.metadata.labels.clone_from(&marker.metadata.labels);
    match marker_api(client).create(&PostParams::default(), &copy).await {
        Ok(_) => Ok(()),
        // It was in use twice. One that a tenant had is clean for nobody.
        Err(error) if is_status(&error, 409) => match PreviousUse::of(marker) {
            PreviousUse::Tenant(slug) => patch(client, &name, json!({"data": of_tenant(&slug)})).await,
            PreviousUse::Shared(_) => Ok(()),
        },
        Err(error) => Err(api("create the in-use marker of a machine")(error)),
    }
}

/// What is in the marker of a node that a tenant (slug) had.
fn of_tenant(slug: &str) -> Value {
    json!({TENANT: slug, SHARED_POOL: null})
}

/// Machines that have markers, listed once for many nodes. A machine that is missing has no marker under another name, and that
/// spares a call for each node. For one that is there, the markers are read again.
///
/// The list must be newer than the nodes that are marked with its help: a machine has its marker before it is used, and it is used
/// before it comes back under another name. So read the nodes before the first of them is marked, and keep this no longer than
/// for these nodes. A change of a node that was read is a conflict when its assignment is written.
#[derive(Default)]
pub(in crate::controllers) struct MarkedMachines(OnceCell<BTreeMap<String, BTreeSet<String>>>);

impl MarkedMachines {
    /// Whether a machine has a marker that is not that of this node. Lists the markers if that was not done, or failed.
    async fn has_other_marker(&self, client: &Client, node: &Node, machine: &str) -> Result<bool, ReconcileError> {
        let markers = self.0.get_or_try_init(|| list_by_machine(client)).await?;
        let of_node = marker_name(&node.name_any());
        Ok(markers
            .get(machine)
            .is_some_and(|names| names.iter().any(|name| *name != of_node)))
    }
}

/// Names of the markers of each machine.
async fn list_by_machine(client: &Client) -> Result<BTreeMap<String, BTreeSet<String>>, ReconcileError> {
    let params = ListParams::default().labels(labels::MACHINE);
    let markers = marker_api(client).list_metadata(&params).await;
    let mut by_machine = BTreeMap::<_, BTreeSet<_>>::new();
    for marker in markers.map_err(api("list the in-use markers of machines"))? {
        if let Some(machine) = marker.labels().get(labels::MACHINE) {
            by_machine.entry(machine.clone()).or_default().insert(marker.name_any());
        }
    }
    Ok(by_machine)
}

/// If the machine of a node was in use under a name that it no longer has, writes that into the marker of this node. The former
/// marker stays: several machines can report the same, and the other one could come back as well.
pub(super) async fn take_over(client: &Client, node: &Node, marked: &MarkedMachines) -> Result<(), ReconcileError> {
    let Some(former) = find_former(client, node, marked).await? else {
        return Ok(());
    };
    let mut data = match PreviousUse::of(&former) {
        PreviousUse::Tenant(slug) => {
            ensure(client, node, Use::Tenant(&slug)).await?;
            of_tenant(&slug)
        }
        PreviousUse::Shared(pool) => {
            ensure(client, node, Use::Shared(&pool)).await?;
            json!({})
        }
    };
    // This marker is for no version of the node: it is not clean.
    data[UID] = "".into();
    data[VERSION] = "".into();
    let name = node.name_any();
    patch(client, &marker_name(&name), json!({"data": data})).await?;
    let moved = moved_to(&former, node, Timestamp::now());
    patch(client, &former.name_any(), json!({"data": moved})).await?;
    let before = datum(&former, NODE);
    tracing::info!(
        node = name,
        before,
        "the machine of a node was in use under another name"
    );
    Ok(())
}

fn moved_to_key(node: &Node) -> String {
    format!("{MOVED_TO}{}", node.uid().unwrap_or_default())
}

/// What changes in a former marker when a node takes it over. Beyond the most that it remembers, the earliest are forgotten.
pub(super) fn moved_to(former: &ConfigMap, node: &Node, now: Timestamp) -> Value {
    let all = former.data.iter().flatten();
    let mut earlier: Vec<_> = all.filter(|(key, _)| key.starts_with(MOVED_TO)).collect();
    earlier.sort_by(|(_, one), (_, other)| other.cmp(one));
    let forgotten = earlier.into_iter().skip(MAX_MOVED_TO - 1);
    let mut data: Value = forgotten.map(|(key, _)| (key.clone(), Value::Null)).collect();
    data[moved_to_key(node)] = now.to_string().into();
    data
}

/// The marker of a name that the machine of this node had before, and which this node has not taken over yet. No Node has that name
/// any more, or one of another machine.
async fn find_former(
    client: &Client,
    node: &Node,
    marked: &MarkedMachines,
) -> Result<Option<ConfigMap>, ReconcileError> {
    let Some(machine) = identify(node) else {
        return Ok(None);
    };
    if !marked.has_other_marker(client, node, &machine).await? {
        return Ok(None);
    }
    let params = ListParams::default().labels(&format!("{}={machine}", labels::MACHINE));
    let markers = marker_api(client).list(&params).await;
    let nodes: Api<Node> = Api::all(client.clone());
    for marker in markers.map_err(api("list the in-use markers of a machine"))? {
        let Some(name) = datum(&marker, NODE).filter(|name| *name != node.name_any()) else {
            continue;
        };
        if datum(&marker, &moved_to_key(node)).is_some() {
            continue;
        }
        let other = optional(nodes.get(&name).await).map_err(api("get a node"))?;
        if other.is_none_or(|other| identify(&other).is_some_and(|of| of != machine)) {
            return Ok(Some(marker));
        }
    }
    Ok(None)
}

async fn patch(client: &Client, marker: &str, body: Value) -> Result<(), ReconcileError> {
    let patch = Patch::Merge(body);
    let patched = marker_api(client).patch(marker, &PatchParams::default(), &patch).await;
    patched.map(|_| ()).map_err(api("change the in-use marker of a node"))
}
