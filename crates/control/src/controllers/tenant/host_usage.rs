//! How many bytes a tenant's objects have on the host, of those that its class allows.
//!
//! Its syncer counts them, and writes nothing more there at the limit. Control reads the number in the metrics of the syncer. A syncer that has
//! been taken over can say anything: only a number that a status can have is read, and it decides about nothing but the status and the metric
//! of its own tenant.

use super::{
    connection::Remote,
    memory::TenantMemory,
    percent::{STEP_PERCENT, WARNING_PERCENT, magnitude, mebibytes, percent},
};
use crate::{control_plane::Endpoint, controllers::slots::Slot};
use berth_api::{
    HostUsage, TenantLimits,
    conditions::{ConditionUpdate, HOST_WITHIN_LIMITS},
};
use berth_runtime::locks::lock;
use std::time::Duration;
use tokio::time::Instant;

/// Time between two measurements.
const INTERVAL: Duration = Duration::from_secs(30);
/// Time for an answer of the syncer.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
/// From here on hardly any object has room. The syncer never lets a tenant have more than it may.
const FULL_PERCENT: u32 = 99;
/// The number in the metrics of a syncer.
const METRIC: &str = "berth_syncer_host_bytes ";
/// What the syncer publishes right after that number. Until then both are 0.
const LIMIT_METRIC: &str = "berth_syncer_host_bytes_limit ";

/// What a tenant has on the host: read if that is due and its syncer answers. `published` is what its status says. What else the metrics say is
/// remembered.
pub(super) async fn observe(
    remote: &dyn Remote,
    slot: &Slot,
    syncer: &Endpoint,
    memory: &TenantMemory,
    published: Option<HostUsage>,
    limits: &TenantLimits,
) -> Option<HostUsage> {
    // The class may have changed since it was read.
    let known = published.map(|usage| judge(usage.bytes, limits));
    let read_at = &memory.host_usage_read_at;
    let last = *lock(read_at);
    if known.is_some() && last.is_some_and(|at| at.elapsed() < INTERVAL) {
        return known;
    }
    let metrics = match slot.lend(ANSWER_LIMIT, remote.read_syncer_metrics(syncer)).await {
        Some(Ok(metrics)) => metrics,
        Some(Err(error)) => {
            tracing::debug!(%error, "cannot read how many bytes a tenant has on the host");
            return known;
        }
        None => return known,
    };
    memory.note_syncer_metrics(&metrics);
    let Some(bytes) = read_bytes(&metrics) else {
        return known;
    };
    *lock(read_at) = Some(Instant::now());
    Some(next(known, bytes, limits))
}

/// The number of bytes in the metrics of a syncer. There is none if the syncer is older than this limit, or has not counted yet since its start.
fn read_bytes(metrics: &str) -> Option<u64> {
    // An int64, as in the status: API servers store no larger number.
    let read = |metric: &str| -> Option<i64> {
        let value = metrics.lines().find_map(|line| line.strip_prefix(metric))?;
        value.trim().parse().ok()
    };
    read(LIMIT_METRIC).filter(|limit| *limit > 0)?;
    u64::try_from(read(METRIC)?).ok()
}

/// The usage that follows from a measurement. A change of less than a step leaves it as it was.
fn next(before: Option<HostUsage>, bytes: u64, limits: &TenantLimits) -> HostUsage {
    let after = judge(bytes, limits);
    let published = |usage: &HostUsage| {
        let steps = (usage.percent / STEP_PERCENT, usage.percent >= FULL_PERCENT);
        (steps, magnitude(mebibytes(usage.bytes)))
    };
    before
        .filter(|before| published(before) == published(&after))
        .unwrap_or(after)
}

fn judge(bytes: u64, limits: &TenantLimits) -> HostUsage {
    HostUsage {
        bytes,
        percent: percent(bytes, limits.host_size()),
    }
}

/// The condition of a usage.
pub(super) fn condition(usage: &HostUsage) -> ConditionUpdate {
    let HostUsage { bytes, percent } = usage;
    let used = format!(
        "the tenant's objects have {} MiB on the host, {percent} % of what its class allows",
        mebibytes(*bytes)
    );
    let advice = "delete pods, and ConfigMaps and Secrets that pods use, or ask the platform team to raise spec.limits.hostBytes of the \
                  class";
    let (reason, full) = match *percent {
        FULL_PERCENT.. => ("HostLimitReached", "Nothing more is created there, and nothing grows"),
        WARNING_PERCENT.. => ("HostLimitNear", "At 100 % nothing more is created there"),
        _ => return ConditionUpdate::mark_true(HOST_WITHIN_LIMITS, "WithinLimits", used),
    };
    ConditionUpdate::mark_false(HOST_WITHIN_LIMITS, reason, format!("{used}. {full}: {advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Limits of a class that allows 1000 bytes.
    fn limits() -> TenantLimits {
        TenantLimits {
            host_bytes: "1000".into(),
            ..TenantLimits::default()
        }
    }

    #[test]
    fn the_team_is_warned_before_its_share_is_full() {
        for (bytes, status, reason) in [
            (0, true, "WithinLimits"),
            (799, true, "WithinLimits"),
            (800, false, "HostLimitNear"),
            (989, false, "HostLimitNear"),
            (990, false, "HostLimitReached"),
            (1200, false, "HostLimitReached"),
        ] {
            let condition = condition(&next(None, bytes, &limits()));
            assert_eq!((condition.is_true(), condition.reason), (status, reason), "{bytes}");
            assert_eq!(condition.message.contains("spec.limits.hostBytes"), !status);
        }
    }

    #[test]
    fn small_changes_are_not_published() {
        let before = next(None, 510, &limits());
        assert_eq!(next(Some(before), 549, &limits()), before);
        assert_eq!(next(Some(before), 550, &limits()).percent, 55);
        assert_eq!(next(Some(before), 499, &limits()).percent, 49);
    }

    #[test]
    fn a_small_part_of_a_large_limit_is_published_once_it_has_doubled() {
        let limits = TenantLimits {
            host_bytes: "4Gi".into(),
            ..TenantLimits::default()
        };
        let none = next(None, 0, &limits);
        let some = next(Some(none), 300_000, &limits);
        assert_eq!((some.bytes, some.percent), (300_000, 0));
        assert_eq!(next(Some(some), 500_000, &limits), some);
        assert_eq!(next(Some(some), 3 << 20, &limits).bytes, 3 << 20);
    }

    #[test]
    fn a_usage_that_is_nearly_full_is_published_when_it_is() {
        let near = next(None, 950, &limits());
        assert_eq!(condition(&near).reason, "HostLimitNear");
        let full = next(Some(near), 995, &limits());
        assert_eq!(condition(&full).reason, "HostLimitReached");
    }

    #[test]
    fn the_bytes_are_read_in_the_metrics() {
        let metrics = "# TYPE berth_syncer_host_bytes gauge\nberth_syncer_host_bytes_limit 7\nberth_syncer_host_bytes 4096\n# EOF\n";
        assert_eq!(read_bytes(metrics), Some(4096));
        for text in ["", "berth_syncer_host_bytes_limit 7\n", "berth_syncer_host_bytes 1\n"] {
            assert_eq!(read_bytes(text), None, "{text}");
        }
    }

    /// Metrics of a syncer that has counted so many bytes.
    fn metrics(bytes: &str) -> String {
        format!("berth_syncer_host_bytes_limit 7\nberth_syncer_host_bytes {bytes}\n")
    }

    #[test]
    fn a_syncer_that_has_just_started_has_counted_nothing() {
        let started = "berth_syncer_host_bytes_limit 0\nberth_syncer_host_bytes 0\n";
        assert_eq!(read_bytes(started), None);
        assert_eq!(read_bytes(&metrics("0")), Some(0));
    }

    #[test]
    fn a_number_that_no_status_can_have_is_not_read() {
        assert_eq!(
            read_bytes(&metrics("9223372036854775807")),
            Some(i64::MAX.cast_unsigned())
        );
        for bytes in ["9223372036854775808", "18446744073709551615", "-1", "1.5"] {
            assert_eq!(read_bytes(&metrics(bytes)), None, "{bytes}");
        }
    }
}
