//! When quotas are decided: not again without a reason, and after a long decision not at once.

use super::QuotasContext;
use crate::quota_ledger::Basis;
use berth_runtime::{hashes::hash_of, locks::lock};
use kube::{Resource, ResourceExt};
use std::{
    hash::Hash,
    sync::{Mutex, MutexGuard},
    time::Duration,
};
use tokio::time::Instant;

/// Pause after which everything is decided and compared again, whether something changed or not.
pub(super) const RESYNC: Duration = Duration::from_secs(60);
/// Decisions that take less than this follow each other at once.
const SHORT: Duration = Duration::from_millis(200);
/// Shortest time between two updates of the metrics of tenants: there are many of them.
const TENANT_METRICS: Duration = Duration::from_secs(30);
/// The longest pause after a decision.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The last decision.
#[derive(Debug, Default)]
pub struct Pace(Mutex<Last>);

#[derive(Clone, Copy, Debug, Default)]
struct Last {
    ended: Option<Instant>,
    took: Duration,
    /// What it was made from; none if it has to be made again.
    digest: Option<u64>,
    /// Number of decisions.
    decisions: u64,
    /// When the metrics of tenants were updated.
    tenants_counted: Option<Instant>,
}

/// Whether to decide now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Decide,
    /// Not before this time is over.
    Pause(Duration),
}

impl Pace {
    fn last(&self) -> MutexGuard<'_, Last> {
        lock(&self.0)
    }

    /// Whether to decide now. A decision that took long is followed by a pause that is as long, in which requests add up; one that was
    /// made from the same is made again only for the resync.
    pub(super) fn turn(&self, now: Instant, digest: u64) -> Turn {
        let last = *self.last();
        let Some(ended) = last.ended else { return Turn::Decide };
        let since = now.saturating_duration_since(ended);
        let pause = if last.took < SHORT {
            Duration::ZERO
        } else {
            last.took.min(LONGEST_PAUSE)
        };
        if since < pause {
            return Turn::Pause(pause.saturating_sub(since));
        }
        if since < RESYNC && last.digest == Some(digest) {
            return Turn::Pause(RESYNC.saturating_sub(since));
        }
        Turn::Decide
    }

    /// Notes a decision, and what it was made from.
    pub(super) fn decided(&self, took: Duration, digest: u64) {
        let mut last = self.last();
        *last = Last {
            ended: Some(Instant::now()),
            took,
            digest: Some(digest),
            decisions: last.decisions + 1,
            tenants_counted: last.tenants_counted,
        };
    }

    /// Notes that not everything that follows from the last decision was written: it is made again.
    pub(super) fn repeat(&self) {
        self.last().digest = None;
    }

    /// Whether to update the metrics of tenants with this decision.
    pub(super) fn begin_to_count_tenants(&self, now: Instant) -> bool {
        let mut last = self.last();
        let before = last.tenants_counted;
        let is_due = before.is_none_or(|at| now.saturating_duration_since(at) >= TENANT_METRICS);
        if is_due {
            last.tenants_counted = Some(now);
        }
        is_due
    }

    /// Number of decisions since the process started.
    pub fn decisions(&self) -> u64 {
        self.last().decisions
    }
}

/// A digest of everything that a decision is made from. It hashes what is cheap to compare; the resync covers what hosts rarely
/// change, such as addresses of nodes.
pub(super) fn digest(context: &QuotasContext, basis: &Basis) -> u64 {
    let stores = &context.stores;
    let mut sum = Sum::default();
    sum.add(&(
        stores.changes.of_pools(),
        stores.changes.of_levels(),
        context.runtime.versions(),
        // They are in the status of Projects.
        context.users.changes(),
        context.quotas.measured().changes,
    ));
    sum.add(&context.quotas.gpu_use());
    for class in stores.classes.state() {
        sum.add(&("class", class.uid(), class.resource_version()));
    }
    for namespace in stores.team_namespaces.state() {
        sum.add(&("namespace", namespace.name_any(), namespace.labels()));
    }
    for cluster in stores.tenants.state() {
        let (uid, status) = (cluster.uid().unwrap_or_default(), cluster.status.as_ref());
        // What this process decided counts more than the status.
        let recorded = status.filter(|_| !basis.verdicts.contains_key(&uid)).map(|status| {
            let quota = status.quota.as_ref();
            quota.map(|quota| {
                (
                    quota.project_name.clone(),
                    quota.reserved.clone(),
                    quota.uncounted.clone(),
                )
            })
        });
        let running = status.map(|status| (status.class_name.clone(), status.control_plane_namespace.is_some()));
        let is_deleted = cluster.meta().deletion_timestamp.is_some();
        let at_most = basis.at_most(&uid);
        sum.add(&(uid, cluster.metadata.generation, is_deleted, running, recorded, at_most));
    }
    sum.0
}

/// A hash of values in any order.
#[derive(Default)]
struct Sum(u64);

impl Sum {
    fn add(&mut self, value: &impl Hash) {
        self.0 = self.0.wrapping_add(hash_of(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_long_decision_is_followed_by_a_pause_and_the_same_is_decided_once() {
        let pace = Pace::default();
        let turn = |digest| pace.turn(Instant::now(), digest);
        assert_eq!(turn(1), Turn::Decide);
        pace.decided(Duration::from_secs(2), 1);
        assert_eq!(turn(2), Turn::Pause(Duration::from_secs(2)));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(turn(2), Turn::Decide);
        assert_eq!(turn(1), Turn::Pause(Duration::from_secs(58)));
        tokio::time::advance(Duration::from_secs(58)).await;
        assert_eq!(turn(1), Turn::Decide);
        pace.decided(Duration::from_secs(30), 1);
        assert_eq!(turn(2), Turn::Pause(LONGEST_PAUSE));
        pace.decided(Duration::from_millis(10), 1);
        assert_eq!(turn(2), Turn::Decide);
        assert_eq!(turn(1), Turn::Pause(RESYNC));
        pace.repeat();
        assert_eq!(turn(1), Turn::Decide);
        assert_eq!(pace.decisions(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn the_metrics_of_tenants_are_not_updated_with_every_decision() {
        let pace = Pace::default();
        assert!(pace.begin_to_count_tenants(Instant::now()));
        pace.decided(Duration::ZERO, 1);
        assert!(!pace.begin_to_count_tenants(Instant::now()));
        tokio::time::advance(TENANT_METRICS).await;
        assert!(pace.begin_to_count_tenants(Instant::now()));
    }
}
