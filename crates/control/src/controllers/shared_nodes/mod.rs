//! Nodes that several tenants use at the same time, for work without GPUs.
//!
//! A node of a pool of mode `Shared` carries the label `berth.dev/shared-pool` as long as tenants share it; pods select it by
//! that label, and the host's admission policies restrict them to the pools of their tenant. It never has an assignment. A
//! node with evidence of devices does not get the label, or loses it ([`device_evidence`]). Pods on nodes that their tenant
//! may not use (any more) are evicted or deleted ([`decide_about_pod`]). Evictions that budgets forbid end with a deletion
//! (`drain`).

mod context;
mod drain;
mod marked;

pub use context::SharedNodesContext;
pub use marked::MarkedNodes;

use crate::{
    apply::{is_status, only_this},
    controllers::{
        in_use_markers::{self, MarkedMachines, Marker, PreviousUse, Use},
        pod_deletion::evict_pod,
    },
    error::{ReconcileError, api},
    metrics::ActionLabels,
};
use berth_api::{labels, policy_annotations};
use berth_node_lifecycle::{
    Assignment,
    node::shared_pool_of,
    shared_nodes::{PodDecision, SharedPod, SharingStatus, decide_about_pod, device_evidence, sharing_status},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
    core::PartialObjectMeta,
    runtime::reflector::ObjectRef,
};
use serde_json::{Value, json};
use std::time::Duration;

/// Pause before checking pods that have to leave again.
const DRAIN_POLL: Duration = Duration::from_secs(1);

/// Adds nodes to shared pools, removes them, and evicts pods that may not stay. Returns when to check again, if a pod still
/// has to leave.
///
/// # Errors
/// The host's API server refuses or does not answer. Conflicts are no errors: the watch brings the newer node.
pub async fn reconcile(context: &SharedNodesContext) -> Result<Option<Duration>, ReconcileError> {
    let pools = context.stores.pools.state();
    let mut again = None;
    let mut failed = context.marked.mark_all(context).await;
    let nodes = context.stores.nodes.state();
    // Later than the nodes were read, as it must be.
    let machines = MarkedMachines::default();
    for node in nodes {
        let name = node.name_any();
        let status = sharing_status(&node, &pools, context.stores.slices.count(&name));
        let (body, action) = match &status {
            SharingStatus::Eligible(pool) => {
                // A node that cannot be shared must not keep pods on others.
                match share(context, &node, pool, &machines).await {
                    Ok(true) => {}
                    Ok(false) => again = Some(DRAIN_POLL),
                    Err(error) => failed = failed.and(Err(error)),
                }
                continue;
            }
            SharingStatus::NotInSharedPool | SharingStatus::Rejected(..) if shared_pool_of(&node).is_some() => {
                (unshare_patch(&node, context.clock.now()), "unshare")
            }
            _ => continue,
        };
        match patch_node(context, &node, &body, action).await {
            Ok(true) => tracing::info!(node = name, ?status, action, "shared node"),
            Ok(false) => {}
            Err(error) => failed = failed.and(Err(error)),
        }
    }
    for (node, pods) in context.stores.shared_pods.all() {
        for (place, pod) in pods {
            if pod.is_ending {
                continue;
            }
            // A pod that cannot be evicted, for example because two budgets select it, must not keep other tenants' pods.
            match enforce_pod_decision(context, &node, &place, &pod).await {
                Ok(true) => {}
                Ok(false) => again = Some(DRAIN_POLL),
                Err(error) => failed = failed.and(Err(error)),
            }
        }
    }
    for node in context.stores.nodes.state() {
        // A node whose pods cannot be deleted must not keep those of others.
        match drain::advance(context, &node, &pools).await {
            Ok(None) => {}
            Ok(Some(pause)) => again = Some(again.map_or(pause, |earlier: Duration| earlier.min(pause))),
            Err(error) => failed = failed.and(Err(error)),
        }
    }
    failed.map(|()| again)
}

/// Adds a node to a shared pool, once it is marked. If it is not clean, it is scrubbed before. Returns false if it changed meanwhile.
async fn share(
    context: &SharedNodesContext,
    node: &Node,
    pool: &str,
    machines: &MarkedMachines,
) -> Result<bool, ReconcileError> {
    let marker = in_use_markers::mark(&context.client, node, Use::Shared(pool), machines).await?;
    let (body, action) = match &marker {
        Marker::Created(_) | Marker::Existing => (share_patch(node, pool), "share"),
        // Its Node was deleted, or all of Berth on it, while a tenant had it.
        Marker::OfPreviousUse(PreviousUse::Tenant(previous)) => {
            (scrub_patch(node, previous, pool, context.clock.now()), "scrub")
        }
        Marker::OfPreviousUse(PreviousUse::Shared(_)) | Marker::Contended => return Ok(false),
    };
    let name = node.name_any();
    if patch_node(context, node, &body, action).await? {
        tracing::info!(node = name, pool, action, "shared node");
        context.marked.add(name).await;
        return Ok(true);
    }
    if let Marker::Created(created) = &marker {
        // With it left, a node that was never shared would be scrubbed before a tenant gets it.
        in_use_markers::delete(&context.client, created).await?;
    }
    Ok(false)
}

/// Evicts or deletes a pod that may not stay. Returns whether it may stay.
async fn enforce_pod_decision(
    context: &SharedNodesContext,
    node: &str,
    place: &str,
    pod: &SharedPod,
) -> Result<bool, ReconcileError> {
    let Some((namespace, name)) = place.split_once('/') else {
        return Ok(true);
    };
    let known = context.stores.nodes.get(&ObjectRef::new(node));
    let workloads = context.stores.namespaces.get(&ObjectRef::new(namespace));
    if let Some(allowed) = workloads.as_deref().map(allowed_pools)
        && decide(context, node, known.as_deref(), pod, &allowed) == PodDecision::Keep
    {
        return Ok(true);
    }
    // The watches are not in step with each other: before a pod is evicted, node and namespace are read again.
    let nodes: Api<Node> = Api::all(context.client.clone());
    let now = match node {
        "" => None,
        name => nodes.get_opt(name).await.map_err(api("get a node"))?,
    };
    let namespaces: Api<Namespace> = Api::all(context.client.clone());
    let workloads = namespaces.get_metadata_opt(namespace).await;
    let Some(workloads) = workloads.map_err(api("get a tenant's namespace"))? else {
        return Ok(true);
    };
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let decision = decide(context, node, now.as_ref(), pod, &allowed_pools(&workloads));
    let result = match decision {
        PodDecision::Keep => return Ok(true),
        PodDecision::Evict => evict_pod(&pods, name, Some(pod.uid.clone())).await,
        PodDecision::Delete => {
            let params = DeleteParams::default().preconditions(only_this(Some(pod.uid.clone())));
            pods.delete(name, &params).await.map(|_| ())
        }
    };
    match result {
        Ok(()) => tracing::info!(
            pod = place,
            node,
            ?decision,
            "pod leaves a node that its tenant may not use"
        ),
        // A disruption budget says "not yet", or the pod is gone or replaced by another one.
        Err(error) if [404, 409, 429].iter().any(|code| is_status(&error, *code)) => {}
        Err(error) => return Err(api("remove a pod from a shared node")(error)),
    }
    Ok(false)
}

fn decide(
    context: &SharedNodesContext,
    name: &str,
    node: Option<&Node>,
    pod: &SharedPod,
    allowed: &[String],
) -> PodDecision {
    match node {
        // The pods of a node that is gone are deleted with it.
        None if !name.is_empty() => PodDecision::Keep,
        node => {
            let devices =
                |node| device_evidence::find_device_evidence(node, context.stores.slices.count(name)).is_some();
            decide_about_pod(pod, node, node.is_some_and(devices), allowed)
        }
    }
}

/// The shared pools that a workload namespace may use, as the host's admission policies read them.
fn allowed_pools(namespace: &PartialObjectMeta<Namespace>) -> Vec<String> {
    let list = namespace.annotations().get(policy_annotations::SHARED_POOLS);
    let pools = list.map(String::as_str).unwrap_or_default().split(',');
    pools.filter(|pool| !pool.is_empty()).map(ToOwned::to_owned).collect()
}

fn share_patch(node: &Node, pool: &str) -> Value {
    json!({"metadata": {
        "resourceVersion": node.resource_version(),
        "labels": {labels::SHARED_POOL: pool, labels::POOL: pool},
        "annotations": {labels::PREVIOUS_SHARED_POOL: null, labels::SHARED_UNTIL: null, labels::REASON: null},
    }})
}

/// The node is recycled before it is shared: the controller of nodes does that.
fn scrub_patch(node: &Node, previous: &str, pool: &str, now: Timestamp) -> Value {
    let reason = "its assignment was lost before it was clean, and tenants are to share it";
    Assignment::scrub_unowned(node, previous, pool, now, reason).to_patch(node, &[])
}

/// No new pod is scheduled to the node. That tenants used it stays recorded until it is scrubbed.
fn unshare_patch(node: &Node, now: Timestamp) -> Value {
    json!({"metadata": {
        "resourceVersion": node.resource_version(),
        "labels": {labels::SHARED_POOL: null, labels::POOL: null},
        "annotations": {labels::PREVIOUS_SHARED_POOL: shared_pool_of(node), labels::SHARED_UNTIL: now.to_string()},
    }})
}

async fn patch_node(
    context: &SharedNodesContext,
    node: &Node,
    body: &Value,
    action: &'static str,
) -> Result<bool, ReconcileError> {
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

#[cfg(test)]
mod tests;
