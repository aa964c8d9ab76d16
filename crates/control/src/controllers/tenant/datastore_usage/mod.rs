//! How much of its share of the datastore a tenant uses.
//!
//! Its API server estimates that itself, in its [`metrics`]. What it does not measure, control reads in etcd ([`unmeasured`]).
//! From certain percentages on ([`share`]), the API server creates nothing more, and then lets no object grow
//! (`control_plane::datastore_limit`): well before etcd is full, which would stop every tenant.

mod metrics;
mod share;
mod unmeasured;

use crate::{apply::Applier, controllers::slots::Slot, datastore::TenantDatastore};
use berth_api::{
    DatastoreUsage, TenantLimits,
    conditions::{ConditionUpdate, DATASTORE_WITHIN_LIMITS},
    names::TenantId,
};
use jiff::Timestamp;
use share::Measurement;
use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;
use unmeasured::Unmeasured;

/// Time between two measurements. The metrics of an API server are a few megabytes.
const INTERVAL: Duration = Duration::from_secs(30);
/// Seconds after its start in which an API server has not measured everything yet.
const WARM_UP_SECONDS: f64 = 60.0;
/// Time without a measurement after which the usage is called unknown: upgrades and restarts are shorter.
const UNKNOWN_AFTER: Duration = Duration::from_secs(300);

/// What is remembered of a tenant's usage between reconciles.
#[derive(Clone, Debug, Default)]
pub struct UsageMemory {
    /// What the tenant stores, and when that was measured.
    measured: Option<(Instant, DatastoreUsage)>,
    /// Since when nothing could be measured, and why.
    failing: Option<(Instant, String)>,
    /// What the API server does not measure.
    unmeasured: Unmeasured,
}

impl UsageMemory {
    fn fail(&mut self, now: Instant, why: String) {
        let since = self.failing.as_ref().map_or(now, |(since, _)| *since);
        self.failing = Some((since, why));
    }

    /// Why nothing could be measured for a while; none if something was.
    fn unknown(&self, now: Instant) -> Option<String> {
        let (since, why) = self.failing.as_ref()?;
        (now.saturating_duration_since(*since) >= UNKNOWN_AFTER).then(|| why.clone())
    }
}

/// What is known of a tenant's usage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObservedUsage {
    /// What was measured last; none if nothing ever was.
    pub(crate) usage: Option<DatastoreUsage>,
    /// Why nothing could be measured for a while.
    pub(crate) unknown: Option<String>,
}

/// Where a tenant's usage is measured.
pub(super) struct Source<'a> {
    /// The tenant.
    pub(super) tenant: &'a TenantId,
    /// The etcd with its keys.
    pub(super) datastore: &'a dyn TenantDatastore,
    /// Its API server; none while it does not answer.
    pub(super) api_server: Option<&'a Applier>,
    /// The slot of the reconcile, which others have while a tenant's API server does not answer.
    pub(super) slot: &'a Slot,
}

/// What the tenant uses: measured now, or what is known if there is no need or no way to measure. `published` is what its status
/// says.
pub(super) async fn observe(
    source: &Source<'_>,
    memory: &Mutex<UsageMemory>,
    published: Option<DatastoreUsage>,
    limits: &TenantLimits,
) -> ObservedUsage {
    // One reconcile of a tenant runs at a time.
    let mut state = memory.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let before = state.measured.map(|(_, usage)| usage).or(published);
    let mut usage = before.map(|usage| share::judge(usage, limits));
    if state.measured.is_none_or(|(at, _)| at.elapsed() >= INTERVAL) {
        match measure(source, &mut state.unmeasured).await {
            Ok(measurement) => {
                let next = share::next(usage, &measurement, limits);
                usage = Some(next);
                state.measured = Some((Instant::now(), next));
                state.failing = None;
            }
            Err(why) => {
                tracing::debug!(tenant = source.tenant.slug(), %why, "cannot measure what a tenant stores");
                state.fail(Instant::now(), why);
            }
        }
    }
    let unknown = state.unknown(Instant::now());
    *memory.lock().unwrap_or_else(PoisonError::into_inner) = state;
    ObservedUsage { usage, unknown }
}

/// Measures what the tenant stores. The error says why that is not possible.
async fn measure(source: &Source<'_>, unmeasured: &mut Unmeasured) -> Result<Measurement, String> {
    let Source {
        tenant,
        datastore,
        api_server,
        slot,
    } = *source;
    let api_server = api_server.ok_or("its API server does not answer")?;
    let metrics = metrics::fetch(api_server, slot).await?;
    let keys = datastore.count_keys(tenant).await.map_err(|error| error.to_string())?;
    let age = Timestamp::now().as_duration().as_secs_f64() - metrics.started_at;
    let is_warming_up = age < WARM_UP_SECONDS;
    let others = keys.saturating_sub(metrics.sized_objects);
    // An API server that has just started will measure many of them itself.
    if !is_warming_up && unmeasured.is_due(others) {
        unmeasured
            .read(datastore, tenant, metrics.bytes, others)
            .await
            .map_err(|error| error.to_string())?;
    }
    let besides = unmeasured.estimate(others);
    Ok(Measurement {
        bytes: metrics.bytes.saturating_add(besides.unwrap_or_default()),
        objects: metrics.objects.max(keys),
        definitions: metrics.definitions,
        is_incomplete: is_warming_up || besides.is_none(),
    })
}

/// The condition of what is known; none if nothing is.
pub(super) fn condition(observed: &ObservedUsage) -> Option<ConditionUpdate> {
    if let Some(why) = &observed.unknown {
        let message = format!(
            "what the tenant stores could not be measured for {} minutes: {why}. What its API server denies stays as it is",
            UNKNOWN_AFTER.as_secs() / 60
        );
        let unknown = ConditionUpdate::mark_unknown(DATASTORE_WITHIN_LIMITS, "DatastoreUsageUnknown", message);
        return Some(unknown);
    }
    observed.usage.as_ref().map(share::condition)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usage_is_unknown_after_five_minutes_without_a_measurement() {
        let (start, mut memory) = (Instant::now(), UsageMemory::default());
        assert_eq!(memory.unknown(start), None);
        memory.fail(start, "first".into());
        let late = start + UNKNOWN_AFTER;
        memory.fail(late, "second".into());
        assert_eq!(memory.unknown(start + Duration::from_secs(299)), None);
        assert_eq!(memory.unknown(late).as_deref(), Some("second"));
    }

    #[test]
    fn an_unknown_usage_has_a_condition_of_its_own() {
        let mut observed = ObservedUsage::default();
        assert_eq!(condition(&observed), None);
        observed.usage = Some(DatastoreUsage::default());
        assert_eq!(condition(&observed).map(|condition| condition.status), Some(Some(true)));
        observed.unknown = Some("its API server does not answer".into());
        let unknown = condition(&observed).unwrap();
        assert_eq!((unknown.status, unknown.reason), (None, "DatastoreUsageUnknown"));
        assert!(unknown.message.contains("does not answer"), "{}", unknown.message);
    }
}
