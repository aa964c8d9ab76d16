//! Deletion of a tenant that has expired.

use super::{EXPIRED, Expiration, Observed, find_expiration, rules::Cause};
use crate::{
    apply::{delete_same, is_status, optional},
    controllers::tenant::{context::TenantContext, error::TenantError, target::Tenant, validate::Validator},
    error::api,
};
use berth_api::{TenantCluster, conditions::EXPIRING, labels};
use berth_runtime::watched::Watched;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Resource, ResourceExt,
    api::ListParams,
    runtime::events::{Event, EventType},
};

/// How often the deletion of an object is tried that is changed at the same time, before changes do not matter any more.
const ATTEMPTS: usize = 5;

/// What came of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::controllers::tenant) enum Deletion {
    /// The tenant is being deleted.
    Begun,
    /// The tenant got a pod, or its end was changed: what was observed of its end is not so any more.
    Extended,
    /// It has not expired, or the host does not delete it. Until it is deleted, everything goes on: all rules would be kept away otherwise.
    NotBegun,
}

/// Deletes a tenant if it has expired, unless it got a pod or has a later end since: an extension in the last moment wins.
///
/// # Errors
/// The host refuses or does not answer.
pub(in crate::controllers::tenant) async fn delete(
    observed: &Observed<'_>,
    expiration: &Expiration,
) -> Result<Deletion, TenantError> {
    let Observed { context, tenant, .. } = *observed;
    if !expiration.is_over() {
        return Ok(Deletion::NotBegun);
    }
    let is_idle = expiration.end.is_some_and(|end| end.cause == Cause::Idle);
    if is_idle && has_pods(context, tenant).await? {
        let slug = tenant.id.slug();
        context.stores.pod_activity.record(slug, true);
        return Ok(Deletion::Extended);
    }
    let cluster = &tenant.cluster;
    let namespace = cluster.namespace().unwrap_or_default();
    let clusters = context.clusters_beside(cluster);
    let is_over = |changed: &TenantCluster| is_still_over(observed, changed);
    let deletion = delete_unless_extended(&clusters, cluster, is_over)
        .await
        .map_err(api("delete the expired tenant"))
        .map_err(TenantError::Expiration)?;
    if deletion != Deletion::Begun {
        return Ok(deletion);
    }
    let rule = expiration.rule.as_deref().unwrap_or_default();
    tracing::info!(%namespace, name = cluster.name_any(), rule, "deleting a tenant that has expired");
    let event = Event {
        type_: EventType::Warning,
        reason: EXPIRED.into(),
        note: Some(format!("Berth deletes the tenant: it expired {rule}")),
        action: EXPIRING.into(),
        secondary: None,
    };
    context.recorder.publish(&event, &cluster.object_ref(&())).await;
    Ok(deletion)
}

/// Deletes what was read, unless by now it is an object of which `is_over` is false. A team may change it all the time; then it is deleted
/// whatever changes next, once its end was the same several times.
async fn delete_unless_extended(
    clusters: &Api<Watched<TenantCluster>>,
    read: &TenantCluster,
    is_over: impl Fn(&TenantCluster) -> bool,
) -> kube::Result<Deletion> {
    let mut version = read.resource_version();
    for _ in 0..ATTEMPTS {
        match delete_same(clusters, &read.metadata, version).await {
            Err(error) if is_status(&error, 409) => {}
            // Or it is gone already.
            deleted => return deleted.map(|_| Deletion::Begun),
        }
        let Some(now) = optional(clusters.get(&read.name_any()).await)? else {
            return Ok(Deletion::Begun);
        };
        let is_same = |now: &TenantCluster| now.uid() == read.uid() && is_over(now);
        match now.readable().filter(is_same) {
            Some(now) => version = now.resource_version(),
            None => return Ok(Deletion::Extended),
        }
    }
    let is_deleted = delete_same(clusters, &read.metadata, None).await?;
    Ok(if is_deleted {
        Deletion::Begun
    } else {
        Deletion::NotBegun
    })
}

/// Whether a tenant that has expired would have expired with its object as it is now. What its spec asks for does not matter where its class
/// decides. It may name another class by now: that one counts, if it allows the tenant.
fn is_still_over(observed: &Observed<'_>, changed: &TenantCluster) -> bool {
    let context = observed.context;
    let validator = Validator::new(
        &context.stores,
        context.runtime.as_ref(),
        &context.network_config,
        context.without_class,
    );
    let accepted = validator.resolve(changed).ok();
    let observed = Observed {
        settings: accepted.as_ref().or(observed.settings),
        ..*observed
    };
    find_expiration(&observed, changed).is_over()
}

/// Whether the tenant has a pod on the host that has not ended. It asks the API server: a watch may be late, and there is no way back.
async fn has_pods(context: &TenantContext, tenant: &Tenant) -> Result<bool, TenantError> {
    let of_tenant = format!(
        "{}={},{}={}",
        labels::MANAGED_BY,
        labels::MANAGED_BY_SYNCER,
        labels::TENANT,
        tenant.id.slug()
    );
    let params = ListParams::default()
        .labels(&of_tenant)
        .fields("status.phase!=Succeeded,status.phase!=Failed")
        .limit(1);
    // Elsewhere, everybody who may create pods could write these labels, and keep the tenant.
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &tenant.id.workload_namespace());
    let found = pods.list_metadata(&params).await;
    let found = found.map_err(|error| TenantError::Expiration(api("list the pods of the idle tenant")(error)))?;
    Ok(!found.items.is_empty())
}
