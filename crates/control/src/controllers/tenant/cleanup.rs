//! Deletes everything that was created for a tenant, in an order in which nothing is created again meanwhile.
//!
//! Every step is idempotent and returns instead of waiting; the condition Deleting says what remains ([`remaining`]). Nothing
//! here needs the tenant's API server, and nothing that the tenant's pods do holds it up for longer than the grace period
//! of its class and a minute ([`pod_deletion`]).

use super::{
    apply::delete_registration,
    context::TenantContext,
    error::{CleanupError, TenantError, in_step},
    fetch::owned_nodes,
    finalizer, own_endpoints, pod_groups,
    remaining::{self, Remaining},
    status,
    target::Tenant,
};
use crate::{
    apply::{delete_all, delete_same, is_status, optional},
    control_plane::SYNCER,
    controllers::{
        pod_deletion::{self, DeletionStep},
        tenant_class::class_of,
    },
    error::{ReconcileError, api},
    key::Key,
    network,
};
use berth_api::{
    Phase, ScrubPolicy, TenantCluster, TenantClusterSpec, TenantClusterStatus,
    conditions::{self, ConditionUpdate, DELETING, READY},
    labels,
    names::TenantId,
};
use berth_node_lifecycle::Assignment;
use berth_runtime::watched::{Watched, list_page};
use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{Namespace, Pod},
    rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
    core::PartialObjectMeta,
    runtime::reflector::ObjectRef,
};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// Shortest pause before checking again whether deleted objects are gone.
const POLL: Duration = Duration::from_millis(500);
/// The longest. Pods may take as long to end as the class allows, of many tenants at the same time, and each look is some requests.
const SLOW_POLL: Duration = Duration::from_secs(5);
/// Pause before what failed for a predecessor is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// Pods that one pass looks at. The others follow once these are gone: the time of all of them runs meanwhile.
const PODS_PER_PASS: u32 = 500;

/// Removes what is left of the tenant. Returns when to continue; `None` once the object itself may be deleted.
///
/// # Errors
/// A step failed; it is tried again.
pub(super) async fn delete_tenant(context: &TenantContext, tenant: &Tenant) -> Result<Option<Duration>, TenantError> {
    let cluster = &tenant.cluster;
    if !finalizer::is_set(cluster) {
        return Ok(None);
    }
    tenant.memory.host.forget();
    match delete_next(context, cluster, &tenant.id).await {
        Err(error) => {
            write_progress(context, cluster, error.reason(), &error.to_string()).await?;
            Err(error.into())
        }
        Ok(Some(Remaining { reason, message })) => {
            write_progress(context, cluster, reason, &message).await?;
            Ok(Some(pause_in_deletion(cluster, context.clock.now())))
        }
        Ok(None) => {
            finalizer::remove(context, cluster).await?;
            context.tenants.forget(&cluster.uid().unwrap_or_default());
            context.stores.pod_activity.forget(tenant.id.slug());
            Ok(None)
        }
    }
}

/// Pause before a deletion goes on: a hundredth of the time that it has taken, so that it takes hardly longer for that.
fn pause_in_deletion(cluster: &TenantCluster, now: Timestamp) -> Duration {
    let began = cluster.metadata.deletion_timestamp.as_ref();
    let taken = began.and_then(|began| Duration::try_from(now.duration_since(began.0)).ok());
    (taken.unwrap_or_default() / 100).clamp(POLL, SLOW_POLL)
}

/// Removes what is left of `TenantClusters` of this name that were deleted without a clean-up: the API server may delete an
/// object while its finalizer is being added, and people can remove a finalizer. Returns when to continue.
///
/// # Errors
/// A step failed; it is tried again.
pub(super) async fn delete_orphans(
    context: &TenantContext,
    namespace: &str,
    name: &str,
) -> Result<Option<Duration>, CleanupError> {
    let namespaces: Api<Namespace> = Api::all(context.client.clone());
    let ours = ListParams::default().labels(&format!(
        "{}={namespace},{}={name},{}",
        labels::TENANT_NAMESPACE,
        labels::TENANT_NAME,
        labels::ROLE
    ));
    let left = namespaces.list_metadata(&ours).await;
    let left = left
        .map_err(api("list namespaces of tenants"))
        .map_err(CleanupError::Orphans)?;
    match left.iter().find_map(owner_uid) {
        Some(uid) => delete_orphan(context, namespace, name, &uid).await.map(Some),
        None => Ok(None),
    }
}

/// Removes what is left of earlier `TenantClusters` with the name of one that exists, see [`delete_orphans`]. Nothing of the one that
/// exists waits for that: what is left may never end. Returns when to continue.
pub(super) async fn delete_predecessors(context: &TenantContext, cluster: &TenantCluster) -> Option<Duration> {
    let (namespace, name) = (cluster.namespace().unwrap_or_default(), cluster.name_any());
    let is_ours = |found: &PartialObjectMeta<Namespace>| {
        let label = |key: &str| found.labels().get(key);
        label(labels::TENANT_NAMESPACE) == Some(&namespace) && label(labels::TENANT_NAME) == Some(&name)
    };
    let found = context.stores.namespaces.state();
    let uids = found
        .iter()
        .filter(|found| is_ours(found))
        .filter_map(|found| owner_uid(found));
    let uid = { uids }.find(|uid| cluster.uid().as_ref() != Some(uid))?;
    match delete_orphan(context, &namespace, &name, &uid).await {
        Ok(pause) => Some(pause),
        Err(error) => {
            tracing::warn!(namespace, name, uid, %error, "cannot remove what a vanished TenantCluster left");
            Some(RETRY)
        }
    }
}

fn owner_uid(namespace: &PartialObjectMeta<Namespace>) -> Option<String> {
    namespace.annotations().get(labels::OWNER_UID).cloned()
}

/// Removes what is left of one `TenantCluster`, unless it exists: a view that is late does not have it yet, and there is no way back.
async fn delete_orphan(
    context: &TenantContext,
    namespace: &str,
    name: &str,
    uid: &str,
) -> Result<Duration, CleanupError> {
    // One that cannot be read is there as well.
    let clusters: Api<Watched<PartialObjectMeta<TenantCluster>>> = Api::namespaced(context.client.clone(), namespace);
    let existing = optional(clusters.get(name).await)
        .map_err(api("get a TenantCluster"))
        .map_err(CleanupError::Orphans)?;
    if existing.is_some_and(|existing| existing.uid().as_deref() == Some(uid)) {
        return Ok(POLL);
    }
    tracing::warn!(namespace, name, uid, "removing what a vanished TenantCluster left");
    let mut gone = TenantCluster::new(name, TenantClusterSpec::default());
    gone.metadata.namespace = Some(namespace.into());
    gone.metadata.uid = Some(uid.into());
    // What is remembered of it meanwhile is forgotten once nothing is left.
    context.tenants.uids.note_former(Key::of_tenant(&gone), uid);
    delete_next(context, &gone, &TenantId::new(name, uid)).await?;
    Ok(POLL)
}

/// Deletes as much as it can now; returns what it waits for.
async fn delete_next(
    context: &TenantContext,
    cluster: &TenantCluster,
    tenant: &TenantId,
) -> Result<Option<Remaining>, CleanupError> {
    let uid = cluster.uid().unwrap_or_default();
    // 0. Argo CD creates nothing in the tenant any more, and its credentials are gone whatever comes next.
    delete_registration(context, tenant, Some(&uid))
        .await
        .map_err(CleanupError::ArgoCd)?;
    // 1. From here on nothing new is created. Nobody takes the address of a pod that ends out of endpoints any more: they go before the first one ends, also
    // if a component is on a node that does not answer.
    let stopped = context.runtime.stop_components(tenant).await;
    close_endpoints(context, tenant)
        .await
        .map_err(CleanupError::OwnEndpoints)?;
    stopped.map_err(in_step(CleanupError::Components))?;
    // 2. Pods end before their nodes are released and before the NetworkPolicies that isolate them are deleted: in a namespace
    // that is being deleted, the policies might be deleted first.
    let pods = delete_pods(context, cluster, tenant).await;
    if let Some(remaining) = pods.map_err(CleanupError::Pods)? {
        return Ok(Some(remaining));
    }
    let namespace = delete_namespace(context, &tenant.workload_namespace()).await;
    if let Some(remaining) = namespace.map_err(CleanupError::WorkloadNamespace)? {
        return Ok(Some(remaining));
    }
    context.tenants.set_workloads_gone(&uid);
    // 3. Nodes go back to their pools.
    let nodes = owned_nodes(&context.stores.nodes, cluster);
    if !nodes.is_empty() {
        context.queue.add(Key::Fleet);
        let names: Vec<String> = nodes.iter().map(|node| node.name_any()).collect();
        return Ok(Some(remaining::nodes(&names)));
    }
    // 4. The tenant's keys in etcd, and its user and role.
    context
        .datastore
        .delete_tenant(tenant)
        .await
        .map_err(in_step(CleanupError::Datastore))?;
    // 5. Files. The kubeconfig Secret is deleted with its owner.
    let namespace = cluster.namespace().unwrap_or_default();
    let removed = context
        .runtime
        .delete_tenant(tenant, &namespace, &cluster.name_any())
        .await;
    removed.map_err(in_step(CleanupError::Files))?;
    // 6. The syncer's rights and the policy outside of the tenant's namespaces.
    delete_cluster_role(context, tenant)
        .await
        .map_err(CleanupError::ClusterRole)?;
    network::delete_cluster_policy(&context.client, tenant)
        .await
        .map_err(CleanupError::NetworkPolicies)?;
    // 7. Keys, the syncer's identity and everything else in the control-plane namespace. It is deleted last, because what is
    // left of a tenant is found by it.
    let namespace = delete_namespace(context, &tenant.control_plane_namespace()).await;
    namespace.map_err(CleanupError::ControlPlaneNamespace)
}

/// Deletes the endpoints that the tenant has made itself. A syncer that still runs somewhere can create no new ones, and no pods.
async fn close_endpoints(context: &TenantContext, tenant: &TenantId) -> Result<(), ReconcileError> {
    let bindings: Api<RoleBinding> = Api::namespaced(context.client.clone(), &tenant.workload_namespace());
    optional(bindings.delete(SYNCER, &DeleteParams::default()).await).map_err(api("revoke the syncer's rights"))?;
    own_endpoints::delete_all(&context.client, tenant).await
}

/// Deletes the pods of the workload namespace; returns what remains of them. Deletions heed no disruption budgets. Pods that
/// are overdue are removed although their kubelets have not reported their end.
async fn delete_pods(
    context: &TenantContext,
    cluster: &TenantCluster,
    tenant: &TenantId,
) -> Result<Option<Remaining>, ReconcileError> {
    let namespace = tenant.workload_namespace();
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    let metadata: Api<Watched<PartialObjectMeta<Pod>>> = Api::namespaced(context.client.clone(), &namespace);
    let mut page = ListParams::default().limit(PODS_PER_PASS);
    let listed = list_page(&metadata, &mut page)
        .await
        .map_err(api("list the tenant's pods"))?;
    let count = listed.items.len();
    if count == 0 {
        return Ok(None);
    }
    let terminating: Vec<_> = { listed.items.into_iter() }
        .filter_map(Watched::readable)
        .filter(|pod| pod.metadata.deletion_timestamp.is_some())
        .collect();
    let is_cut = listed.metadata.continue_.is_some_and(|next| !next.is_empty());
    let uid = cluster.uid().unwrap_or_default();
    let (tenants, now) = (&context.tenants, Instant::now());
    if terminating.len() < count || (is_cut && tenants.may_have_other_pods(&uid, now)) {
        let deleted = delete_all(&context.client, &pods).await;
        deleted.map_err(api("delete the tenant's pods"))?;
        tenants.note_pods_deleted(&uid, Instant::now());
    }
    let max_grace_seconds = max_grace_seconds(context, cluster);
    let removes = are_scrubbed(context, cluster);
    let overdue = hasten_pods(&pods, &terminating, (max_grace_seconds, removes), context.clock.now()).await?;
    Ok(Some(remaining::pods(&namespace, &terminating, &overdue, removes)))
}

/// Whether every node of the tenant is scrubbed before another tenant gets it.
fn are_scrubbed(context: &TenantContext, cluster: &TenantCluster) -> bool {
    let nodes = owned_nodes(&context.stores.nodes, cluster);
    nodes
        .iter()
        .filter_map(|node| Assignment::read(node))
        .all(|assignment| {
            let pool = context.stores.pools.get(&ObjectRef::new(&assignment.pool));
            pool.is_none_or(|pool| pool.spec.scrub.policy == ScrubPolicy::Always)
        })
}

/// Shortens grace periods beyond the limit. Removes pods that are overdue at `now` if `removes` says so, and returns them.
async fn hasten_pods<'a>(
    pods: &Api<Pod>,
    terminating: &'a [PartialObjectMeta<Pod>],
    (max_grace_seconds, removes): (i64, bool),
    now: Timestamp,
) -> Result<Vec<&'a PartialObjectMeta<Pod>>, ReconcileError> {
    let mut overdue = Vec::new();
    let mut failed = Ok(());
    for pod in terminating {
        let grace_seconds = match pod_deletion::next_step(&pod.metadata, None, max_grace_seconds, now) {
            DeletionStep::Wait => continue,
            DeletionStep::Delete { grace_seconds } => grace_seconds,
            DeletionStep::Held => {
                overdue.push(pod);
                continue;
            }
            // Its processes may go on, and nothing would end them before the next tenant.
            DeletionStep::Remove | DeletionStep::Release if !removes => {
                overdue.push(pod);
                continue;
            }
            DeletionStep::Release => {
                overdue.push(pod);
                failed = failed.and(pod_deletion::release_pod(pods, &pod.metadata).await);
                continue;
            }
            DeletionStep::Remove => {
                overdue.push(pod);
                0
            }
        };
        failed = failed.and(pod_deletion::delete_pod(pods, &pod.metadata, grace_seconds).await);
    }
    failed.map(|()| overdue)
}

/// Seconds that the tenant's pods have to end at most, as its class says.
fn max_grace_seconds(context: &TenantContext, cluster: &TenantCluster) -> i64 {
    let class = |name: &str| context.stores.classes.get(&ObjectRef::new(name));
    let class = class_of(cluster, |name| class(name).is_some()).and_then(|name| class(&name));
    let rules = class.map(|class| class.spec.sync.pods.clone()).unwrap_or_default();
    rules.max_termination_grace_period_seconds().into()
}

async fn delete_cluster_role(context: &TenantContext, tenant: &TenantId) -> Result<(), ReconcileError> {
    let (name, params) = (tenant.cluster_role(), DeleteParams::default());
    let bindings: Api<ClusterRoleBinding> = Api::all(context.client.clone());
    optional(bindings.delete(&name, &params).await).map_err(api("delete the syncer's binding"))?;
    let roles: Api<ClusterRole> = Api::all(context.client.clone());
    optional(roles.delete(&name, &params).await).map_err(api("delete the syncer's role"))?;
    Ok(())
}

/// Deletes a namespace; returns what remains of it.
async fn delete_namespace(context: &TenantContext, name: &str) -> Result<Option<Remaining>, ReconcileError> {
    let namespaces: Api<Namespace> = Api::all(context.client.clone());
    let Some(namespace) = optional(namespaces.get(name).await).map_err(api("get a namespace"))? else {
        return Ok(None);
    };
    let remaining = remaining::namespace(&namespace, context.clock.now());
    if namespace.metadata.deletion_timestamp.is_some() {
        pod_groups::release(context, &namespace).await?;
        return Ok(Some(remaining));
    }
    let deleted = delete_same(&namespaces, &namespace.metadata, None).await;
    deleted.map(|_| Some(remaining)).map_err(api("delete a namespace"))
}

/// Writes the condition Deleting.
async fn write_progress(
    context: &TenantContext,
    cluster: &Arc<TenantCluster>,
    reason: &'static str,
    message: &str,
) -> Result<(), TenantError> {
    let before = cluster.status.clone().unwrap_or_default();
    let now = [
        ConditionUpdate::mark_true(DELETING, reason, message),
        ConditionUpdate::mark_false(READY, "Deleting", "the tenant is being deleted"),
    ];
    let generation = cluster.metadata.generation;
    let after = TenantClusterStatus {
        phase: Some(Phase::Deleting),
        observed_generation: generation,
        conditions: conditions::merge(&before.conditions, &now, generation, context.clock.now()),
        ..before
    };
    match status::write(context, cluster, &after).await {
        // It is gone already: another control was faster.
        Err(TenantError::Status(ReconcileError::Api { source, .. }))
            if is_status(&source, 404) || is_status(&source, 409) =>
        {
            Ok(())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    #[test]
    fn a_deletion_that_takes_long_is_looked_at_less_often() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut cluster = TenantCluster::new("vision", TenantClusterSpec::default());
        assert_eq!(pause_in_deletion(&cluster, at(1000)), POLL);
        cluster.metadata.deletion_timestamp = Some(Time(at(1000)));
        for (now, milliseconds) in [
            (900, 500),
            (1000, 500),
            (1050, 500),
            (1300, 3000),
            (1500, 5000),
            (9000, 5000),
        ] {
            let pause = Duration::from_millis(milliseconds);
            assert_eq!(pause_in_deletion(&cluster, at(now)), pause, "{now}");
        }
    }
}
