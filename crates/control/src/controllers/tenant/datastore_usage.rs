//! How much of its share of the datastore a tenant uses. Its API server estimates that itself, in its metrics.
//!
//! At [`WARNING_PERCENT`] the team is warned. At [`FULL_PERCENT`] the API server creates nothing more
//! (`control_plane::datastore_limit`) until less than [`ROOM_PERCENT`] is used: well before etcd is full, which would stop
//! every tenant.

use super::target::Tenant;
use crate::apply::Applier;
use berth_api::{
    DatastoreUsage, TenantLimits,
    conditions::{ConditionUpdate, DATASTORE_WITHIN_LIMITS},
};
use futures::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, TryStreamExt};
use jiff::Timestamp;
use std::{
    io,
    pin::pin,
    sync::{Arc, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Time between two measurements. The metrics of an API server are a few megabytes.
const INTERVAL: Duration = Duration::from_secs(30);
/// Bytes of metrics that are read at most.
const MAX_BYTES: u64 = 256 << 20;
/// Time an API server may take to return them.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Seconds after its start in which an API server has not measured everything yet.
const WARM_UP_SECONDS: f64 = 60.0;
/// From here on the team is warned.
const WARNING_PERCENT: u32 = 80;
/// From here on nothing is created.
const FULL_PERCENT: u32 = 100;
/// Below this, objects are created again.
const ROOM_PERCENT: u32 = 95;
/// Changes of fewer percent are not published: each would be a write on the host.
const STEP_PERCENT: u32 = 5;

/// What an API server says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Measurement {
    bytes: f64,
    objects: f64,
    /// When it started, in seconds since the epoch.
    started_at: f64,
}

/// What the tenant uses: measured now, or what is known if there is no need or no way to measure.
pub(super) async fn observe(
    tenant: &Tenant,
    limits: &TenantLimits,
    api_server: Option<&Arc<Applier>>,
) -> Option<DatastoreUsage> {
    let memory = &tenant.memory.datastore_usage;
    let known = *memory.lock().unwrap_or_else(PoisonError::into_inner);
    let published = || tenant.cluster.status.as_ref()?.datastore;
    let before = known.map(|(_, usage)| usage).or_else(published);
    let before = before.map(|usage| judge(usage, limits));
    let is_due = known.is_none_or(|(at, _)| at.elapsed() >= INTERVAL);
    let Some(applier) = api_server.filter(|_| is_due) else {
        return before;
    };
    let Some(measurement) = tenant.slot.lend(TIMEOUT, measure(applier)).await.flatten() else {
        return before;
    };
    let usage = usage(before, measurement, limits, Timestamp::now());
    *memory.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), usage));
    Some(usage)
}

/// Reads the metrics of the API server; none if it does not return them.
async fn measure(applier: &Applier) -> Option<Measurement> {
    let request = http::Request::get("/metrics").body(Vec::new()).ok()?;
    let answer = async {
        let stream = applier.client().request_stream(request).await?;
        read(stream).await.map_err(|error| kube::Error::Service(error.into()))
    };
    match answer.await {
        Ok(measurement) => measurement,
        Err(error) => {
            tracing::debug!(%error, "cannot read the metrics of a tenant's API server");
            None
        }
    }
}

/// Reads metrics in the text format of Prometheus; none if the API server counts no objects. A tenant decides how many kinds its API server
/// has metrics of, so at most one line is kept, and at most [`MAX_BYTES`] are read.
async fn read(metrics: impl AsyncBufRead) -> Result<Option<Measurement>, io::Error> {
    let mut measurement = Measurement::default();
    let mut counts = false;
    let mut lines = pin!(metrics.take(MAX_BYTES).lines());
    while let Some(line) = lines.try_next().await? {
        let Some((name, value)) = line.rsplit_once(' ') else {
            continue;
        };
        let Some(value) = value.parse::<f64>().ok().filter(|value| value.is_finite()) else {
            continue;
        };
        // -1 is an unknown value.
        if name.starts_with("apiserver_resource_size_estimate_bytes{") {
            measurement.bytes += value.max(0.0);
        } else if name.starts_with("apiserver_resource_objects{") {
            measurement.objects += value.max(0.0);
            counts = true;
        } else if name == "process_start_time_seconds" {
            measurement.started_at = value;
        }
    }
    Ok(counts.then_some(measurement))
}

/// The usage that follows from a measurement. A change of less than a step leaves it as it was.
fn usage(
    before: Option<DatastoreUsage>,
    measurement: Measurement,
    limits: &TenantLimits,
    now: Timestamp,
) -> DatastoreUsage {
    let measured = DatastoreUsage {
        bytes: whole(measurement.bytes),
        objects: whole(measurement.objects),
        percent: 0,
        full: before.is_some_and(|before| before.full),
    };
    let after = judge(measured, limits);
    let percent = after.percent;
    let is_warming_up = now.as_duration().as_secs_f64() - measurement.started_at < WARM_UP_SECONDS;
    match before {
        // Otherwise the restart that makes a full API server refuse objects would also end that.
        Some(before) if is_warming_up && percent < before.percent => before,
        Some(before) if before.full == after.full && before.percent / STEP_PERCENT == percent / STEP_PERCENT => before,
        _ => after,
    }
}

/// A usage by these limits: the class may have changed since it was measured.
fn judge(usage: DatastoreUsage, limits: &TenantLimits) -> DatastoreUsage {
    let share = |used: u64, limit: u64| {
        let percent = u128::from(used) * 100 / u128::from(limit.max(1));
        u32::try_from(percent).unwrap_or(u32::MAX)
    };
    let percent = share(usage.bytes, limits.datastore_size()).max(share(usage.objects, limits.datastore_objects));
    DatastoreUsage {
        percent,
        full: percent >= FULL_PERCENT || usage.full && percent >= ROOM_PERCENT,
        ..usage
    }
}

/// A number that is not negative as a whole one.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // far below the limits of both
fn whole(number: f64) -> u64 {
    number.round() as u64
}

/// The condition of a usage.
pub(super) fn condition(usage: &DatastoreUsage) -> ConditionUpdate {
    let DatastoreUsage {
        bytes,
        objects,
        percent,
        full,
    } = usage;
    let used = format!(
        "the tenant stores {objects} objects of {} MiB, {percent} % of what its class allows",
        bytes.div_ceil(1 << 20)
    );
    let advice = "delete objects that are no longer needed, or ask the platform team to raise spec.limits.datastoreBytes or \
                  datastoreObjects of the class";
    if *full {
        let message = format!("{used}. Its API server creates nothing more: {advice}");
        return ConditionUpdate::mark_false(DATASTORE_WITHIN_LIMITS, "DatastoreLimitReached", message);
    }
    if *percent >= WARNING_PERCENT {
        let message = format!("{used}. At {FULL_PERCENT} % its API server creates nothing more: {advice}");
        return ConditionUpdate::mark_false(DATASTORE_WITHIN_LIMITS, "DatastoreLimitNear", message);
    }
    ConditionUpdate::mark_true(DATASTORE_WITHIN_LIMITS, "WithinLimits", used)
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &str = r#"# HELP apiserver_resource_objects Number of stored objects
# TYPE apiserver_resource_objects gauge
apiserver_resource_objects{group="",resource="configmaps"} 12
apiserver_resource_objects{group="",resource="secrets"} -1
apiserver_resource_objects{group="apps",resource="deployments"} 3
apiserver_resource_size_estimate_bytes{group="",resource="configmaps"} 1.2582912e+07
apiserver_resource_size_estimate_bytes{group="",resource="secrets"} -1
apiserver_storage_objects{resource="configmaps"} 12
process_start_time_seconds 1.7e+09
"#;

    fn read_all(text: &str) -> Option<Measurement> {
        futures::executor::block_on(read(text.as_bytes())).unwrap()
    }

    fn now(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// The usage of a tenant of a class that allows 100 bytes, long after the start of its API server.
    fn step(before: Option<DatastoreUsage>, bytes: f64) -> DatastoreUsage {
        let limits = TenantLimits {
            datastore_bytes: "100".into(),
            ..TenantLimits::default()
        };
        let measurement = Measurement {
            bytes,
            ..Measurement::default()
        };
        usage(before, measurement, &limits, now(1_000_000))
    }

    #[test]
    fn sizes_and_counts_are_summed_up_and_unknown_ones_left_out() {
        let measurement = read_all(METRICS).unwrap();
        assert_eq!(
            (
                whole(measurement.bytes),
                whole(measurement.objects),
                whole(measurement.started_at)
            ),
            (12 << 20, 15, 1_700_000_000)
        );
        assert_eq!(read_all("up 1\n"), None);
    }

    #[test]
    fn the_larger_share_counts() {
        let limits = TenantLimits {
            datastore_bytes: "120Mi".into(),
            datastore_objects: 30,
            ..TenantLimits::default()
        };
        let usage = usage(None, read_all(METRICS).unwrap(), &limits, now(1_800_000_000));
        assert_eq!((usage.percent, usage.objects, usage.full), (50, 15, false));
    }

    #[test]
    fn a_full_tenant_stays_full_until_there_is_room_again() {
        let near = step(None, 99.0);
        assert!(!near.full);
        let full = step(Some(near), 100.0);
        assert!(full.full);
        let still = step(Some(full), 96.0);
        assert!(still.full);
        assert!(!step(Some(still), 94.0).full);
        assert!(!step(None, 96.0).full);
    }

    #[test]
    fn a_class_that_allows_more_counts_at_once() {
        let full = step(None, 100.0);
        let more = TenantLimits {
            datastore_bytes: "200".into(),
            ..TenantLimits::default()
        };
        let judged = judge(full, &more);
        assert_eq!((judged.percent, judged.full), (50, false));
    }

    #[test]
    fn small_changes_are_not_published() {
        let before = step(None, 51.0);
        assert_eq!(step(Some(before), 54.0), before);
        assert_eq!(step(Some(before), 55.0).percent, 55);
    }

    #[test]
    fn an_api_server_that_has_just_started_can_only_report_more() {
        let before = step(None, 100.0);
        let limits = TenantLimits {
            datastore_bytes: "100".into(),
            ..TenantLimits::default()
        };
        let report = |bytes: f64, age: i64| {
            let measurement = Measurement {
                bytes,
                objects: 0.0,
                started_at: 1_000_000.0,
            };
            usage(Some(before), measurement, &limits, now(1_000_000 + age)).percent
        };
        assert_eq!(report(10.0, 30), 100);
        assert_eq!(report(150.0, 30), 150);
        assert_eq!(report(10.0, 300), 10);
    }

    #[test]
    fn the_team_is_warned_before_its_share_is_full() {
        for (bytes, status, reason) in [
            (79.0, true, "WithinLimits"),
            (80.0, false, "DatastoreLimitNear"),
            (100.0, false, "DatastoreLimitReached"),
        ] {
            let condition = condition(&step(None, bytes));
            assert_eq!((condition.is_true(), condition.reason), (status, reason));
        }
    }
}
