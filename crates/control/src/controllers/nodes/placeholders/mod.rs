//! Placeholders: pending pods that make autoscalers add nodes for tenants.
//!
//! Pods of tenants wait for nodes that carry their tenant's label, and no autoscaler can add such nodes. For nodes
//! that are missing in a pool with `autoscaling`, control keeps pods in its own namespace that could run on any free node of the
//! pool. The plan alone decides which: they are compared with the existing ones, and the difference is created and deleted.

mod build;
mod difference;

pub use build::{PlaceholderSet, Settings, build_placeholder_sets};

use super::{NodesContext, requested::Request};
use crate::{
    apply::{is_status, only_this},
    error::{ReconcileError, api},
    key::Key,
    metrics::{Metrics, PoolLabels},
};
use berth_api::{HostNodePool, names::TenantId, system};
use berth_node_lifecycle::demand::TenantDemand;
use berth_planner::Plan;
use difference::{Difference, FAILED_POD_HOLD, compute_difference};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams},
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// How many are created or deleted at once.
const CONCURRENCY: usize = 16;
/// Pause before trying again what failed.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// Creates and deletes placeholders as a plan requires. Returns when to try again what failed: a cluster that rejects
/// placeholders must not hold up nodes.
pub async fn reconcile(context: &NodesContext, plan: &Plan, demand: &TenantDemand) -> Option<Duration> {
    let stores = &context.stores;
    let tenants = stores.tenants.state();
    let slugs = tenants.iter().filter_map(|tenant| {
        let uid = tenant.uid()?;
        let slug = TenantId::new(&tenant.name_any(), &uid).slug().to_owned();
        Some((uid, slug))
    });
    let settings = Settings {
        image: context.node_jobs.placeholder_image.clone(),
        pull_secrets: context.node_jobs.pull_secrets.clone(),
    };
    let wanted = build_placeholder_sets(&settings, &stores.pools.state(), &slugs.collect(), plan, demand);
    let difference = compute_difference(&stores.placeholders.state(), &wanted, context.clock.now());
    let rest = (difference.recently_ended > 0).then(|| Duration::from_secs(FAILED_POD_HOLD.unsigned_abs()));
    let outcome = apply_difference(context, difference).await;
    let mut requests: BTreeMap<String, Request> = BTreeMap::new();
    for (pool, scale_up) in &plan.scale_ups {
        let of_pool = wanted.iter().filter(|one| one.pool == *pool);
        let pods = of_pool.map(|one| one.count).sum();
        let request = Request {
            nodes: if pods == 0 { 0 } else { scale_up.nodes },
            pods,
            held_back: scale_up.limited_message(pool),
        };
        requests.insert(pool.clone(), request);
    }
    if let Err(error) = &outcome {
        tracing::warn!(%error, "placeholders could not be created or deleted; trying again");
        for request in requests.values_mut().filter(|request| request.pods > 0) {
            request.held_back = Some(format!("the cluster rejects placeholders: {error}"));
        }
    }
    set_metrics(&context.metrics, &stores.pools.state(), &requests);
    for pool in context.requested.update(requests) {
        context.queue.add(Key::Pool(pool));
    }
    if outcome.is_err() { Some(RETRY_PAUSE) } else { rest }
}

/// Sets how many placeholders each pool has for which autoscalers are asked. Pools that were deleted are forgotten.
fn set_metrics(metrics: &Metrics, pools: &[Arc<HostNodePool>], requests: &BTreeMap<String, Request>) {
    let pools = pools.iter().filter(|pool| pool.spec.autoscaling.is_some());
    metrics.placeholders.set_all(pools.map(|pool| {
        let labels = PoolLabels { pool: pool.name_any() };
        let pods = requests.get(&labels.pool).map_or(0, |request| request.pods);
        (labels, i64::from(pods))
    }));
}

/// Creates and deletes all of them even if one fails: one tenant's placeholders must not hold up another's. Returns the first
/// error.
async fn apply_difference(context: &NodesContext, difference: Difference) -> Result<(), ReconcileError> {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), system::NAMESPACE);
    let deleted = difference
        .delete
        .into_iter()
        .map(|pod| delete_placeholder(pods.clone(), pod));
    let deleted: Vec<_> = stream::iter(deleted).buffer_unordered(CONCURRENCY).collect().await;
    let created = difference
        .create
        .into_iter()
        .map(|pod| create_placeholder(pods.clone(), pod));
    let created: Vec<_> = stream::iter(created).buffer_unordered(CONCURRENCY).collect().await;
    deleted.into_iter().chain(created).collect()
}

async fn delete_placeholder(pods: Api<Pod>, pod: Arc<Pod>) -> Result<(), ReconcileError> {
    let params = DeleteParams::default()
        .grace_period(0)
        .preconditions(only_this(pod.uid()));
    match pods.delete(&pod.name_any(), &params).await {
        Ok(_) => Ok(()),
        // It is gone, or replaced by another one.
        Err(error) if is_status(&error, 404) || is_status(&error, 409) => Ok(()),
        Err(error) => Err(api("delete a placeholder")(error)),
    }
}

async fn create_placeholder(pods: Api<Pod>, pod: Pod) -> Result<(), ReconcileError> {
    match pods.create(&PostParams::default(), &pod).await {
        Ok(_) => Ok(()),
        // The view lags: it exists already.
        Err(error) if is_status(&error, 409) => Ok(()),
        Err(error) => Err(api("create a placeholder")(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::{AutoscalingSpec, HostNodePoolSpec};
    use prometheus_client::{encoding::text::encode, registry::Registry};

    #[test]
    fn a_pool_that_was_deleted_has_no_metric() {
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry);
        let pool = |name: &str, autoscaling| {
            let spec = HostNodePoolSpec {
                autoscaling,
                ..HostNodePoolSpec::default()
            };
            Arc::new(HostNodePool::new(name, spec))
        };
        let request = Request {
            pods: 3,
            ..Request::default()
        };
        let pools = [
            pool("h100", Some(AutoscalingSpec::default())),
            pool("l40s", Some(AutoscalingSpec::default())),
            pool("fixed", None),
        ];
        let values = |pools: &[Arc<HostNodePool>]| {
            set_metrics(&metrics, pools, &BTreeMap::from([("h100".to_owned(), request.clone())]));
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            let lines = text
                .lines()
                .filter_map(|line| line.strip_prefix("berth_control_placeholders{pool="));
            let mut lines: Vec<String> = lines.map(ToOwned::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(values(&pools), ["\"h100\"} 3", "\"l40s\"} 0"]);
        assert_eq!(values(&pools[1..]), ["\"l40s\"} 0"]);
    }
}
