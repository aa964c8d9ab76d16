//! The controller of users' quotas: decides for all pods of a Project at once which of them may start, and takes the gates of those off.
//!
//! It is the only one that decides, and one decision follows the other, so that two pods cannot both take what is left, whichever tenants
//! of the Project they are in. The record is the host pod itself: a pod without the gate counts.

mod claims;
mod context;
mod metrics;
mod observe;
#[cfg(test)]
mod tests;
mod write;

pub use context::UserQuotasContext;

use crate::{
    error::{FirstError, ReconcileError},
    key::Key,
    user_pods::ObservedUserPod,
    user_quota_ledger::ProjectUsers,
};
use berth_api::MOST_LISTED_USERS;
use berth_quota::{LimitExceeded, UserPod, decide_users, list_users};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// Pause before the status of a Project is written, so that many pods that start are one write.
const STATUS_PAUSE: Duration = Duration::from_secs(1);
/// Pause before it is decided again about pods whose claims of devices have changed, or were not read yet, if no watch brings a change before.
const CLAIMS_PAUSE: Duration = Duration::from_secs(1);

/// What is to be written.
#[derive(Default)]
struct Writes {
    /// Pods whose gate is to be taken off.
    open: Vec<Arc<ObservedUserPod>>,
    /// Pods that wait and do not say why.
    warn: Vec<(Arc<ObservedUserPod>, LimitExceeded)>,
    /// Pods that do not wait any more and say that they do.
    clear: Vec<Arc<ObservedUserPod>>,
}

/// Decides which pods may start, and lets them.
///
/// # Errors
/// The host refuses or does not answer. What was decided counts all the same.
pub async fn reconcile(context: &UserQuotasContext) -> Result<Option<Duration>, ReconcileError> {
    let levels = observe::list_limited(&context.stores);
    let changed = context.stores.user_pods.set_limited(levels.slugs().collect());
    for cluster in context.stores.tenants.state() {
        if observe::slug(&cluster).is_some_and(|slug| changed.contains(&slug)) {
            context.queue.add(Key::of_tenant(&cluster));
        }
    }
    let pods = context.stores.user_pods.list_counted();
    let gated = pods.iter().filter(|pod| pod.is_gated).map(|pod| pod.uid.as_str());
    let granted = context.ledger.granted(&gated.collect());
    let (by_project, others) = observe::group_pods(&levels, &pods);

    let mut writes = Writes::default();
    let mut projects = BTreeMap::new();
    let (mut failed, mut again) = (FirstError::default(), None);
    for (name, limits) in &levels.limits {
        let own = by_project.get(name.as_str()).map(Vec::as_slice).unwrap_or_default();
        let counted = observe::count_pods(limits, &context.stores.devices, own, &granted);
        let mut outcome = decide_users(limits, &counted.pods);
        let admitted = &outcome.admitted;
        let held = claims::find_held_back(&context.client, limits, own, &counted, admitted, &mut failed).await;
        // All pods of a user: those of a gang start together, and what the claims request now may be what others were given.
        let is_held = |pod: &UserPod| held.users.contains(pod.user.as_str()) || held.pods.contains(pod.uid.as_str());
        for pod in counted.pods.iter().filter(|pod| is_held(pod)) {
            if outcome.admitted.remove(&pod.uid) {
                again = Some(CLAIMS_PAUSE);
            }
        }
        // Before anything is written: a request without an answer may have had its effect.
        context.ledger.grant(outcome.admitted.iter().cloned());
        let (users, not_listed) = list_users(limits, &outcome, MOST_LISTED_USERS);
        projects.insert(name.clone(), ProjectUsers { users, not_listed });
        writes.add_project(own, &granted, &outcome);
    }
    writes.add_unlimited(&others);
    metrics::set_metrics(&context.metrics, &projects);
    if context.ledger.set_projects(projects) {
        context.queue.add_after(Key::Quotas, STATUS_PAUSE);
    }
    let written = write::write_all(context, writes).await?;
    failed.into_result()?;
    Ok([written, again].into_iter().flatten().min())
}

impl Writes {
    fn add_project(
        &mut self,
        pods: &[Arc<ObservedUserPod>],
        granted: &BTreeSet<String>,
        outcome: &berth_quota::UserOutcome,
    ) {
        for pod in pods {
            let may_start = granted.contains(&pod.uid) || outcome.admitted.contains(&pod.uid);
            if pod.is_gated && may_start {
                self.open.push(Arc::clone(pod));
            }
            match outcome.waiting.get(&pod.uid) {
                Some(why) if pod.condition.as_deref() != Some(&why.to_string()) => {
                    self.warn.push((Arc::clone(pod), why.clone()));
                }
                None if pod.condition.is_some() && !pod.is_ending => self.clear.push(Arc::clone(pod)),
                _ => {}
            }
        }
    }

    /// Pods of tenants without limits, which still have the gate, or say that they wait: one is written before the other.
    fn add_unlimited(&mut self, pods: &[Arc<ObservedUserPod>]) {
        for pod in pods.iter().filter(|pod| !pod.is_ending) {
            if pod.is_gated {
                self.open.push(Arc::clone(pod));
            }
            if pod.condition.is_some() {
                self.clear.push(Arc::clone(pod));
            }
        }
    }
}
