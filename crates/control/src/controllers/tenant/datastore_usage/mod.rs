//! How much of its share of the datastore a tenant uses.
//!
//! Its API server estimates that itself, in its [`metrics`]. What it does not measure, control reads in etcd ([`unmeasured`]), and
//! everything if the API server does not answer for long.
//! From certain percentages on ([`share`]), the API server creates nothing more, and then lets no object grow
//! (`control_plane::admission::datastore_limit`): well before etcd is full, which would stop every tenant.

mod metrics;
mod share;
mod unmeasured;

use super::audit_errors::AuditErrors;
use crate::{apply::Applier, clock::Clock, controllers::slots::Slot, datastore::TenantDatastore};
use berth_api::{
    DatastoreUsage, TenantLimits,
    conditions::{ConditionUpdate, DATASTORE_WITHIN_LIMITS},
    names::TenantId,
    text::printable_start,
};
use berth_runtime::locks::lock;
use berth_sleep::activity::{ActivityLog, Count};
use share::Measurement;
use std::{sync::Mutex, time::Duration};
use tokio::{sync, time::Instant};
use unmeasured::Unmeasured;

/// Time that a tenant waits for its turn to be read.
const READING_TURN: Duration = Duration::from_secs(15);
/// Time between two measurements. The metrics of an API server are a few megabytes.
pub(super) const INTERVAL: Duration = Duration::from_secs(30);
/// Seconds after its start in which an API server has not measured everything yet.
const WARM_UP_SECONDS: f64 = 60.0;
/// Time without a measurement after which the usage is called unknown: upgrades and restarts are shorter.
const UNKNOWN_AFTER: Duration = Duration::from_secs(300);
/// Bytes of a reason that are kept. An answer of the tenant's API server may be part of it, which has up to 16 MiB and is in the error twice.
const MAX_REASON: usize = 1000;

/// What is remembered of a tenant's usage between reconciles.
#[derive(Clone, Debug, Default)]
pub struct UsageMemory {
    /// What the tenant stores, and when that was measured.
    measured: Option<(Instant, DatastoreUsage)>,
    /// The last measurement of everything, as it was.
    complete: Option<CompleteMeasurement>,
    /// Since when nothing could be measured, and why.
    failing: Option<(Instant, String)>,
    /// What the API server does not measure.
    unmeasured: Unmeasured,
    /// All keys, while nothing is known from the API server.
    all_keys: Unmeasured,
    /// Whether they were measured completely since that is the case.
    is_known_from_etcd: bool,
}

impl UsageMemory {
    /// Whether nothing was measured yet.
    pub(super) fn is_unknown(&self) -> bool {
        self.measured.is_none()
    }

    /// Notes that nothing could be measured now, and of the reason as much as the condition shows.
    fn fail(&mut self, now: Instant, why: &str) {
        let since = self.failing.as_ref().map_or(now, |(since, _)| *since);
        self.failing = Some((since, printable_start(why, MAX_REASON)));
    }

    fn succeed(&mut self) {
        self.failing = None;
        self.all_keys = Unmeasured::default();
        self.is_known_from_etcd = false;
    }

    /// Whether nothing came from the API server for a while.
    fn has_failed_for_long(&self, now: Instant) -> bool {
        let since = self.failing.as_ref().map(|(since, _)| *since);
        since.is_some_and(|since| now.saturating_duration_since(since) >= UNKNOWN_AFTER)
    }

    /// Why nothing could be measured for a while; none if something was.
    fn unknown(&self, now: Instant) -> Option<String> {
        let is_unknown = self.has_failed_for_long(now) && !self.is_known_from_etcd;
        self.failing.as_ref().filter(|_| is_unknown).map(|(_, why)| why.clone())
    }
}

/// What a tenant stored at an instant, all of it. [`DatastoreUsage`] follows only in steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompleteMeasurement {
    pub(crate) at: Instant,
    pub(crate) bytes: u64,
    pub(crate) objects: u64,
}

/// What is known of a tenant's usage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObservedUsage {
    /// What was measured last; none if nothing ever was.
    pub(crate) usage: Option<DatastoreUsage>,
    /// The last measurement of everything; none if this process made none.
    pub(crate) complete: Option<CompleteMeasurement>,
    /// Why nothing could be measured for a while.
    pub(crate) unknown: Option<String>,
    /// Whether control has to go on reading in etcd.
    pub(crate) is_reading: bool,
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
    /// Held while sizes are read in etcd: of one tenant at a time, because they take memory and delay other requests.
    pub(super) size_reading: &'a sync::Mutex<()>,
    /// Gets how often the tenant was used, which the same metrics say.
    pub(super) activity: &'a Mutex<ActivityLog>,
    /// Gets the events that are not in the audit log, as the same metrics say; none without an audit log.
    pub(super) audit_errors: Option<&'a Mutex<AuditErrors>>,
    /// The time.
    pub(super) clock: &'a Clock,
    /// Whether the tenant is being woken. What it stored before is good enough until it is awake: its API server has enough to do.
    pub(super) is_waking: bool,
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
    let mut state = lock(memory).clone();
    let before = state.measured.map(|(_, usage)| usage).or(published);
    let mut usage = before.map(|usage| share::judge(usage, limits));
    let is_due = state.measured.is_none_or(|(at, _)| at.elapsed() >= INTERVAL);
    if is_due
        && !(source.is_waking && usage.is_some())
        && let Some(measurement) = measure(source, &mut state, usage, limits).await
    {
        let next = share::next(usage, &measurement, limits);
        usage = Some(next);
        let at = Instant::now();
        state.measured = Some((at, next));
        if !measurement.is_incomplete {
            state.complete = Some(CompleteMeasurement {
                at,
                bytes: measurement.bytes,
                objects: measurement.objects,
            });
        }
    }
    let observed = ObservedUsage {
        usage,
        complete: state.complete,
        unknown: state.unknown(Instant::now()),
        is_reading: state.unmeasured.is_reading() || state.all_keys.is_reading(),
    };
    *lock(memory) = state;
    observed
}

/// Measures what the tenant stores: with its API server, and in etcd alone if that has failed for a while, because a tenant can
/// keep its API server from answering. None: neither is possible now.
async fn measure(
    source: &Source<'_>,
    state: &mut UsageMemory,
    usage: Option<DatastoreUsage>,
    limits: &TenantLimits,
) -> Option<Measurement> {
    let why = match measure_with_api_server(source, &mut state.unmeasured, limits).await {
        Ok(measurement) => {
            state.succeed();
            return Some(measurement);
        }
        Err(why) => why,
    };
    tracing::debug!(tenant = source.tenant.slug(), %why, "cannot measure what a tenant stores");
    state.fail(Instant::now(), &why);
    if !state.has_failed_for_long(Instant::now()) {
        return None;
    }
    match measure_in_etcd(source, &mut state.all_keys, usage.unwrap_or_default(), limits).await {
        Ok(measurement) => {
            state.is_known_from_etcd = !measurement.is_incomplete;
            Some(measurement)
        }
        Err(why) => {
            state.is_known_from_etcd = false;
            tracing::debug!(tenant = source.tenant.slug(), %why, "cannot measure in etcd what a tenant stores");
            None
        }
    }
}

/// Measures with the metrics of the API server. The error says why that is not possible.
async fn measure_with_api_server(
    source: &Source<'_>,
    unmeasured: &mut Unmeasured,
    limits: &TenantLimits,
) -> Result<Measurement, String> {
    let api_server = source.api_server.ok_or("its API server does not answer")?;
    let metrics = metrics::fetch(api_server, source.slot).await?;
    if let Some(count) = metrics.count {
        let mut log = lock(source.activity);
        log.record(count, source.clock.now());
    }
    if let Some(errors) = source.audit_errors {
        let mut errors = lock(errors);
        let now = source.clock.now().as_duration().as_secs_f64();
        errors.note(metrics.started_at, metrics.audit_errors, now);
    }
    let keys = count_keys(source).await?;
    let age = source.clock.now().as_duration().as_secs_f64() - metrics.started_at;
    let is_warming_up = age < WARM_UP_SECONDS;
    let others = keys.saturating_sub(metrics.sized_objects);
    // An API server that has just started will measure many of them itself.
    if !is_warming_up {
        read_sizes(source, unmeasured, metrics.bytes, others, limits).await?;
    }
    let (besides, is_complete) = unmeasured.estimate(others, metrics.bytes);
    Ok(Measurement {
        bytes: metrics.bytes.saturating_add(besides),
        objects: metrics.objects.max(keys),
        definitions: metrics.definitions,
        is_incomplete: is_warming_up || !is_complete,
    })
}

/// How often a tenant was used, as its API server has counted. The error says why that is not known.
pub(super) async fn count_use(api_server: &Applier, slot: &Slot) -> Result<Count, String> {
    let metrics = metrics::fetch(api_server, slot).await?;
    let uncounted = "its API server does not count requests by FlowSchema, which priority and fairness does";
    metrics.count.ok_or_else(|| uncounted.to_owned())
}

/// Measures in etcd alone. The number of definitions stays as it was.
async fn measure_in_etcd(
    source: &Source<'_>,
    all_keys: &mut Unmeasured,
    usage: DatastoreUsage,
    limits: &TenantLimits,
) -> Result<Measurement, String> {
    let keys = count_keys(source).await?;
    read_sizes(source, all_keys, 0, keys, limits).await?;
    let (bytes, is_complete) = all_keys.estimate(keys, 0);
    Ok(Measurement {
        bytes,
        objects: keys,
        definitions: usage.custom_resource_definitions,
        is_incomplete: !is_complete,
    })
}

async fn count_keys(source: &Source<'_>) -> Result<u64, String> {
    let count = source.datastore.count_keys(source.tenant).await;
    count.map_err(|error| error.to_string())
}

/// Reads for some time, if that is due and nothing is read for another tenant. `measured` are the bytes that the API server has measured,
/// `keys` the number of those that it has not.
async fn read_sizes(
    source: &Source<'_>,
    unmeasured: &mut Unmeasured,
    measured: u64,
    keys: u64,
    limits: &TenantLimits,
) -> Result<(), String> {
    unmeasured.forget_outdated(keys);
    if !unmeasured.is_due(keys, limits.datastore_size()) {
        return Ok(());
    }
    // In turns: a tenant of which much is to be read cannot keep the others waiting for ever.
    let Some(_reading) = source.slot.lend(READING_TURN, source.size_reading.lock()).await else {
        return Ok(());
    };
    let read = unmeasured.read(source.datastore, source.tenant, measured, keys).await;
    read.map_err(|error| error.to_string())
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
        memory.fail(start, "first");
        let late = start + UNKNOWN_AFTER;
        memory.fail(late, "second");
        assert_eq!(memory.unknown(start + Duration::from_secs(299)), None);
        assert_eq!(memory.unknown(late).as_deref(), Some("second"));
        memory.is_known_from_etcd = true;
        assert_eq!(memory.unknown(late), None);
        memory.succeed();
        memory.fail(late, "third");
        assert_eq!(memory.unknown(late + UNKNOWN_AFTER).as_deref(), Some("third"));
    }

    #[test]
    fn of_a_long_reason_little_is_kept() {
        let (start, mut memory) = (Instant::now(), UsageMemory::default());
        for _ in 0..2 {
            memory.fail(start, &format!("no\x1b{}", "ü".repeat(1 << 20)));
        }
        let kept = memory.unknown(start + UNKNOWN_AFTER).unwrap();
        assert!(kept.starts_with("no\u{fffd}ü"), "{kept}");
        assert!((MAX_REASON - 1..=MAX_REASON).contains(&kept.len()), "{kept}");
        let unknown = ObservedUsage {
            unknown: Some(kept),
            ..ObservedUsage::default()
        };
        let message = condition(&unknown).unwrap().message;
        assert!(message.ends_with("stays as it is"), "{message}");
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
