//! Placeholders: pods that show to autoscalers what tenants wait for.
//!
//! Pods of tenants wait for nodes that carry their tenant's label, and no autoscaler can make such nodes. For what the
//! planner finds to be missing in a pool with `autoscaling`, control keeps pods in its own namespace that could run on any
//! free node of the pool. Which these are follows from the plan alone: they are compared with those that are there, and the
//! difference is made and deleted.

mod build;
mod difference;
mod report;

pub use build::{Settings, Wanted, wanted};
pub use report::{report, tell};

use super::demand::Needs;
use crate::{
    apply::is_status,
    context::{Context, Key},
    error::{ReconcileError, api},
    metrics::PoolLabels,
};
use berth_api::{names::TenantId, system};
use berth_planner::Plan;
use difference::{Difference, REST, difference};
use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams, Preconditions},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Most placeholders of a pool.
pub const MOST: u32 = 500;
/// How many are made or deleted at once.
const AT_ONCE: usize = 16;
/// Pause before trying again what failed.
const AGAIN: Duration = Duration::from_secs(5);

/// What is asked for in a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Nodes that have to come.
    pub nodes: u32,
    /// Placeholders.
    pub pods: u32,
    /// Why more is not asked for.
    pub held_back: Option<String>,
}

/// What is asked for, by pool; nothing before the first plan.
#[derive(Default)]
pub struct Requested(Mutex<Option<BTreeMap<String, Request>>>);

impl Requested {
    /// What is asked for in a pool; `None` as long as nobody knows.
    pub fn of(&self, pool: &str) -> Option<Request> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.as_ref().map(|all| all.get(pool).cloned().unwrap_or_default())
    }

    /// Takes note of what is asked for. Gives the pools for which that is news.
    fn set(&self, new: BTreeMap<String, Request>) -> Vec<String> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.take();
        let mut changed: Vec<String> = new
            .iter()
            .filter(|(pool, request)| known.as_ref().and_then(|known| known.get(*pool)) != Some(request))
            .map(|(pool, _)| pool.clone())
            .collect();
        let gone = known.into_iter().flat_map(BTreeMap::into_keys);
        changed.extend(gone.filter(|pool| !new.contains_key(pool)));
        *all = Some(new);
        changed
    }
}

/// Makes the placeholders those that a plan calls for. Returns when to try again what could not be done; a cluster that
/// refuses placeholders is no reason not to go on with nodes.
pub async fn reconcile(context: &Context, plan: &Plan, needs: &Needs) -> Option<Duration> {
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
    let wanted = wanted(&settings, &stores.pools.state(), &slugs.collect(), plan, needs);
    let difference = difference(&stores.placeholders.state(), &wanted, Timestamp::now());
    let rest = (difference.resting > 0).then(|| Duration::from_secs(REST.unsigned_abs()));
    let outcome = carry_out(context, difference).await;
    let mut requests: BTreeMap<String, Request> = BTreeMap::new();
    for (pool, ask) in &plan.scale_ups {
        let of_pool = wanted.iter().filter(|one| one.pool == *pool);
        let pods = of_pool.map(|one| one.count).sum();
        let request = Request {
            nodes: if pods == 0 { 0 } else { ask.nodes },
            pods,
            held_back: ask.limited_message(pool),
        };
        requests.insert(pool.clone(), request);
    }
    if let Err(error) = &outcome {
        tracing::warn!(%error, "placeholders for autoscalers are not as they should be; trying again");
        for request in requests.values_mut().filter(|request| request.pods > 0) {
            request.held_back = Some(format!("the cluster refuses placeholders: {error}"));
        }
    }
    for pool in context.requested.set(requests) {
        let labels = PoolLabels { pool: pool.clone() };
        let pods = context.requested.of(&pool).unwrap_or_default().pods;
        context.metrics.placeholders.get_or_create(&labels).set(i64::from(pods));
        context.queue.add(Key::Pool(pool));
    }
    if outcome.is_err() { Some(AGAIN) } else { rest }
}

/// Does all of it, whatever of it is refused: the placeholders of one tenant are no reason for another to wait. Gives the first
/// error.
async fn carry_out(context: &Context, difference: Difference) -> Result<(), ReconcileError> {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), system::NAMESPACE);
    let deleted = difference.delete.into_iter().map(|pod| delete(pods.clone(), pod));
    let deleted: Vec<_> = stream::iter(deleted).buffer_unordered(AT_ONCE).collect().await;
    let created = difference.create.into_iter().map(|pod| create(pods.clone(), pod));
    let created: Vec<_> = stream::iter(created).buffer_unordered(AT_ONCE).collect().await;
    deleted.into_iter().chain(created).collect()
}

async fn delete(pods: Api<Pod>, pod: Arc<Pod>) -> Result<(), ReconcileError> {
    let this_very = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions {
            uid: pod.uid(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match pods.delete(&pod.name_any(), &this_very).await {
        Ok(_) => Ok(()),
        // Gone, or another one by now.
        Err(error) if is_status(&error, 404) || is_status(&error, 409) => Ok(()),
        Err(error) => Err(api("delete a placeholder")(error)),
    }
}

async fn create(pods: Api<Pod>, pod: Pod) -> Result<(), ReconcileError> {
    match pods.create(&PostParams::default(), &pod).await {
        Ok(_) => Ok(()),
        // The view lags: it is there already.
        Err(error) if is_status(&error, 409) => Ok(()),
        Err(error) => Err(api("make a placeholder")(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_told_once() {
        let requested = Requested::default();
        assert_eq!(requested.of("h100"), None, "nobody knows yet");
        let asks = |pods| {
            let request = Request {
                pods,
                ..Request::default()
            };
            BTreeMap::from([("h100".to_owned(), request)])
        };
        assert_eq!(requested.set(asks(1)), ["h100"]);
        assert!(requested.set(asks(1)).is_empty());
        assert_eq!(requested.set(BTreeMap::new()), ["h100"], "no longer asked for");
        assert_eq!(requested.of("h100"), Some(Request::default()));
    }
}
