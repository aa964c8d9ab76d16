//! Nodes that several tenants use at the same time, for work without GPUs.
//!
//! A node of a pool of mode `shared` carries the label `berth.dev/shared-pool` as long as tenants share it; pods find it by
//! that label, and the host's admission policies hold them to the pools of their tenant. It never carries an owner. A node
//! on which anything says that it has devices does not get the label, and loses it ([`devices`]). Pods that are where their
//! tenant may not be (any more) are made to leave ([`decide`]).

mod decide;
pub mod devices;

pub use decide::{SharedPod, Standing, is_kept, pool_of, standing, was_shared};

use crate::{
    apply::is_status,
    context::Context,
    error::{ReconcileError, api},
    metrics::ActionLabels,
};
use berth_api::{labels, policy_annotations};
use decide::{Stay, may_stay};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, EvictParams, Patch, PatchParams, Preconditions},
    core::PartialObjectMeta,
    runtime::reflector::ObjectRef,
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// Pause before looking again at pods that have to leave.
const DRAIN_POLL: Duration = Duration::from_secs(1);

/// Takes nodes into shared pools and out of them, and makes pods leave that may not be where they are. Returns when to look
/// again, if something is under way.
///
/// # Errors
/// The host's API server refuses or does not answer. Conflicts are no errors: the watch brings the newer node.
pub async fn reconcile(context: &Context) -> Result<Option<Duration>, ReconcileError> {
    let pools = context.stores.pools.state();
    for node in context.stores.nodes.state() {
        let name = node.name_any();
        let standing = standing(&node, &pools, context.stores.slices.of(&name).len());
        let (body, action) = match &standing {
            Standing::Joins(pool) => (join_patch(&node, pool), "share"),
            Standing::Elsewhere | Standing::Refused(..) if pool_of(&node).is_some() => (leave_patch(&node), "unshare"),
            _ => continue,
        };
        if patch(context, &node, &body, action).await? {
            tracing::info!(node = name, ?standing, action, "shared node");
        }
    }
    let mut again = None;
    for (node, pods) in context.stores.shared_pods.all() {
        for (place, pod) in pods {
            if !pod.is_ending && !see_to(context, &node, &place, &pod).await? {
                again = Some(DRAIN_POLL);
            }
        }
    }
    Ok(again)
}

/// Makes a pod leave if it has to. `true`: it may stay.
async fn see_to(context: &Context, node: &str, place: &str, pod: &SharedPod) -> Result<bool, ReconcileError> {
    let Some((namespace, name)) = place.split_once('/') else {
        return Ok(true);
    };
    let known = context.stores.nodes.get(&ObjectRef::new(node));
    let workloads = context.stores.namespaces.get(&ObjectRef::new(namespace));
    if let Some(allowed) = workloads.as_deref().map(allowed)
        && judge(context, node, known.as_deref(), pod, &allowed) == Stay::Yes
    {
        return Ok(true);
    }
    // The watches are not in step with each other: nobody is sent away before everything was looked at anew.
    let nodes: Api<Node> = Api::all(context.client.clone());
    let now = match node {
        "" => None,
        name => nodes.get_opt(name).await.map_err(api("look at a node"))?,
    };
    let namespaces: Api<Namespace> = Api::all(context.client.clone());
    let workloads = namespaces.get_metadata_opt(namespace).await;
    let Some(workloads) = workloads.map_err(api("look at a tenant's namespace"))? else {
        return Ok(true);
    };
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let stay = judge(context, node, now.as_ref(), pod, &allowed(&workloads));
    let this_very = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(pod.uid.clone()),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    let asked = match stay {
        Stay::Yes => return Ok(true),
        Stay::Drain => {
            let params = EvictParams {
                delete_options: Some(this_very),
                ..EvictParams::default()
            };
            pods.evict(name, &params).await.map(|_| ())
        }
        Stay::No => pods.delete(name, &this_very).await.map(|_| ()),
    };
    match asked {
        Ok(()) => tracing::info!(
            pod = place,
            node,
            ?stay,
            "pod leaves a node that its tenant may not use"
        ),
        // A disruption budget says "not yet"; or it is gone, or another one.
        Err(error) if [404, 409, 429].iter().any(|code| is_status(&error, *code)) => {}
        Err(error) => return Err(api("make a pod leave a shared node")(error)),
    }
    Ok(false)
}

fn judge(context: &Context, name: &str, node: Option<&Node>, pod: &SharedPod, allowed: &[String]) -> Stay {
    match node {
        // A node that is gone takes its pods with it.
        None if !name.is_empty() => Stay::Yes,
        node => {
            let devices = |node| devices::evidence(node, context.stores.slices.of(name).len()).is_some();
            may_stay(pod, node, node.is_some_and(devices), allowed)
        }
    }
}

/// The shared pools that a workload namespace may use, as the host's admission policies read them.
fn allowed(namespace: &PartialObjectMeta<Namespace>) -> Vec<String> {
    let list = namespace.annotations().get(policy_annotations::SHARED_POOLS);
    let pools = list.map(String::as_str).unwrap_or_default().split(',');
    pools.filter(|pool| !pool.is_empty()).map(ToOwned::to_owned).collect()
}

/// What counts of a host pod that may run on shared nodes, and its node; an empty name as long as it has none.
pub fn place_of(pod: &Pod) -> Option<(String, SharedPod)> {
    let spec = pod.spec.as_ref()?;
    let required = spec.affinity.as_ref().and_then(|affinity| {
        affinity
            .node_affinity
            .as_ref()?
            .required_during_scheduling_ignored_during_execution
            .as_ref()
    });
    let mut pools: Vec<String> = required
        .iter()
        .flat_map(|required| &required.node_selector_terms)
        .flat_map(|term| term.match_expressions.iter().flatten())
        .filter(|expression| expression.key == labels::SHARED_POOL)
        .flat_map(|expression| expression.values.iter().flatten().cloned())
        .collect();
    pools.sort();
    pools.dedup();
    let pod = SharedPod {
        uid: pod.uid().unwrap_or_default(),
        tenant: pod.labels().get(labels::TENANT).cloned().unwrap_or_default(),
        pools,
        is_ending: pod.metadata.deletion_timestamp.is_some(),
    };
    Some((spec.node_name.clone().unwrap_or_default(), pod))
}

/// The shared nodes of these pools, by name.
pub fn nodes_of(context: &Context, pools: &[String]) -> BTreeMap<String, Arc<Node>> {
    let mut nodes = context.stores.nodes.state();
    nodes.retain(|node| pool_of(node).is_some_and(|pool| pools.contains(pool)));
    nodes.into_iter().map(|node| (node.name_any(), node)).collect()
}

fn join_patch(node: &Node, pool: &str) -> Value {
    json!({"metadata": {
        "resourceVersion": node.resource_version(),
        "labels": {labels::SHARED_POOL: pool, labels::POOL: pool},
        "annotations": {labels::PREVIOUS_SHARED_POOL: null},
    }})
}

/// From here on nothing new comes; that tenants were there stays known until the node was cleaned.
fn leave_patch(node: &Node) -> Value {
    json!({"metadata": {
        "resourceVersion": node.resource_version(),
        "labels": {labels::SHARED_POOL: null, labels::POOL: null},
        "annotations": {labels::PREVIOUS_SHARED_POOL: pool_of(node)},
    }})
}

async fn patch(context: &Context, node: &Node, body: &Value, action: &'static str) -> Result<bool, ReconcileError> {
    let nodes: Api<Node> = Api::all(context.client.clone());
    let patch = Patch::Merge(body);
    match nodes.patch(&node.name_any(), &PatchParams::default(), &patch).await {
        Ok(_) => {
            context
                .metrics
                .node_actions
                .get_or_create(&ActionLabels { action })
                .inc();
            Ok(true)
        }
        Err(error) if is_status(&error, 409) || is_status(&error, 404) => Ok(false),
        Err(error) => Err(api("change a node")(error)),
    }
}
