//! The `HostNodePool` controller: reports what a pool consists of. It changes nothing but the pool's status.

mod judge;
mod shared;
mod survey;

use crate::{
    context::Context,
    error::{ReconcileError, api},
    nodes::{Selectors, placeholders},
};
use berth_api::{
    HostNodePool, HostNodePoolStatus,
    conditions::{self, Finding, NODES_REQUESTED},
    labels,
};
use jiff::Timestamp;
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
    runtime::reflector::ObjectRef,
};
use serde_json::json;
use shared::shared;
use std::time::Duration;
use survey::survey;

/// Writes the pool's status, if it changed.
///
/// # Errors
/// The host refuses or does not answer.
pub async fn reconcile(context: &Context, name: &str) -> Result<Option<Duration>, ReconcileError> {
    let Some(pool) = context.stores.pools.get(&ObjectRef::new(name)) else {
        return Ok(None);
    };
    let before = pool.status.clone().unwrap_or_default();
    let all = context.stores.nodes.state();
    let (found, mut findings): (_, Vec<Finding>) = if pool.spec.is_shared() {
        let slices = |node: &str| context.stores.slices.of(node).len();
        let (found, finding) = shared(&pool, &context.stores.pools.state(), &all, slices);
        (found, vec![finding])
    } else {
        let slices = |node: &str| context.stores.slices.of(node).into_values().collect();
        let (found, findings) = survey(&pool, &Selectors::of(context), &all, slices);
        (found, findings.into())
    };
    let (requested, finding) = placeholders::report(&pool, context.requested.of(name));
    findings.extend(finding);
    let mut known = before.conditions.clone();
    known.retain(|condition| pool.spec.autoscaling.is_some() || condition.type_ != NODES_REQUESTED);
    let after = HostNodePoolStatus {
        requested,
        observed_generation: pool.metadata.generation,
        conditions: conditions::merge(&known, &findings, pool.metadata.generation, Timestamp::now()),
        ..found
    };
    if before == after {
        return Ok(None);
    }
    let pools: Api<HostNodePool> = Api::all(context.client.clone());
    let body = json!({
        "apiVersion": HostNodePool::api_version(&()), "kind": HostNodePool::kind(&()),
        "metadata": {"name": name, "uid": pool.uid()}, "status": after,
    });
    let params = PatchParams::apply(labels::CONTROL_MANAGER).force();
    match pools.patch_status(name, &params, &Patch::Apply(&body)).await {
        Ok(_) => {
            placeholders::tell(context, &pool, before.requested, after.requested).await;
            Ok(None)
        }
        Err(error) if crate::apply::is_status(&error, 404) || crate::apply::is_status(&error, 409) => Ok(None),
        Err(error) => Err(api("write the status of a pool")(error)),
    }
}

#[cfg(test)]
mod tests;
