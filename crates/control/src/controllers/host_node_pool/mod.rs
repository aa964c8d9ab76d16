//! The `HostNodePool` controller: reports the nodes of a pool. It writes only the pool's status.

mod context;
mod observe;
mod pool_conditions;
mod repair;
mod requested_nodes;
mod shared_pool;

pub use context::HostNodePoolContext;

use crate::{
    apply::is_status,
    error::{ReconcileError, api},
    status_write::{StatusTarget, write_status},
};
use berth_api::{
    HostNodePool, HostNodePoolStatus,
    conditions::{self, ConditionUpdate, NODES_REQUESTED, REPAIR_ALLOWED},
    crd,
};
use berth_node_lifecycle::PoolSelectors;
use kube::runtime::reflector::ObjectRef;
use observe::{observe_pool, recorded_unavailable};
use repair::{publish_too_many_unhealthy, report_repair};
use requested_nodes::{publish_requested_nodes, report_requested_nodes};
use shared_pool::observe_shared_pool;
use std::{collections::BTreeSet, sync::LazyLock, time::Duration};

/// All fields of the status.
static FIELDS: LazyLock<BTreeSet<String>> = LazyLock::new(crd::status_fields::<HostNodePool>);

/// Writes the pool's status, if it changed.
///
/// # Errors
/// The host refuses or does not answer.
pub async fn reconcile(context: &HostNodePoolContext, name: &str) -> Result<Option<Duration>, ReconcileError> {
    let Some(pool) = context.stores.pools.get(&ObjectRef::new(name)) else {
        return Ok(None);
    };
    let before = pool.status.clone().unwrap_or_default();
    let all = context.stores.nodes.state();
    let (found, mut updates): (_, Vec<ConditionUpdate>) = if pool.spec.is_shared() {
        let slices = |node: &str| context.stores.slices.count(node);
        let (found, update) = observe_shared_pool(&pool, &context.stores.pools.state(), &all, slices);
        (found, vec![update])
    } else {
        let unavailable = context.unavailable.get(name);
        let unavailable = unavailable.unwrap_or_else(|| recorded_unavailable(&before));
        let (found, updates) = observe_pool(
            &pool,
            &PoolSelectors::from_pools(&context.stores.pools.state()),
            &all,
            &context.stores.slices,
            &unavailable,
        );
        (found, updates.into())
    };
    let (requested, update) = report_requested_nodes(&pool, context.requested.get(name));
    updates.extend(update);
    let repair = report_repair(&pool, context.health.get(name));
    updates.extend(repair.clone());
    let mut known = before.conditions.clone();
    known.retain(|condition| pool.spec.autoscaling.is_some() || condition.type_ != NODES_REQUESTED);
    known.retain(|condition| pool.spec.repair.is_some() || condition.type_ != REPAIR_ALLOWED);
    let after = HostNodePoolStatus {
        requested,
        observed_generation: pool.metadata.generation,
        conditions: conditions::merge(&known, &updates, pool.metadata.generation, context.clock.now()),
        ..found
    };
    if before == after {
        return Ok(None);
    }
    let target = StatusTarget::of(&*pool);
    match write_status::<HostNodePool>(&context.client, target, &FIELDS, &after).await {
        Ok(()) => {
            publish_requested_nodes(context, &pool, before.requested, after.requested).await;
            publish_too_many_unhealthy(context, &pool, &before, repair).await;
            Ok(None)
        }
        Err(error) if is_status(&error, 404) || is_status(&error, 409) => Ok(None),
        Err(error) => Err(api("write the status of a pool")(error)),
    }
}

#[cfg(test)]
mod tests;
