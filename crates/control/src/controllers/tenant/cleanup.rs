//! Deleting a tenant: everything that was made for it, in the order in which nothing can be made anew meanwhile.
//!
//! Every step is idempotent and returns instead of waiting; the condition Deleting says what remains. Nothing here
//! needs the tenant's API server.

use super::{provision::owned_nodes, state::TenantMemory, status};
use crate::{
    apply::{is_status, optional},
    context::{Context, Key},
    control_plane::SYNCER,
    error::{ReconcileError, api},
    network,
};
use berth_api::{
    Phase, TenantCluster, TenantClusterSpec, TenantClusterStatus,
    conditions::{self, DELETING, Finding, READY},
    labels,
    names::TenantId,
};
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{Namespace, Pod},
    rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;
use std::time::Duration;

/// Pause before looking again at what was told to go.
const POLL: Duration = Duration::from_millis(500);

/// Removes what is left of the tenant. Returns when to look again; `None` once the object itself may go.
///
/// # Errors
/// A step failed; it is tried again.
pub(super) async fn run(
    context: &Context,
    memory: &TenantMemory,
    cluster: &TenantCluster,
    tenant: &TenantId,
) -> Result<Option<Duration>, ReconcileError> {
    if !cluster
        .finalizers()
        .iter()
        .any(|finalizer| finalizer == labels::FINALIZER)
    {
        return Ok(None);
    }
    memory.host.forget();
    let remaining = match step(context, cluster, tenant).await {
        Ok(remaining) => remaining,
        Err(error) => {
            report(context, cluster, error.category(), &error.to_string()).await?;
            return Err(error);
        }
    };
    if let Some(remaining) = remaining {
        report(context, cluster, "Waiting", &remaining).await?;
        return Ok(Some(POLL));
    }
    remove_finalizer(context, cluster).await?;
    context.tenants.forget(&cluster.uid().unwrap_or_default());
    Ok(None)
}

/// Removes what is left of `TenantClusters` of this name that are gone without a clean-up: the API server can let an
/// object go whose finalizer is added at the moment of its deletion, and people can take a finalizer off. Returns when
/// to look again.
///
/// # Errors
/// A step failed; it is tried again.
pub(super) async fn orphans(
    context: &Context,
    namespace: &str,
    name: &str,
) -> Result<Option<Duration>, ReconcileError> {
    let namespaces: Api<Namespace> = Api::all(context.client.clone());
    let ours = ListParams::default().labels(&format!(
        "{}={namespace},{}={name},{}",
        labels::TENANT_NAMESPACE,
        labels::TENANT_NAME,
        labels::ROLE
    ));
    let left = namespaces
        .list_metadata(&ours)
        .await
        .map_err(api("look for what tenants left"))?;
    let Some(uid) = left
        .iter()
        .find_map(|left| left.annotations().get(labels::OWNER_UID).cloned())
    else {
        return Ok(None);
    };
    tracing::warn!(namespace, name, uid, "removing what a vanished TenantCluster left");
    let mut gone = TenantCluster::new(name, TenantClusterSpec::default());
    gone.metadata.namespace = Some(namespace.into());
    gone.metadata.uid = Some(uid.clone());
    if step(context, &gone, &TenantId::new(name, &uid)).await?.is_none() {
        context.tenants.forget(&uid);
    }
    Ok(Some(POLL))
}

/// Goes as far as it can; says what it waits for.
async fn step(context: &Context, cluster: &TenantCluster, tenant: &TenantId) -> Result<Option<String>, ReconcileError> {
    let uid = cluster.uid().unwrap_or_default();
    // 1. Nobody makes anything new.
    context.runtime.stop(tenant).await?;
    // 2. Pods end before their nodes are handed on, and before the policies that keep them apart: within a namespace that
    // is deleted these may go first.
    if let Some(remaining) = end_pods(context, tenant).await? {
        return Ok(Some(remaining));
    }
    if !delete_namespace(context, &tenant.workload_namespace()).await? {
        return Ok(Some(format!("namespace {} is ending", tenant.workload_namespace())));
    }
    context.tenants.set_workloads_gone(&uid);
    // 3. Nodes go back to their pools.
    let nodes = owned_nodes(context, cluster);
    if !nodes.is_empty() {
        context.queue.add(Key::Fleet);
        let names: Vec<String> = nodes.iter().map(|node| node.name_any()).collect();
        return Ok(Some(format!("nodes are being released: {}", names.join(", "))));
    }
    // 4. What the tenant stored, and the identity it stored it with.
    context.datastore.remove(tenant).await?;
    // 5. Files. The kubeconfig Secret goes with its owner.
    let namespace = cluster.namespace().unwrap_or_default();
    context.runtime.remove(tenant, &namespace, &cluster.name_any()).await?;
    // 6. The syncer's rights and the policy outside of the tenant's namespaces.
    delete_cluster_role(context, tenant).await?;
    network::delete_cluster_policy(&context.client, tenant).await?;
    // 7. Keys, the syncer's identity and everything else in the control-plane namespace. It goes last: as long as it is
    // there, what is left of a tenant can be found.
    if !delete_namespace(context, &tenant.control_plane_namespace()).await? {
        return Ok(Some(format!(
            "namespace {} is ending",
            tenant.control_plane_namespace()
        )));
    }
    Ok(None)
}

/// Deletes the pods of the workload namespace; says what remains of them.
async fn end_pods(context: &Context, tenant: &TenantId) -> Result<Option<String>, ReconcileError> {
    let namespace = tenant.workload_namespace();
    // A syncer that goes on somewhere makes no new ones.
    let bindings: Api<RoleBinding> = Api::namespaced(context.client.clone(), &namespace);
    optional(bindings.delete(SYNCER, &DeleteParams::default()).await).map_err(api("revoke the syncer's rights"))?;
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    let any = ListParams::default().limit(1);
    let listed = pods
        .list_metadata(&any)
        .await
        .map_err(api("look for the tenant's pods"))?;
    if listed.items.is_empty() {
        return Ok(None);
    }
    let running = pods
        .delete_collection(&DeleteParams::default(), &ListParams::default())
        .await;
    running.map_err(api("delete the tenant's pods"))?;
    Ok(Some(format!("the pods in namespace {namespace} are ending")))
}

async fn delete_cluster_role(context: &Context, tenant: &TenantId) -> Result<(), ReconcileError> {
    let (name, params) = (tenant.cluster_role(), DeleteParams::default());
    let bindings: Api<ClusterRoleBinding> = Api::all(context.client.clone());
    optional(bindings.delete(&name, &params).await).map_err(api("delete the syncer's binding"))?;
    let roles: Api<ClusterRole> = Api::all(context.client.clone());
    optional(roles.delete(&name, &params).await).map_err(api("delete the syncer's role"))?;
    Ok(())
}

/// Deletes a namespace. `true` once it is gone.
async fn delete_namespace(context: &Context, name: &str) -> Result<bool, ReconcileError> {
    let namespaces: Api<Namespace> = Api::all(context.client.clone());
    match optional(namespaces.get_metadata(name).await).map_err(api("look for a namespace"))? {
        None => Ok(true),
        Some(namespace) if namespace.metadata.deletion_timestamp.is_some() => Ok(false),
        Some(namespace) => {
            let params = DeleteParams {
                preconditions: namespace.metadata.uid.map(|uid| kube::api::Preconditions {
                    uid: Some(uid),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            };
            match namespaces.delete(name, &params).await {
                Ok(_) => Ok(false),
                Err(error) if is_status(&error, 404) || is_status(&error, 409) => Ok(false),
                Err(error) => Err(api("delete a namespace")(error)),
            }
        }
    }
}

async fn report(
    context: &Context,
    cluster: &TenantCluster,
    reason: &'static str,
    what: &str,
) -> Result<(), ReconcileError> {
    let before = cluster.status.clone().unwrap_or_default();
    let findings = [
        Finding::yes(DELETING, reason, what),
        Finding::no(READY, "Deleting", "the tenant is being deleted"),
    ];
    let after = TenantClusterStatus {
        phase: Some(Phase::Deleting),
        observed_generation: cluster.metadata.generation,
        conditions: conditions::merge(
            &before.conditions,
            &findings,
            cluster.metadata.generation,
            Timestamp::now(),
        ),
        ..before.clone()
    };
    match status::replace(context, cluster, &before, &after).await {
        // Gone already: another control was faster.
        Err(ReconcileError::Api { source, .. }) if is_status(&source, 404) || is_status(&source, 409) => Ok(()),
        other => other,
    }
}

async fn remove_finalizer(context: &Context, cluster: &TenantCluster) -> Result<(), ReconcileError> {
    let namespace = cluster.namespace().unwrap_or_default();
    let clusters: Api<TenantCluster> = Api::namespaced(context.client.clone(), &namespace);
    let finalizers: Vec<&String> = cluster
        .finalizers()
        .iter()
        .filter(|finalizer| *finalizer != labels::FINALIZER)
        .collect();
    let body = json!({"metadata": {
        "uid": cluster.uid(), "resourceVersion": cluster.resource_version(), "finalizers": finalizers,
    }});
    match clusters
        .patch(&cluster.name_any(), &PatchParams::default(), &Patch::Merge(&body))
        .await
    {
        Ok(_) => Ok(()),
        Err(error) if is_status(&error, 404) => Ok(()),
        Err(error) => Err(api("remove the finalizer")(error)),
    }
}
